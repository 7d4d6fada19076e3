"""Every field of every request at its limits. What is refused names the field and changes nothing;
what is accepted fits into a batch, a Parquet row, the image and a snapshot.
"""

from functools import cache
from typing import Any

import pytest
from deciding import Cell
from google.protobuf.descriptor import FieldDescriptor
from request_fields import Path, dotted, envelope_of, holder, leaves, put, quorum, valid

from controller.decider import Decider
from controller.decisions.partitions import leader_elections
from controller.settings import ControllerSettings
from raftlog import batch
from raftlog.errors import ErrorCode
from raftlog.limits import PRINCIPAL_MAX_CHARS, Address, Allowed, ByHandler, Items, Octets, Text
from raftlog.limits import rule_of as limit_of
from raftlog.metadata import snapshot
from raftlog.metadata.config_keys import ResourceType
from raftlog.segments.columns import RowBuffer
from raftlog.wire.controller.v1 import controller_pb2 as rpc

INTEGERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1)
BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


class Stage:
    """A controller with three brokers and one topic, and every encoder of what it writes."""

    def __init__(self) -> None:
        self.cell = Cell(quorum=quorum)
        self.topic_id = self.cell.create("t")
        self.valid()  # grants the lease that requests name

    def valid(self) -> dict[str, Any]:
        return valid(self.cell, self.topic_id)

    def decide(self, request: rpc.ControllerRequest) -> Any:
        """Decide, and encode what it writes in every form. Fails if anything raises."""
        cell = self.cell
        before = cell.soft_state()
        decision = cell.decide_request(request)
        assert cell.soft_state()[-2:] == before[-2:], "deciding changes nothing"
        if decision.body is not None:
            decision.body.SerializeToString()
        if decision.error is not None:
            assert not decision.records
            assert decision.error.code is not ErrorCode.UNKNOWN_SERVER_ERROR
            assert len(decision.error.message) < 1000
        if decision.records:
            client = request.client
            chunk = batch.encode(
                decision.records,
                base_offset=cell.pending.offset + 1,
                epoch=1,
                timestamp_ms=5,
                principal=client.principal,
                client_id=client.client_id,
                sequence=client.sequence,
                all_below_done=client.all_below_done,
            )
            (header,) = batch.headers(chunk)
            assert header.principal == client.principal
            rows = RowBuffer()
            rows.add(chunk, header)
            assert rows.take().num_rows == len(decision.records)
            cell.propose(decision)
            image = cell.pending.snapshot()
            pieces = snapshot.pieces(
                image, snapshot.header_of(image, cluster_id="c", generations=())
            )
            assert snapshot.load(pieces)[1].state_hash == image.state_hash
        return decision

    def check_alive(self) -> None:
        """Assert that it still decides."""
        for beat in (1, 2, 3):
            if beat in self.cell.pending.brokers:
                self.decide(envelope_of("broker_heartbeat", self.cell.heartbeat(beat)))
        self.cell.now += 1
        self.cell.due()
        self.cell.check_invariants()
        done = self.decide(envelope_of("describe_brokers", rpc.DescribeBrokersRequest()))
        assert done.error is None


@cache
def template() -> dict[str, Any]:
    return Stage().valid()


def test_each_request_kind_has_a_valid_request() -> None:
    bodies = {
        field.name for field in rpc.ControllerRequest.DESCRIPTOR.oneofs_by_name["body"].fields
    }
    assert set(template()) == bodies
    # So that what is refused below is refused for the field that was changed.
    voters = {f"{verb}_raft_voter" for verb in ("add", "remove", "update")}
    others = {"close_client", "alter_partition"} | voters
    for kind, body in template().items():
        stage = Stage()
        decision = stage.decide(envelope_of(kind, stage.valid()[kind]))
        assert decision.error is None or kind in others, (kind, decision.error)
        assert body.ByteSize() >= 0


FIELDS_OF_BODIES = [
    (kind, path, field) for kind, body in template().items() for path, field in leaves(body)
]
TEXTS = [
    (kind, path, field)
    for kind, path, field in FIELDS_OF_BODIES
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
]
NUMBERS = [
    (kind, path, field) for kind, path, field in FIELDS_OF_BODIES if field.cpp_type in BOUNDS
]
LISTS = sorted(
    {
        (kind, path[:at])
        for kind, path, _ in FIELDS_OF_BODIES
        for at, name in enumerate(path)
        if name.isdigit()
    }
    | {(kind, path) for kind, path, field in FIELDS_OF_BODIES if field.is_repeated}
)


def name_of(value: Any) -> str | None:
    if isinstance(value, tuple):
        return dotted(value)
    return value if isinstance(value, str) else ""


def rule_of(kind: str, path: Path) -> Any:
    return limit_of(type(holder(template()[kind], path)), path[-1])


def at(rule: Any, extra: int, field: Any) -> Any:
    """Return a value of the maximum length plus ``extra``."""
    match rule:
        case Items(each=each):
            return at(each, extra, field)
        case Text(limit) | Allowed(limit) | ByHandler(limit):
            return "a" * (limit + extra)
        case Octets(limit):
            return b"a" * (limit + extra)
        case Address():
            port = ":1234" if "endpoint" in field.name else ""
            return "a" * (255 + extra) + port
    raise AssertionError(rule)


def refused_for(decision: Any, field: str) -> bool:
    """Return whether a decision is refused for this field, as a whole or in its one item."""
    if decision.error is not None:
        return decision.error.field == field
    assert decision.body is not None
    items = getattr(decision.body, "results", None) or getattr(decision.body, "topics", ())
    return any(
        one.HasField("error") and one.error.field == field for one in items if hasattr(one, "error")
    )


@pytest.mark.parametrize(("kind", "path", "field"), TEXTS, ids=name_of)
def test_text_is_accepted_at_its_limit_and_refused_above(kind: str, path: Path, field: Any) -> None:
    rule, where = rule_of(kind, path), dotted(path, item=field.is_repeated)
    fits, beyond = Stage(), Stage()
    body = fits.valid()[kind]
    put(body, path, at(rule, 0, field), field)
    if path[-1] not in ("cluster_id", "topic_id"):  # Those are compared: no other value is right.
        decision = fits.decide(envelope_of(kind, body))
        looked_up = (
            (("configs",), ("name",)) if isinstance(rule, ByHandler) and "configs" in path else ()
        )
        if not looked_up and (kind, path[-1]) not in {
            ("delete_topics", "names"),
            ("update_features", "name"),
        }:
            assert not (decision.error and "are allowed" in decision.error.message), decision.error
    fits.check_alive()
    for value in beyonds(rule, field):
        body = beyond.valid()[kind]
        put(body, path, value, field)
        decision = beyond.decide(envelope_of(kind, body))
        assert not decision.records, value[:50]
        assert refused_for(decision, where), (where, decision.error, decision.body)
    beyond.check_alive()


def beyonds(rule: Any, field: Any) -> list[Any]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return [at(rule, 1, field), b"x" * 70_000]
    # Nobody has a cluster, a topic or a broker of these names.
    values = [
        at(rule, 1, field),
        "x" * 70_000,
        "ä" * 33_000,
        "a\x1b[31mb",
        "a\nb",
        "a\u202eb",
        "9" * 5000,
    ]
    return [
        value
        for value in values
        if not (isinstance(rule, ByHandler) and value.isprintable() and len(value) <= rule.limit)
    ]


@pytest.mark.parametrize(("kind", "path"), LISTS, ids=name_of)
def test_list_above_its_limit_is_refused(kind: str, path: Path) -> None:
    rule = rule_of(kind, path)
    limit = rule.limit if isinstance(rule, ByHandler) else rule.max_items
    stage = Stage()
    body = stage.valid()[kind]
    owner = holder(body, path)
    values = getattr(owner, path[-1])
    first = values[0]
    for _ in range(limit + 1 - len(values)):
        values.append(first)
    decision = stage.decide(envelope_of(kind, body))
    assert not decision.records
    assert refused_for(decision, dotted(path)), (decision.error, dotted(path))
    stage.check_alive()


@pytest.mark.parametrize(("kind", "path", "field"), NUMBERS, ids=name_of)
def test_numbers_at_the_limits_of_types_are_handled(kind: str, path: Path, field: Any) -> None:
    low, high = BOUNDS[field.cpp_type]
    for value in (number for number in INTEGERS if low <= number <= high):
        stage = Stage()
        body = stage.valid()[kind]
        put(body, path, value, field)
        stage.decide(envelope_of(kind, body))
        stage.check_alive()


@pytest.mark.parametrize(
    "principal",
    ["x" * (PRINCIPAL_MAX_CHARS + 1), "x" * 65_535, "x" * 65_536, "ä" * 32_768, "x" * 1_000_000, "a\nb", "a\x1b]0;b\x07", "\u202e"],
    ids=lambda text: f"{len(text)} of {text[:1]!r}",
)  # fmt: skip
def test_unprintable_or_oversized_principal_is_refused(principal: str) -> None:
    stage = Stage()
    before = stage.cell.soft_state()
    for kind, body in stage.valid().items():
        request = envelope_of(kind, body)
        request.client.principal = principal
        decision = stage.decide(request)
        assert decision.error is not None
        assert decision.error.code == ErrorCode.INVALID_REQUEST
        assert decision.error.field == "client.principal"
    assert stage.cell.soft_state() == before
    stage.check_alive()


@pytest.mark.parametrize("character", ["x", "ä", "😀"])
def test_longest_principal_is_written(character: str) -> None:
    stage = Stage()
    request = envelope_of("create_topics", stage.valid()["create_topics"])
    request.client.principal = character * PRINCIPAL_MAX_CHARS
    assert stage.decide(request).records


@pytest.mark.parametrize("name", ["client_id", "sequence", "all_below_done", "generation"])
def test_client_numbers_are_checked(name: str) -> None:
    for value in (-(2**63), -1, 0, 1, 2**31, 2**63 - 1):
        stage = Stage()
        opened = stage.decide(envelope_of("open_client", rpc.OpenClientRequest())).body.client_id
        request = envelope_of("create_topics", stage.valid()["create_topics"])
        request.client.client_id, request.client.sequence = opened, 1
        setattr(request.client, name, value)
        assert isinstance(stage.cell.decider, Decider)
        stage.cell.decide_request(request)
        stage.check_alive()


@pytest.mark.parametrize("acks", [-(2**31), -1, 3, 2**31 - 1])
def test_unknown_acks_are_refused(acks: int) -> None:
    stage = Stage()
    request = envelope_of("create_topics", stage.valid()["create_topics"])
    request.acks = acks  # type: ignore[assignment]
    decision = stage.decide(request)
    assert (decision.error.code, decision.error.field) == (ErrorCode.INVALID_REQUIRED_ACKS, "acks")


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        # At its limit it is compared, so it is left out above.
        ("cluster_id", "a" * 255, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ("registration_version", -1, ErrorCode.INVALID_REQUEST),
        ("registration_version", -(2**31), ErrorCode.INVALID_REQUEST),
    ],
)
def test_registration_with_an_unknown_value_is_refused(field: str, value: Any, code: Any) -> None:
    stage = Stage()
    body = stage.valid()["register_broker"]
    setattr(body, field, value)
    error = stage.decide(envelope_of("register_broker", body)).error
    assert (error.code, error.field) == (code, field)


# --- What a request names has a limit, also where each thing is refused by itself and nothing w---


LIMIT = 3


@pytest.mark.parametrize(
    ("type_", "field", "item"),
    [
        (rpc.IncrementalAlterConfigsRequest, "resources", {"resource_type": ResourceType.TOPIC}),
        (rpc.CreateTopicsRequest, "topics", {}),
        (rpc.DeleteTopicsRequest, "names", None),
        (rpc.CreatePartitionsRequest, "topics", {"count": 2}),
        (rpc.AlterPartitionReassignmentsRequest, "topics", {}),
    ],
)
def test_refused_items_above_a_batch_are_not_checked(type_: Any, field: str, item: Any) -> None:
    cell = Cell(brokers=1, settings=ControllerSettings(max_records_per_request=LIMIT))
    name = "resource_name" if field == "resources" else "name"

    def named(count: int) -> Any:
        names = [f"no body {index}" for index in range(count)]
        items = names if item is None else [{name: one, **item} for one in names]
        return type_(**{field: items})

    assert cell.decide(named(LIMIT)).error is None
    cell.refused(named(LIMIT + 1), ErrorCode.POLICY_VIOLATION, field)


def test_key_list_longer_than_all_keys_is_refused() -> None:
    cell = Cell(brokers=0)
    configs = [rpc.AlterableConfig()] * 1_000
    resource = rpc.AlterConfigsResource(
        resource_type=ResourceType.GROUP, resource_name="g", configs=configs
    )
    request = rpc.IncrementalAlterConfigsRequest(resources=[resource])
    cell.refused_part(request, ErrorCode.INVALID_REQUEST, "resources[0].configs")


def test_large_topic_named_many_times_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """[Ten thousand partitions, named 100,000 times: a thousand million elections.]"""
    cell = Cell(brokers=1, settings=ControllerSettings(max_records_per_request=300))
    cell.create("t", num_partitions=200, replication_factor=1)
    laid_out: list[Any] = []
    named = leader_elections._named

    def watched(*arguments: Any) -> Any:
        for each in named(*arguments):
            laid_out.append(each)
            yield each

    monkeypatch.setattr(leader_elections, "_named", watched)
    topics = [rpc.ElectableTopic(name="t") for _ in range(2_000)]
    cell.refused(rpc.ElectLeadersRequest(topics=topics), ErrorCode.POLICY_VIOLATION, "")
    assert len(laid_out) == 301

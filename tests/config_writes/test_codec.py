"""The compiled codec, compared with the one in Python."""

import os
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from command_runs import run_text
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog import batch
from raftlog.config_writes import codec, compiling, records, writes
from raftlog.config_writes.records import Change
from raftlog.config_writes.writes import (
    MAX_BYTES,
    MAX_CHANGES,
    MAX_REQUESTS,
    ConfigReplies,
    ConfigWrite,
    ConfigWrites,
    single_requests,
)
from raftlog.metadata import flat_map
from raftlog.metadata.entities import entity_bytes
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import content_hash
from raftlog.transport.api import Conversation
from raftlog.transport.conversations import WIRES
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.records.v1 import records_pb2

TEXT = st.text(max_size=200)
TYPES = st.sampled_from([0, 2, 4, 16, 32, 127, 128, 2**31 - 1])
CHANGES = st.tuples(TYPES, TEXT, st.sampled_from(["match", "retention.ms", "", "ключ"]), TEXT)
NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
WRITES = st.builds(
    ConfigWrite,
    changes=st.lists(CHANGES, min_size=1, max_size=5),
    acks=st.sampled_from(common_pb2.Acks.values()),
    cluster_id=st.sampled_from(["", "cluster"]),
    principal=st.sampled_from(["", "User:alice"]),
    timeout_ms=st.sampled_from([0, 1, 30_000, 2**31 - 1]),
    correlation_id=NUMBERS,
)
WIRE = WIRES[Conversation.CONTROLLER].to_server
SETS = pb.AlterConfigsResource(
    resource_type=16, resource_name="a", configs=[pb.AlterableConfig(name="match", value="1")]
)


def alter(*resources: pb.AlterConfigsResource, **fields: Any) -> pb.ControllerRequest:
    body = pb.IncrementalAlterConfigsRequest(resources=resources)
    return pb.ControllerRequest(incremental_alter_configs=body, **fields)


def resource(*configs: pb.AlterableConfig) -> pb.AlterConfigsResource:
    return pb.AlterConfigsResource(resource_type=16, resource_name="a", configs=configs)


NOT_PLAIN = {
    "another body": pb.ControllerRequest(describe_brokers=pb.DescribeBrokersRequest()),
    "no body": pb.ControllerRequest(correlation_id=3),
    "no resource": alter(),
    "no key": alter(resource()),
    "two keys of one resource": alter(
        resource(pb.AlterableConfig(name="a"), pb.AlterableConfig(name="b"))
    ),
    "a key is deleted": alter(
        resource(pb.AlterableConfig(name="a", config_operation=pb.ConfigOperation.DELETE))
    ),
    "an operation that nobody knows": alter(
        resource(pb.AlterableConfig(name="a", config_operation=77))  # type: ignore[arg-type]
    ),
    "a value is compared": alter(
        resource(pb.AlterableConfig(name="a", config_operation=pb.COMPARE_AND_SET, expected="b"))
    ),
    "a value is expected of a plain write": alter(
        resource(pb.AlterableConfig(name="a", expected=""))
    ),
    "more resources than are worth it": alter(
        *(
            pb.AlterConfigsResource(resource_type=16, resource_name=str(n), configs=SETS.configs)
            for n in range(MAX_CHANGES + 1)
        )
    ),
    "a negative type": alter(pb.AlterConfigsResource(resource_type=-1, configs=SETS.configs)),
    "a negative timeout": alter(SETS, timeout_ms=-1),
    "acks that nobody knows": alter(SETS, acks=3),
    "a wait that goes on": alter(SETS, written=common_pb2.MetadataToken(offset=3)),
    "a trace": alter(SETS, traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01"),
    "negative acks": alter(SETS, acks=-1),
    "a sequence": alter(SETS, client=common_pb2.ClientIdentity(client_id=7, sequence=1)),
    "a node": alter(SETS, client=common_pb2.ClientIdentity(node_id=0)),
    "only validated": pb.ControllerRequest(
        incremental_alter_configs=pb.IncrementalAlterConfigsRequest(
            resources=[SETS], validate_only=True
        )
    ),
}


def envelope(requests: Iterable[pb.ControllerRequest]) -> bytes:
    return pb.ControllerRequests(requests=requests).SerializeToString()


def plain(items: Any) -> list[Any]:
    """Return a comparable form of a result."""
    return [
        (one.correlation_ids, one.changes, one.counts, one.timeout_ms, one.acks,
         one.cluster_id, one.principal, one.host, one.size, one.printable)
        if isinstance(one, ConfigWrites) else one
        for one in items
    ]  # fmt: skip


@pytest.fixture(scope="module", params=["native", "python"], autouse=True)
def in_use(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the codec that all tests of this module use."""
    if request.param == "native" and codec.NAME != "native":
        pytest.skip("it is not compiled here")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(codec, "native", None)
            patch.setattr(records, "native", None)
        yield request.param


# --- requests -------------------------------------------------------------------------------------


@given(WRITES)
def test_compiled_write_has_the_bytes_of_its_message(write: ConfigWrite) -> None:
    assert codec.request(write) == write.request().SerializeToString()


@settings(max_examples=200)
@given(st.lists(st.one_of(WRITES, st.sampled_from(sorted(NOT_PLAIN))), max_size=12))
def test_envelope_decodes_to_its_requests(parts: list[Any]) -> None:
    requests = [NOT_PLAIN[one] if isinstance(one, str) else one.request() for one in parts]
    items = WIRE.decode(envelope(requests), 1 << 20)
    assert list(single_requests(items)) == requests
    assert plain(items) == plain(writes.grouped(requests, MAX_REQUESTS, MAX_BYTES))


@pytest.mark.parametrize("what", sorted(NOT_PLAIN))
def test_unusual_write_stays_a_message(what: str) -> None:
    between = [alter(SETS), NOT_PLAIN[what], alter(SETS)]
    items = WIRE.decode(envelope(between), 1 << 20)
    assert [type(item) for item in items] == [ConfigWrites, pb.ControllerRequest, ConfigWrites]
    assert items[1] == NOT_PLAIN[what]


@pytest.mark.parametrize(
    "other",
    [
        {"timeout_ms": 5},
        {"acks": 1},
        {"cluster_id": "c"},
        {"client": common_pb2.ClientIdentity(principal="User:bob")},
        {"client": common_pb2.ClientIdentity(host="10.0.0.1")},
    ],
    ids=str,
)
def test_group_contains_requests_that_differ_only_in_their_change(other: dict[str, Any]) -> None:
    same = [alter(SETS, correlation_id=n) for n in (1, 2)]
    items = WIRE.decode(envelope([*same, alter(SETS, correlation_id=3, **other)]), 1 << 20)
    assert [item.correlation_ids for item in items] == [[1, 2], [3]]


def test_group_is_bounded() -> None:
    small = [alter(SETS, correlation_id=n) for n in range(1, 2 * MAX_REQUESTS + 2)]
    sizes = [len(item.counts) for item in WIRE.decode(envelope(small), 1 << 20)]
    assert sizes == [MAX_REQUESTS, MAX_REQUESTS, 1]
    config = pb.AlterableConfig(name="match", value="x" * (MAX_BYTES // 2))
    large = [alter(resource(config)), alter(resource(config)), alter(SETS)]
    assert [len(item.counts) for item in WIRE.decode(envelope(large), 1 << 20)] == [1, 2]


@settings(max_examples=400)
@given(st.lists(WRITES, min_size=1, max_size=3), st.integers(0, 2**32), st.integers(1, 4))
def test_damaged_envelopes_decode_alike(writes: list[ConfigWrite], seed: int, flips: int) -> None:
    rng = random.Random(seed)
    data = bytearray(envelope(write.request() for write in writes))
    for _ in range(flips):
        data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.3:
        del data[rng.randrange(len(data)) :]
    try:
        expected: Any = list(pb.ControllerRequests.FromString(bytes(data)).requests)
    except DecodeError:
        expected = None
    try:
        items = codec.grouped_envelope(bytes(data))
    except DecodeError:
        assert expected is None
        return
    if items is None:
        return  # Left to protobuf whole.
    assert expected is not None
    found = single_requests(items)
    for one in (*found, *expected):
        one.DiscardUnknownFields()  # Protobuf keeps their bytes, which mean nothing.
    assert [one.SerializeToString(deterministic=True) for one in found] == [
        one.SerializeToString(deterministic=True) for one in expected
    ]


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([0, 1, 5, 127, 128, 300, 17_000]), max_size=12),
    st.integers(0, 2**32),
    st.integers(0, 12),
    st.integers(1, 5),
    st.sampled_from([1, 2, 200, 1 << 20]),
)
def test_envelope_is_split_at_its_items(
    lengths: list[int], seed: int, most: int, part_items: int, part_bytes: int
) -> None:
    rng = random.Random(seed)
    items = [b"\x0a" + writes.varint(length) + rng.randbytes(length) for length in lengths]
    whole = b"".join(items)
    found = writes.ends(whole, 0x0A, most, part_items, part_bytes)
    assert codec.ends(whole, 0x0A, most, part_items, part_bytes) == found
    if len(items) > most:
        assert found is None
    else:
        assert found is not None
        expected, begin, count, position = [], 0, 0, 0
        for item in items:
            position, count = position + len(item), count + 1
            if count == part_items or position - begin >= part_bytes or position == len(whole):
                expected.append(position)
                begin, count = position, 0
        assert found == expected
    # What is not made of items alone is one part, and nothing is read behind its end.
    damaged = bytearray(whole + b"\x0a")
    for _ in range(rng.randrange(4)):
        damaged[rng.randrange(len(damaged))] = rng.choice((0x0A, 0x80, 0xFF, 0))
    for size in (len(damaged), rng.randrange(len(damaged) + 1)):
        data = bytes(damaged[:size])
        cuts = writes.ends(data, 0x0A, most, part_items, part_bytes)
        assert codec.ends(data, 0x0A, most, part_items, part_bytes) == cuts
        assert cuts is None or not cuts or cuts[-1] == len(data)


@settings(max_examples=400)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([16, 16, 300, 300.0]),
            st.sampled_from(["a", "a", "ж" * 7, "b" * 8, ""]),
            st.sampled_from(["match", "match", "".join(["mat", "ch"]), "other"]),
            st.sampled_from(["", "v" * 10, "v" * 10, "v" * 11, None]),
        ),
        min_size=1,
        max_size=8,
    ),
    st.data(),
)
def test_codec_run_ends_at_an_unfitting_change(changes: list[Any], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(changes) - 1))
    end = codec.run(changes, begin, 10, 7)
    assert end == writes.run(changes, begin, 10, 7)
    type_, _, key, _ = changes[begin]
    fits = [
        one[0] == type_ and one[2] == key and one[3] is not None and len(one[3]) <= 10
        and 0 < len(one[1]) <= 7
        for one in changes[begin:]
    ]  # fmt: skip
    assert end - begin == (fits.index(False) if False in fits else len(fits))


@pytest.mark.parametrize(
    "char", ["\x00", "\x1f", "\x7f", "\x80", "\n", '"', "\\", "/", " ", "~", "ж"]
)
def test_printable_agrees_with_python_for_each_character(char: str) -> None:
    expected = char.isascii() and char.isprintable()
    for change in ((16, char, "k", "v"), (16, "n", char, "v"), (16, "n", "k", char)):
        assert writes.printable([(16, "n", "k", "v"), change]) == expected


# --- records --------------------------------------------------------------------------------------


def of_record(change: Change) -> records_pb2.ConfigRecord:
    type_, name, key, value = change
    return records_pb2.ConfigRecord(resource_type=type_, resource_name=name, name=key, value=value)


@settings(max_examples=200)
@given(st.lists(CHANGES, min_size=1, max_size=8), st.text(max_size=20))
def test_records_equal_those_of_a_batch_of_messages(changes: list[Change], principal: str) -> None:
    place: dict[str, Any] = {
        "base_offset": 5, "epoch": 3, "timestamp_ms": 7, "principal": principal
    }  # fmt: skip
    expected = batch.encode([record(of_record(change)) for change in changes], **place)
    data = records.encoded(changes, 0, len(changes))
    assert batch.encode_framed((data,), len(changes), **place) == expected
    (header,) = batch.headers(expected)
    assert records.decoded(expected, header) == changes
    assert records.py_decoded(expected, header) == changes


def test_request_with_the_most_resources_is_decoded() -> None:
    many = alter(*([SETS] * MAX_CHANGES))
    (item,) = WIRE.decode(envelope([many]), 1 << 20)
    assert item.counts == [MAX_CHANGES]


@settings(max_examples=300)
@given(
    st.one_of(TYPES, st.sampled_from([-1, -(2**31), 255, 256, 65536])),
    TEXT,
    st.one_of(TEXT, st.sampled_from(["x" * n for n in (31, 32, 255, 256, 900, 1_024, 70_000)])),
    TEXT,
)
def test_config_has_the_bytes_of_an_entity(type_: int, name: str, key: str, value: str) -> None:
    change = (type_, name, key, value)
    expected = entity_bytes(("config", *change))
    assert (records.entity_or_none(change) or records.entity(change)) == expected
    assert records.entity(change) == expected


def test_slice_of_the_changes_is_encoded() -> None:
    changes: list[Change] = [(16, f"r{n}", "match", "v") for n in range(4)]
    assert records.encoded(changes, 1, 3) == records.py_encoded(changes[1:3], 0, 2)


def test_deleted_key_has_no_value() -> None:
    deleted = records_pb2.ConfigRecord(resource_type=2, resource_name="t", name="retention.ms")
    emptied = records_pb2.ConfigRecord(resource_type=2, resource_name="t", name="x", value="")
    chunk = batch.encode([record(deleted), record(emptied)], base_offset=0, epoch=1, timestamp_ms=0)
    (header,) = batch.headers(chunk)
    for decoded in (records.decoded, records.py_decoded):
        assert decoded(chunk, header) == [(2, "t", "retention.ms", None), (2, "t", "x", "")]


def test_other_records_are_left_to_the_fold() -> None:
    config = record(of_record((16, "a", "match", "v")))
    chunk = batch.encode(
        [config, record(records_pb2.NoOpRecord())], base_offset=0, epoch=1, timestamp_ms=0
    )
    (header,) = batch.headers(chunk)
    assert records.decoded(chunk, header) is None
    assert records.py_decoded(chunk, header) is None
    newer = batch.encode([(4, 1, config.body)], base_offset=0, epoch=1, timestamp_ms=0)
    (header,) = batch.headers(newer)
    assert records.decoded(newer, header) is None


@settings(max_examples=300)
@given(st.lists(CHANGES, min_size=1, max_size=3), st.integers(0, 2**32))
def test_damaged_records_are_decoded_as_by_protobuf(changes: list[Change], seed: int) -> None:
    rng = random.Random(seed)
    whole = batch.encode(
        [record(of_record(change)) for change in changes], base_offset=0, epoch=1, timestamp_ms=0
    )
    (header,) = batch.headers(whole)
    data = bytearray(whole)
    data[rng.randrange(batch.HEADER_BYTES, len(data))] = rng.randrange(256)
    found = records.decoded(bytes(data), header)
    assert found is None or found == records.py_decoded(bytes(data), header)


@pytest.mark.parametrize("where", ["name", "key", "value"])
def test_decoding_returns_none_for_a_huge_length(where: str) -> None:
    body = of_record((16, "a", "match", "v")).SerializeToString()
    at = {
        "name": body.index(b"\x12\x01a"),
        "key": body.index(b"\x1a"),
        "value": body.index(b"\x22"),
    }
    huge = body[: at[where] + 1] + writes.varint(2**40) + body[at[where] + 2 :]
    chunk = batch.encode([(4, 0, huge)], base_offset=0, epoch=1, timestamp_ms=0)
    (header,) = batch.headers(chunk)
    assert records.decoded(chunk, header) is None


# --- replies --------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    st.lists(st.tuples(NUMBERS, st.integers(1, 300)), min_size=1, max_size=8),
    st.sampled_from([0, 1, 127, 2**40]),
    st.sampled_from([-1, 0, 1, 300]),
    st.sampled_from([0, 1, 2**31 - 1]),
    st.sampled_from([0, 1, 2**50]),
    st.sampled_from(common_pb2.Acks.values()),
)
def test_replies_equal_those_of_messages(
    parts: list[tuple[int, int]],
    base_offset: int,
    leader_id: int,
    epoch: int,
    generation: int,
    reached: common_pb2.Acks,
) -> None:
    ids, counts = [one[0] for one in parts], [one[1] for one in parts]
    replies = ConfigReplies(ids, counts, base_offset, leader_id, epoch, generation, reached)
    wire = WIRES[Conversation.CONTROLLER].to_client
    (data,) = wire.envelopes([wire.encode(replies, 1 << 20)])
    expected = list(replies.responses())
    assert data == pb.ControllerResponses(responses=expected).SerializeToString()
    assert [one.correlation_id for one in expected] == ids
    last = base_offset - 1
    for response, count in zip(expected, counts, strict=True):
        last += count
        assert response.write.token.offset == last


def test_replies_share_envelopes_with_other_responses() -> None:
    wire = WIRES[Conversation.CONTROLLER].to_client
    replies = ConfigReplies([1, 2], [1, 1], 10, 1, 1, 0)
    other = pb.ControllerResponse(correlation_id=9)
    items = [wire.encode(one, 1 << 20) for one in (other, replies, other)]
    for times in (1, 10):
        envelopes = wire.envelopes(items * times)
        found = [one for data in envelopes for one in wire.decode(data, 1 << 20)]
        assert [one.correlation_id for one in found] == [9, 1, 2, 9] * times
    many = [wire.encode(replies, 1 << 20)] * 5_000
    assert len(wire.envelopes(many)) > 5, "an envelope has a bound of items"


@pytest.mark.parametrize("wish", ["off", ""])
def test_compiled_codec_can_be_disabled(wish: str) -> None:
    environment = {**os.environ, "RAFTLOG_NATIVE_CODEC": wish}
    command = [sys.executable, "-c", "from raftlog.config_writes import codec; print(codec.NAME)"]
    done = run_text(command, env=environment, check=True, timeout=60)
    compiled = compiling.target().exists()
    assert done.stdout.strip() == ("native" if compiled and not wish else "python")


FOLDED = st.lists(
    st.tuples(
        st.sampled_from([2, 16, 300, -1]),
        st.sampled_from(["a", "b", "ключ"]),
        st.sampled_from(["match", "retention.ms", ""]),
        st.one_of(st.none(), st.sampled_from(["", "v", "ж", "x" * 300, "x" * 70_000])),
    ),
    max_size=12,
)


@given(st.lists(FOLDED, max_size=4))
@settings(deadline=None)
def test_all_folds_of_configs_agree(runs: list[list[Change]]) -> None:
    """The compiled fold, the one in Python, and the one of persistent maps, which queries each
    change separately: the same image, and every earlier image is unchanged.
    """
    plain = ImageBuilder(Image())
    folds = [records.fold, records.py_fold]
    drafts = [ImageBuilder(Image(configs=flat_map.empty())) for _ in folds]
    held: list[tuple[Image, dict[Any, Any]]] = []
    offset = 0
    for changes in runs:
        plain.apply_configs(changes, base_offset=offset, epoch=1, timestamp_ms=0)
        image = plain.snapshot()
        for draft, fold in zip(drafts, folds, strict=True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(records, "fold", fold)
                draft.apply_configs(changes, base_offset=offset, epoch=1, timestamp_ms=0)
            flat = draft.snapshot()
            assert (flat.state_hash, flat.state_bytes) == (image.state_hash, image.state_bytes)
            assert flat.state_hash == content_hash(flat)
            held.append((flat, dict(image.configs.items())))
        offset += len(changes)
    for flat, configs in held:
        assert dict(flat.configs.items()) == configs


def test_folds_agree_on_many_configs() -> None:
    """The compiled fold reserves memory ahead for large batches; the resources that it reads for
    that must not affect the result, be they other, deleted, or changed earlier in the batch.
    """
    rng = random.Random(7)

    def some(count: int) -> list[Change]:
        return [
            (
                rng.choice((2, 16)),
                f"r{rng.randrange(9_000)}",
                rng.choice(("match", "match", "retention.ms")),
                rng.choice((None, "", "v" * rng.randrange(600), "ключ")),
            )
            for _ in range(count)
        ]

    states: list[tuple[dict[Any, Any], dict[Any, Any]]] = [({}, {}), ({}, {})]
    changes: list[Change] = [(16, f"r{n}", "match", "v") for n in range(6_000)]
    for _ in range(60):
        found = []
        for fold, (configs, undo) in zip((records.fold, records.py_fold), states, strict=True):
            undo.clear()
            found.append(fold(changes, configs, undo))
        assert found[0] == found[1]
        assert states[0] == states[1]
        changes = some(rng.choice((1, 2, 31, 32, 33, 100)))
        changes += rng.sample(changes, len(changes) // 4)
    assert len(states[0][0]) > 5_000


def test_malformed_change_is_refused() -> None:
    for fold in (records.fold, records.py_fold):
        for wrong in ((1, "a"), [(1, "a", "b", "c")], 7):
            with pytest.raises((TypeError, ValueError)):
                fold([wrong], {}, {})  # type: ignore[list-item]

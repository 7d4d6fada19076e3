"""Limits of every field of a request, and the form of keys, hosts and timeouts."""

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.bounds import DATA_REQUEST_MAX_PARTITIONS, Shares, bounded_timeout_ms
from raftlog.endpoint import endpoint_error, endpoints_error, host_error
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.node.v1 import node_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

FILES = (broker_pb2, controller_pb2, data_pb2, node_pb2, quorum_pb2)
REQUESTS = sorted(
    {
        method.input_type.full_name: GetMessageClass(method.input_type)
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }.items()
)
PEERS_SAY = (
    quorum_pb2.FetchResponse,
    quorum_pb2.FetchSnapshotResponse,
    quorum_pb2.VoteResponse,
    quorum_pb2.BeginQuorumEpochResponse,
    quorum_pb2.EndQuorumEpochResponse,
)


def messages(type_: Any, seen: set[Any]) -> Iterator[type[Message]]:
    """Return a message type and all that it contains."""
    if type_ in seen:
        return
    seen.add(type_)
    yield type_
    for field in type_.DESCRIPTOR.fields:
        if field.message_type is not None:
            yield from messages(GetMessageClass(field.message_type), seen)


TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def limited(field: Any) -> bool:
    return field.is_repeated or field.type in TEXTS


def test_all_services_are_walked() -> None:
    assert len(REQUESTS) >= 40
    assert controller_pb2.ControllerRequests.DESCRIPTOR.full_name in dict(REQUESTS)


@pytest.mark.parametrize(
    "type_", [type_ for _, type_ in REQUESTS] + list(PEERS_SAY), ids=lambda t: t.DESCRIPTOR.name
)
def test_every_field_has_a_limit(type_: type[Message]) -> None:
    for each in messages(type_, set()):
        for field in each.DESCRIPTOR.fields:
            rule = limits.rule_of(each, field.name)
            assert not limited(field) or rule is not None, field.full_name
            bare = isinstance(rule, limits.Items) and rule.each is None
            assert not bare or not field.is_repeated or field.type not in TEXTS, field.full_name
    limits.checks_of(type_)


def test_table_names_only_existing_fields() -> None:
    for type_, rules in limits.FIELDS.items():
        there = {field.name for field in type_.DESCRIPTOR.fields if limited(field)}
        assert set(rules) <= there, type_.DESCRIPTOR.full_name


def test_field_without_a_row_has_the_limit_of_its_kind() -> None:
    """A text, a byte string, a list of messages, a list of texts; a number has none."""
    assert limits.rule_of(controller_pb2.OpenClientRequest, "name") == limits.TEXT
    assert limits.rule_of(data_pb2.DataRecord, "value") == limits.OCTETS
    assert limits.rule_of(controller_pb2.CreateTopicsRequest, "topics") == limits.Items(
        limits.MAX_ITEMS
    )
    assert limits.rule_of(controller_pb2.DeleteTopicsRequest, "names") == limits.Items(
        limits.MAX_ITEMS, limits.TEXT
    )
    assert limits.rule_of(controller_pb2.CloseClientRequest, "client_id") is None


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (controller_pb2.OpenClientRequest(name="x" * 250), "name"),
        (controller_pb2.DeleteTopicsRequest(names=["t", "x" * 250]), "names[1]"),
        (controller_pb2.DeleteTopicsRequest(names=["t"] * (limits.MAX_ITEMS + 1)), "names"),
    ],
    ids=["text", "text in list", "list"],
)
def test_field_without_row_is_refused_beyond_its_limit(request_: Message, field: str) -> None:
    with pytest.raises(ApiError) as refused:
        limits.check(request_)
    assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID_REQUEST, field)


CASES = [
    (lambda n: broker.MetadataRequest(topics=["t"] * n), 20_000, "topics"),
    (
        lambda n: broker.DescribeConfigsRequest(resources=[broker.DescribeConfigsResource()] * n),
        1_000,
        "resources",
    ),
    (
        lambda n: data.ProduceRequest(partitions=[data.ProducePartition()] * n),
        DATA_REQUEST_MAX_PARTITIONS,
        "partitions",
    ),
    (
        lambda n: data.FetchRequest(partitions=[data.FetchPartition()] * n),
        DATA_REQUEST_MAX_PARTITIONS,
        "partitions",
    ),
    (
        lambda n: data.ListOffsetsRequest(partitions=[data.ListOffsetsPartition()] * n),
        DATA_REQUEST_MAX_PARTITIONS,
        "partitions",
    ),
]


@pytest.mark.parametrize(("request_of", "limit", "field"), CASES)
def test_items_of_a_request_are_bounded(request_of: Any, limit: int, field: str) -> None:
    limits.check(request_of(limit))
    with pytest.raises(ApiError) as caught:
        limits.check(request_of(limit + 1))
    assert (caught.value.code, caught.value.field) == (ErrorCode.INVALID_REQUEST, field)


PERMITTED = "segments of ASCII letters, digits and . _ - : @ = + , with single slashes between them"


@pytest.mark.parametrize("key", ["a", "a/b", "A.b_c-d:e@f=g+h,i/0", "x" * limits.KEY_MAX_CHARS])
def test_key_of_permitted_characters_is_accepted(key: str) -> None:
    limits.check(broker.ListKeyValuesRequest(keys=[key]))
    for prefix in ("", key, "a/", "a/b"):
        limits.check(broker.ListKeyValuesRequest(prefix=prefix))


@pytest.mark.parametrize("key", ["", "ключ", "a b", "a//b", "/a", "a/", "a\n", "a%2Fb", "é"])
def test_refusal_of_a_key_names_the_permitted_characters(key: str) -> None:
    for request, field in (
        (broker.ListKeyValuesRequest(keys=[key]), "keys[0]"),
        (
            controller.AlterKeyValuesRequest(alterations=[controller.KeyValueAlteration(key=key)]),
            "alterations[0].key",
        ),
    ):
        with pytest.raises(ApiError) as refused:
            limits.check(request)
        assert (refused.value.code, refused.value.field) == (ErrorCode.INVALID_REQUEST, field)
        assert refused.value.message == f"{key!r} is not a key: {PERMITTED}"


@pytest.mark.parametrize("prefix", ["ключ", "a b", "a//b", "/a", "/", "a//"])
def test_prefix_that_matches_no_valid_key_is_refused(prefix: str) -> None:
    with pytest.raises(
        ApiError, match=f"is not a prefix of a key: {PERMITTED}".replace("+", r"\+")
    ):
        limits.check(broker.ListKeyValuesRequest(prefix=prefix))


TOTAL = 20


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12), st.booleans())))
def test_shares_fill_exactly_the_available_room(steps: list[tuple[str, int, bool]]) -> None:
    shares = Shares(TOTAL)
    held: dict[str, int] = {}
    for holder, amount, back in steps:
        if back and held.get(holder, 0) >= amount:
            shares.give_back(holder, amount)
            held[holder] -= amount
        room = shares.has_room(holder, amount)
        assert shares.take(holder, amount) is room
        held[holder] = held.get(holder, 0) + amount * room
        assert shares.total == sum(held.values()) <= TOTAL
        assert all(shares.held(one) == count for one, count in held.items())


def test_greedy_holder_leaves_an_equal_share_for_others() -> None:
    shares = Shares(TOTAL)
    while shares.take("greedy"):
        pass
    assert shares.held("greedy") == TOTAL // 2
    assert shares.take("other", TOTAL // 2)


@pytest.mark.parametrize(
    ("named", "bounded"), [(0, 30), (1, 1), (99, 99), (100, 100), (101, 100), (2**31 - 1, 100)]
)
def test_timeout_is_the_clients_or_the_default_up_to_the_maximum(named: int, bounded: int) -> None:
    assert bounded_timeout_ms(named, "timeout_ms", default_ms=30, max_ms=100) == bounded


@pytest.mark.parametrize("named", [-1, -(2**31)])
def test_negative_timeout_is_refused_and_names_the_field(named: int) -> None:
    with pytest.raises(ApiError) as error:
        bounded_timeout_ms(named, "read.timeout_ms", default_ms=30, max_ms=100)
    assert (error.value.code, error.value.field) == (ErrorCode.INVALID_REQUEST, "read.timeout_ms")


HOSTS = [
    "a",
    "host-1",
    "raft_node_1",
    "kafka-7.example.com",
    "kafka.example.",
    "A" * 255,
    "10.0.0.1",
    "::1",
    "[::1]",
    "fe80::1%eth0",
]
NO_HOSTS = [
    "", ".", "..", "a..b", ".a", " ", "a b", "a\n", "\na", "a\tb", "a\x1b[31m", "a" * 256, "ä.example", "a/b", "a:b", "[a]",
    "a\u202eb", "a,b", "a@b", "[::1", "%", "::1%", "::1%\n", "a.." + "b" * 70_000,
]  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_valid_hosts_are_accepted(host: str) -> None:
    assert not host_error(host)
    assert bool(endpoint_error(f"{host}:9092")) == (":" in host and not host.startswith("["))


@pytest.mark.parametrize("host", NO_HOSTS)
def test_invalid_hosts_are_refused(host: str) -> None:
    error = host_error(host)
    assert error.isprintable()
    assert 0 < len(error) < 500
    assert endpoint_error(f"{host}:9092")


@pytest.mark.parametrize(
    "endpoint",
    ["a", "a:", "a:0", "a:65536", "a:-1", "a:9092\n", ":9092", "a:9٢", "a:" + "9" * 5000],
)
def test_invalid_endpoints_are_refused(endpoint: str) -> None:
    assert endpoint_error(endpoint)


@pytest.mark.parametrize(
    "endpoints",
    ["h:1", "A://h:1", "A://h:1,B_2://[::1]:2", ",".join(f"L{i}://h:{i}" for i in range(1, 9))],
)
def test_valid_endpoint_is_accepted(endpoints: str) -> None:
    assert not endpoints_error(endpoints)


@pytest.mark.parametrize(
    "endpoints",
    [
        "",
        "h",
        "h:1,h:2",
        "A://h:1,h:2",
        "h:1,A://h:2",
        "A://h:1,A://h:2",
        "A://h:1,",
        "A://h:0",
        "a://h:1",
        "A B://h:1",
        "://h:1",
        "A://://h:1",
        "A" * 65 + "://h:1",
        "A://h:1\n",
        ",".join(f"L{i}://h:{i}" for i in range(1, 10)),
        "A://" + "h" * 100_000 + ":1",
    ],
)
def test_invalid_endpoint_is_refused(endpoints: str) -> None:
    error = endpoints_error(endpoints)
    assert error.isprintable()
    assert 0 < len(error) < 500

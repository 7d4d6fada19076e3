"""Field limits of messages to a replica and to a broker."""

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from test_field_limits import PEERS_SAY, REQUESTS, messages

from raftlog.errors import ApiError, ErrorCode
from raftlog.limits import ByHandler, Octets, check, rule_of
from raftlog.node.replica.peer_acceptor import FetchAddresses, PeerAcceptor
from raftlog.transport.api import Conversation
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

TYPES = {
    each: None
    for type_ in (*dict(REQUESTS).values(), *PEERS_SAY)
    for each in messages(type_, set())
}
TEXTS = [
    (type_, field.name)
    for type_ in TYPES
    for field in type_.DESCRIPTOR.fields
    if field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    and not field.is_repeated
    and not isinstance(rule_of(type_, field.name), ByHandler)
]


@pytest.mark.parametrize(
    ("type_", "name"), TEXTS, ids=lambda value: getattr(value, "__name__", value)
)
def test_each_text_field_is_checked_separately(type_: Any, name: str) -> None:
    rule = rule_of(type_, name)
    values = (
        [b"x" * (rule.max_bytes + 1)]
        if isinstance(rule, Octets)
        else ["x" * 70_000, "a\x1b[31m", "a\n"]
    )
    required = {"key": "k"} if type_ is controller_pb2.KeyValueAlteration else {}
    for value in values:
        with pytest.raises(ApiError) as raised:
            check(type_(**required | {name: value}), "outer")
        assert raised.value.code == ErrorCode.INVALID_REQUEST
        assert raised.value.field == f"outer.{name}"


def test_nested_invalid_field_is_reported() -> None:
    request = data_pb2.ReplicaFetchRequest(
        partitions=[
            data_pb2.ReplicaFetchPartition(),
            data_pb2.ReplicaFetchPartition(topic_id=bytes(17)),
        ]
    )
    with pytest.raises(ApiError) as raised:
        check(request)
    assert raised.value.field == "partitions[1].topic_id"
    names = broker_pb2.MetadataRequest(topics=["a", "b\n"])
    with pytest.raises(ApiError) as raised:
        check(names)
    assert raised.value.field == "topics[1]"


class Answers:
    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.complaints: list[str] = []

    def malformed(self, what: str) -> None:
        self.complaints.append(what)

    def send(self, message: Any) -> None:
        self.sent.append(message)


BAD_REQUESTS = [
    (Conversation.QUORUM, "vote_request", pb.VoteRequest(replica_directory_id="x" * 256)),
    (
        Conversation.QUORUM,
        "begin_quorum_epoch_request",
        pb.BeginQuorumEpochRequest(leader_endpoint="a\x1b[31m:1"),
    ),
    (
        Conversation.QUORUM,
        "begin_quorum_epoch_request",
        pb.BeginQuorumEpochRequest(leader_endpoint="a" * 70_000 + ":1"),
    ),
    (
        Conversation.QUORUM,
        "end_quorum_epoch_request",
        pb.EndQuorumEpochRequest(
            preferred_candidates=[pb.PreferredCandidate(candidate_directory_id="\n")]
        ),
    ),
    (
        Conversation.QUORUM,
        "end_quorum_epoch_request",
        pb.EndQuorumEpochRequest(preferred_candidates=[pb.PreferredCandidate()] * 1001),
    ),
    (Conversation.REPLICATION, "", pb.FetchRequest(correlation_id=7, replica_directory_id="\x00")),
    (
        Conversation.SNAPSHOT,
        "",
        pb.FetchSnapshotRequest(correlation_id=7, replica_directory_id="x" * 256),
    ),
]


def test_fetch_is_checked_only_where_it_differs_from_the_last_valid_one() -> None:
    """Only two texts have a limit, so a Fetch with the last one's texts needs no other check."""
    limited = {name for type_, name in TEXTS if type_ is pb.FetchRequest}
    assert limited == {"replica_directory_id", "spare_endpoint"}
    fields = pb.FetchRequest.DESCRIPTOR.fields
    assert not any(field.is_repeated for field in fields)
    numbers = (pb.LogBatch, pb.DirectoryStart)
    assert {field.message_type for field in fields} <= {None, *(one.DESCRIPTOR for one in numbers)}
    assert not {name for type_, name in TEXTS if type_ in numbers}, "numbers alone"
    reached: list[Any] = []
    fetch_addresses = FetchAddresses()
    acceptor = PeerAcceptor(
        Conversation.REPLICATION, lambda request, reply_to: reached.append(request), fetch_addresses
    )
    link: Any = Answers()
    link.peer = "127.0.0.1:53422"
    for directory_id in ("one", "one", "\x00", "one", "\x00", "two", "x" * 256, "two"):
        acceptor.received(link, [pb.FetchRequest(replica_directory_id=directory_id)])
    assert [one.replica_directory_id for one in reached] == ["one", "one", "one", "two", "two"]
    assert len(link.complaints) == 3
    for endpoint in ("c4:1", "c4:1", "\x00", "c4:1", "\x00"):
        fetch = pb.FetchRequest(replica_directory_id="two", spare_endpoint=endpoint)
        acceptor.received(link, [fetch])
    assert [one.spare_endpoint for one in reached[5:]] == ["c4:1", "c4:1", "c4:1"]
    assert len(link.complaints) == 5
    assert fetch_addresses.address(0, "two") == "127.0.0.1:53422"
    assert fetch_addresses.address(0, "one") == "", "a link is remembered for its last directory"
    acceptor.closed(link, "")
    assert fetch_addresses.address(0, "two") == ""


@pytest.mark.parametrize(
    ("conversation", "field", "request_"),
    BAD_REQUESTS,
    ids=lambda value: getattr(value, "name", ""),
)
def test_peer_request_beyond_a_limit_never_reaches_the_core(
    conversation: Any, field: str, request_: Any
) -> None:
    reached: list[Any] = []
    acceptor = PeerAcceptor(
        conversation, lambda request, reply_to: reached.append(request), FetchAddresses()
    )
    link: Any = Answers()
    message = pb.QuorumMessage(correlation_id=7, **{field: request_}) if field else request_
    acceptor.received(link, [message])
    assert not reached
    assert [one.split(":")[0] for one in link.complaints] == [type(request_).__name__]
    (answer,) = link.sent
    body = getattr(answer, answer.WhichOneof("body")) if field else answer
    assert answer.correlation_id == 7
    assert body.error_code == ErrorCode.INVALID_REQUEST
    assert body.leader_id == -1


def test_peer_request_within_the_limits_reaches_the_core() -> None:
    reached: list[Any] = []
    acceptor = PeerAcceptor(
        Conversation.QUORUM, lambda request, reply_to: reached.append(request), FetchAddresses()
    )
    link: Any = Answers()
    request = pb.BeginQuorumEpochRequest(
        cluster_id="c", leader_endpoint="[::1]:9093", voter_directory_id="dir"
    )
    acceptor.received(
        link, [pb.QuorumMessage(correlation_id=7, begin_quorum_epoch_request=request)]
    )
    assert reached == [request]
    assert not link.sent

"""Messages with a node's id are accepted from that node only, in every conversation."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from raftlog.config_writes.writes import ConfigWrites
from raftlog.errors import ErrorCode
from raftlog.identity import ANONYMOUS, NodeRule, PeerIdentity
from raftlog.metadata.acls import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclIndex,
    AclOperation,
    AclResourceType,
)
from raftlog.metadata.image import Image
from raftlog.node.security import guard, permissions
from raftlog.node.security.authorization import Authorization
from raftlog.node.security.authorizer import Authorizer
from raftlog.node.security.node_claims import CLAIM_OF, CONTROLLER_CLAIMS, QUORUM_CLAIMS
from raftlog.node.security.quotas import Quotas
from raftlog.transport.api import Acceptors, Conversation, Link, LinkClosedError
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

RULE = guard.Authentication(NodeRule.parse("CN=node-{id}"))
ME, OTHER = 3, 4
C = Conversation


class FakeLink:
    peer = "somebody:1"
    listener = ""

    def __init__(self, identity: PeerIdentity) -> None:
        self.identity = identity
        self.open = True
        self.sent: list[Any] = []
        self.complaints: list[str] = []

    def send(self, message: Any) -> None:
        if not self.open:
            raise LinkClosedError("closed")
        self.sent.append(message)

    def close(self, reason: str = "") -> None:
        self.open = False

    def unknown_kind(self, what: str) -> None:
        raise NotImplementedError

    malformed = unknown_kind

    def forbidden(self, what: str) -> None:
        self.complaints.append(what)

    def throttled(self, what: str) -> None:
        self.complaints.append(what)


class Recorder:
    def __init__(self) -> None:
        self.got: list[Any] = []
        self.ended = 0

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        self.got += messages

    def closed(self, link: Link, reason: str) -> None:
        self.ended += 1


def of(node_id: int) -> PeerIdentity:
    return PeerIdentity(f"CN=node-{node_id}", frozenset({f"CN=node-{node_id}"}))


CLIENT = PeerIdentity("CN=client", frozenset({"CN=client"}))


def in_body(kind: Any, body: str, field: str | None, node_id: int) -> Any:
    message = kind(correlation_id=7)
    part = getattr(message, body)
    part.SetInParent()
    if field is not None:
        setattr(part, field, node_id)
    return message


def requests_of(node_id: int) -> list[tuple[Conversation, Any]]:
    """Return a message of each kind that claims to be from a node."""
    state = data.ReplicaState(replica_id=node_id)
    return [
        *(
            (C.QUORUM, in_body(quorum.QuorumMessage, *row, node_id))
            for row in QUORUM_CLAIMS.items()
        ),
        *(
            (C.CONTROLLER, in_body(controller.ControllerRequest, body, field, node_id))
            for body, field in CONTROLLER_CLAIMS.items()
            if field is not None
        ),
        (C.REPLICATION, quorum.FetchRequest(correlation_id=7, replica_id=node_id)),
        (C.SNAPSHOT, quorum.FetchSnapshotRequest(correlation_id=7, replica_id=node_id)),
        (C.OBSERVER, controller.MetadataFetchRequest(replica_id=node_id)),
        (C.REPLICA_FETCH, data.ReplicaFetchRequest(correlation_id=7, replica_state=state)),
    ]


def error_of(response: Any) -> tuple[int, int]:
    """Return (correlation id, error code) of any response."""
    correlation_id = getattr(response, "correlation_id", 7)
    if isinstance(response, quorum.QuorumMessage):
        body = response.WhichOneof("body")
        assert body is not None
        response = getattr(response, body)
        assert response.leader_id == -1
    if hasattr(response, "error"):
        return correlation_id, response.error.error_code
    return correlation_id, response.error_code


def deliver(
    conversation: Conversation,
    message: Any,
    who: PeerIdentity,
    duties: guard.Duties = guard.Duties(),  # noqa: B008
) -> tuple[FakeLink, Recorder]:
    link, recorder = FakeLink(who), Recorder()
    acceptors = guard.guarded({conversation: lambda _: recorder}, RULE, duties)
    handler = acceptors[conversation](link)
    handler.received(link, [message])
    handler.closed(link, "over")
    assert recorder.ended == 1
    return link, recorder


@pytest.mark.parametrize("number", range(len(requests_of(ME))))
@pytest.mark.parametrize("who", [of(OTHER), CLIENT, ANONYMOUS], ids=["other", "client", "nobody"])
def test_message_with_another_certificate_is_refused(number: int, who: PeerIdentity) -> None:
    conversation, message = requests_of(ME)[number]
    link, recorder = deliver(conversation, message, who)
    assert recorder.got == []
    assert [error_of(one) for one in link.sent] == [(7, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
    (complaint,) = link.complaints
    assert "a request of node 3 requires a certificate with CN=node-3" in complaint
    assert complaint.endswith(f"this peer has {who}")


@pytest.mark.parametrize("body", QUORUM_CLAIMS)
def test_broker_is_never_accepted_in_the_quorum(body: str) -> None:
    """A voter without a leader would take it for a voter that it does not know yet."""
    message = in_body(quorum.QuorumMessage, body, QUORUM_CLAIMS[body], ME)
    for brokers, got in ((), [message]), ((OTHER,), [message]), ((ME,), []):
        link, recorder = FakeLink(of(ME)), Recorder()
        acceptors = guard.guarded(
            {C.QUORUM: partial(_give, recorder)}, RULE, guard.Duties(is_broker=brokers.__contains__)
        )
        acceptors[C.QUORUM](link).received(link, [message])
        assert recorder.got == got
        refused = [] if got else [(7, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
        assert [error_of(one) for one in link.sent] == refused
        assert len(link.complaints) == len(refused)


@pytest.mark.parametrize("number", range(len(requests_of(ME))))
def test_nodes_own_certificate_is_accepted(number: int) -> None:
    conversation, message = requests_of(ME)[number]
    link, recorder = deliver(conversation, message, of(ME))
    assert (recorder.got, link.sent, link.complaints) == ([message], [], [])


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        (C.CONTROLLER, in_body(controller.ControllerRequest, "create_topics", None, 0)),
        (C.CONTROLLER, controller.ControllerRequest()),
        (C.OBSERVER, controller.MetadataFetchRequest(replica_id=-1)),
        (C.SNAPSHOT, quorum.FetchSnapshotRequest(replica_id=-1)),
        (C.QUORUM, quorum.QuorumMessage(vote_response=quorum.VoteResponse())),
    ],
    ids=["create_topics", "no body", "export", "snapshot", "a response"],
)
def test_guard_passes_messages_without_a_node_id(conversation: Conversation, message: Any) -> None:
    link, recorder = deliver(conversation, message, CLIENT)
    assert (recorder.got, link.sent) == ([message], [])


@pytest.mark.parametrize("body", ["register_broker", "broker_heartbeat"])
def test_broker_without_an_id_is_accepted_without_a_naming_certificate(body: str) -> None:
    message = in_body(controller.ControllerRequest, body, "broker_id", -1)
    link, recorder = deliver(C.CONTROLLER, message, of(ME))
    assert recorder.got == []
    assert [error_of(one)[1] for one in link.sent] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]


def asked(principal: str) -> controller.ControllerRequest:
    request = in_body(controller.ControllerRequest, "create_topics", None, 0)
    request.client.principal = principal
    return request


@pytest.mark.parametrize(
    ("who", "stated", "written"),
    [
        (CLIENT, "User:admin", "User:CN=client"),
        (CLIENT, "", "User:CN=client"),
        (ANONYMOUS, "User:admin", "User:ANONYMOUS"),
        (of(OTHER), "User:ANONYMOUS", "User:ANONYMOUS"),
        (of(OTHER), "User:alice", "User:alice"),
        (of(OTHER), "", "User:CN=node-4"),
        (PeerIdentity("CN=node-x", frozenset({"CN=node-x"})), "User:admin", "User:CN=node-x"),
        (PeerIdentity("CN=node-07", frozenset({"CN=node-07"})), "User:admin", "User:CN=node-07"),
    ],
    ids=[
        "client",
        "says nothing",
        "nobody",
        "forwarded nobody",
        "forwarded",
        "node",
        "like a node",
        "no id",
    ],
)
def test_controller_uses_the_principal_of_the_certificate_except_for_forwarded_requests(
    who: PeerIdentity, stated: str, written: str
) -> None:
    _, recorder = deliver(C.CONTROLLER, asked(stated), who)
    assert [one.client.principal for one in recorder.got] == [written]


def test_host_and_node_come_from_the_connection() -> None:
    stated = {"principal": "User:x", "host": "10.9.9.9", "node_id": 1}

    def signed(who: PeerIdentity, conversation: Conversation, **client: Any) -> Any:
        request = asked("")
        for name, value in client.items():
            setattr(request.client, name, value)
        message: Any = request
        if conversation is C.BROKER:
            message = broker.BrokerRequest(write=request)
        _, recorder = deliver(conversation, message, who)
        (got,) = recorder.got
        got = got.write if conversation is C.BROKER else got
        node_id = got.client.node_id if got.client.HasField("node_id") else None
        return got.client.principal, got.client.host, node_id

    for conversation in (C.CONTROLLER, C.BROKER):
        assert signed(CLIENT, conversation, **stated) == ("User:CN=client", "somebody", None)
    # What a node forwards is its client's; what it asks for itself is its own.
    assert signed(of(OTHER), C.CONTROLLER, **stated) == ("User:x", "10.9.9.9", None)
    assert signed(of(OTHER), C.CONTROLLER, node_id=1, host="10.9.9.9") == (
        "User:CN=node-4", "somebody", OTHER,
    )  # fmt: skip
    assert signed(of(OTHER), C.BROKER, node_id=1) == ("User:CN=node-4", "somebody", None)
    two = PeerIdentity("CN=node-4", frozenset({"CN=node-4", "CN=node-5"}))
    assert signed(two, C.CONTROLLER) == ("User:CN=node-4", "somebody", None)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("10.0.0.1:5", "10.0.0.1"),
        ("[::1]:5", "::1"),
        ("[::ffff:10.0.0.1]:5", "10.0.0.1"),
        ("x", ""),
    ],
)
def test_host_of_a_peer_is_parsed(peer: str, host: str) -> None:
    assert guard.host_of(peer) == host


@pytest.mark.parametrize("body", ["broker_heartbeat", "create_topics", "remove_raft_voter"])
def test_guard_refuses_node_requests_on_a_client_listener(body: str) -> None:
    """Its authority may differ, and may issue a node's name to anybody."""
    link, recorder = FakeLink(of(ME)), Recorder()
    message = in_body(controller.ControllerRequest, body, CONTROLLER_CLAIMS[body], ME)
    message.client.principal, message.client.host = "User:admin", "127.0.0.1"
    message.client.node_id = ME
    handler = guard.guarded_handler(recorder, C.CONTROLLER, RULE, guard.Duties(accepts_nodes=False))
    handler.received(link, [message])
    if CONTROLLER_CLAIMS[body] is not None:
        assert recorder.got == []
        assert "this one is for clients" in link.complaints[0]
        return
    (got,) = recorder.got
    assert (got.client.principal, got.client.host) == ("User:CN=node-3", "somebody")
    assert not got.client.HasField("node_id")


def test_node_certificate_reads_no_log_on_a_client_listener() -> None:
    recorder, readers = Recorder(), guard.LogReaders(Authorization(Authorizer()), Image)
    duties = guard.Duties(readers, accepts_nodes=False)
    acceptors = guard.guarded({C.OBSERVER: partial(_give, recorder)}, RULE, duties)
    acceptors[C.OBSERVER](FakeLink(of(ME))).received(
        FakeLink(of(ME)), [controller.MetadataFetchRequest(replica_id=-1)]
    )
    assert recorder.got == []


READS: list[tuple[Conversation, Any]] = [
    (C.REPLICATION, quorum.FetchRequest(correlation_id=7, replica_id=-1)),
    (C.SNAPSHOT, quorum.FetchSnapshotRequest(correlation_id=7, replica_id=-1)),
    (C.OBSERVER, controller.MetadataFetchRequest(replica_id=-1)),
]


@pytest.mark.parametrize(("conversation", "message"), READS)
def test_log_is_served_to_permitted_peers(conversation: Conversation, message: Any) -> None:
    entry = AccessControlEntry(
        b"", AclResourceType.CLUSTER, CLUSTER_NAME, 3, "User:CN=client", "somebody",
        AclOperation.CLUSTER_ACTION, 3,
    )  # fmt: skip
    image = {"now": Image()}
    readers = guard.LogReaders(Authorization(Authorizer()), lambda: image["now"])

    def delivered(who: PeerIdentity) -> tuple[int, list[int]]:
        link, recorder = FakeLink(who), Recorder()
        guard.guarded({conversation: lambda _: recorder}, RULE, guard.Duties(readers))[
            conversation
        ](link).received(link, [message])
        assert len(link.complaints) == len(link.sent)
        return len(recorder.got), [error_of(one)[1] for one in link.sent]

    refused = (0, [ErrorCode.CLUSTER_AUTHORIZATION_FAILED])
    assert delivered(of(OTHER)) == (1, [])
    for who in (CLIENT, ANONYMOUS, PeerIdentity("CN=node-x", frozenset({"CN=node-x"}))):
        assert delivered(who) == refused
    image["now"] = replace(Image(), acl_index=AclIndex().with_entry(entry))
    assert delivered(CLIENT) == (1, [])
    assert delivered(ANONYMOUS) == refused
    image["now"] = Image()
    assert delivered(CLIENT) == refused


def test_log_is_served_only_to_nodes_until_the_image_is_known() -> None:
    root = PeerIdentity("CN=root", frozenset({"CN=root"}))
    everybody = Authorizer(frozenset({"User:CN=root"}), allow_everyone_if_no_acl_found=True)
    found: list[int] = []
    for known, who in ((None, CLIENT), (None, root), (None, of(OTHER)), (Image(), CLIENT)):
        recorder, readers = Recorder(), guard.LogReaders(Authorization(everybody), [known].pop)
        handler: Acceptors = {C.OBSERVER: partial(_give, recorder)}
        guard.guarded(handler, RULE, guard.Duties(readers))[C.OBSERVER](FakeLink(who)).received(
            FakeLink(who), [controller.MetadataFetchRequest(replica_id=-1)]
        )
        found.append(len(recorder.got))
    assert found == [0, 1, 1, 1]


def _give(recorder: Recorder, _: Link) -> Recorder:
    return recorder


@pytest.mark.parametrize("who", [CLIENT, of(OTHER)], ids=["client", "node"])
def test_broker_uses_the_principal_of_the_certificate_only(who: PeerIdentity) -> None:
    write = asked("User:admin")
    write.client.sequence = 9
    request = broker.BrokerRequest(correlation_id=1, write=write)
    _, recorder = deliver(C.BROKER, request, who)
    (got,) = recorder.got
    assert (got.write.client.principal, got.write.client.sequence) == (f"User:{who.subject}", 9)


@pytest.mark.parametrize("who", [CLIENT, of(ME), of(OTHER)], ids=["client", "itself", "node"])
@pytest.mark.parametrize("body", [body for body, field in CONTROLLER_CLAIMS.items() if field])
def test_guard_refuses_a_node_request_a_broker_would_forward(body: str, who: PeerIdentity) -> None:
    """The broker would forward it on its own link, as its own."""
    write = in_body(controller.ControllerRequest, body, CONTROLLER_CLAIMS[body], ME)
    link, recorder = deliver(C.BROKER, broker.BrokerRequest(correlation_id=7, write=write), who)
    assert recorder.got == []
    assert [error_of(one) for one in link.sent] == [(7, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
    assert "not through a broker" in link.complaints[0]


def test_read_at_a_broker_is_left_unchanged() -> None:
    request = broker.BrokerRequest(metadata=broker.MetadataRequest())
    _, recorder = deliver(C.BROKER, request, CLIENT)
    assert recorder.got == [broker.BrokerRequest(metadata=broker.MetadataRequest())]


def test_guard_drops_only_the_forged_messages_of_an_envelope() -> None:
    link, recorder = FakeLink(of(ME)), Recorder()
    handler = guard.guarded_handler(recorder, C.CONTROLLER, RULE)
    mine = in_body(controller.ControllerRequest, "broker_heartbeat", "broker_id", ME)
    forged = in_body(controller.ControllerRequest, "broker_heartbeat", "broker_id", OTHER)
    handler.received(link, [mine, forged, mine])
    assert (recorder.got, len(link.sent)) == ([mine, mine], 1)


def test_refusal_on_a_closed_link_is_dropped() -> None:
    link, recorder = FakeLink(CLIENT), Recorder()
    link.close()
    guard.guarded_handler(recorder, C.REPLICATION, RULE).received(
        link, [quorum.FetchRequest(replica_id=ME)]
    )
    assert (recorder.got, link.sent, len(link.complaints)) == ([], [], 1)


def test_guard_without_rules_passes_messages_through() -> None:
    recorder = Recorder()
    acceptors: Acceptors = {C.QUORUM: lambda _: recorder}
    assert guard.guarded(acceptors, None) == acceptors
    assert guard.guarded_handler(recorder, C.QUORUM, None) is recorder


def test_every_kind_of_request_has_a_row() -> None:
    """A kind without a row fails here, and is not served."""
    permissions.check_rows()
    fields = controller.ControllerRequest.DESCRIPTOR.oneofs_by_name["body"].fields
    assert set(CONTROLLER_CLAIMS) == {field.name for field in fields}
    bodies = quorum.QuorumMessage.DESCRIPTOR.oneofs_by_name["body"].fields
    assert set(QUORUM_CLAIMS) == {one.name for one in bodies if one.name.endswith("_request")}
    assert set(CLAIM_OF) == set(Conversation)
    for field in fields:
        named = {one.name for one in field.message_type.fields}
        # Who asks: a request about a broker or a voter of an operator's choice has no epoch.
        if {"broker_id", "broker_epoch"} <= named:
            assert CONTROLLER_CLAIMS[field.name] == "broker_id", field.name


@pytest.mark.parametrize(("table", "body"), [("CONTROLLER", "create_topics"), ("BROKER", "fetch")])
def test_guard_needs_a_row_for_each_request_kind(
    monkeypatch: pytest.MonkeyPatch, table: str, body: str
) -> None:
    rows = {name: row for name, row in getattr(permissions, table).items() if name != body}
    monkeypatch.setattr(permissions, table, rows)
    with pytest.raises(permissions.UnlistedError, match=body):
        guard.guarded({C.QUORUM: lambda _: Recorder()}, RULE)


def group(principal: str, host: str = "10.9.9.9") -> ConfigWrites:
    changes: Any = [(2, "t", "retention.ms", "1"), (2, "u", "retention.ms", "2")]
    return ConfigWrites([7, 8], changes, [1, 1], 0, 0, "", principal, host, 40)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("who", "written", "host"),
    [
        (CLIENT, "User:CN=client", "somebody"),
        (ANONYMOUS, "User:ANONYMOUS", "somebody"),
        (of(OTHER), "User:admin", "10.9.9.9"),
    ],
    ids=["client", "nobody", "forwarded"],
)
def test_group_of_writes_stays_one_and_has_the_authenticated_sender(
    who: PeerIdentity, written: str, host: str
) -> None:
    _, recorder = deliver(C.CONTROLLER, group("User:admin"), who)
    (got,) = recorder.got
    assert type(got) is ConfigWrites
    assert (got.principal, got.host) == (written, host)


def test_writes_of_a_node_in_its_own_name_each_have_its_id() -> None:
    _, recorder = deliver(C.CONTROLLER, group("", ""), of(OTHER))
    told = [(one.client.principal, one.client.node_id) for one in recorder.got]
    assert told == [("User:CN=node-4", OTHER)] * 2
    _, recorder = deliver(C.CONTROLLER, group("", ""), of(OTHER), guard.Duties(accepts_nodes=False))
    (got,) = recorder.got
    assert (got.principal, got.host) == ("User:CN=node-4", "somebody")


def test_each_write_of_a_group_counts_towards_the_quota() -> None:
    quotas = Quotas(per_principal=1, per_address=0, clock=lambda: 1.0)
    link, recorder = deliver(C.CONTROLLER, group(""), CLIENT, guard.Duties(quotas=quotas))
    assert len(recorder.got) + len(link.sent) == 2
    assert [error_of(one)[1] for one in link.sent] == [ErrorCode.THROTTLING_QUOTA_EXCEEDED]

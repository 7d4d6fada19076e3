"""The permission table covers every method and every kind of request."""

import importlib
from typing import Any

import pytest
from test_guard import CLIENT, ME, FakeLink, Recorder, error_of, in_body, of, requests_of

from raftlog.errors import ErrorCode
from raftlog.identity import ANONYMOUS
from raftlog.metadata.acls import OPERATIONS_OF, AclOperation, AclResourceType
from raftlog.metadata.selectors import PLURAL
from raftlog.node.security.client_listeners import (
    OF_CLIENTS,
    OF_NODES,
    for_clients,
    handler_for_clients,
)
from raftlog.node.security.node_claims import CONTROLLER_CLAIMS
from raftlog.node.security.permissions import (
    BROKER,
    CONTROLLER,
    LOG,
    QUORUM,
    WATCH,
    Each,
    EachPartition,
    Listed,
    OfNode,
    Whole,
)
from raftlog.transport.api import Acceptors, Conversation
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

SERVICES = [
    service
    for package in ("broker", "controller", "data", "node", "quorum")
    for service in importlib.import_module(
        f"raftlog.wire.{package}.v1.{package}_pb2"
    ).DESCRIPTOR.services_by_name.values()
]
BODIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "Controller": (controller.ControllerRequest, dict(CONTROLLER)),
    "Broker": (broker.BrokerRequest, dict(BROKER)),
}


def body_of(service: str, method: Any) -> str | None:
    envelope, _ = BODIES[service]
    fields = envelope.DESCRIPTOR.oneofs_by_name["body"].fields
    return next((one.name for one in fields if one.message_type == method.input_type), None)


def test_every_method_of_every_service_has_a_row() -> None:
    """A method without a row fails here."""
    assert sorted(one.name for one in SERVICES) == [
        "Broker",
        "Controller",
        "Data",
        "Node",
        "Quorum",
    ]
    seen: set[str] = set()
    for service in SERVICES:
        for method in service.methods:
            if method.name == "Converse":
                continue  # Its bodies: below.
            if method.name in ("Watch", "WatchMany"):
                # A row for each kind of entity that it shows: of its own, or that of the cluster.
                assert set(WATCH) == set(PLURAL)
                own = {kind for kind, row in WATCH.items() if row.of != "CLUSTER"}
                assert own == {"topic", "partition", "config", "hostname", "export_cursor", "kv"}
                continue
            body = None if service.name not in BODIES else body_of(service.name, method)
            if body is None:
                assert method.name in LOG, method.full_name
                seen.add(method.name)
            else:
                assert body in BODIES[service.name][1], method.full_name
    assert seen == set(LOG)


@pytest.mark.parametrize("service", BODIES)
def test_every_body_has_a_row_and_every_row_a_body(service: str) -> None:
    envelope, rows = BODIES[service]
    fields = envelope.DESCRIPTOR.oneofs_by_name["body"].fields
    assert set(rows) == {one.name for one in fields}


def test_quorum_requests_are_for_nodes_only() -> None:
    bodies = quorum.QuorumMessage.DESCRIPTOR.oneofs_by_name["body"].fields
    assert set(QUORUM) == {one.name for one in bodies if one.name.endswith("_request")}
    assert set(QUORUM.values()) == {OfNode()}
    assert len(Conversation) == 9, "a new conversation needs rows, too"


def test_each_row_requires_what_an_entry_can_grant() -> None:
    every = [*CONTROLLER.values(), *BROKER.values(), *LOG.values()]
    wholes = [row for row in every if isinstance(row, Whole) and not row.of.startswith("CLIENT")]
    for whole in wholes:
        assert whole.operation in OPERATIONS_OF[whole.resource(None).type]
    for row in every:
        if isinstance(row, Each | EachPartition | Listed):
            kinds = "TOPIC" if isinstance(row, EachPartition) else row.of
            operation = AclOperation.DESCRIBE if isinstance(row, Listed) else row.operation
            for name in kinds.replace(" or ", ", ").split(", "):
                assert operation in OPERATIONS_OF[AclResourceType[name]], row


# --- On a listener for clients nobody is a node, whatever certificate is shown -------------------


C = Conversation
EVERYTHING: Acceptors = {conversation: lambda _: Recorder() for conversation in Conversation}
OF_A_NODE = [row for row in requests_of(ME) if row[0] in OF_CLIENTS] + [
    (
        C.BROKER,
        broker.BrokerRequest(
            correlation_id=7,
            write=in_body(controller.ControllerRequest, "broker_heartbeat", "broker_id", ME),
        ),
    )
]


def test_client_listener_has_only_client_conversations() -> None:
    of_clients = {C.CONTROLLER, C.OBSERVER, C.SNAPSHOT, C.BROKER, C.WATCH, C.WATCH_MANY}
    assert set(for_clients(EVERYTHING)) == of_clients
    of_nodes = {"register_broker", "broker_heartbeat", "alter_partition", "update_raft_voter"}
    assert of_nodes == OF_NODES


@pytest.mark.parametrize("number", range(len(OF_A_NODE)))
@pytest.mark.parametrize("who", [of(ME), CLIENT, ANONYMOUS], ids=["itself", "client", "nobody"])
def test_client_listener_refuses_messages_of_nodes(number: int, who: Any) -> None:
    conversation, message = OF_A_NODE[number]
    recorder = Recorder()
    link = FakeLink(who)
    link.listener = "CLIENTS"
    handler = for_clients({conversation: lambda _: recorder})[conversation](link)
    handler.received(link, [message])
    handler.closed(link, "over")
    assert (recorder.got, recorder.ended) == ([], 1)
    assert [error_of(one) for one in link.sent] == [(7, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]
    (complaint,) = link.complaints
    assert complaint == "node 3 must send this to a listener for nodes: CLIENTS is for clients"


def test_refusal_on_a_closed_link_is_dropped_and_the_rest_passed_on() -> None:
    conversation, message = OF_A_NODE[0]
    link, recorder = FakeLink(CLIENT), Recorder()
    link.close()
    own = in_body(controller.ControllerRequest, "create_topics", None, 0)
    for_clients({conversation: lambda _: recorder})[conversation](link).received(
        link, [message, own]
    )
    assert (recorder.got, link.sent, len(link.complaints)) == ([own], [], 1)


def test_client_listener_passes_on_requests_of_clients() -> None:
    clients = [body for body, field in CONTROLLER_CLAIMS.items() if field is None]
    assert clients
    requests = [in_body(controller.ControllerRequest, body, None, 0) for body in clients]
    for conversation, messages in (
        (C.CONTROLLER, requests),
        (C.OBSERVER, [controller.MetadataFetchRequest(replica_id=-1)]),
        (C.SNAPSHOT, [quorum.FetchSnapshotRequest(replica_id=-1)]),
        (C.BROKER, [broker.BrokerRequest(metadata=broker.MetadataRequest())]),
    ):
        link, recorder = FakeLink(CLIENT), Recorder()
        handler_for_clients(recorder, conversation).received(link, messages)
        assert (recorder.got, link.sent) == (messages, [])

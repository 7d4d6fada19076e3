"""On a listener for clients nobody is a node, whatever certificate is shown: what is between nodes
does not exist there, and a request under a node's id is refused.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_guard import CLIENT, ME, FakeLink, Recorder, error_of, in_body, of, requests_of

from raftlog.errors import ErrorCode
from raftlog.identity import ANONYMOUS
from raftlog.node.security.client_listeners import (
    OF_CLIENTS,
    OF_NODES,
    for_clients,
    handler_for_clients,
)
from raftlog.node.security.node_claims import CONTROLLER_CLAIMS
from raftlog.transport.api import Acceptors, Conversation
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

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


def test_client_listener_has_only_conversations_of_clients() -> None:
    assert set(for_clients(EVERYTHING)) == {
        C.CONTROLLER,
        C.OBSERVER,
        C.SNAPSHOT,
        C.BROKER,
        C.WATCH,
        C.WATCH_MANY,
    }
    assert {
        "register_broker",
        "broker_heartbeat",
        "alter_partition",
        "update_raft_voter",
    } == OF_NODES


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
    assert complaint == "node 3 sends this to another listener: CLIENTS is for clients"


def test_refusal_on_a_closed_link_is_dropped_and_the_rest_handed_on() -> None:
    conversation, message = OF_A_NODE[0]
    link, recorder = FakeLink(CLIENT), Recorder()
    link.close()
    own = in_body(controller.ControllerRequest, "create_topics", None, 0)
    for_clients({conversation: lambda _: recorder})[conversation](link).received(
        link, [message, own]
    )
    assert (recorder.got, link.sent, len(link.complaints)) == ([own], [], 1)


def test_client_listener_passes_requests_of_clients_on() -> None:
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

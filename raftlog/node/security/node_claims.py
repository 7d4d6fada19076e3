"""Read the node id that a request claims to come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raftlog.errors import ApiError
from raftlog.node.security.permissions import REQUESTS
from raftlog.transport.api import Conversation
from raftlog.transport.statuses import error_to_wire
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

NOBODY = -1
"""Replica id of a fetcher that is not a node; its progress is ignored."""

QUORUM_CLAIMS: Mapping[str, str | None] = {
    "vote_request": "replica_id",
    "begin_quorum_epoch_request": "leader_id",
    "end_quorum_epoch_request": "leader_id",
}
"""Field with the sender's id, by the body of a QuorumMessage that is a request."""

CONTROLLER_CLAIMS: Mapping[str, str | None] = {
    body: kind.claims or None for body, kind in REQUESTS.items()
}
"""Field with the sender's id, by the body of a ControllerRequest; None if clients send it."""


def _claimed(message: Any, claims: Mapping[str, str | None]) -> int | None:
    # A message without a body, and a response, claim nothing: the handler refuses both.
    body = message.WhichOneof("body")
    field = claims.get(body)
    return None if field is None else int(getattr(getattr(message, body), field))


def _of_quorum(message: quorum.QuorumMessage) -> int | None:
    return _claimed(message, QUORUM_CLAIMS)


def _of_controller(message: controller.ControllerRequest) -> int | None:
    # A copy of ``_claimed``, for speed: every write passes here.
    body: Any = message.WhichOneof("body")
    field = CONTROLLER_CLAIMS.get(body)
    return None if field is None else int(getattr(getattr(message, body), field))


def _of_broker(message: broker.BrokerRequest) -> int | None:
    return _claimed(message.write, CONTROLLER_CLAIMS) if message.HasField("write") else None


def _of_no_node(message: Any) -> int | None:
    return None


def _of_fetch(message: Any) -> int | None:
    replica_id = int(message.replica_id)
    return None if replica_id == NOBODY else replica_id


def _of_replica_fetch(message: data.ReplicaFetchRequest) -> int | None:
    return int(message.replica_state.replica_id)


CLAIM_OF: Mapping[Conversation, Callable[[Any], int | None]] = {
    Conversation.QUORUM: _of_quorum,
    Conversation.REPLICATION: _of_fetch,
    Conversation.SNAPSHOT: _of_fetch,
    Conversation.CONTROLLER: _of_controller,
    Conversation.OBSERVER: _of_fetch,
    Conversation.REPLICA_FETCH: _of_replica_fetch,
    Conversation.BROKER: _of_broker,
    Conversation.WATCH: _of_no_node,
    Conversation.WATCH_MANY: _of_no_node,
}
"""Functions that return the node id that a request claims, or None if it claims none."""

_QUORUM_RESPONSES: Mapping[str, tuple[str, Any]] = {
    "vote_request": ("vote_response", quorum.VoteResponse),
    "begin_quorum_epoch_request": ("begin_quorum_epoch_response", quorum.BeginQuorumEpochResponse),
    "end_quorum_epoch_request": ("end_quorum_epoch_response", quorum.EndQuorumEpochResponse),
}


def refusal_of(conversation: Conversation, message: Any, error: ApiError) -> Any:
    """Return the refusal of a request, in the form of its conversation and without a leader."""
    match conversation:
        case Conversation.QUORUM:
            field, kind = _QUORUM_RESPONSES[message.WhichOneof("body")]
            return quorum.QuorumMessage(
                correlation_id=message.correlation_id,
                **{field: kind(error_code=error.code, leader_id=-1)},
            )
        case Conversation.REPLICATION | Conversation.SNAPSHOT:
            fetch = conversation is Conversation.REPLICATION
            kind = quorum.FetchResponse if fetch else quorum.FetchSnapshotResponse
            return kind(correlation_id=message.correlation_id, error_code=error.code, leader_id=-1)
        case Conversation.CONTROLLER:
            return controller.ControllerResponse(
                correlation_id=message.correlation_id, error=error_to_wire(error), leader_id=-1
            )
        case Conversation.OBSERVER:
            return controller.MetadataFetchResponse(
                error=error_to_wire(error),
                leader_id=-1,
                high_watermark=-1,
                # The default, 0, would mean that every broker has applied the first record.
                lowest_acknowledged_offset=-1,
            )
        case Conversation.REPLICA_FETCH:
            return data.ReplicaFetchResponse(
                correlation_id=message.correlation_id,
                error_code=error.code,
                error_message=error.message,
            )
        case Conversation.WATCH:
            return broker.WatchResponse(error=error_to_wire(error))
        case Conversation.WATCH_MANY:
            return broker.WatchManyResponse(
                watch_ids=[message.watch_id],
                response=broker.WatchResponse(error=error_to_wire(error)),
            )
        case Conversation.BROKER:
            return broker.BrokerResponse(
                correlation_id=message.correlation_id, error=error_to_wire(error)
            )

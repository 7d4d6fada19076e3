"""The serving side of the links between nodes of the quorum: requests in, responses out on the link
that the request came on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from raftlog.errors import ApiError, ErrorCode
from raftlog.limits.checking import check as check_limits
from raftlog.replica.visitors import Visitors
from raftlog.transport.api import Conversation, Link, LinkClosedError
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

_REQUESTS = frozenset(("vote_request", "begin_quorum_epoch_request", "end_quorum_epoch_request"))
FIELD_OF: dict[type[Any], str] = {
    pb.VoteRequest: "vote_request",
    pb.VoteResponse: "vote_response",
    pb.BeginQuorumEpochRequest: "begin_quorum_epoch_request",
    pb.BeginQuorumEpochResponse: "begin_quorum_epoch_response",
    pb.EndQuorumEpochRequest: "end_quorum_epoch_request",
    pb.EndQuorumEpochResponse: "end_quorum_epoch_response",
}
_RESPONSE_OF: dict[type[Any], type[Any]] = {
    pb.VoteRequest: pb.VoteResponse,
    pb.BeginQuorumEpochRequest: pb.BeginQuorumEpochResponse,
    pb.EndQuorumEpochRequest: pb.EndQuorumEpochResponse,
    pb.FetchRequest: pb.FetchResponse,
    pb.FetchSnapshotRequest: pb.FetchSnapshotResponse,
}


class PeerAcceptor:
    """The serving side of one link: requests in, with a handle to answer them by."""

    def __init__(
        self,
        conversation: Conversation,
        on_request: Callable[[Any, ReplyTo], None],
        visitors: Visitors,
    ) -> None:
        self._control = conversation is Conversation.QUORUM
        self._on_request = on_request
        self._visitors = visitors
        self._directory_id: str | None = None
        """Of the last Fetch that was within its limits: the next one says the same, and a
        directory's id is all of it that has a limit here.
        """

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Requests of a peer; a message that is none is counted and dropped."""
        for message in messages:
            if self._control:
                field = message.WhichOneof("body")
                if field in _REQUESTS:
                    self._request(getattr(message, field), ReplyTo(link, message.correlation_id))
                else:
                    link.unknown_kind(f"{field or 'no body'} as a request of the quorum")
            else:
                reply_to = ReplyTo(link, message.correlation_id)
                if type(message) is not pb.FetchRequest:
                    self._request(message, reply_to)
                elif message.replica_directory_id == self._directory_id:
                    self._on_request(message, reply_to)
                elif self._request(message, reply_to):
                    self._directory_id = message.replica_directory_id
                    self._visitors.came(link, message.replica_id, message.replica_directory_id)

    def _request(self, request: Any, reply_to: ReplyTo) -> bool:
        """What is beyond its limits never reaches the core. Whether it is within."""
        within = within_limits(reply_to, request)
        if within:
            self._on_request(request, reply_to)
        else:
            reply_to.send(
                _RESPONSE_OF[type(request)](error_code=ErrorCode.INVALID_REQUEST, leader_id=-1)
            )
        return within

    def closed(self, link: Link, reason: str) -> None:
        """A reply to a dead link is dropped."""
        self._visitors.left(link)


def within_limits(sender: Link | ReplyTo, message: Any) -> bool:
    """Whether every text and list of a message is within its limit; a complaint about its sender if
    not.
    """
    try:
        check_limits(message)
    except ApiError as error:
        sender.malformed(f"{type(message).__name__}: {error}")
        return False
    return True


class ReplyTo(msgspec.Struct, eq=False):
    """Where an answer goes: the link its request came on."""

    link: Any
    correlation_id: int
    asks_time: bool = False
    """Whether the answer is to say what time it is by the quorum."""

    def malformed(self, what: str) -> None:
        """The request is beyond a limit."""
        self.link.malformed(what)

    def send(self, response: Any) -> None:
        """Answer; a link that has closed meanwhile swallows it."""
        if isinstance(response, (pb.FetchResponse, pb.FetchSnapshotResponse)):
            response.correlation_id = self.correlation_id
            message: Any = response
        else:
            message = pb.QuorumMessage(
                correlation_id=self.correlation_id, **{FIELD_OF[type(response)]: response}
            )
        try:
            self.link.send(message)
        except LinkClosedError:
            return
        except ApiError as error:
            # It is sent in the step that somebody else's message began.
            self.link.close(f"the answer cannot be sent: {error}")

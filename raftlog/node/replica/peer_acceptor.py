"""The serving side of the links between quorum nodes: each response is sent on the link of its
request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from raftlog.errors import ApiError, ErrorCode
from raftlog.limits import check as check_limits
from raftlog.transport.api import Conversation, Link, LinkClosedError
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


class FetchAddresses:
    """Addresses from which replicas fetch: one entry per live link.

    Other nodes have no address for a node that is not a voter; without this record, a second node
    with the same id could not be located.
    """

    def __init__(self) -> None:
        self._of: dict[Link, tuple[tuple[int, str], int | None]] = {}
        """The replica that fetches on each link, and the nonce of its start, or None if the start
        was not checked.
        """
        self._refused: dict[Link, None] = {}

    def add(self, link: Link, replica_id: int, directory_id: str) -> None:
        """Record the replica that fetches on this link, unless it was refused."""
        replica, known = (replica_id, directory_id), self._of.get(link)
        if link not in self._refused and (known is None or known[0] != replica):
            self._of[link] = replica, None

    def refuse(self, link: Link) -> None:
        """Record that the process that fetches on this link is not the replica that it claims to
        be.
        """
        self._of.pop(link, None)
        self._refused[link] = None

    def accept(self, link: Link, replica_id: int, directory_id: str, nonce: int) -> None:
        """Record that a replica with this start fetches on this link, even if an earlier fetch was
        refused.
        """
        self._refused.pop(link, None)
        self._of[link] = (replica_id, directory_id), nonce

    def remove(self, link: Link) -> None:
        """Forget a closed link."""
        self._of.pop(link, None)
        self._refused.pop(link, None)

    def others(self, link: Link, replica_id: int, directory_id: str, nonce: int) -> bool:
        """Return whether this replica also fetches on another link, with a start that is not known
        to be the same: an observer that becomes a voter opens another link.
        """
        return any(
            one is not link and fetching == (replica_id, directory_id) and start != nonce
            for one, (fetching, start) in self._of.items()
        )

    def address(self, replica_id: int, directory_id: str) -> str:
        """Return the address of this replica's newest link, or empty if none."""
        replica = (replica_id, directory_id)
        found = [link for link, (fetching, _) in self._of.items() if fetching == replica]
        return found[-1].peer if found else ""


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
    """The serving side of one link: it passes on each request with a handle for its reply."""

    def __init__(
        self,
        conversation: Conversation,
        on_request: Callable[[Any, ReplyTo], None],
        fetch_addresses: FetchAddresses,
    ) -> None:
        self._control = conversation is Conversation.QUORUM
        self._on_request = on_request
        self._fetch_addresses = fetch_addresses
        self._directory_id: str | None = None
        self._spare_endpoint = ""
        """Texts in the last Fetch that was within the limits; equal texts are not checked again. No
        other field of a Fetch has a limit.
        """

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Pass on the requests of a peer; count and drop other messages."""
        for message in messages:
            if self._control:
                field = message.WhichOneof("body")
                if field in _REQUESTS:
                    self._request(getattr(message, field), ReplyTo(link, message.correlation_id))
                else:
                    link.unknown_kind(f"{field or 'no body'} instead of a quorum request")
            else:
                reply_to = ReplyTo(link, message.correlation_id)
                if type(message) is not pb.FetchRequest:
                    self._request(message, reply_to)
                elif (
                    message.replica_directory_id == self._directory_id
                    and message.spare_endpoint == self._spare_endpoint
                ):
                    self._on_request(message, reply_to)
                elif self._request(message, reply_to):
                    self._directory_id = message.replica_directory_id
                    self._spare_endpoint = message.spare_endpoint
                    self._fetch_addresses.add(
                        link, message.replica_id, message.replica_directory_id
                    )

    def _request(self, request: Any, reply_to: ReplyTo) -> bool:
        """Pass on a request, or refuse it if it exceeds a limit. Return whether it was within the
        limits.
        """
        within = within_limits(reply_to, request)
        if within:
            self._on_request(request, reply_to)
        else:
            reply_to.send(
                _RESPONSE_OF[type(request)](error_code=ErrorCode.INVALID_REQUEST, leader_id=-1)
            )
        return within

    def closed(self, link: Link, reason: str) -> None:
        """Forget the link; a reply to it is dropped."""
        self._fetch_addresses.remove(link)


def within_limits(sender: Link | ReplyTo, message: Any) -> bool:
    """Return whether every text and list in a message is within its limit; if not, report its
    sender.
    """
    try:
        check_limits(message)
    except ApiError as error:
        sender.malformed(f"{type(message).__name__}: {error}")
        return False
    return True


class ReplyTo(msgspec.Struct, eq=False):
    """The handle for a reply: the link of its request."""

    link: Any
    correlation_id: int
    asks_time: bool = False
    """Whether the response must include the quorum time."""

    def malformed(self, what: str) -> None:
        """Report a request that exceeds a limit."""
        self.link.malformed(what)

    def send(self, response: Any) -> None:
        """Send the response; it is dropped if the link has closed."""
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
            # Another peer's message may have caused this step, which must not fail because of this
            # peer.
            self.link.close(f"the response cannot be sent: {error}")

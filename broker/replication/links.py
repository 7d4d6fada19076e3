"""The links of replica fetches: links from followers, each of which is a session, and one link to
each broker that leads a partition followed here, reconnected as long as it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import structlog

from broker.partition.events import (
    LinkLost,
    LinkOpened,
    ReplicaFetchAnswered,
    ReplicaFetchReceived,
    SessionClosed,
)
from raftlog.clock import NEVER
from raftlog.errors import ApiError
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Transport
from raftlog.wire.data.v1 import data_pb2 as pb

SessionEvent = ReplicaFetchReceived | SessionClosed


class FollowerSessions:
    """The links of followers, and the answers to them.

    Sessions are numbered, and numbers are never reused.
    """

    def __init__(self, step: Callable[[SessionEvent], None]) -> None:
        self._step = step
        self._last = 0
        self._links: dict[Hashable, Link] = {}

    def accept(self, link: Link) -> _Session:
        """Accept a follower's link."""
        self._last += 1
        self._links[self._last] = link
        return _Session(self, self._last)

    def received(self, session: int, messages: Sequence[pb.ReplicaFetchRequest]) -> None:
        """Process the fetches of one session."""
        for message in messages:
            self._step(ReplicaFetchReceived(session, message))

    def closed(self, session: int) -> None:
        """End a session, as its link has closed."""
        if self._links.pop(session, None) is not None:
            self._step(SessionClosed(session))

    def answer(self, session: Hashable, response: pb.ReplicaFetchResponse) -> None:
        """Send an answer, if the link is still open.

        An answer that fits into no message ends the session.
        """
        link = self._links.get(session)
        if link is None:
            return
        try:
            link.send(response)
        except LinkClosedError:
            return
        except ApiError as error:
            link.close(f"cannot send the answer to a replica fetch: {error}")

    def close(self) -> None:
        """End all sessions without a message."""
        links, self._links = self._links, {}
        for link in links.values():
            link.close("the broker is stopping")


class _Session:
    """The handler of one link."""

    def __init__(self, sessions: FollowerSessions, number: int) -> None:
        self._sessions, self._number = sessions, number

    def received(self, link: Link, messages: Sequence[pb.ReplicaFetchRequest]) -> None:
        """Step the fetches of this link's session."""
        self._sessions.received(self._number, messages)

    def closed(self, link: Link, reason: str) -> None:
        """End the session of this link: its parked fetches get no answer."""
        self._sessions.closed(self._number)


log = structlog.get_logger(__name__)

LinkEvent = LinkOpened | LinkLost | ReplicaFetchAnswered


class LeaderLink:
    """The link to one leader.

    Answers on an earlier link are dropped; the link to a leader that is silent for too long is
    closed.
    """

    def __init__(
        self, transport: Transport, leader_id: int, endpoint: str, step: Callable[[LinkEvent], None]
    ) -> None:
        self.leader_id, self.endpoint = leader_id, endpoint
        self._step = step
        self._closed = False
        # Correlation id of each outstanding fetch -> time when its answer is overdue, in order.
        self._overdue: dict[int, float] = {}
        self._dialer: Dialer = transport.dial(endpoint, Conversation.REPLICA_FETCH, self)

    def opened(self, link: Link) -> None:
        """Begin a new session on a new link."""
        if not self._closed:
            self._overdue.clear()
            self._step(LinkOpened(self.leader_id))

    def closed(self, link: Link, reason: str) -> None:
        """Drop outstanding fetches; the dialer connects again."""
        if not self._closed:
            self._overdue.clear()
            self._step(LinkLost(self.leader_id))

    def received(self, link: Link, messages: Sequence[pb.ReplicaFetchResponse]) -> None:
        """Process answers on the current link; drop unexpected ones."""
        for message in messages:
            if (
                not self._closed
                and link is self._dialer.link
                and message.correlation_id in self._overdue
            ):
                del self._overdue[message.correlation_id]
                self._step(ReplicaFetchAnswered(self.leader_id, message))

    def send(self, request: pb.ReplicaFetchRequest, overdue_at: float) -> None:
        """Send a fetch if the link is up; otherwise LinkLost follows."""
        link = self._dialer.link
        if link is None:
            return
        try:
            link.send(request)
        except LinkClosedError:
            return
        self._overdue[request.correlation_id] = overdue_at

    def check(self, now: float) -> None:
        """Close the link of an overdue leader: a stopped process leaves its connections open."""
        link = self._dialer.link
        if link is not None and next(iter(self._overdue.values()), NEVER) < now:
            log.warning("a leader does not answer", leader=self.leader_id, endpoint=self.endpoint)
            link.close("a fetch was not answered in time")

    def close(self) -> None:
        """Close the link, and stop dialing this leader."""
        self._closed = True
        self._dialer.close()


class LeaderLinks:
    """The links to all leaders.

    ``silence_s``: time in seconds, beyond the longest time that a fetch is parked, after which its
    answer is overdue.
    """

    def __init__(
        self, transport: Transport, step: Callable[[LinkEvent], None], *, silence_s: float
    ) -> None:
        self._transport = transport
        self._step = step
        self._silence_s = silence_s
        self._links: dict[int, LeaderLink] = {}

    def want(self, leader_id: int, endpoint: str) -> None:
        """Keep a link to this endpoint from now on."""
        known = self._links.get(leader_id)
        if known is not None:
            if known.endpoint == endpoint:
                return
            known.close()
        self._links[leader_id] = LeaderLink(self._transport, leader_id, endpoint, self._step)

    def drop(self, leader_id: int) -> None:
        """Close the link, as no partition is followed on it any more."""
        known = self._links.pop(leader_id, None)
        if known is not None:
            known.close()

    def send(self, leader_id: int, request: pb.ReplicaFetchRequest, now: float) -> None:
        """Send a fetch to a leader that is wanted."""
        self._links[leader_id].send(request, now + request.max_wait_ms / 1000 + self._silence_s)

    def check(self, now: float) -> None:
        """Check for leaders that do not answer. Call this periodically."""
        for link in list(self._links.values()):
            link.check(now)

    def close(self) -> None:
        """Close the links to all leaders."""
        for leader_id in list(self._links):
            self.drop(leader_id)

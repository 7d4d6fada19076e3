"""The serving side of replica fetches: a link is a session."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from broker.partition.events import ReplicaFetchReceived, SessionClosed
from raftlog.errors import ApiError
from raftlog.transport.api import Link, LinkClosedError
from raftlog.wire.data.v1 import data_pb2 as pb

SessionEvent = ReplicaFetchReceived | SessionClosed


class FollowerSessions:
    """The links of followers, and the answers to them.

    Sessions are numbered, and a number is never used again.
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
        """End the session of a closed link."""
        if self._links.pop(session, None) is not None:
            self._step(SessionClosed(session))

    def answer(self, session: Hashable, response: pb.ReplicaFetchResponse) -> None:
        """Send an answer, if the link is still open.

        One that fits into no message ends the session.
        """
        link = self._links.get(session)
        if link is None:
            return
        try:
            link.send(response)
        except LinkClosedError:
            return
        except ApiError as error:
            link.close(f"the answer to a replica fetch cannot be sent: {error}")

    def close(self) -> None:
        """End all sessions without a message."""
        links, self._links = self._links, {}
        for link in links.values():
            link.close("the broker stops")


class _Session:
    """The handler of one link."""

    def __init__(self, sessions: FollowerSessions, number: int) -> None:
        self._sessions, self._number = sessions, number

    def received(self, link: Link, messages: Sequence[pb.ReplicaFetchRequest]) -> None:
        """Process fetches."""
        self._sessions.received(self._number, messages)

    def closed(self, link: Link, reason: str) -> None:
        """End the session."""
        self._sessions.closed(self._number)

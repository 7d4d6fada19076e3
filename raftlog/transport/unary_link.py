"""A link of one request, for the unary methods: what a handler of streams answers becomes the
method's response.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from raftlog.identity import ANONYMOUS, PeerIdentity
from raftlog.transport.api import LinkHandler
from raftlog.transport.complaints import Complaint, Complaints


class Caller(NamedTuple):
    """Who makes a unary call. ``complaints``: where what it must not do is counted."""

    address: str
    identity: PeerIdentity = ANONYMOUS
    listener: str = ""
    complaints: Complaints | None = None


class UnaryLink:
    """Takes the one response."""

    def __init__(
        self,
        peer: str,
        identity: PeerIdentity = ANONYMOUS,
        listener: str = "",
        complaints: Complaints | None = None,
    ) -> None:
        self._peer, self._complaints = peer, complaints
        self.identity, self.listener = identity, listener
        self.response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def peer(self) -> str:
        """Who has called, for logs."""
        return self._peer

    def send(self, message: Any) -> None:
        """The response. The caller may have gone."""
        if not self.response.done():
            self.response.set_result(message)

    def close(self, reason: str = "") -> None:
        """There is nothing to close."""

    def unknown_kind(self, what: str) -> None:
        """A unary call has one kind."""

    def malformed(self, what: str) -> None:
        """The caller is told."""

    def forbidden(self, what: str) -> None:
        """The caller is told; counted and logged, as on a stream."""
        if self._complaints is not None:
            self._complaints.add(Complaint.FORBIDDEN, self._peer, what)


async def answer(handler: LinkHandler, request: Any, caller: Caller) -> Any:
    """Have a handler of streams answer one request. The response, whatever it says."""
    link = UnaryLink(*caller)
    handler.received(link, [request])
    try:
        return await link.response
    finally:
        # The caller may have hung up: what waits goes with it.
        handler.closed(link, "the call is over")

"""A link of one request, for the unary methods: what a handler of streams answers becomes the
method's response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from raftlog.identity import ANONYMOUS, PeerIdentity
from raftlog.transport.api import LinkHandler


class Caller(NamedTuple):
    """Who makes a unary call."""

    address: str
    identity: PeerIdentity = ANONYMOUS
    listener: str = ""
    complain: Callable[[str], None] | None = None
    """Counts what it does and may not do; None: nobody counts."""


class UnaryLink:
    """Takes the one response."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.identity, self.listener = caller.identity, caller.listener
        self.response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def peer(self) -> str:
        """Who has called, for logs."""
        return self._caller.address

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

    def throttled(self, what: str) -> None:
        """Nothing more comes on this link."""

    def forbidden(self, what: str) -> None:
        """The caller is told, and it is counted."""
        if self._caller.complain is not None:
            self._caller.complain(what)


async def answer(handler: LinkHandler, request: Any, caller: Caller) -> Any:
    """Have a handler of streams answer one request. The response, whatever it says."""
    link = UnaryLink(caller)
    handler.received(link, [request])
    try:
        return await link.response
    finally:
        # The caller may have hung up: what waits goes with it.
        handler.closed(link, "the call is over")

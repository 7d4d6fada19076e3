"""How a watch asks a broker: by a call of its own, or on a stream that many watches share.

A call lives once: what comes of it after it was closed, or lost, is nobody's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from raftlog.errors import ApiError
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Transport
from raftlog.wire.broker.v1 import broker_pb2 as pb

LINK_TIMEOUT_S = 2.0
"""A broker that gives no link, or no first response, in this time is passed over."""
SILENT = "does not answer"


class Asking(Protocol):
    """The watch that a call is of."""

    def told(self, call: WatchCall, response: pb.WatchResponse) -> None:
        """A broker tells something."""

    def lost(self, call: WatchCall, reason: str, error: ApiError | None = None) -> None:
        """The broker is gone, or says nothing, or does not let this client in (``error``)."""


class WatchCall(Protocol):
    """One request to one broker, and what is told to it."""

    def close(self) -> None:
        """Give it up. Idempotent."""


class Calls(Protocol):
    """What makes calls."""

    def begin(
        self, asking: Asking, address: str, request: pb.WatchRequest, silence_s: float
    ) -> WatchCall:
        """Ask a broker; the watch hears of it later, never before this returns. ``silence_s``: how
        long a broker that has answered may be silent.
        """


class OwnCalls:
    """Each call is a gRPC call of its own, which ends with its link."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def begin(
        self, asking: Asking, address: str, request: pb.WatchRequest, silence_s: float
    ) -> WatchCall:
        """See :class:`Calls`."""
        return _OwnCall(self._transport, asking, address, request, silence_s)


class _OwnCall:
    def __init__(
        self,
        transport: Transport,
        asking: Asking,
        address: str,
        request: pb.WatchRequest,
        silence_s: float,
    ) -> None:
        self._asking, self._request, self._silence_s = asking, request, silence_s
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LINK_TIMEOUT_S, self._lost)
        self._dialer: Dialer = transport.dial(address, Conversation.WATCH, self)

    def close(self) -> None:
        """See :class:`WatchCall`."""
        self._timer.cancel()
        self._dialer.close()

    def opened(self, link: Link) -> None:
        """Ask."""
        try:
            link.send(self._request)
        except LinkClosedError as error:
            self._lost(str(error))

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        """Responses."""
        self._timer.cancel()
        self._timer = self._loop.call_later(self._silence_s, self._lost)
        for message in messages:
            self._asking.told(self, message)

    def attempt_failed(self, reason: str, error: ApiError | None) -> None:
        """There is no link, or the broker does not let this client in."""
        self._asking.lost(self, reason, error)

    def closed(self, link: Link, reason: str) -> None:
        """The link is gone."""
        self._lost(reason)

    def _lost(self, reason: str = SILENT) -> None:
        self._asking.lost(self, reason)

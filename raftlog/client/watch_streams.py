"""The watches of one client share a stream to each broker that any of them asks.

A stream lives for one link: when that ends, each of its watches goes on elsewhere by itself, and
whoever asks the broker again makes another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from raftlog.client.watch_calls import LINK_TIMEOUT_S, SILENT, Asking, WatchCall
from raftlog.errors import ApiError
from raftlog.transport.api import Conversation, Dialer, Link, LinkClosedError, Transport
from raftlog.wire.broker.v1 import broker_pb2 as pb


class WatchStreams:
    """Those of one client; see :class:`raftlog.client.watch_calls.Calls`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._open: dict[str, _Stream] = {}

    def begin(
        self, asking: Asking, address: str, request: pb.WatchRequest, silence_s: float
    ) -> WatchCall:
        """See :class:`Calls`."""
        stream = self._open.get(address)
        if stream is None or stream.over:
            stream = self._open[address] = _Stream(self._transport, address)
        return stream.begin(asking, request, silence_s)


class _SharedCall:
    """One watch on a stream."""

    __slots__ = ("_stream", "asking", "request", "timer", "watch_id")

    def __init__(
        self, stream: _Stream, watch_id: int, asking: Asking, request: pb.WatchRequest
    ) -> None:
        self._stream = stream
        self.watch_id, self.asking = watch_id, asking
        self.request = pb.WatchManyRequest(watch_id=watch_id, begin=request)
        self.timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(
            LINK_TIMEOUT_S, self._unanswered
        )

    def close(self) -> None:
        """See :class:`WatchCall`."""
        self._stream.end(self)

    def _unanswered(self) -> None:
        self.asking.lost(self, SILENT)


class _Stream:
    """One link to one broker, and the watches on it."""

    def __init__(self, transport: Transport, address: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, _SharedCall] = {}
        self._last_id = 0
        self._link: Link | None = None
        self.over = False
        """Nothing more comes of it."""
        self._silence_s, self._heard_at = 0.0, self._loop.time()
        self._silence: asyncio.TimerHandle | None = None
        self._dialer: Dialer = transport.dial(address, Conversation.WATCH_MANY, self)

    def begin(self, asking: Asking, request: pb.WatchRequest, silence_s: float) -> _SharedCall:
        """Another watch."""
        self._last_id += 1
        call = self._calls[self._last_id] = _SharedCall(self, self._last_id, asking, request)
        # Every watch of a broker that lives is told something now and then.
        self._silence_s = max(self._silence_s, silence_s)
        if self._link is not None:
            # A link that is gone says so itself.
            with suppress(LinkClosedError):
                self._link.send(call.request)
        return call

    def end(self, call: _SharedCall) -> None:
        """A watch has had enough. Idempotent."""
        _answered(call)
        if self._calls.pop(call.watch_id, None) is None:
            return
        if not self._calls:
            self._close()
        elif self._link is not None:
            with suppress(LinkClosedError):
                self._link.send(pb.WatchManyRequest(watch_id=call.watch_id, end=pb.EndWatch()))

    def opened(self, link: Link) -> None:
        """Ask for all watches that have come so far."""
        self._link = link
        self._heard_at = self._loop.time()
        self._look()
        with suppress(LinkClosedError):
            for call in self._calls.values():
                link.send(call.request)

    def received(self, link: Link, messages: Sequence[pb.WatchManyResponse]) -> None:
        """Responses, each for one watch or for several."""
        self._heard_at = self._loop.time()
        for message in messages:
            response = message.response
            for watch_id in message.watch_ids:
                # Those that were ended here are told a little longer.
                if (call := self._calls.get(watch_id)) is not None:
                    _answered(call)
                    call.asking.told(call, response)

    def attempt_failed(self, reason: str, error: ApiError | None) -> None:
        """There is no link, or the broker does not let this client in."""
        self._lost(reason, error)

    def closed(self, link: Link, reason: str) -> None:
        """The link is gone."""
        self._lost(reason, None)

    def _look(self) -> None:
        """Give up a broker that is silent."""
        # A point in time: a span that is left may be too short to move the clock at all.
        due = self._heard_at + self._silence_s
        if self._loop.time() < due:
            self._silence = self._loop.call_at(due, self._look)
        else:
            self._lost(SILENT, None)

    def _lost(self, reason: str, error: ApiError | None) -> None:
        self._close()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            _answered(call)
            call.asking.lost(call, reason, error)

    def _close(self) -> None:
        self.over, self._link = True, None
        if self._silence is not None:
            self._silence.cancel()
        self._dialer.close()


def _answered(call: _SharedCall) -> None:
    if call.timer is not None:
        call.timer.cancel()
        call.timer = None

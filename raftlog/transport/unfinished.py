"""Messages that have begun to arrive on gRPC connections and are not complete.

Once somebody reads, gRPC takes what a peer sends of a message up to the largest size of the server,
on each of the calls of a connection and for any time, and does not tell how much it holds. So the
bytes of unfinished messages are what the kernel says a connection has received, less what was
handed over from it, and calls are cut that hold too much of them, or hold them for too long.

The estimate errs in the peer's favour by ``OVERHEAD_BYTES`` for a message or a call, and by
``QUIET_BYTES_A_S`` for a connection: frame headers, TLS records, pings. Where one call of a
connection reads, which is how nodes and the client library connect, what it has received since its
last complete message bounds the estimate, too, so that no error adds up.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Protocol

from raftlog.resource_limits import STREAM_WINDOW_BYTES
from raftlog.transport.connections import host_of
from raftlog.transport.socket_bytes import ReceivedBytes

OVERHEAD_BYTES = 128
"""Wire bytes allowed for a message, or for the headers of a call, beside its content."""
QUIET_BYTES_A_S = 64
"""Wire bytes a second allowed for a connection on which nothing is sent: keepalive pings."""
OPENING_BYTES = 32 << 10
"""Wire bytes allowed for opening a connection: a TLS handshake with its certificates."""
RESPONSE_SHIFT = 7
"""A response of 2**7 bytes allows one wire byte of flow control from its receiver."""
FEW_BYTES = 64 << 10
"""No deadline applies to a connection that holds no more."""
LOOK_S = 0.1
"""Pause between two looks, unless they are costly:"""
LOOK_SHARE = 20
"""a pause is at least this many times as long as the look before it took."""
MIN_QUIET = 64
"""Connections without a call whose counters are kept before any of them is dropped."""


class OpenCall:
    """One call that may have an unfinished message."""

    __slots__ = ("begun_at", "counted_bytes", "cut", "max_bytes", "progressed", "reads", "since")

    def __init__(
        self, cut: Callable[[str], None], max_bytes: int, begun_at: int, since: float
    ) -> None:
        self.cut = cut
        """Ends the call; the text says why."""
        self.max_bytes = max_bytes
        """Largest message that the call takes."""
        self.counted_bytes = OVERHEAD_BYTES
        """Wire bytes that are accounted for: of complete messages, and the allowances."""
        self.progressed = False
        """True if a message was completed since the last look."""
        self.reads = True
        """True while the call waits for a message; else gRPC holds one window of it at most."""
        self.begun_at = begun_at
        """Bytes that the connection had received when the present message may have begun."""
        self.since = since
        """When that was, in seconds of the loop's clock."""

    def took(self, length: int) -> None:
        """Account for a complete message of so many bytes."""
        self.counted_bytes += length + OVERHEAD_BYTES
        self.progressed = True


class _Connection:
    """The open calls of one connection, and what it holds."""

    __slots__ = (
        "calls", "counted_bytes", "ended_bytes", "held_bytes", "looked", "many_since", "received",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.calls: dict[OpenCall, None] = {}
        self.received = 0
        """Bytes at the last look."""
        self.ended_bytes = OPENING_BYTES
        """Accounted for by calls that have ended."""
        self.counted_bytes = 0
        """Accounted for at the last look."""
        self.held_bytes = 0
        """Estimate of the unfinished messages at the last look."""
        self.looked = now
        self.many_since = math.inf
        """Since when it has held more than FEW_BYTES; inf: it does not."""

    def restart(self) -> None:
        """Begin anew: the kernel counts another connection of the same peer."""
        self.received = 0
        self.counted_bytes -= OPENING_BYTES
        for call in self.calls:
            call.begun_at = 0

    def look(self, received: int, now: float) -> None:
        """Estimate what the connection holds."""
        grown, before = received - self.received, self.received
        counted = self.ended_bytes + sum(call.counted_bytes for call in self.calls)
        allowed = counted - self.counted_bytes + int(QUIET_BYTES_A_S * (now - self.looked))
        self.received, self.counted_bytes, self.looked = received, counted, now
        oldest, windows_bytes = received, 0
        for call in self.calls:
            if call.progressed:
                call.progressed, call.begun_at, call.since = False, before, now
            if not call.reads:
                windows_bytes += STREAM_WINDOW_BYTES
            elif call.begun_at < oldest:
                oldest = call.begun_at
        self.held_bytes = min(
            max(0, self.held_bytes + grown - allowed), received - oldest + windows_bytes
        )
        if self.held_bytes <= FEW_BYTES:
            self.many_since = math.inf
        elif self.many_since == math.inf:
            self.many_since = now

    @property
    def most_bytes(self) -> int:
        """Largest total size of unfinished messages of its calls, with room for framing."""
        return sum(call.max_bytes + (call.max_bytes >> 4) + FEW_BYTES for call in self.calls)


class Received(Protocol):
    """Counts the bytes that connections have received."""

    def of(self, peer: str) -> int | None:
        """Return the bytes received from a peer so far; None: its connection is not known."""

    def find(self) -> None:
        """Look for the connections that are open now."""


class UnfinishedMessages:
    """The unfinished messages of all connections. Pure, but for ``received``.

    All connections together hold ``max_total_bytes``, and those of one address no more of it than
    they leave to others. A call that holds a part of a message for ``timeout_s`` is cut.
    """

    def __init__(self, received: Received, max_total_bytes: int, timeout_s: float) -> None:
        self._received = received
        self._max_total_bytes, self._timeout_s = max_total_bytes, timeout_s
        self._connections: dict[str, _Connection] = {}
        self._quiet: dict[str, _Connection] = {}
        """Without an open call."""
        self._max_quiet = MIN_QUIET
        """When there are more of these, those that have closed are dropped."""
        self.total_bytes = 0
        """Estimate at the last look."""

    def __bool__(self) -> bool:
        """True while a call is open."""
        return bool(self._connections)

    def begin(self, peer: str, cut: Callable[[str], None], max_bytes: int, now: float) -> OpenCall:
        """Watch a call until ``end``."""
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._quiet.pop(peer, None) or _Connection(now)
            self._connections[peer] = connection
        call = OpenCall(cut, max_bytes, connection.received, now)
        connection.calls[call] = None
        return call

    def end(self, peer: str, call: OpenCall) -> None:
        """Watch a call no longer."""
        connection = self._connections[peer]
        del connection.calls[call]
        connection.ended_bytes += call.counted_bytes

    def look(self, now: float) -> None:
        """Cut what holds too much, or for too long."""
        received = {peer: self._received.of(peer) for peer in self._connections}
        unknown = [peer for peer, count in received.items() if count is None]
        if unknown:
            self._received.find()
            received.update((peer, self._received.of(peer)) for peer in unknown)
        held: Counter[str] = Counter()
        for peer, count in received.items():
            connection = self._connections[peer]
            if count is not None:
                if count < connection.received:
                    connection.restart()
                connection.look(count, now)
            if not connection.calls:
                self._rest(peer)
            elif connection.held_bytes > connection.most_bytes:
                self._cut(connection, f"{connection.held_bytes} bytes of messages too large")
            else:
                self._cut_late(connection, now)
            held[host_of(peer)] += connection.held_bytes
        self.total_bytes = held.total()
        self._share(held)

    def _rest(self, peer: str) -> None:
        """Keep what is known of a connection without calls, as long as it may have others."""
        connection = self._quiet[peer] = self._connections.pop(peer)
        connection.held_bytes = 0
        if len(self._quiet) > self._max_quiet:
            self._quiet = {
                one: kept for one, kept in self._quiet.items() if self._received.of(one) is not None
            }
            self._max_quiet = 2 * len(self._quiet) + MIN_QUIET

    def _cut_late(self, connection: _Connection, now: float) -> None:
        """Cut the calls whose message has taken too long."""
        if now - connection.many_since < self._timeout_s:
            return
        for call in list(connection.calls):
            if call.reads and now - call.since >= self._timeout_s:
                call.cut(f"a message was not complete within {self._timeout_s:g} s")
                connection.held_bytes, connection.many_since = 0, math.inf

    def _share(self, held: Counter[str]) -> None:
        """Cut connections of the address that holds most until it leaves as much to others."""
        while held:
            host, most = held.most_common(1)[0]
            if most <= self._max_total_bytes - self.total_bytes:
                return
            largest = max(
                (one for peer, one in self._connections.items() if host_of(peer) == host),
                key=lambda one: one.held_bytes,
            )
            size = largest.held_bytes
            self._cut(largest, f"{most} bytes of unfinished messages from {host}")
            held[host] -= size
            self.total_bytes -= size

    def _cut(self, connection: _Connection, why: str) -> None:
        connection.held_bytes, connection.many_since = 0, math.inf
        for call in list(connection.calls):
            call.cut(why)


class UnfinishedWatch:
    """Looks at the unfinished messages of one node's listeners as long as calls are open."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, max_total_bytes: int, timeout_s: float
    ) -> None:
        self._loop = loop
        self._messages = UnfinishedMessages(ReceivedBytes(), max_total_bytes, timeout_s)
        self._due = False

    @property
    def total_bytes(self) -> int:
        """Estimate at the last look, in bytes."""
        return self._messages.total_bytes

    @contextmanager
    def call(self, peer: str, cut: Callable[[str], None], max_bytes: int) -> Iterator[OpenCall]:
        """Watch a call; ``cut`` is called in a turn of the loop of its own."""
        call = self._messages.begin(peer, cut, max_bytes, self._loop.time())
        self._look_in(LOOK_S)
        try:
            yield call
        finally:
            self._messages.end(peer, call)

    def _look_in(self, pause_s: float) -> None:
        if not self._due:
            self._due = True
            self._loop.call_later(pause_s, self._look)

    def _look(self) -> None:
        self._due = False
        begun = thread_time()
        self._messages.look(self._loop.time())
        if self._messages:
            self._look_in(max(LOOK_S, LOOK_SHARE * (thread_time() - begun)))

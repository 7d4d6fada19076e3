"""Bounds on what peers may use, and complaints about peers that exceed them.

Each transport has one ``Bounds``: all its links share the limits, the turns of the loop, the send
budget and the places for streams.

**Complaints** count each misbehaviour and log some, never with a stack trace: a stranger can
misbehave as often as it likes, but must not fill the log.

**Connections.** gRPC itself accepts connections, up to ``max.connections``; a node learns of a
connection with its first call. So a connection counts while it has an open call, and above a bound
its calls are refused. A connection without calls costs little, and is closed after it was idle for
``connections.max.idle.ms``.

**The send budget** bounds the unsent bytes of all links. Above it the slowest reader is
disconnected, i.e. the link that has sent nothing for the longest time.

**Unfinished messages.** Once a call is read, gRPC buffers the received part of a message, up to the
server's largest message, on each call of a connection, for any time, without reporting how much it
holds. So the bytes of unfinished messages are estimated as the bytes that the kernel has received
on a connection, minus those delivered from it. Calls that hold too many of these bytes, or hold
them for too long, are closed.

The estimate errs in the peer's favour by ``OVERHEAD_BYTES`` per message or call, and by
``QUIET_BYTES_A_S`` per connection: frame headers, TLS records, pings. If only one call of a
connection reads, as with nodes and the client library, the bytes received since its last complete
message are another bound on the estimate, so that no error accumulates.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from time import thread_time
from typing import Protocol

from raftlog.bounds import ITEMS_A_SLICE, RETRY_AFTER_MS, STREAM_WINDOW_BYTES, Shares
from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import PeerIdentity
from raftlog.logger import get_logger
from raftlog.transport.api import Conversation, TransportLimits
from raftlog.transport.turns import Newcomers, Turns

log = get_logger(__name__)

LOGGED_A_PERIOD = 10
PERIOD_S = 10.0
_SHOWN_CHARACTERS = 300


class Complaint(StrEnum):
    """The kinds of complaints; the value is the metric's label."""

    MALFORMED = "malformed"
    TOO_LARGE = "too_large"
    TOO_MANY_ITEMS = "too_many_items"
    TOO_MANY_STREAMS = "too_many_streams"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    TOO_MUCH_WAITING = "too_much_waiting"
    THROTTLED = "throttled"
    UNFINISHED = "unfinished"
    UNKNOWN_KIND = "unknown_kind"
    SLOW_READER = "slow_reader"
    FORBIDDEN = "forbidden"
    UNAUTHENTICATED = "unauthenticated"
    HTTP = "http"


_EVENT = {
    Complaint.MALFORMED: "malformed message",
    Complaint.TOO_LARGE: "message too large",
    Complaint.TOO_MANY_ITEMS: "too many items in a message",
    Complaint.TOO_MANY_STREAMS: "too many streams",
    Complaint.TOO_MANY_CONNECTIONS: "too many connections",
    Complaint.TOO_MUCH_WAITING: "too many bytes are queued",
    Complaint.THROTTLED: "a peer is throttled",
    Complaint.UNFINISHED: "unfinished messages",
    Complaint.UNKNOWN_KIND: "message of an unknown kind",
    Complaint.SLOW_READER: "a peer reads too slowly",
    Complaint.FORBIDDEN: "a peer is not permitted to send this",
    Complaint.HTTP: "an HTTP client violates a limit or an access rule",
    Complaint.UNAUTHENTICATED: "a peer has not proved its identity",
}


class Complaints:
    """The complaint counters and complaint log of one process's transport."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.counts: Counter[Complaint] = Counter()
        self._logged = 0
        self._left_out: Counter[Complaint] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, complaint: Complaint, peer: str, detail: str) -> None:
        """Count a complaint, and log it unless the log limit is reached."""
        self.counts[complaint] += 1
        if self._timer is None:
            self._timer = self._loop.call_later(PERIOD_S, self._period_over)
        if self._logged < LOGGED_A_PERIOD:
            self._logged += 1
            # repr without its quotes: a stranger's bytes are never written unescaped.
            log.warning(_EVENT[complaint], peer=peer, error=repr(detail)[1:-1][:_SHOWN_CHARACTERS])
        else:
            self._left_out[complaint] += 1

    def close(self) -> None:
        """Log the number of complaints that were not logged. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._period_over()

    def _period_over(self) -> None:
        self._timer, self._logged = None, 0
        if self._left_out:
            log.warning(
                "further complaints about peers were not logged",
                **{str(kind): count for kind, count in sorted(self._left_out.items())},
            )
            self._left_out.clear()


def host_of(peer: str) -> str:
    """Return the host part of an address with a port."""
    return peer.rpartition(":")[0]


class Connections:
    """The connections of one node that have an open call. Does no I/O."""

    def __init__(self, *, per_address: int, per_principal: int) -> None:
        self._bounds = {"address": per_address, "principal": per_principal}
        self._calls: Counter[tuple[str, str]] = Counter()
        """Number of open calls by (peer, holder): a connection may present several tokens."""
        self._of: Counter[tuple[str, str]] = Counter()
        """Number of connections by (kind, holder)."""

    def of(self, kind: str, holder: str) -> int:
        """Return the number of connections with an open call of an "address" or a "principal"."""
        return self._of[kind, holder]

    @contextmanager
    def counted(self, peer: str, identity: PeerIdentity) -> Iterator[str]:
        """Count a call while it is open; yields why it is refused, or empty if it is not.

        A certificate's subject counts as its principal, whatever the mapping rules say.
        """
        whose = identity.principal or identity.subject
        connection = (peer, whose)
        holders = [("address", host_of(peer))]
        if whose:
            holders.append(("principal", whose))
        fresh = connection not in self._calls
        if fresh:
            for kind, holder in holders:
                if self._of[kind, holder] >= self._bounds[kind]:
                    yield (
                        f"{holder} already has {self._bounds[kind]} connections, the limit for one"
                        f" {kind}"
                    )
                    return
            self._of.update(holders)
        self._calls[connection] += 1
        try:
            yield ""
        finally:
            self._calls[connection] -= 1
            if not self._calls[connection]:
                del self._calls[connection]
                for key in holders:
                    self._of[key] -= 1
                    if not self._of[key]:
                        del self._of[key]


class Cuttable(Protocol):
    """A link with unsent bytes."""

    def cut(self, reason: str) -> None:
        """Close the link; it returns its unsent bytes to the budget."""


class SendBudget:
    """The budget for unsent bytes on all links of a transport."""

    def __init__(self, max_total_bytes: int) -> None:
        self._max_total_bytes = max_total_bytes
        self.total_bytes = 0
        # In the order in which the links last sent something: the first is the slowest.
        self._behind: dict[Cuttable, None] = {}

    def add(self, link: Cuttable, count: int) -> None:
        """Add ``count`` unsent bytes of a link. May close links, including this one."""
        self.total_bytes += count
        if link not in self._behind:
            self._behind[link] = None
        while self.total_bytes > self._max_total_bytes and self._behind:
            slowest = next(iter(self._behind))
            before = self.total_bytes
            slowest.cut(
                f"{before} bytes are unsent on all links, and this peer has read nothing for the"
                " longest time"
            )
            self._behind.pop(slowest, None)
            if self.total_bytes == before:
                return

    def sent(self, link: Cuttable, count: int, *, all_sent: bool) -> None:
        """Subtract ``count`` bytes that were sent or dropped."""
        self.total_bytes -= count
        self._behind.pop(link, None)
        if not all_sent:
            self._behind[link] = None


MAX_LOGGED_REASONS = 64
"""Maximum number of failure reasons remembered as already logged."""


class LaneCounts:
    """Lane counters of one transport: links on a lane, and failed attempts to open one."""

    def __init__(self) -> None:
        self.served: Counter[Conversation] = Counter()
        self.dialed: Counter[Conversation] = Counter()
        self.failures = 0
        self._logged: set[tuple[str, str]] = set()

    def failed(self, address: str, reason: str, *, loses_fetches: bool = True) -> None:
        """Count a failed attempt; log each reason once until a lane opens again.

        ``loses_fetches``: whether the log itself now travels over gRPC, which an operator may want
        to fix; False if only client requests do.
        """
        self.failures += 1
        failure = address, reason
        if failure not in self._logged and len(self._logged) < MAX_LOGGED_REASONS:
            self._logged.add(failure)
            (log.warning if loses_fetches else log.debug)(
                "cannot open a separate TCP connection for a stream: its messages stay on gRPC,"
                " and another attempt follows",
                address=address,
                reason=reason,
            )

    def opened(self, address: str) -> None:
        """Record that a lane to this address has opened, so that the next failure is logged."""
        self._logged = {one for one in self._logged if one[0] != address}


_TCP_INFO_BYTES = 136
_RECEIVED_AT = 128
"""Offset of tcpi_bytes_received in struct tcp_info (Linux 4.1)."""
_DESCRIPTORS = "/proc/self/fd"


class ReceivedBytes:
    """The kernel's counters of received bytes, by peer address in gRPC's notation."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}

    def of(self, peer: str) -> int | None:
        """See ``Received``."""
        descriptor = self._descriptors.get(peer)
        if descriptor is None:
            return None
        found = _look(descriptor)
        if found is None or found[0] != peer:
            # The connection is closed, and its descriptor may already be that of another file.
            del self._descriptors[peer]
            return None
        return found[1]

    def find(self) -> None:
        """See ``Received``."""
        try:
            names = os.listdir(_DESCRIPTORS)
        except OSError:
            return
        looks = ((int(name), _look(int(name))) for name in names)
        self._descriptors = {found[0]: one for one, found in looks if found is not None}


def _look(descriptor: int) -> tuple[str, int] | None:
    """Return the peer of a TCP connection and the bytes received from it, or None for other
    descriptors.
    """
    try:
        connection = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, descriptor)
    except OSError:
        return None
    try:
        peer = connection.getpeername()
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    finally:
        # gRPC still owns the descriptor, and closes it.
        connection.detach()
    if not isinstance(peer, tuple) or len(info) < _TCP_INFO_BYTES:
        return None
    return _address(*peer[:2]), struct.unpack_from("=Q", info, _RECEIVED_AT)[0]


def _address(host: str, port: int) -> str:
    """Return an address in the format of ``statuses.peer_address``."""
    host = host.removeprefix("::ffff:")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


OVERHEAD_BYTES = 128
"""Wire bytes allowed in addition to the content of a message, or for the headers of a call."""
QUIET_BYTES_A_S = 64
"""Wire bytes per second allowed on a connection without messages: keepalive pings."""
OPENING_BYTES = 32 << 10
"""Wire bytes allowed for opening a connection: a TLS handshake with its certificates."""
RESPONSE_SHIFT = 7
"""A response of 2**7 bytes allows its receiver one wire byte of flow control."""
FEW_BYTES = 64 << 10
"""Estimate up to which no deadline applies to a connection, in bytes."""
LOOK_S = 0.1
"""Shortest pause between two checks, in seconds."""
LOOK_SHARE = 20
"""A pause is at least this many times as long as the preceding check."""
MIN_QUIET = 64
"""Number of connections without a call whose counters are kept before any are dropped."""


class OpenCall:
    """One call that may have an unfinished message."""

    __slots__ = ("begun_at", "counted_bytes", "cut", "max_bytes", "progressed", "reads", "since")

    def __init__(
        self, cut: Callable[[str], None], max_bytes: int, begun_at: int, since: float
    ) -> None:
        self.cut = cut
        """Callback that closes the call; its argument is the reason."""
        self.max_bytes = max_bytes
        """Largest message that the call accepts, in bytes."""
        self.counted_bytes = OVERHEAD_BYTES
        """Accounted wire bytes: complete messages and allowances."""
        self.progressed = False
        """Whether a message was completed since the last check."""
        self.reads = True
        """True while the call waits for a message; otherwise gRPC holds at most one window
        of it.
        """
        self.begun_at = begun_at
        """Bytes that the connection had received when the current message may have begun."""
        self.since = since
        """Time of ``begun_at``, in seconds of the loop's clock."""

    def took(self, length: int) -> None:
        """Account for a complete message of ``length`` bytes."""
        self.counted_bytes += length + OVERHEAD_BYTES
        self.progressed = True


class _Connection:
    """The open calls of one connection, and the estimate of its unfinished messages."""

    __slots__ = (
        "calls", "counted_bytes", "ended_bytes", "held_bytes", "looked", "many_since", "received",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        self.calls: dict[OpenCall, None] = {}
        self.received = 0
        """Bytes received at the last check."""
        self.ended_bytes = OPENING_BYTES
        """Wire bytes accounted for by ended calls."""
        self.counted_bytes = 0
        """Wire bytes accounted for at the last check."""
        self.held_bytes = 0
        """Estimated size of the unfinished messages at the last check, in bytes."""
        self.looked = now
        self.many_since = math.inf
        """Time since which the estimate has exceeded FEW_BYTES, or inf if it does not."""

    def restart(self) -> None:
        """Restart the count, because the kernel counts another connection of the same peer."""
        self.received = 0
        self.counted_bytes -= OPENING_BYTES
        for call in self.calls:
            call.begun_at = 0

    def look(self, received: int, now: float) -> None:
        """Update the estimate of the connection's unfinished bytes."""
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
        """Largest permitted total size of the unfinished messages of its calls, in bytes, with room
        for framing.
        """
        return sum(call.max_bytes + (call.max_bytes >> 4) + FEW_BYTES for call in self.calls)


class Received(Protocol):
    """A source of the number of bytes that connections have received."""

    def of(self, peer: str) -> int | None:
        """Return the bytes received from a peer so far, or None if its connection is unknown."""

    def find(self) -> None:
        """Scan for the connections that are open now."""


class UnfinishedMessages:
    """The unfinished messages of all connections. Does no I/O, except through ``received``.

    All connections together may hold ``max_total_bytes``, and those of one address no more of it
    than they leave to others. A call that holds part of a message for ``timeout_s`` is closed.
    """

    def __init__(self, received: Received, max_total_bytes: int, timeout_s: float) -> None:
        self._received = received
        self._max_total_bytes, self._timeout_s = max_total_bytes, timeout_s
        self._connections: dict[str, _Connection] = {}
        self._quiet: dict[str, _Connection] = {}
        """Connections without an open call, by peer."""
        self._max_quiet = MIN_QUIET
        """Number of quiet connections above which the closed ones are dropped."""
        self.total_bytes = 0
        """Estimate at the last check, in bytes."""

    def __bool__(self) -> bool:
        """True while a call is open."""
        return bool(self._connections)

    def begin(self, peer: str, cut: Callable[[str], None], max_bytes: int, now: float) -> OpenCall:
        """Monitor a call until ``end``."""
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._quiet.pop(peer, None) or _Connection(now)
            self._connections[peer] = connection
        call = OpenCall(cut, max_bytes, connection.received, now)
        connection.calls[call] = None
        return call

    def end(self, peer: str, call: OpenCall) -> None:
        """Stop monitoring a call."""
        connection = self._connections[peer]
        del connection.calls[call]
        connection.ended_bytes += call.counted_bytes

    def look(self, now: float) -> None:
        """Close the calls that hold too many unfinished bytes, or hold them for too long."""
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
                self._cut(
                    connection,
                    f"{connection.held_bytes} bytes of unfinished messages exceed the limit",
                )
            else:
                self._cut_late(connection, now)
            held[host_of(peer)] += connection.held_bytes
        self.total_bytes = held.total()
        self._share(held)

    def _rest(self, peer: str) -> None:
        """Keep the counters of a connection without calls, which may make further calls."""
        connection = self._quiet[peer] = self._connections.pop(peer)
        connection.held_bytes = 0
        if len(self._quiet) > self._max_quiet:
            self._quiet = {
                one: kept for one, kept in self._quiet.items() if self._received.of(one) is not None
            }
            self._max_quiet = 2 * len(self._quiet) + MIN_QUIET

    def _cut_late(self, connection: _Connection, now: float) -> None:
        """Close the calls whose message exceeds the time limit."""
        if now - connection.many_since < self._timeout_s:
            return
        for call in list(connection.calls):
            if call.reads and now - call.since >= self._timeout_s:
                call.cut(f"a message was not complete within {self._timeout_s:g} s")
                connection.held_bytes, connection.many_since = 0, math.inf

    def _share(self, held: Counter[str]) -> None:
        """Close calls from the address with the most unfinished bytes until it has no more of them
        than are free for others.
        """
        while held:
            host, most = held.most_common(1)[0]
            if most <= self._max_total_bytes - self.total_bytes:
                return
            largest = max(
                (one for peer, one in self._connections.items() if host_of(peer) == host),
                key=lambda one: one.held_bytes,
            )
            size = largest.held_bytes
            self._cut(
                largest, f"{host} has {most} bytes of unfinished messages, more than its share"
            )
            held[host] -= size
            self.total_bytes -= size

    def _cut(self, connection: _Connection, why: str) -> None:
        connection.held_bytes, connection.many_since = 0, math.inf
        for call in list(connection.calls):
            call.cut(why)


class UnfinishedWatch:
    """The periodic check of one node's unfinished messages while calls are open."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, max_total_bytes: int, timeout_s: float
    ) -> None:
        self._loop = loop
        self._messages = UnfinishedMessages(ReceivedBytes(), max_total_bytes, timeout_s)
        self._due = False

    @property
    def total_bytes(self) -> int:
        """Estimate at the last check, in bytes."""
        return self._messages.total_bytes

    @contextmanager
    def call(self, peer: str, cut: Callable[[str], None], max_bytes: int) -> Iterator[OpenCall]:
        """Monitor a call. ``cut`` is called in a separate iteration of the loop."""
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


UNARY = "unary"
"""The pool for all calls outside conversations: unary calls, health, reflection."""


class Bounds:
    """All limits and shares of one transport. Created on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: TransportLimits) -> None:
        self.limits = limits
        self.complaints = Complaints(loop)
        self.send_budget = SendBudget(limits.max_queued_total_bytes)
        self.waiting = Shares(limits.max_waiting_total_bytes)
        """Bytes of received messages that wait for their turn, by peer."""
        self.unfinished = UnfinishedWatch(
            loop, limits.max_unfinished_total_bytes, limits.message_timeout_ms / 1000
        )
        self.unfinished_frames = Shares(limits.max_unfinished_total_bytes)
        """Bytes of partially received lane frames, by address."""
        pools = [*(conversation.name for conversation in Conversation), UNARY]
        # One for each conversation: a flood of one kind never uses the time or the places of
        # another kind.
        self.newcomers = Newcomers()
        self.turns = {
            # Conversations whose messages are only queued have no long turns.
            pool: Turns(
                loop,
                limits.turn_ms,
                long_turn_ms=math.inf if pool in ITEMS_A_SLICE else limits.long_turn_ms,
                newcomers=self.newcomers,
            )
            for pool in pools
        }
        self.connections = Connections(
            per_address=limits.max_connections_per_address,
            per_principal=limits.max_connections_per_principal,
        )
        self.lanes = LaneCounts()
        self.streams = {
            pool: Shares(
                limits.max_watch_streams if pool == Conversation.WATCH.name else limits.max_streams
            )
            for pool in pools
        }

    @contextmanager
    def connection(self, peer: str, identity: PeerIdentity) -> Iterator[ApiError | None]:
        """Count a call's connection while the call is open; yields the refusal, or None if the call
        is admitted.
        """
        with self.connections.counted(peer, identity) as why:
            yield self.throttled(Complaint.TOO_MANY_CONNECTIONS, peer, why) if why else None

    def throttled(self, complaint: Complaint, peer: str, message: str) -> ApiError:
        """Record a complaint about a peer, and return the refusal for it."""
        self.complaints.add(complaint, peer, message)
        return ApiError(
            ErrorCode.THROTTLING_QUOTA_EXCEEDED, message, throttle_time_ms=RETRY_AFTER_MS
        )

    def unauthenticated(self, peer: str, message: str) -> ApiError:
        """Record a complaint about a peer without proof of identity, and return the refusal
        for it.
        """
        self.complaints.add(Complaint.UNAUTHENTICATED, peer, message)
        return ApiError(ErrorCode.SASL_AUTHENTICATION_FAILED, message)

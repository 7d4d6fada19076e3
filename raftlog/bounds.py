"""The bounds on memory and work that peers may cause in this process.

A bound used by a single mechanism is declared with that mechanism. Three kinds of bound complement
each other: the size of one message, link or connection; the total over all of them, which
:class:`Shares` divides so that no peer takes the last place; and the duration of a turn
(``raftlog.transport.turns``), after which other peers are served.

Why: docs/decisions/022-a-peer-can-cost-only-so-much.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from raftlog.errors import ApiError, ErrorCode

MESSAGE_MAX_BYTES: Final = 64 << 20
"""Largest message of any kind, in bytes, unless ``socket.request.max.bytes`` is lower."""

DIRECTORY_NONCES_MAX = 16
"""Maximum number of a node's starts that its data directory remembers and reports."""
REPLICA_LOGS_MAX: Final = 2_000
"""Maximum number of reports about replicas of leaderless partitions in one heartbeat."""
CONTROLLER_REQUEST_MAX_BYTES: Final = 4 << 20
"""Largest request to the active controller, in bytes; larger ones get MESSAGE_TOO_LARGE. The next
two bounds follow from it.
"""
CONTROLLER_ENVELOPE_MAX_BYTES: Final = 2 * CONTROLLER_REQUEST_MAX_BYTES
"""Largest message that carries requests to the active controller, in bytes."""
CONTROLLER_BATCH_MAX_BYTES: Final = 2 * CONTROLLER_REQUEST_MAX_BYTES
"""Largest batch of records that one request may write, in bytes: a short request can name many
partitions. A batch that fences or replaces a broker is bounded instead by the number of partitions
on that broker.
"""

REQUEST_MAX_BYTES: Final[Mapping[str, int]] = {
    "QUORUM": 1 << 20,
    "REPLICATION": 64 << 10,
    "SNAPSHOT": 64 << 10,
    "CONTROLLER": CONTROLLER_ENVELOPE_MAX_BYTES,
    "OBSERVER": 64 << 10,
    "BROKER": 32 << 20,
    "REPLICA_FETCH": 4 << 20,
    "WATCH": 512 << 10,
    "WATCH_MANY": 4 << 20,
}
"""Largest message to the server in bytes, by conversation. Responses are bounded by
``max_message_bytes``.
"""

UNARY_MAX_BYTES: Final = 4 << 20
"""Largest request of a unary call in bytes, on a port without conversations. On other ports, the
largest message of those applies.
"""

STREAM_WINDOW_BYTES: Final = 16 << 10
"""Number of bytes that a peer can send on a call before the call is admitted. Larger messages take
one more round trip.
"""
MAX_CALLS_NOT_BEGUN: Final = 3_000
"""Number of calls that gRPC queues while the event loop is busy; it refuses more."""
CALL_NOT_BEGUN_BYTES: Final = STREAM_WINDOW_BYTES + (24 << 10)
"""Memory of a queued call, in bytes: a window, 16 KiB of metadata, and gRPC's own (measured)."""

ENVELOPE_MAX_ITEMS: Final = 1_024
"""Maximum number of messages that a sender puts into one envelope."""

ITEMS_A_SLICE: Final[Mapping[str, int]] = {"CONTROLLER": 32, "QUORUM": 16}
"""Number of messages delivered between two checks of the clock, by conversation. A controller only
queues or refuses them. 1 for all other conversations, where one message may take milliseconds.
"""

ITEM_MEMORY_BYTES: Final = 256
"""Memory of a parsed message in addition to its bytes; an empty message has two bytes on
the wire.
"""

RETRY_AFTER_MS: Final = 100
"""Delay in ms that a refusal for lack of room requests from the peer."""

TURN_MAX_MS: Final = 5.0
"""Longest time in ms that a turn of the event loop spends on one kind of work."""

TURN_MAX_S: Final = TURN_MAX_MS / 1000

CONTROLLER_MAX_WAITING_REQUESTS: Final = 65_536
CONTROLLER_MAX_WAITING_BYTES: Final = 256 << 20
"""Total size in bytes of the requests waiting for a decision, each charged
CONTROLLER_WAITING_REQUEST_BYTES in addition to its own size. A connection may hold no more of it
than it leaves to others.
"""
CONTROLLER_WAITING_REQUEST_BYTES: Final = (
    CONTROLLER_MAX_WAITING_BYTES // CONTROLLER_MAX_WAITING_REQUESTS
)
"""Bytes charged for a waiting request's place in the queue, so that the share of bytes also bounds
the number of places.
"""
CONTROLLER_MAX_WAITING_HEARTBEATS_A_PEER: Final = 64
"""Number of heartbeats per connection that are decided first; a broker has one outstanding."""
CONTROLLER_MAX_PARKED_REPLIES: Final = 262_144
CONTROLLER_TURN_MAX_REQUESTS: Final = 2_000
CONTROLLER_TURN_MAX_RECORDS: Final = 5_000
CONTROLLER_TURN_MAX_MS: Final = 25
"""Maximum duration of a turn of decisions, in ms. Reaching this bound, or that on requests or
records, ends the turn, so that followers are answered in time.
"""
CONTROLLER_TURN_MAX_REFUSALS: Final = 1_000
"""Maximum number of requests refused per turn because their deadline has passed or the leadership
is lost. A turn spends at most TURN_MAX_MS on them.
"""

OBSERVERS_MAX_STRANGERS: Final = 2_048
"""Maximum number of metadata streams from clients that are not brokers: half of
TransportLimits.max_streams.
"""
OBSERVER_ANSWER_MAX_BYTES: Final = 1 << 20
"""Maximum number of log bytes in one answer, whatever is requested; a single batch may be
larger.
"""
OBSERVERS_TURN_MAX_BYTES: Final = 2 << 20
"""Maximum number of bytes that a turn sends to all observers together: reading, copying and sending
a megabyte takes about a millisecond. A turn spends at most TURN_MAX_MS on them.
"""

DATA_REQUEST_MAX_PARTITIONS: Final = 10_000
"""Maximum number of partitions in a Produce, Fetch or ListOffsets: each costs tens of microseconds,
and a request is served without interruption.
"""
PRODUCE_MAX_RECORDS: Final = 250_000
"""Maximum number of records in one request; an empty record has two bytes on the wire. Producers
split requests at half of it.
"""

TAIL_CACHE_BYTES: Final = 32 << 20
"""Size of the newest part of a controller's log that stays in memory for followers and observers,
in bytes.
"""
ROCKSDB_WRITE_BUFFER_BYTES: Final = 64 << 20
"""Size of RocksDB's write buffer, in bytes. Bounds the replay after a crash (measured: 0.25 s for
50 MB).
"""
ROCKSDB_BLOCK_CACHE_BYTES: Final = 16 << 20
BROKER_IMAGES_MAX_BYTES: Final = 256 << 20
"""Maximum size of the log and images that a broker keeps above the image at LAO, in bytes; at the
bound, the broker stops reading the log until LAO advances.
"""

HTTP_MAX_CONNECTIONS: Final = 64
HTTP_REQUEST_TIMEOUT_MS: Final = 5_000
"""Time in ms after which a connection that has not sent a complete request is closed."""

RESERVED_DESCRIPTORS: Final = 256
"""Number of file descriptors reserved for RocksDB, HTTP, links to other nodes and the process
itself.
"""


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """The bounds of a transport. A link whose unsent messages exceed one is closed."""

    max_message_bytes: int = MESSAGE_MAX_BYTES
    max_message_items: int = 16_384
    """Maximum number of messages in a received envelope."""
    max_queued_messages: int = 65536
    max_queued_bytes: int = 64 << 20
    """Maximum number of unsent bytes per link."""
    max_queued_total_bytes: int = 128 << 20
    """Maximum number of unsent bytes on all links. Above it, the link that has read nothing for
    longest is closed.
    """
    max_waiting_total_bytes: int = 64 << 20
    """Total size in bytes of received messages waiting for their turn, on all links; one connection
    may hold at most half of what is free.
    """
    max_unfinished_total_bytes: int = 128 << 20
    """Total size in bytes of partially received messages on all connections, and the same again on
    all lanes. An address may hold no more of it than it leaves to others.
    """
    message_timeout_ms: int = 30_000
    """Time in ms after the start of a message within which it must be complete; otherwise the call
    is ended.
    """
    max_connections: int = 1_000
    max_connections_per_address: int = 2**31 - 1
    """Maximum number of connections with an open call per address."""
    max_connections_per_principal: int = 2**31 - 1
    max_observer_lanes: int = 1_024
    """Maximum number of observers' lanes, open or offered; one address may hold at most half of the
    free ones.
    """
    max_client_lanes: int = 4_096
    """Maximum number of lanes for clients and for brokers that send requests; a broker has
    three.
    """
    max_watch_lanes: int = 8_192
    """Maximum number of lanes for watches at a broker."""
    max_streams_per_connection: int = 128
    max_streams: int = 4_096
    """Maximum number of streams of one conversation on all connections, and of unary calls; one
    connection may hold at most half of the free ones.
    """
    max_watch_streams: int = 32_768
    """Maximum number of watch streams; the broker itself counts them."""
    turn_ms: float = TURN_MAX_MS
    """Longest time in ms that a turn of the event loop spends on one conversation's messages."""
    long_turn_ms: float = 0.8 * TURN_MAX_MS
    """CPU time of a turn in ms above which the turn is followed by a pause of the same length. Less
    than a whole turn, so that a full turn is followed by a pause. gRPC accepts one new call per
    turn of the loop: without pauses, a caller behind a hundred calls waits up to two seconds.
    """
    handshake_timeout_ms: int = 3_000
    """Time in ms after which a connection whose protocol is still unknown is closed."""
    connection_max_idle_ms: int = 600_000
    """Time in ms after which a connection without a stream is closed."""
    reconnect_backoff_min_ms: int = 20
    reconnect_backoff_max_ms: int = 500
    keepalive_time_ms: int = 2_000
    keepalive_timeout_ms: int = 2_000
    connect_timeout_ms: int = 2_000

    def request_max_bytes(self, conversation: str) -> int:
        """Return the largest message to the server of a conversation, in bytes."""
        return min(self.max_message_bytes, REQUEST_MAX_BYTES[conversation])

    def within(self, fetch_timeout_ms: int) -> TransportLimits:
        """Return limits for a node of the quorum: after a short outage, a link must reopen before
        its peer counts as silent.
        """
        return replace(
            self,
            connect_timeout_ms=min(self.connect_timeout_ms, fetch_timeout_ms // 2),
            reconnect_backoff_max_ms=min(
                self.reconnect_backoff_max_ms,
                max(self.reconnect_backoff_min_ms, fetch_timeout_ms // 5),
            ),
        )


MAX_FOLLOWERS = 64
"""Maximum number of replication streams with a lane or an offer: a quorum has few members.
Observers and clients have their own places, and never use these.
"""
LANE_RECORD_MAX_BYTES = 16 << 10
"""Largest content of a TLS record, in bytes: a lane holds up to that much of an incomplete record.
"""
_WRITE_BUFFERS = 2
"""Number of write buffers: one being filled, and one being flushed."""


def memory_bounds(limits: TransportLimits, role: str) -> dict[str, int]:
    """Return the memory bound, in bytes, of each part of a node that holds data of its peers or its
    log.

    ``role``: "controller" or "broker". Excludes metadata: an image grows with the number of topics
    and brokers.
    """
    parts = {
        "unsent_responses": limits.max_queued_total_bytes,
        "waiting_messages": limits.max_waiting_total_bytes,
        "unfinished_messages": limits.max_unfinished_total_bytes,
        "calls_not_begun": (MAX_CALLS_NOT_BEGUN + limits.max_streams) * CALL_NOT_BEGUN_BYTES,
        "unfinished_messages_of_lanes": limits.max_unfinished_total_bytes,
    }
    lanes = limits.max_client_lanes + limits.max_watch_lanes
    if role == "controller":
        lanes = MAX_FOLLOWERS + limits.max_observer_lanes + limits.max_client_lanes
        parts["waiting_requests"] = CONTROLLER_MAX_WAITING_BYTES
        parts["log_tail"] = TAIL_CACHE_BYTES
        parts["rocksdb"] = ROCKSDB_BLOCK_CACHE_BYTES + _WRITE_BUFFERS * ROCKSDB_WRITE_BUFFER_BYTES
    else:
        parts["log_above_lao"] = BROKER_IMAGES_MAX_BYTES
    parts["unfinished_tls_records_of_lanes"] = lanes * LANE_RECORD_MAX_BYTES
    return parts


class Shares:
    """A bounded resource divided among holders: each may hold at most what is left for the others.

    One greedy holder gets half of the total, and n of them 1/(n+1) each: a new holder always finds
    as much as any other has. A fixed quota would be too small for one honest holder or too large
    for many. O(1).
    """

    __slots__ = ("_held", "_max_total", "total")

    def __init__(self, max_total: int) -> None:
        self._max_total = max_total
        self._held: dict[Hashable, int] = {}
        self.total = 0

    def held(self, holder: Hashable) -> int:
        """Return the amount that one holder has."""
        return self._held.get(holder, 0)

    def has_room(self, holder: Hashable, amount: int = 1) -> bool:
        """Return whether a holder may take ``amount``."""
        held = self._held.get(holder, 0)
        # A holder without any may take everything that is left.
        return held + amount <= self._max_total - self.total - (amount if held else 0)

    def take(self, holder: Hashable, amount: int = 1) -> bool:
        """Take ``amount`` for a holder. Return False, and take nothing, if there is no room."""
        # ``has_room`` inlined: every request passes here.
        held = self._held.get(holder, 0)
        total = self.total + amount
        if held + total > self._max_total - (amount if held else 0):
            return False
        self._held[holder] = held + amount
        self.total = total
        return True

    def give_back(self, holder: Hashable, amount: int = 1) -> None:
        """Return ``amount`` from a holder to the pool."""
        left = self._held[holder] - amount
        self.total -= amount
        if left:
            self._held[holder] = left
        else:
            del self._held[holder]


T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue that serves its holders in turn, and each holder's items in order: an item waits for
    at most one item of each other holder. O(1).
    """

    __slots__ = ("_queues", "length")

    def __init__(self) -> None:
        # In the order of turns; a holder with an empty queue is removed.
        self._queues: dict[Hashable, deque[T]] = {}
        self.length = 0
        """Number of queued items; read-only. An attribute, because calling ``len`` for each item
        costs too much.
        """

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[T]:
        for queue in self._queues.values():
            yield from queue

    def length_of(self, holder: Hashable) -> int:
        """Return the number of queued items of one holder."""
        queue = self._queues.get(holder)
        return 0 if queue is None else len(queue)

    def push(self, holder: Hashable, item: T) -> None:
        """Append an item."""
        queue = self._queues.get(holder)
        if queue is None:
            self._queues[holder] = deque((item,))
        else:
            queue.append(item)
        self.length += 1

    def pop(self) -> T | None:
        """Remove and return the next item, or None if the queue is empty."""
        for holder, queue in self._queues.items():
            item = queue.popleft()
            self.length -= 1
            if len(self._queues) > 1 or not queue:
                del self._queues[holder]
                if queue:
                    self._queues[holder] = queue
            return item
        return None

    def remove(self, unwanted: Callable[[T], bool]) -> list[T]:
        """Remove and return all items for which ``unwanted`` is true. O(n)."""
        removed: list[T] = []
        kept: dict[Hashable, deque[T]] = {}
        for holder, queue in self._queues.items():
            wanted: deque[T] = deque()
            for item in queue:
                (removed if unwanted(item) else wanted).append(item)
            if wanted:
                kept[holder] = wanted
        self._queues = kept
        self.length -= len(removed)
        return removed


def bounded_timeout_ms(timeout_ms: int, field: str, *, default_ms: int, max_ms: int) -> int:
    """Return the timeout in a request's ``field``, in ms: ``default_ms`` for 0, and at most
    ``max_ms`` (request.timeout.max.ms). Raises INVALID_REQUEST if it is negative.
    """
    if timeout_ms < 0:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"the timeout must not be negative, but is {timeout_ms} ms",
            field=field,
        )
    return min(timeout_ms or default_ms, max_ms)

"""The bounds on memory and work that peers may cause in this process. A bound that a single
mechanism uses is declared beside that mechanism.

Three kinds of bound complement each other: the size of one message, link or connection; the total
of all of them, which :class:`Shares` divides so that no peer takes the last place; and the time of
a turn (``raftlog.transport.turns``), after which other peers are served.

Why: docs/decisions/022-a-peer-can-cost-only-so-much.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from raftlog.errors import ApiError, ErrorCode

MESSAGE_MAX_BYTES: Final = 64 << 20
"""Largest message of any kind, unless ``socket.request.max.bytes`` says less."""

DIRECTORY_NONCES_MAX = 16
"""Number of starts that a data directory remembers and tells."""
REPLICA_LOGS_MAX: Final = 2_000
"""Most reports about replicas of leaderless partitions in one heartbeat."""
CONTROLLER_REQUEST_MAX_BYTES: Final = 4 << 20
"""Largest request to the active controller; MESSAGE_TOO_LARGE beyond it. The next two follow from
it.
"""
CONTROLLER_ENVELOPE_MAX_BYTES: Final = 2 * CONTROLLER_REQUEST_MAX_BYTES
"""Largest message that carries such requests."""
CONTROLLER_BATCH_MAX_BYTES: Final = 2 * CONTROLLER_REQUEST_MAX_BYTES
"""Largest batch of records that one request may write: a short request can name many partitions.

A batch that fences or replaces a broker is bounded by the partitions it holds instead.
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
"""Largest message to the server, by conversation. Answers are bounded by ``max_message_bytes``."""

UNARY_MAX_BYTES: Final = 4 << 20
"""Largest request of a unary call, on a port without conversations. On others: the largest message
of these.
"""

STREAM_WINDOW_BYTES: Final = 16 << 10
"""Bytes that a peer can send on a call before the call is admitted. Larger messages take one more
round trip.
"""
MAX_CALLS_NOT_BEGUN: Final = 3_000
"""Calls that gRPC queues while the event loop is busy; it refuses more."""
CALL_NOT_BEGUN_BYTES: Final = STREAM_WINDOW_BYTES + (24 << 10)
"""Memory of a queued call: a window, 16 KiB of metadata, and gRPC's own (measured)."""

ENVELOPE_MAX_ITEMS: Final = 1_024
"""Messages that a sender puts into one envelope."""

ITEMS_A_SLICE: Final[Mapping[str, int]] = {"CONTROLLER": 32, "QUORUM": 16}
"""Messages delivered between two checks of the clock, by conversation.

A controller only queues or refuses them. 1 for all others, where a message may take milliseconds.
"""

ITEM_MEMORY_BYTES: Final = 256
"""Memory of a parsed message beside its bytes; an empty one has two bytes on the wire."""

RETRY_AFTER_MS: Final = 100
"""Delay that a refusal for lack of room asks of the peer."""

TURN_MAX_MS: Final = 5.0
"""Time that a turn of the loop spends on one kind of work."""

TURN_MAX_S: Final = TURN_MAX_MS / 1000

CONTROLLER_MAX_WAITING_REQUESTS: Final = 65_536
CONTROLLER_MAX_WAITING_BYTES: Final = 256 << 20
"""Total size of the requests that wait to be decided, each charged CONTROLLER_WAITING_REQUEST_BYTES
beside its own. One connection has no more of it than it leaves to others.
"""
CONTROLLER_WAITING_REQUEST_BYTES: Final = (
    CONTROLLER_MAX_WAITING_BYTES // CONTROLLER_MAX_WAITING_REQUESTS
)
"""Bytes charged for the place of a waiting request, so that the share of bytes bounds the places
too.
"""
CONTROLLER_MAX_WAITING_HEARTBEATS_A_PEER: Final = 64
"""Heartbeats of one connection that are decided first; a broker has one outstanding."""
CONTROLLER_MAX_PARKED_REPLIES: Final = 262_144
CONTROLLER_TURN_MAX_REQUESTS: Final = 2_000
CONTROLLER_TURN_MAX_RECORDS: Final = 5_000
CONTROLLER_TURN_MAX_MS: Final = 25
"""A turn of decisions ends at the first of these bounds: followers must be answered in time."""
CONTROLLER_TURN_MAX_REFUSALS: Final = 1_000
"""Requests refused in a turn because their time is over or the leadership lost. A turn spends
TURN_MAX_MS on them at most.
"""

OBSERVERS_MAX_STRANGERS: Final = 2_048
"""Metadata streams of clients that are no brokers, half of TransportLimits.max_streams."""
OBSERVER_ANSWER_MAX_BYTES: Final = 1 << 20
"""Log bytes in one answer, whatever is requested; a single batch may be larger."""
OBSERVERS_TURN_MAX_BYTES: Final = 2 << 20
"""Bytes that a turn sends to all observers together: reading, copying and sending a megabyte takes
about a millisecond. A turn spends TURN_MAX_MS on them at most.
"""

DATA_REQUEST_MAX_PARTITIONS: Final = 10_000
"""Partitions of a Produce, Fetch or ListOffsets: each costs tens of microseconds, and a request is
served without interruption.
"""
PRODUCE_MAX_RECORDS: Final = 250_000
"""Records of one request; an empty one has two bytes on the wire. Producers cut their requests at
half of it.
"""

TAIL_CACHE_BYTES: Final = 32 << 20
"""Newest part of a controller's log that is kept in memory for followers and observers."""
ROCKSDB_WRITE_BUFFER_BYTES: Final = 64 << 20
"""Bounds the replay after a crash (measured: 0.25 s for 50 MB)."""
ROCKSDB_BLOCK_CACHE_BYTES: Final = 16 << 20
BROKER_IMAGES_MAX_BYTES: Final = 256 << 20
"""Log and images that a broker keeps above the image at LAO; beyond it the broker stops reading the
log until LAO advances.
"""

HTTP_MAX_CONNECTIONS: Final = 64
HTTP_REQUEST_TIMEOUT_MS: Final = 5_000
"""A connection that has sent no whole request in this time is closed."""

RESERVED_DESCRIPTORS: Final = 256
"""File descriptors reserved for RocksDB, HTTP, links to other nodes and the process itself."""


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """The bounds of a transport. A link whose unsent messages exceed a bound is closed."""

    max_message_bytes: int = MESSAGE_MAX_BYTES
    max_message_items: int = 16_384
    """Messages in a received envelope."""
    max_queued_messages: int = 65536
    max_queued_bytes: int = 64 << 20
    """Unsent bytes of one link."""
    max_queued_total_bytes: int = 128 << 20
    """Unsent bytes of all links. Above it the link is closed that has read nothing for longest."""
    max_waiting_total_bytes: int = 64 << 20
    """Received messages that wait for their turn, on all links; one connection has at most half of
    the rest.
    """
    max_unfinished_total_bytes: int = 128 << 20
    """Total size of messages that have arrived in part, on all connections; the same again on all
    lanes. One address has no more of it than it leaves to others.
    """
    message_timeout_ms: int = 30_000
    """A call is ended if a message is not complete in this time after its begin."""
    max_connections: int = 1_000
    max_connections_per_address: int = 2**31 - 1
    """Connections of one address that have an open call."""
    max_connections_per_principal: int = 2**31 - 1
    max_observer_lanes: int = 1_024
    """Streams of observers with a TCP connection beside them, open or offered; one address has at
    most half of the rest.
    """
    max_client_lanes: int = 4_096
    """Streams of clients with such a connection, and of brokers that send requests: a broker has
    three.
    """
    max_watch_lanes: int = 8_192
    """Streams of watches with such a connection, at a broker."""
    max_streams_per_connection: int = 128
    max_streams: int = 4_096
    """Streams of one conversation on all connections, and as many unary calls; one connection has
    at most half of the rest.
    """
    max_watch_streams: int = 32_768
    """The same for watches, which a broker counts itself."""
    turn_ms: float = TURN_MAX_MS
    """Time that a turn of the loop spends on the messages of one conversation."""
    long_turn_ms: float = 0.8 * TURN_MAX_MS
    """A turn that took this much CPU is followed by a pause of the same length.

    Less than a whole turn, so that a full one pauses too. gRPC accepts one new call in each turn of
    the loop: without pauses a caller behind a hundred calls waits up to two seconds.
    """
    handshake_timeout_ms: int = 3_000
    """A connection whose protocol is not known after this time is closed."""
    connection_max_idle_ms: int = 600_000
    """A connection without a stream is closed after this time."""
    reconnect_backoff_min_ms: int = 20
    reconnect_backoff_max_ms: int = 500
    keepalive_time_ms: int = 2_000
    keepalive_timeout_ms: int = 2_000
    connect_timeout_ms: int = 2_000

    def request_max_bytes(self, conversation: str) -> int:
        """Return the largest message to the server of a conversation."""
        return min(self.max_message_bytes, REQUEST_MAX_BYTES[conversation])

    def within(self, fetch_timeout_ms: int) -> TransportLimits:
        """Return the limits of a node of the quorum: after a short outage a link is open again
        before its peer counts as silent.
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
"""Most replication streams with a lane or an offer: a quorum has few members. Observers and clients
have places of their own, and never use those.
"""
LANE_RECORD_MAX_BYTES = 16 << 10
"""Largest content of a TLS record, in bytes: what a lane holds of one that has arrived in part."""
_WRITE_BUFFERS = 2
"""The buffer that is filled, and the one that is flushed."""


def memory_bounds(limits: TransportLimits, role: str) -> dict[str, int]:
    """Return the most that each part of a node may hold in memory for its peers and its log, in
    bytes. ``role``: "controller" or "broker".

    Metadata is not included: an image grows with the topics and brokers.
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
    """A bounded resource divided among holders: each has at most what is left for the others.

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
        """Return the amount of one holder."""
        return self._held.get(holder, 0)

    def has_room(self, holder: Hashable, amount: int = 1) -> bool:
        """Return whether a holder may take ``amount``."""
        held = self._held.get(holder, 0)
        # A holder that has nothing may take all that is left.
        return held + amount <= self._max_total - self.total - (amount if held else 0)

    def take(self, holder: Hashable, amount: int = 1) -> bool:
        """Take ``amount`` for a holder; False if there is no room, and nothing was taken."""
        # ``has_room`` inlined: every request passes here.
        held = self._held.get(holder, 0)
        total = self.total + amount
        if held + total > self._max_total - (amount if held else 0):
            return False
        self._held[holder] = held + amount
        self.total = total
        return True

    def give_back(self, holder: Hashable, amount: int = 1) -> None:
        """Return ``amount`` of a holder to the others."""
        left = self._held[holder] - amount
        self.total -= amount
        if left:
            self._held[holder] = left
        else:
            del self._held[holder]


T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue that is in order for each holder and takes turns between them: an item waits for at
    most one of each other holder. O(1).
    """

    __slots__ = ("_queues", "length")

    def __init__(self) -> None:
        # In the order of their turns; never with an empty queue.
        self._queues: dict[Hashable, deque[T]] = {}
        self.length = 0
        """Number of queued items, read only. An attribute: ``len`` for each item costs too much."""

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
        """Remove and return the next item; None if the queue is empty."""
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
        """Remove and return all unwanted items. O(n)."""
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
    """Return the timeout that a request names in ``field``; ``default_ms`` for 0, and ``max_ms``
    (request.timeout.max.ms) for a longer one. Raises INVALID_REQUEST if it is negative.
    """
    if timeout_ms < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a timeout can't be negative", field=field)
    return min(timeout_ms or default_ms, max_ms)

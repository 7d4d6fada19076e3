"""The bounds on what peers may cost this process, as far as links share them; units last in the
names. A bound of one mechanism alone stands beside it.

Three kinds of bound stand behind each other. What one message, link or connection may hold is fixed
here. What all of them hold together is fixed here too, and :class:`raftlog.shares.Shares` divides
it, so that one peer never takes the last place. What a peer makes this process compute is done in
turns (``raftlog.transport.turns``), between which everybody else is served.

Why: docs/decisions/022-a-peer-can-cost-only-so-much.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

MESSAGE_MAX_BYTES: Final = 64 << 20
"""Largest message of any kind, unless ``socket.request.max.bytes`` says less."""

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
"""By conversation: the largest message towards the server.

Answers are bounded by ``max_message_bytes`` alone.
"""

UNARY_MAX_BYTES: Final = 4 << 20
"""The same for a server that has no conversation."""

STREAM_WINDOW_BYTES: Final = 16 << 10
"""Bytes that a peer can send on a call before anything of it is read: what a call costs before its
caller is let in. Larger messages take a round trip more.
"""
MAX_CALLS_NOT_BEGUN: Final = 3_000
"""Calls that gRPC keeps while the event loop is busy; it refuses more."""
CALL_NOT_BEGUN_BYTES: Final = STREAM_WINDOW_BYTES + (24 << 10)
"""Memory of one of them: a window, 16 KiB of metadata, and gRPC's own (measured)."""

ENVELOPE_MAX_ITEMS: Final = 1_024
"""Messages that a sender joins in one envelope."""

ITEMS_A_SLICE: Final[Mapping[str, int]] = {"CONTROLLER": 32, "QUORUM": 16}
"""By conversation: messages that are handed over between two looks at the clock.

A controller only queues them, or refuses them; 1, for all that are not named, where a message can
take milliseconds.
"""

ITEM_MEMORY_BYTES: Final = 256
"""What a parsed message costs beside its bytes; an empty one has two bytes on the wire."""

RETRY_AFTER_MS: Final = 100
"""What a refusal for want of room tells the peer to wait."""

TURN_MAX_MS: Final = 5.0
"""What a turn of the loop spends on one kind of work."""

TURN_MAX_S: Final = TURN_MAX_MS / 1000

CONTROLLER_MAX_WAITING_REQUESTS: Final = 65_536
CONTROLLER_MAX_WAITING_BYTES: Final = 256 << 20
"""Of the requests that wait to be decided, each with CONTROLLER_WAITING_REQUEST_BYTES for itself.

One connection has no more of it than is left for others."""
CONTROLLER_WAITING_REQUEST_BYTES: Final = (
    CONTROLLER_MAX_WAITING_BYTES // CONTROLLER_MAX_WAITING_REQUESTS
)
"""So that who may have no more of the bytes has no more of the places either: ten connections took
all of these, and left bytes alone.
"""
CONTROLLER_MAX_WAITING_HEARTBEATS_A_PEER: Final = 64
"""More of one connection wait behind other requests: a broker has one outstanding."""
CONTROLLER_MAX_PARKED_REPLIES: Final = 262_144
CONTROLLER_TURN_MAX_REQUESTS: Final = 2_000
CONTROLLER_TURN_MAX_RECORDS: Final = 5_000
CONTROLLER_TURN_MAX_MS: Final = 25
"""Nothing more is decided in a turn that has decided so much, or for so long: followers must be
answered in time.
"""
CONTROLLER_TURN_MAX_REFUSALS: Final = 1_000
"""Of those who wait in vain, as their time is up or the leadership lost.

A turn of the loop spends TURN_MAX_MS on them at the most.
"""

OBSERVERS_MAX_STRANGERS: Final = 2_048
"""Metadata streams of anybody but brokers, half of TransportLimits.max_streams.

A broker's own never counts among them.
"""
OBSERVER_ANSWER_MAX_BYTES: Final = 1 << 20
"""Of the log in one answer, whatever is asked for; one batch may be larger."""
OBSERVERS_TURN_MAX_BYTES: Final = 2 << 20
"""What a turn of the loop sends to all observers together: reading, copying and sending a megabyte
takes about a millisecond. It spends TURN_MAX_MS on them at the most."""

DATA_REQUEST_MAX_PARTITIONS: Final = 10_000
"""Of a Produce, Fetch or ListOffsets: each costs tens of microseconds, and a request is served in
one go.
"""
PRODUCE_MAX_RECORDS: Final = 250_000
"""Of one request; an empty record has two bytes on the wire.

A producer cuts its requests at half of it.
"""

TAIL_CACHE_BYTES: Final = 32 << 20
"""Of a controller's log, the newest, from which followers and observers are served."""
ROCKSDB_WRITE_BUFFER_BYTES: Final = 64 << 20
"""Bounds what a restart after a crash replays (measured: 0.25 s for 50 MB)."""
ROCKSDB_BLOCK_CACHE_BYTES: Final = 16 << 20
BROKER_IMAGES_MAX_BYTES: Final = 256 << 20
"""Of log and images that a broker keeps above the image at LAO; beyond it the broker stops reading
the log until LAO moves.
"""

HTTP_MAX_CONNECTIONS: Final = 64
HTTP_REQUEST_TIMEOUT_MS: Final = 5_000
"""A connection that has sent no whole request for so long is closed."""

RESERVED_DESCRIPTORS: Final = 256
"""File descriptors that connections never take: for RocksDB, HTTP, links to other nodes, and what
the process itself needs.
"""


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Bounds of a transport.

    A link whose unsent messages exceed a bound is closed, so that memory is bounded.
    """

    max_message_bytes: int = MESSAGE_MAX_BYTES
    max_message_items: int = 16_384
    """Messages in a received envelope."""
    max_queued_messages: int = 65536
    max_queued_bytes: int = 64 << 20
    """Of one link, unsent."""
    max_queued_total_bytes: int = 128 << 20
    """Of all links, unsent. Above it the link is closed that has read nothing for the longest."""
    max_waiting_total_bytes: int = 64 << 20
    """Of received messages that wait for their turn, on all links; one connection has at most half
    of what is left.
    """
    max_unfinished_total_bytes: int = 128 << 20
    """Total size of messages that have arrived in part, on all connections; the same again on all
    lanes. One address has no more of it than it leaves to others.
    """
    message_timeout_ms: int = 30_000
    """A message that is not complete so long after it has begun ends its call."""
    max_connections: int = 1_000
    max_connections_per_address: int = 2**31 - 1
    """Of those that have a call open."""
    max_connections_per_principal: int = 2**31 - 1
    max_observer_lanes: int = 1_024
    """Streams of observers that have a TCP connection beside them, or may come for one; one address
    has at most half of what is left.
    """
    max_client_lanes: int = 1_024
    """Streams of clients, in the same way."""
    max_streams_per_connection: int = 128
    max_streams: int = 4_096
    """Of one conversation, on all connections, and as many unary calls; one connection has at most
    half of what is left.
    """
    max_watch_streams: int = 32_768
    """Watches have no other bound here: a broker counts them itself."""
    turn_ms: float = TURN_MAX_MS
    """What a turn of the loop spends on the messages of one conversation."""
    long_turn_ms: float = 0.8 * TURN_MAX_MS
    """A turn that took so much of the CPU is followed by as long a pause.

    Less than a whole turn, so that a full one pauses, too.

    gRPC hands over one new call in each turn of the loop: between full turns without pauses a
    caller waits for as many of them as there are calls before it, with a hundred calls up to two
    seconds.
    """
    handshake_timeout_ms: int = 3_000
    """A connection that has not said what it speaks in this time is closed."""
    connection_max_idle_ms: int = 600_000
    """A connection without a stream is closed after this."""
    reconnect_backoff_min_ms: int = 20
    reconnect_backoff_max_ms: int = 500
    keepalive_time_ms: int = 2_000
    keepalive_timeout_ms: int = 2_000
    connect_timeout_ms: int = 2_000

    def request_max_bytes(self, conversation: str) -> int:
        """The largest message towards the server of a conversation."""
        return min(self.max_message_bytes, REQUEST_MAX_BYTES[conversation])

    def within(self, fetch_timeout_ms: int) -> TransportLimits:
        """The same for a node of the quorum: a link that met a short outage is there again before
        its peer is taken for silent.
        """
        return replace(
            self,
            connect_timeout_ms=min(self.connect_timeout_ms, fetch_timeout_ms // 2),
            reconnect_backoff_max_ms=min(
                self.reconnect_backoff_max_ms,
                max(self.reconnect_backoff_min_ms, fetch_timeout_ms // 5),
            ),
        )

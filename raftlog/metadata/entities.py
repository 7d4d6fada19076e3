"""The entities of the image: one small immutable object each.

An entity's canonical bytes are the MessagePack array of its fields, in order: the same in every
process and build, and the input of the state hash. Adding a field is therefore a change of the
metadata version.

Decisions use the *cause* of a fencing, an unfencing or a mapping of a host; the accompanying
``reason`` is only text for operators.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import xxhash


class Cause(IntEnum):
    """Cause of a broker's state: ``BrokerCause`` of records.proto, which explains each one."""

    UNSPECIFIED = 0
    REGISTERED = 1
    CAUGHT_UP = 2
    ACTIVE_WITHOUT_HEARTBEATS = 3
    SESSION_TIMED_OUT = 4
    PROCESS_GONE = 5
    METADATA_LAG = 6
    ASKED_TO_BE_FENCED = 7
    LOG_TAKEN_BACK = 8
    CONTROLLED_SHUTDOWN = 9
    CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS = 10
    DISK_HANGS = 11


class HostnameCause(IntEnum):
    """Cause of a hostname mapping: ``HostnameCause`` of records.proto, which explains each one."""

    UNSPECIFIED = 0
    BY_REGISTRATION = 1
    BY_HAND = 2
    STALE = 3


UNVOUCHED = frozenset(
    {Cause.ACTIVE_WITHOUT_HEARTBEATS, Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS}
)
"""Causes of unfencing without a check of the broker's applied offset, after which the broker may
not have applied LAO.
"""
SHUT_DOWN = frozenset({Cause.CONTROLLED_SHUTDOWN, Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS})
"""Causes of fencing a broker whose process is in controlled shutdown."""
PLANNED = SHUT_DOWN | {Cause.ASKED_TO_BE_FENCED}
"""Causes of fencing a broker at its own request."""


def cause_name(kind: type[IntEnum], cause: int) -> str | None:
    """Return the name of a cause as in the Parquet form, the number of an unknown one, or None if
    there is no cause.
    """
    if not cause:
        return None
    known = {each.value: each.name for each in kind}
    return known.get(cause, str(cause))


HASH_BITS = 128
HASH_MASK = (1 << HASH_BITS) - 1
entity_bytes = msgspec.msgpack.Encoder().encode
"""Encoder of an entity's canonical bytes, from the tuple of its kind, key and fields."""
bytes_hash = xxhash.xxh3_128_intdigest
"""Hash function for canonical bytes."""
_HEADS: dict[tuple[str, int], bytes] = {}
"""The first canonical bytes of an entity, by its kind and the first byte of the rest."""


class Listener(msgspec.Struct, frozen=True, array_like=True):
    """An endpoint at which a broker serves."""

    name: str
    host: str
    port: int

    @property
    def bare_host(self) -> str:
        """The host for sockets; an IPv6 address without its brackets."""
        return self.host.strip("[]")

    @property
    def address(self) -> str:
        """Host and port, as host:port."""
        return f"{self.host}:{self.port}"


class Process(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a broker's process on its machine."""

    boot_id: str
    directory_id: str
    lock_device: int
    lock_inode: int


def has_left(fenced: Any, in_controlled_shutdown: Any) -> Any:
    """Return whether a broker has completed its controlled shutdown, which is final for its epoch.

    The arguments are bools, or columns of Spark. Only the end of a controlled shutdown writes
    fenced *and* in controlled shutdown, so that a new controller recognises it; any other fencing
    clears the second flag.
    """
    return fenced & in_controlled_shutdown


class Broker(msgspec.Struct, frozen=True, array_like=True):
    """The registration of a broker.

    ``epoch``: offset of its RegisterBroker record (KIP-343's incarnation id). ``reason``: text for
    operators; decisions use ``cause``.
    """

    id: int
    epoch: int
    incarnation_id: str
    listeners: tuple[Listener, ...]
    features: tuple[tuple[str, int, int], ...]
    rack: str
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[str, ...]
    registration_version: int
    process: Process
    reason: str
    cause: Cause = Cause.UNSPECIFIED

    @property
    def endpoint(self) -> str:
        """host:port of the first listener, which brokers use; "" if none."""
        return self.listeners[0].address if self.listeners else ""

    def endpoint_for_brokers(self, name: str) -> str:
        """Return the endpoint for other brokers, on the listener with this name or else the first:
        ``NAME://host:port``, for a node's network, or host:port without a name.
        """
        named = (one.address for one in self.listeners if one.name == name)
        address = next(named, self.endpoint)
        return f"{name}://{address}" if name and address else address

    def listener_for_clients(self, name: str) -> Listener | None:
        """Return the listener for a client that connected to a listener with this name (empty: the
        first), or None.

        If the broker has only one listener, that is returned whatever its name: earlier builds
        called it PLAINTEXT. Returns None if it has several and none has this name.
        """
        if not name or len(self.listeners) == 1:
            return self.listeners[0] if self.listeners else None
        return next((one for one in self.listeners if one.name == name), None)

    @property
    def active(self) -> bool:
        """Whether the broker may lead and join an ISR: unfenced and not shutting down."""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def has_left(self) -> bool:
        """See :func:`has_left`."""
        return bool(has_left(self.fenced, self.in_controlled_shutdown))


class Topic(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A topic. Its partitions are 0 to partition_count-1; the count is derived and not part of the
    hash.
    """

    id: bytes
    name: str
    partition_count: int


class Partition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A partition. ``leader``: -1 if none. ``elr``: eligible leader replicas (KIP-966), which have
    left the ISR with all records up to the high watermark, in the order of the replicas; while
    there are any, the high watermark does not advance. ``last_known_elr``: the last leader, while
    there is neither an ISR nor an ELR.
    """

    topic_id: bytes
    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    leader: int
    leader_recovery_state: int
    leader_epoch: int
    partition_epoch: int
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


NO_LEADER = -1
RECOVERED, RECOVERING = 0, 1


class Standing(NamedTuple):
    """The properties, counted by DescribeBrokers, of a partition that is not as assigned.

    ``topic_id``, ``isr`` and ``replicas``: set for a partition that has a leader and fewer in-sync
    replicas than replicas, not counting those being added; otherwise empty, 0 and 0.
    """

    topic_id: bytes
    isr: int
    replicas: int
    away: bool
    """Whether the partition is led by a broker other than its first replica, or by none."""
    reassigning: bool
    recovering: bool
    has_elr: bool
    awaits_recovery: bool


def standing_of(partition: Partition) -> Standing | None:
    """Return the standing of a partition, or None if it is as assigned."""
    replicas, isr, leader = partition.replicas, partition.isr, partition.leader
    adding, recovering = partition.adding_replicas, partition.leader_recovery_state == RECOVERING
    reassigning = bool(adding or partition.removing_replicas)
    away = not replicas or leader != replicas[0]
    # A replica that is being added does not count as missing.
    wanted = len(replicas) - len(adding)
    behind = len(isr) < wanted and leader != NO_LEADER
    if not (away or behind or reassigning or recovering or partition.elr):
        return None
    return Standing(
        partition.topic_id if behind else b"",
        len(isr) if behind else 0,
        wanted if behind else 0,
        away,
        reassigning,
        recovering,
        bool(partition.elr),
        leader == NO_LEADER and not isr and not partition.elr,
    )


class Leader(msgspec.Struct, frozen=True, array_like=True):
    """The controller of an epoch, as named by the epoch's first record."""

    epoch: int
    leader_id: int
    voters: tuple[int, ...]


class VoterEntry(msgspec.Struct, frozen=True, array_like=True):
    """A voter: node id, directory id, and endpoints (``raftlog.endpoint``)."""

    id: int
    directory_id: str
    endpoint: str


class Voters(msgspec.Struct, frozen=True, array_like=True):
    """The voter set from the last VotersRecord (KIP-853).

    ``offset``: the record's offset. ``seats``: number of voters that there should be while a dead
    one is being replaced, or 0 if as many as there are. ``leaving_id``: the voter that will be
    removed next because a spare has its seat, or -1. ``reason``: why the controller changed the set
    by itself, or "".
    """

    offset: int
    voters: tuple[VoterEntry, ...]
    seats: int = 0
    leaving_id: int = -1
    reason: str = ""


WINDOW = 256
"""Number of valid sequence numbers from ``all_below_done`` upwards: the maximum number of writes
that one client may have in flight.
"""
FIRST_SEQUENCE = 1


class Client(msgspec.Struct, frozen=True, array_like=True):
    """An open client. ``id``: the offset of its OpenClientRecord."""

    id: int
    name: str
    last_write_ms: int
    """Log time of the client's newest write, or of its opening, in ms."""
    all_below_done: int
    """Lower bound of the valid sequence numbers: results of lower ones are dropped."""
    principal: str
    """The only principal that may use the client, or "" if any may."""


class ClientResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of one numbered write: the offset of its last record (inclusive), and that
    record's epoch.
    """

    client_id: int
    sequence: int
    offset: int
    epoch: int


MAPPING_VERSION = 0
"""Format version of the mappings that this build writes; extended formats will have a
higher one.
"""


def hostname_key(host: str) -> str:
    """Return the key of a host: host names are compared without case and without the
    trailing dot.
    """
    return host.lower().rstrip(".")


def host_of(broker: Broker) -> str:
    """Return the key of a registered broker's host, or "" if it has no listener."""
    return hostname_key(broker.listeners[0].host) if broker.listeners else ""


class Hostname(msgspec.Struct, frozen=True, array_like=True):
    """The mapping of a host to the broker that runs on it (KIP-426).

    ``version``: format version of the mapping. ``offset``: offset of its record, for
    compare-and-set. ``reason``: text for operators; decisions use ``cause``.
    """

    name: str
    version: int
    broker_id: int
    offset: int
    reason: str
    cause: HostnameCause = HostnameCause.UNSPECIFIED


class ExportCursor(msgspec.Struct, frozen=True, array_like=True):
    """The progress of an export, which has everything below ``end_offset`` (exclusive); nodes keep
    the log from there onwards.

    ``target``: location of the export, as stated by its program. ``offset`` and ``timestamp_ms``:
    offset and log time of the cursor's record.
    """

    name: str
    end_offset: int
    target: str
    offset: int
    timestamp_ms: int


class KeyValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key of the key-value store.

    ``offset``: offset of the record that last put it, for compare-and-set. ``create_offset``:
    offset of the record that created it. ``lease_id``: the lease whose end deletes it, or 0.
    """

    key: str
    value: bytes
    create_offset: int
    offset: int
    lease_id: int


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lease. ``id``: the offset of its LeaseRecord. ``principal``: empty if any principal may use
    it.
    """

    id: int
    name: str
    ttl_ms: int
    principal: str


def entity_hash(*content: object) -> int:
    """Return one entity's contribution to the state hash from its kind, key and fields: XXH3-128 of
    their canonical bytes.

    The state hash is the sum of these modulo 2**128: independent of order, O(1) per change, and
    additive over parts of the state. It detects divergence and corruption; it does not protect
    against forged entities.
    """
    return bytes_hash(entity_bytes(content))


def encoded_hash(kind: str, encoded: bytes) -> int:
    """Return ``entity_hash`` for a kind and the rest of the content, given as a MessagePack array
    of fewer than 15 elements.
    """
    head = _HEADS.get((kind, encoded[0]))
    if head is None:
        assert 0x90 <= encoded[0] < 0x9F
        head = _HEADS[kind, encoded[0]] = bytes((encoded[0] + 1,)) + entity_bytes(kind)
    return bytes_hash(head + encoded[1:])


def format_hash(state_hash: int) -> str:
    """Return a state hash as 32 hex digits."""
    return f"{state_hash:032x}"

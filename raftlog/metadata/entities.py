"""What the image holds: one small immutable object an entity.

An entity's canonical bytes are the MessagePack array of its fields, in order: the same in every
process and build, and the input of the state hash. Adding a field is therefore a change of the
metadata version.
"""

from __future__ import annotations

from typing import Any

import msgspec
import xxhash

from raftlog.metadata.causes import Cause, HostnameCause

HASH_BITS = 128
HASH_MASK = (1 << HASH_BITS) - 1
entity_bytes = msgspec.msgpack.Encoder().encode
"""The canonical bytes of an entity: of the tuple of its kind, key and fields."""
bytes_hash = xxhash.xxh3_128_intdigest
"""Of canonical bytes."""
_HEADS: dict[tuple[str, int], bytes] = {}
"""How the canonical bytes of an entity begin, by its kind and how those without it begin."""


class Listener(msgspec.Struct, frozen=True, array_like=True):
    """Where a broker serves."""

    name: str
    host: str
    port: int

    @property
    def bare_host(self) -> str:
        """The host as sockets want it: an IPv6 address without its brackets."""
        return self.host.strip("[]")

    @property
    def address(self) -> str:
        """Where it is reached, host:port."""
        return f"{self.host}:{self.port}"


class Process(msgspec.Struct, frozen=True, array_like=True):
    """What names a broker's process on its machine."""

    boot_id: str
    directory_id: str
    lock_device: int
    lock_inode: int


def has_left(fenced: Any, in_controlled_shutdown: Any) -> Any:
    """Whether a broker took its leave: its process said that it ends, and is final for its epoch.

    For bools, and for Spark's columns.

    Fenced *and* in controlled shutdown is written by a graceful leave alone, so that a new
    controller knows it too; all other fencing takes the second flag back.
    """
    return fenced & in_controlled_shutdown


class Broker(msgspec.Struct, frozen=True, array_like=True):
    """One registration.

    ``epoch`` is the offset of its RegisterBroker record (KIP-343's incarnation id).

    ``reason`` is for people: decisions ask for ``cause``.
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
        """host:port of the first listener, which is the one for brokers; empty if none."""
        return self.listeners[0].address if self.listeners else ""

    def endpoint_for_brokers(self, name: str) -> str:
        """Where another broker reaches it, on the listener of this name or else on the first, as
        ``NAME://host:port`` for the network of a node; without a name as host:port.
        """
        named = (one.address for one in self.listeners if one.name == name)
        address = next(named, self.endpoint)
        return f"{name}://{address}" if name and address else address

    def listener_for_clients(self, name: str) -> Listener | None:
        """Where a client reaches it that has come to a listener of this name; empty: the first.

        The only listener counts whatever it is called: builds before called it PLAINTEXT. None: it
        has several, and none of this name.
        """
        if not name or len(self.listeners) == 1:
            return self.listeners[0] if self.listeners else None
        return next((one for one in self.listeners if one.name == name), None)

    @property
    def active(self) -> bool:
        """Whether it may lead and join an ISR: unfenced and not shutting down."""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def has_left(self) -> bool:
        """See :func:`has_left`."""
        return bool(has_left(self.fenced, self.in_controlled_shutdown))


class Topic(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One topic.

    Its partitions are 0 .. partition_count-1; the count is derived and not part of the hash.
    """

    id: bytes
    name: str
    partition_count: int


class Partition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition. ``leader`` -1: none."""

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


class Leader(msgspec.Struct, frozen=True, array_like=True):
    """The controller of an epoch, as its first record says."""

    epoch: int
    leader_id: int
    voters: tuple[int, ...]


class VoterEntry(msgspec.Struct, frozen=True, array_like=True):
    """One voter: node id, directory id, and where it is reached (``raftlog.endpoint``)."""

    id: int
    directory_id: str
    endpoint: str


class Voters(msgspec.Struct, frozen=True, array_like=True):
    """The voter set as the last VotersRecord names it (KIP-853); ``offset``: of that record."""

    offset: int
    voters: tuple[VoterEntry, ...]


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """The last progress record: a lower bound of LAO (inclusive, -1 unknown) and of the high
    watermark (exclusive).
    """

    lowest_acknowledged_offset: int
    high_watermark: int


class Applied(msgspec.Struct, frozen=True, array_like=True):
    """What a broker had applied (inclusive) when a progress record last named it."""

    broker_id: int
    broker_epoch: int
    offset: int


class Client(msgspec.Struct, frozen=True, array_like=True):
    """One open client. ``id``: the offset of its OpenClientRecord."""

    id: int
    name: str
    last_write_ms: int
    """Log time of its newest write, or of its opening."""
    all_below_done: int
    """Results of the sequence numbers below were forgotten; such a number is never valid again."""
    principal: str
    """The only one that may use it; empty: anybody may."""


class ClientResult(msgspec.Struct, frozen=True, array_like=True):
    """What became of one numbered write: the offset of its last record (inclusive), and the epoch
    it was written in.
    """

    client_id: int
    sequence: int
    offset: int
    epoch: int


class Hostname(msgspec.Struct, frozen=True, array_like=True):
    """Which broker runs on a host (KIP-426).

    ``version``: of the mapping's form. ``offset``: of its record, what compare-and-set is on.

    ``reason`` is for people: decisions ask for ``cause``.
    """

    name: str
    version: int
    broker_id: int
    offset: int
    reason: str
    cause: HostnameCause = HostnameCause.UNSPECIFIED


class ExportCursor(msgspec.Struct, frozen=True, array_like=True):
    """How far an export has come: it holds everything below ``end_offset`` (exclusive), and nodes
    keep the log from there on.

    ``target``: where it is, as its program says. ``offset`` and ``timestamp_ms``: of the cursor's
    record, and its log time.
    """

    name: str
    end_offset: int
    target: str
    offset: int
    timestamp_ms: int


class KeyValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A key of the key-value store.

    ``offset``: of the record that it was last put by, what compare-and-set is on;
    ``create_offset``: of the one that made it. ``lease_id``: it is deleted with that lease; 0: it
    stays.
    """

    key: str
    value: bytes
    create_offset: int
    offset: int
    lease_id: int


class Lease(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lease. ``id``: the offset of its LeaseRecord. ``principal`` empty: anybody's."""

    id: int
    name: str
    ttl_ms: int
    principal: str


def entity_hash(*content: object) -> int:
    """One entity's share of the state hash, from its kind, key and fields: XXH3-128 of their
    canonical bytes.

    The state hash is the sum of these modulo 2**128: no order, O(1) for each change, and it adds up
    over parts of the state. It finds divergence and corruption; it is no defence against somebody
    who forges entities.
    """
    return bytes_hash(entity_bytes(content))


def encoded_hash(kind: str, encoded: bytes) -> int:
    """``entity_hash`` of a kind and the rest of the content, which is at hand as a MessagePack
    array of fewer than 15 elements.
    """
    head = _HEADS.get((kind, encoded[0]))
    if head is None:
        assert 0x90 <= encoded[0] < 0x9F
        head = _HEADS[kind, encoded[0]] = bytes((encoded[0] + 1,)) + entity_bytes(kind)
    return bytes_hash(head + encoded[1:])


def format_hash(state_hash: int) -> str:
    """A state hash for people and JSON: 32 hex digits."""
    return f"{state_hash:032x}"

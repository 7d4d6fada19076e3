"""The image: all metadata at one offset, immutable; and the draft of the next one.

An image costs a handful of references, so a pending image, a committed one and one at LAO together
cost little more than their differences. ``Image`` and ``ImageDraft`` both offer the maps below for
look-ups (``ImageView``); only an ``Image`` may be iterated, in no meaningful order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Set
from itertools import islice
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from raftlog.errors import FatalError
from raftlog.metadata import pmap
from raftlog.metadata.acls import AccessControlEntry, AclIndex
from raftlog.metadata.entities import (
    HASH_MASK,
    Broker,
    Client,
    ClientResult,
    ExportCursor,
    Hostname,
    KeyValue,
    Leader,
    Lease,
    Partition,
    Standing,
    Topic,
    Voters,
    bytes_hash,
    entity_bytes,
)
from raftlog.metadata.flat_map import FlatMutation
from raftlog.metadata.sorted_keys import SortedKeys

BLOCK_BITS = 6
BLOCK = 1 << BLOCK_BITS
"""Number of partitions of a topic in one entry. Small, because each write creates a new integer
with this many bits.
"""

PartitionKey = tuple[bytes, int]
"""(topic id, index) of a partition."""
BlockKey = tuple[bytes, int]
"""(topic id, index // BLOCK)."""


class Replicas(Set[PartitionKey]):
    """The partitions of one broker, immutable and ordered."""

    __slots__ = ("_blocks", "_count", "_order")

    def __init__(self, blocks: pmap.Map[BlockKey, int], count: int) -> None:
        """``blocks``: without empty ones. ``count``: number of bits in them."""
        self._blocks, self._count = blocks, count
        self._order: list[BlockKey] = []
        """Sorted keys of the blocks, computed on first use."""

    @staticmethod
    def of(keys: Iterable[PartitionKey]) -> Replicas:
        """Return the set of these partitions, created outside any image."""
        index = ReplicaIndex(pmap.empty())
        for key in keys:
            index.add(0, key)
        held: Replicas = index.get(0) or NO_REPLICAS
        return held

    @classmethod
    def _from_iterable(cls, keys: Iterable[Any]) -> Any:
        """Support set operators, whose results are not part of an image."""
        return frozenset(keys)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, tuple):
            return False
        topic_id, index = key
        bits = self._blocks.get((topic_id, index >> BLOCK_BITS), 0)
        return bool(bits >> (index & (BLOCK - 1)) & 1)

    def __iter__(self) -> Iterator[PartitionKey]:
        return self.since((b"", 0))

    def since(self, key: PartitionKey) -> Iterator[PartitionKey]:
        """Yield the partitions from ``key`` onwards, inclusive."""
        if not self._order:
            self._order = sorted(self._blocks)
        begin = bisect_left(self._order, (key[0], key[1] >> BLOCK_BITS))
        for topic_id, block in islice(self._order, begin, None):
            bits, first = self._blocks[topic_id, block], block << BLOCK_BITS
            for place in range(bits.bit_length()):
                if bits >> place & 1 and (found := (topic_id, first + place)) >= key:
                    yield found

    def mutate(self) -> ReplicasDraft:
        """Return a mutable copy; O(1)."""
        return ReplicasDraft(self._blocks.mutate(), self._count)


class ReplicasDraft:
    """A draft of one broker's partitions."""

    __slots__ = ("_blocks", "_count")

    def __init__(self, blocks: pmap.Mutation[BlockKey, int], count: int) -> None:
        self._blocks, self._count = blocks, count

    def add(self, block: BlockKey, bits: int) -> None:
        """Add the partitions in a block whose bits are set."""
        before = self._blocks.get(block, 0)
        self._blocks[block] = before | bits
        self._count += (bits & ~before).bit_count()

    def remove(self, key: PartitionKey) -> None:
        """Remove a partition. Raises KeyError if it does not exist."""
        topic_id, index = key
        block, bit = (topic_id, index >> BLOCK_BITS), 1 << (index & (BLOCK - 1))
        before = self._blocks.get(block, 0)
        if not before & bit:
            raise KeyError(key)
        if before == bit:
            del self._blocks[block]
        else:
            self._blocks[block] = before ^ bit
        self._count -= 1

    def finish(self) -> Replicas:
        """Return the immutable version. The draft must not be used afterwards."""
        return Replicas(self._blocks.finish(), self._count)


NO_REPLICAS = Replicas(pmap.empty(), 0)


class ReplicaIndex:
    """A draft of all brokers' replicas, with the look-ups of ``pmap.Mutation``: the index by which
    fencing a broker touches only its own partitions.

    A set of keys per broker would cost more time and memory than the partitions themselves: a node
    that folds a long log would spend most of its time on that set. Partitions of a topic are
    numbered without gaps, so ``BLOCK`` of them share one entry, one bit each. A broker's writes
    stay in a draft until its next look-up, so that the fold copies no nodes in between.
    """

    __slots__ = ("_drafts", "_index")

    def __init__(self, base: pmap.Map[int, Replicas]) -> None:
        self._index = base.mutate()
        self._drafts: dict[int, ReplicasDraft] = {}

    def add(self, broker_id: int, key: PartitionKey) -> None:
        """Add the broker's replica of this partition."""
        topic_id, index = key
        self.draft(broker_id).add((topic_id, index >> BLOCK_BITS), 1 << (index & (BLOCK - 1)))

    def remove(self, broker_id: int, key: PartitionKey) -> None:
        """Remove the broker's replica of this partition. Raises KeyError if it has none."""
        self.draft(broker_id).remove(key)

    def draft(self, broker_id: int) -> ReplicasDraft:
        """Return the broker's draft, for direct writes."""
        draft = self._drafts.get(broker_id)
        if draft is None:
            held = self._index.get(broker_id) or NO_REPLICAS
            draft = self._drafts[broker_id] = held.mutate()
        return draft

    def get(self, broker_id: int, default: Any = None) -> Replicas | Any:
        """Return the replicas of a broker, or ``default``."""
        self._finish(broker_id)
        return self._index.get(broker_id, default)

    def __getitem__(self, broker_id: int) -> Replicas:
        self._finish(broker_id)
        return self._index[broker_id]

    def __contains__(self, broker_id: object) -> bool:
        return broker_id in self._drafts or broker_id in self._index

    def __len__(self) -> int:
        return len(self._index) + sum(one not in self._index for one in self._drafts)

    def _finish(self, broker_id: int) -> None:
        draft = self._drafts.pop(broker_id, None)
        if draft is not None:
            self._index[broker_id] = draft.finish()

    def finish(self) -> pmap.Map[int, Replicas]:
        """See ``ReplicasDraft.finish``."""
        for broker_id, draft in self._drafts.items():
            self._index[broker_id] = draft.finish()
        return self._index.finish()


ConfigKey = tuple[int, str]
ClientResultKey = tuple[int, int]


def add_count(counts: pmap.Mutation[pmap.K, int], key: pmap.K, more: int) -> None:
    """Add to a count, and remove it if it becomes 0."""
    if found := counts.get(key, 0) + more:
        counts[key] = found
    elif more:
        del counts[key]


class FoldError(FatalError):
    """A committed record contradicts the state to which it is applied. This happens on every node
    alike, so the node must stop and never skip the record.
    """


class Image(msgspec.Struct, frozen=True, eq=False):
    """All metadata after the record at ``offset`` (inclusive; -1 if empty), which is always the end
    of a batch.
    """

    offset: int = -1
    epoch: int = 0
    timestamp_ms: int = 0
    state_hash: int = 0
    features: pmap.Map[str, int] = msgspec.field(default_factory=pmap.empty)
    brokers: pmap.Map[int, Broker] = msgspec.field(default_factory=pmap.empty)
    topics: pmap.Map[bytes, Topic] = msgspec.field(default_factory=pmap.empty)
    topic_ids: pmap.Map[str, bytes] = msgspec.field(default_factory=pmap.empty)
    partitions: pmap.Map[PartitionKey, Partition] = msgspec.field(default_factory=pmap.empty)
    replicas_of: pmap.Map[int, Replicas] = msgspec.field(default_factory=pmap.empty)
    """Broker id -> the partitions of which it has a replica, so that fencing it touches
    only those.
    """
    leader_counts: pmap.Map[int, int] = msgspec.field(default_factory=pmap.empty)
    """Broker id -> number of partitions that it leads; under -1, the number of those without a
    leader.
    """
    standings: pmap.Map[Standing, int] = msgspec.field(default_factory=pmap.empty)
    """Standing -> number of partitions that have it, so that counting need not examine every
    partition.
    """
    configs: pmap.Map[ConfigKey, dict[str, str]] = msgspec.field(default_factory=pmap.empty)
    """(resource type, resource name) -> its configs. The dicts are never changed in place."""
    clients: pmap.Map[int, Client] = msgspec.field(default_factory=pmap.empty)
    client_results: pmap.Map[ClientResultKey, ClientResult] = msgspec.field(
        default_factory=pmap.empty
    )
    """(client id, sequence) -> the result of that write."""
    hostnames: pmap.Map[str, Hostname] = msgspec.field(default_factory=pmap.empty)
    export_cursors: pmap.Map[str, ExportCursor] = msgspec.field(default_factory=pmap.empty)
    acls: pmap.Map[bytes, AccessControlEntry] = msgspec.field(default_factory=pmap.empty)
    acl_index: AclIndex = msgspec.field(default_factory=AclIndex)
    key_values: pmap.Map[str, KeyValue] = msgspec.field(default_factory=pmap.empty)
    key_names: SortedKeys = msgspec.field(default_factory=SortedKeys)
    """The keys of ``key_values`` in order, so that a list examines only those that it shows."""
    keys_of_lease: pmap.Map[int, pmap.Map[str, bool]] = msgspec.field(default_factory=pmap.empty)
    """Lease id -> its keys, so that ending the lease touches only those."""
    keys_in: pmap.Map[str, int] = msgspec.field(default_factory=pmap.empty)
    """Directory, the part of a key before its last slash -> number of its keys."""
    leases: pmap.Map[int, Lease] = msgspec.field(default_factory=pmap.empty)
    imported: pmap.Map[tuple[str, str], str] = msgspec.field(default_factory=pmap.empty)
    """(kind, key) -> JSON: entities of an imported log that raftlog does not support."""
    leader: Leader | None = None
    voters: Voters | None = None
    """Voters according to the log, or None if it names none, so that the configured set applies."""
    state_bytes: int = 0
    """Size of all entities' canonical bytes, which is about the size of a snapshot."""
    key_value_bytes: int = 0
    """Size of all keys and values of the key-value store, in bytes."""

    def snapshot(self) -> Image:
        """Return this image."""
        return self


class ImageDraft:
    """A draft of an image: mutable maps over those of ``base``. Can be used again after
    ``snapshot``.
    """

    __slots__ = (
        "_base",
        "acl_index",
        "acls",
        "brokers",
        "client_results",
        "clients",
        "configs",
        "epoch",
        "export_cursors",
        "features",
        "hostnames",
        "imported",
        "key_names",
        "key_value_bytes",
        "key_values",
        "keys_in",
        "keys_of_lease",
        "leader",
        "leader_counts",
        "leases",
        "offset",
        "partitions",
        "replicas_of",
        "standings",
        "state_bytes",
        "state_hash",
        "timestamp_ms",
        "topic_ids",
        "topics",
        "voters",
    )

    counts_standings: ClassVar[bool] = True
    """False if ``leader_counts`` and ``standings`` are not needed, and stay unchanged."""

    def __init__(self, base: Image) -> None:
        self._reset(base)

    def _reset(self, base: Image) -> None:
        self._base = base
        self.offset, self.epoch, self.timestamp_ms = base.offset, base.epoch, base.timestamp_ms
        self.state_hash, self.state_bytes = base.state_hash, base.state_bytes
        self.features = base.features.mutate()
        self.brokers = base.brokers.mutate()
        self.topics = base.topics.mutate()
        self.topic_ids = base.topic_ids.mutate()
        self.partitions = base.partitions.mutate()
        self.replicas_of = ReplicaIndex(base.replicas_of)
        self.leader_counts = base.leader_counts.mutate()
        self.standings = base.standings.mutate()
        self.configs = base.configs.mutate()
        self.clients = base.clients.mutate()
        self.client_results = base.client_results.mutate()
        self.hostnames = base.hostnames.mutate()
        self.export_cursors = base.export_cursors.mutate()
        self.acls, self.acl_index = base.acls.mutate(), base.acl_index
        self.key_values = base.key_values.mutate()
        self.key_names = base.key_names.mutate()
        self.keys_of_lease = base.keys_of_lease.mutate()
        self.keys_in = base.keys_in.mutate()
        self.key_value_bytes = base.key_value_bytes
        self.leases = base.leases.mutate()
        self.imported = base.imported.mutate()
        self.leader, self.voters = base.leader, base.voters

    def snapshot(self) -> Image:
        """Return the image of everything folded so far.

        ``features`` is a new object only if a level has changed: brokers detect changes by its
        identity.
        """
        features = self.features.finish()
        image = Image(
            self.offset,
            self.epoch,
            self.timestamp_ms,
            self.state_hash & HASH_MASK,
            self._base.features if features == self._base.features else features,
            self.brokers.finish(),
            self.topics.finish(),
            self.topic_ids.finish(),
            self.partitions.finish(),
            self.replicas_of.finish(),
            self.leader_counts.finish(),
            self.standings.finish(),
            self.configs.finish(),
            self.clients.finish(),
            self.client_results.finish(),
            self.hostnames.finish(),
            self.export_cursors.finish(),
            self.acls.finish(),
            self.acl_index,
            self.key_values.finish(),
            self.key_names.finish(),
            self.keys_of_lease.finish(),
            self.keys_in.finish(),
            self.leases.finish(),
            self.imported.finish(),
            self.leader,
            self.voters,
            self.state_bytes,
            self.key_value_bytes,
        )
        self._reset(image)
        return image

    def snapshot_of_configs(self) -> Image:
        """Return what ``snapshot`` would, but faster. Only config values may have changed since the
        last image: all other maps are taken from it.
        """
        image = self._base = replace(
            self._base,
            offset=self.offset,
            epoch=self.epoch,
            timestamp_ms=self.timestamp_ms,
            state_hash=self.state_hash & HASH_MASK,
            configs=self.configs.finish(),
            state_bytes=self.state_bytes,
        )
        self.configs = image.configs.mutate()
        self.state_hash = image.state_hash
        return image

    def abandon(self) -> None:
        """Undo everything folded since the last snapshot. The draft must not be used afterwards.
        Its base can be folded forward again at once, as no newer version is left.
        """
        del self._base
        if isinstance(self.configs, FlatMutation):
            self.configs.abandon()

    @property
    def accounts_in_its_own_way(self) -> bool:
        """Whether ``replace`` must be called for each change, even where many changes could be
        accounted for at once.
        """
        return type(self).replace is not ImageDraft.replace

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Account for an entity's change in the state hash and in the size of the state."""
        if old is not None:
            content = entity_bytes((kind, *key, old))
            self.state_hash -= bytes_hash(content)
            self.state_bytes -= len(content)
        if new is not None:
            content = entity_bytes((kind, *key, new))
            self.state_hash += bytes_hash(content)
            self.state_bytes += len(content)


ImageView = Image | ImageDraft
"""The look-ups that decisions need, in an image or a draft. Only an image may be iterated."""

"""The index of each broker's replicas, derived from partitions, so that fencing a broker touches
only its own.

A set of keys of its own for each broker would cost more to keep, in time and in memory, than the
partitions do: a node that folds a long log spends most of its time there. Partitions of a topic are
numbered without gaps, so ``BLOCK`` of them share one entry, a bit for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Any

from raftlog.metadata import pmap

BLOCK_BITS = 6
BLOCK = 1 << BLOCK_BITS
"""Number of partitions of a topic in one entry. Small: each write makes a new number of this many
bits.
"""

Key = tuple[bytes, int]
"""(topic id, index) of a partition."""
BlockKey = tuple[bytes, int]
"""(topic id, index // BLOCK)."""


class Replicas(Set[Key]):
    """The partitions of one broker, immutable. Order of iteration means nothing."""

    __slots__ = ("_blocks", "_count")

    def __init__(self, blocks: pmap.Map[BlockKey, int], count: int) -> None:
        """``blocks``: without empty ones; ``count``: number of bits in them."""
        self._blocks, self._count = blocks, count

    @staticmethod
    def of(keys: Iterable[Key]) -> Replicas:
        """Return the set of these partitions, made outside any image."""
        index = ReplicaIndex(pmap.empty())
        for key in keys:
            index.add(0, key)
        held: Replicas = index.get(0) or NO_REPLICAS
        return held

    @classmethod
    def _from_iterable(cls, keys: Iterable[Any]) -> Any:
        """Support the operators of sets: their results are no part of an image."""
        return frozenset(keys)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, tuple):
            return False
        topic_id, index = key
        bits = self._blocks.get((topic_id, index >> BLOCK_BITS), 0)
        return bool(bits >> (index & (BLOCK - 1)) & 1)

    def __iter__(self) -> Iterator[Key]:
        for (topic_id, block), bits in self._blocks.items():
            first = block << BLOCK_BITS
            for place in range(bits.bit_length()):
                if bits >> place & 1:
                    yield topic_id, first + place

    def mutate(self) -> Draft:
        """Return a mutable copy; O(1)."""
        return Draft(self._blocks.mutate(), self._count)


class Draft:
    """A draft of one broker's partitions."""

    __slots__ = ("_blocks", "_count")

    def __init__(self, blocks: pmap.Mutation[BlockKey, int], count: int) -> None:
        self._blocks, self._count = blocks, count

    def add(self, block: BlockKey, bits: int) -> None:
        """Add the partitions of a block whose bit is set."""
        before = self._blocks.get(block, 0)
        self._blocks[block] = before | bits
        self._count += (bits & ~before).bit_count()

    def remove(self, key: Key) -> None:
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
        """Return the immutable version; this draft must not be used any more."""
        return Replicas(self._blocks.finish(), self._count)


NO_REPLICAS = Replicas(pmap.empty(), 0)


class ReplicaIndex:
    """A draft of all brokers' replicas, with the look-ups of ``pmap.Mutation``.

    A broker's writes stay in a draft until its next look-up: between two look-ups the fold copies
    no nodes.
    """

    __slots__ = ("_drafts", "_index")

    def __init__(self, base: pmap.Map[int, Replicas]) -> None:
        self._index = base.mutate()
        self._drafts: dict[int, Draft] = {}

    def add(self, broker_id: int, key: Key) -> None:
        """Add a replica of this partition to the broker."""
        topic_id, index = key
        self.draft(broker_id).add((topic_id, index >> BLOCK_BITS), 1 << (index & (BLOCK - 1)))

    def remove(self, broker_id: int, key: Key) -> None:
        """Remove the broker's replica of this partition. Raises KeyError if it has none."""
        self.draft(broker_id).remove(key)

    def draft(self, broker_id: int) -> Draft:
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
        """Return the immutable version; this draft must not be used any more."""
        for broker_id, draft in self._drafts.items():
            self._index[broker_id] = draft.finish()
        return self._index.finish()

"""The keys of a map in order, as immutable versions that share almost everything.

A version is a list of blocks of keys. The next version copies the list and the blocks that it
changes: that takes a few microseconds for a key among a million; memory is about ten bytes per key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from operator import itemgetter

BLOCK_MAX = 256
"""Maximum number of keys in a block. Two neighbouring blocks together always contain more than half
as many.
"""
_first = itemgetter(0)


class SortedKeys:
    """One immutable version of the keys."""

    __slots__ = ("_blocks",)

    def __init__(self, blocks: list[list[str]] | None = None) -> None:
        """``blocks``: without empty ones; must not be changed afterwards."""
        self._blocks = blocks or []

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            yield from block

    def since(self, key: str) -> Iterator[str]:
        """Yield the keys from ``key`` onwards, inclusive."""
        index = _find(self._blocks, key)
        for number, block in enumerate(self._blocks[index:]):
            yield from block if number else block[bisect_left(block, key) :]

    def below(self, prefix: str, after: str = "") -> Iterator[str]:
        """Yield the keys that begin with a prefix and follow ``after``."""
        for key in self.since(max(prefix, after)):
            if not key.startswith(prefix):
                return
            if key > after:
                yield key

    def mutate(self) -> SortedKeysDraft:
        """Return a draft of the next version; O(1)."""
        return SortedKeysDraft(self._blocks)


def _find(blocks: list[list[str]], key: str) -> int:
    """Return the index of the block that contains the key, or would."""
    return max(0, bisect_right(blocks, key, key=_first) - 1)


class SortedKeysDraft:
    """A version under construction. Cannot be iterated."""

    __slots__ = ("_blocks", "_own")

    def __init__(self, blocks: list[list[str]]) -> None:
        self._blocks = blocks
        self._own: set[int] | None = None
        """Identities of the blocks that no other version has, or None if even the list is
        shared.
        """

    def add(self, key: str) -> None:
        """Add a key, which must be missing."""
        blocks = self._changed()
        index = _find(blocks, key)
        if blocks and self._is_full(index) and key > blocks[index][-1]:
            # Keys that arrive in ascending order fill their blocks.
            index += 1
        if index == len(blocks):
            self._insert(index, [key])
            return
        if self._is_full(index):
            half = self._own_block(index)[BLOCK_MAX // 2 :]
            del blocks[index][BLOCK_MAX // 2 :]
            self._insert(index + 1, half)
            index += key > half[0]
        insort(self._own_block(index), key)

    def remove(self, key: str) -> None:
        """Remove a key. Raises KeyError if it is missing."""
        blocks = self._changed()
        index = _find(blocks, key)
        block = self._own_block(index) if blocks else []
        at = bisect_left(block, key)
        if at == len(block) or block[at] != key:
            raise KeyError(key)
        del block[at]
        if not block:
            del blocks[index]
            return
        for left in (index, index - 1):
            self._merge(left)

    def finish(self) -> SortedKeys:
        """See ``ReplicasDraft.finish``."""
        return SortedKeys(self._blocks)

    def _is_full(self, index: int) -> bool:
        return len(self._blocks[index]) >= BLOCK_MAX

    def _changed(self) -> list[list[str]]:
        """Return the list of blocks for modification, copied if it is shared."""
        if self._own is None:
            self._blocks, self._own = self._blocks.copy(), set()
        return self._blocks

    def _own_block(self, index: int) -> list[str]:
        """Return a block for modification, copied if it is shared."""
        assert self._own is not None
        block = self._blocks[index]
        if id(block) not in self._own:
            block = self._blocks[index] = block.copy()
            self._own.add(id(block))
        return block

    def _insert(self, index: int, block: list[str]) -> None:
        assert self._own is not None
        self._own.add(id(block))
        self._blocks.insert(index, block)

    def _merge(self, left: int) -> None:
        """Merge a block with the next one if both are short."""
        blocks = self._blocks
        if left < 0 or left + 1 >= len(blocks):
            return
        if len(blocks[left]) + len(blocks[left + 1]) <= BLOCK_MAX // 2:
            block = self._own_block(left)
            block += blocks.pop(left + 1)

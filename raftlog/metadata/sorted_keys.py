"""The keys of a map in order, as immutable versions that share almost everything.

A version is a list of blocks of keys. The next one copies the list and the blocks that it changes:
a few microseconds for a key among a million, and about ten bytes of memory a key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

BLOCK_MAX = 1_024
"""Most keys of a block. Two neighbours have more than half as many together."""


class SortedKeys:
    """One immutable version."""

    __slots__ = ("_blocks", "_firsts")

    def __init__(
        self, blocks: list[list[str]] | None = None, firsts: list[str] | None = None
    ) -> None:
        """``firsts``: first key of each block. Neither list may be changed afterwards."""
        self._blocks, self._firsts = blocks or [], firsts or []

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            yield from block

    def since(self, key: str) -> Iterator[str]:
        """Yield the keys from ``key`` on, itself included."""
        index = max(0, bisect_right(self._firsts, key) - 1)
        for number, block in enumerate(self._blocks[index:]):
            yield from block if number else block[bisect_left(block, key) :]

    def below(self, prefix: str, after: str = "") -> Iterator[str]:
        """Yield the keys that begin with a prefix, behind ``after``."""
        for key in self.since(max(prefix, after)):
            if not key.startswith(prefix):
                return
            if key > after:
                yield key

    def mutate(self) -> SortedKeysDraft:
        """Return the draft of a next version; O(1)."""
        return SortedKeysDraft(self._blocks, self._firsts)


class SortedKeysDraft:
    """A version in the making. Not for iteration."""

    __slots__ = ("_blocks", "_firsts", "_own")

    def __init__(self, blocks: list[list[str]], firsts: list[str]) -> None:
        self._blocks, self._firsts = blocks, firsts
        self._own: set[int] | None = None
        """Identities of the blocks that no other version has; None: the lists are shared, too."""

    def add(self, key: str) -> None:
        """Add a key that is missing."""
        index = self._find(key)
        if index >= 0 and self._is_full(index) and key > self._blocks[index][-1]:
            # Keys that arrive in order fill their blocks.
            index += 1
        if index < 0 or index == len(self._blocks):
            self._insert(max(0, index), [key])
            return
        if self._is_full(index):
            half = self._change(index)[BLOCK_MAX // 2 :]
            del self._blocks[index][BLOCK_MAX // 2 :]
            self._insert(index + 1, half)
            index += key > half[0]
        block = self._change(index)
        insort(block, key)
        self._firsts[index] = block[0]

    def remove(self, key: str) -> None:
        """Remove a key. Raises KeyError if it is missing."""
        index = self._find(key)
        block = self._change(index) if index >= 0 else []
        at = bisect_left(block, key)
        if at == len(block) or block[at] != key:
            raise KeyError(key)
        del block[at]
        if not block:
            del self._blocks[index], self._firsts[index]
            return
        self._firsts[index] = block[0]
        for left in (index, index - 1):
            self._merge(left)

    def finish(self) -> SortedKeys:
        """Return the immutable version; this draft must not be used any more."""
        return SortedKeys(self._blocks, self._firsts)

    def _find(self, key: str) -> int:
        """Return the index of the block that has the key, or would; -1: there is no block."""
        return max(0, bisect_right(self._firsts, key) - 1) if self._blocks else -1

    def _is_full(self, index: int) -> bool:
        return len(self._blocks[index]) >= BLOCK_MAX

    def _change(self, index: int) -> list[str]:
        """Return a block to be changed here."""
        self._unshare()
        assert self._own is not None
        block = self._blocks[index]
        if id(block) not in self._own:
            block = self._blocks[index] = block.copy()
            self._own.add(id(block))
        return block

    def _unshare(self) -> None:
        if self._own is None:
            self._blocks, self._firsts = self._blocks.copy(), self._firsts.copy()
            self._own = set()

    def _insert(self, index: int, block: list[str]) -> None:
        self._unshare()
        assert self._own is not None
        self._own.add(id(block))
        self._blocks.insert(index, block)
        self._firsts.insert(index, block[0])

    def _merge(self, left: int) -> None:
        """Merge a block with the next one if both are short."""
        blocks = self._blocks
        if left < 0 or left + 1 >= len(blocks):
            return
        if len(blocks[left]) + len(blocks[left + 1]) <= BLOCK_MAX // 2:
            block = self._change(left)
            block += self._blocks.pop(left + 1)
            self._firsts[left : left + 2] = block[:1]

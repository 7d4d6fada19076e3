"""Broker lists as numbers: each distinct list is stored once, with its members as bits.

There are few distinct replica lists and ISRs, but many records that contain them. So two lists are
compared as words of 64 bits, whatever the number of brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from replay.kernels.arrays import MISSING, SMALL, Bools, Ints, distinct, whole

Words = npt.NDArray[np.uint64]
NOTHING = MISSING
"""Number that stands for null instead of a list."""
_ITEM_BYTES = 4


class Lists:
    """A numbering of lists. ``members[number]`` keeps the members' order."""

    def __init__(self) -> None:
        self.members: list[tuple[int, ...]] = []
        self._numbers: dict[bytes, int] = {}
        self._bits: dict[int, int] = {}
        self._small = np.full(SMALL, -1, np.int64)
        self.brokers: list[int] = []
        self._size = np.zeros(64, np.int64)
        self._distinct = np.zeros(64, np.int64)
        self._single = np.full(64, MISSING, np.int64)
        self._words = np.zeros((1, 64), np.uint64)
        self.empty = self.number(())

    @property
    def word_count(self) -> int:
        """Number of words for a list's members."""
        return len(self._words)

    def number(self, members: Sequence[int]) -> int:
        """Return the number of a list."""
        return self._of_bytes(np.asarray(members, np.int32).tobytes())

    def numbers(self, column: Any) -> Ints:
        """Return the numbers of a column of int32 lists; null becomes NOTHING."""
        column = whole(column)
        if column.null_count == len(column):
            return np.full(len(column), NOTHING, np.int64)
        values = column.values
        offsets = (column.offsets.to_numpy().astype(np.int64) + values.offset) * _ITEM_BYTES
        return self._of_offsets(offsets, values.buffers()[1], column)

    def numbers_of_field(self, column: Any, field: int) -> Ints:
        """Return the numbers of the lists of an int32 field, in a column of lists of structs."""
        column = whole(column)
        if column.null_count == len(column):
            return np.full(len(column), NOTHING, np.int64)
        values = pc.struct_field(column.values, [field])
        offsets = (column.offsets.to_numpy().astype(np.int64) + values.offset) * _ITEM_BYTES
        return self._of_offsets(offsets, values.buffers()[1], column)

    def _of_offsets(self, offsets: Ints, data: pa.Buffer | None, column: pa.Array) -> Ints:
        count = len(column)
        # The bytes of a list are its key, so Arrow can find the distinct ones.
        flat = pa.Array.from_buffers(
            pa.large_binary(), count, [None, pa.py_buffer(offsets), data or pa.py_buffer(b"")]
        ).dictionary_encode()
        table = np.array([self._of_bytes(each) for each in flat.dictionary.to_pylist()], np.int64)
        numbers = table[flat.indices.to_numpy()] if count else np.zeros(0, np.int64)
        if column.null_count:
            numbers[column.is_null().to_numpy(zero_copy_only=False)] = NOTHING
        return numbers

    def _of_bytes(self, key: bytes) -> int:
        number = self._numbers.get(key)
        if number is None:
            members = tuple(np.frombuffer(key, np.int32).tolist())
            number = self._numbers[key] = len(self.members)
            self.members.append(members)
            self._add(number, members)
        return number

    def _add(self, number: int, members: tuple[int, ...]) -> None:
        if number == len(self._size):
            for name in ("_size", "_distinct", "_single"):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
            self._words = np.concatenate([self._words, np.zeros_like(self._words)], axis=1)
        self._size[number] = len(members)
        self._distinct[number] = len(set(members))
        self._single[number] = members[0] if len(members) == 1 else MISSING
        for broker in members:
            word, bit = divmod(self.bit(broker), 64)
            self._words[word, number] |= np.uint64(1 << bit)

    def bit(self, broker: int) -> int:
        """Return the bit of a broker."""
        bit = self._bits.get(broker)
        if bit is None:
            bit = self._bits[broker] = len(self.brokers)
            self.brokers.append(broker)
            if 0 <= broker < SMALL:
                self._small[broker] = bit
            if bit // 64 == len(self._words):
                self._words = np.concatenate([self._words, np.zeros_like(self._words[:1])])
        return bit

    def bits(self, brokers: Ints) -> Ints:
        """Return the bits of many brokers."""
        if len(brokers) and brokers.min() >= 0 and brokers.max() < SMALL:
            bits = self._small[brokers]
            new = brokers[bits < 0]
            if not len(new):
                return bits
            for broker in np.unique(new).tolist():
                self.bit(broker)
            return self._small[brokers]
        different, where = np.unique(brokers, return_inverse=True)
        return np.array([self.bit(int(each)) for each in different], np.int64)[where]

    def word(self, numbers: Ints, index: int) -> Words:
        """Return one word of each list's members; 0 for NOTHING."""
        return np.where(numbers >= 0, self._words[index][np.maximum(numbers, 0)], np.uint64(0))

    def size(self, numbers: Ints) -> Ints:
        """Return the number of members of each list; -1 for NOTHING."""
        return np.where(numbers >= 0, self._size[np.maximum(numbers, 0)], -1)

    def names_one_twice(self, numbers: Ints) -> Bools:
        """Return whether each list contains a duplicate."""
        at = np.maximum(numbers, 0)
        return (numbers >= 0) & (self._size[at] != self._distinct[at])

    def single(self, numbers: Ints) -> Ints:
        """Return the only member of each list with one member; else MISSING."""
        return np.where(numbers >= 0, self._single[np.maximum(numbers, 0)], MISSING)

    def contain(self, numbers: Ints, brokers: Ints) -> Bools:
        """Return whether each list contains the corresponding broker."""
        bits, at = self.bits(brokers), np.maximum(numbers, 0)
        words = self._words[0][at] if self.word_count == 1 else self._words[bits >> 6, at]
        found = words >> (bits & 63).astype(np.uint64)
        return (numbers >= 0) & ((found & np.uint64(1)) == 1)

    def lacks(self, some: Ints, others: Ints) -> Bools:
        """Return whether each of ``some`` has a member that the corresponding one of ``others``
        lacks.
        """
        found = np.zeros(len(some), np.bool_)
        for index in range(self.word_count):
            found |= (self.word(some, index) & ~self.word(others, index)) != 0
        return found

    def share(self, some: Ints, others: Ints) -> Bools:
        """Return whether each of ``some`` has a member in common with the corresponding one of
        ``others``.
        """
        found = np.zeros(len(some), np.bool_)
        for index in range(self.word_count):
            found |= (self.word(some, index) & self.word(others, index)) != 0
        return found

    def text(self, number: int) -> str:
        """Return a list as text."""
        return "nothing" if number < 0 else ids(self.members[number])

    def table(self, numbers: Ints) -> pa.Array:
        """Return lists as an Arrow column."""
        different, places = distinct(numbers)
        lists = [None if number < 0 else self.members[number] for number in different.tolist()]
        return pa.array(lists, pa.list_(pa.int32())).take(pa.array(places))


def ids(members: Sequence[int]) -> str:
    """Return ids as text, such as [1, 2]."""
    return f"[{', '.join(map(str, members))}]"


def pairs_of(words: Words, index: int) -> tuple[Ints, Ints]:
    """Return the bits set in words with the given index: position of the word, and bit."""
    places, found = [], []
    left, at = words, np.arange(len(words))
    while True:
        some = left != 0
        left, at = left[some], at[some]
        if not len(left):
            break
        lowest = left & (~left + np.uint64(1))
        places.append(at)
        found.append(np.bitwise_count(lowest - np.uint64(1)).astype(np.int64) + 64 * index)
        left = left ^ lowest
    if not places:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(places), np.concatenate(found)

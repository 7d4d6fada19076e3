"""Conversion of Arrow columns to NumPy arrays, and operations on these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.segments.columns import SCHEMA

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MISSING = -(2**62)
"""Placeholder for null."""
NEVER = 2**62
"""Greater than every offset and time; the end of anything that is still open."""


def typed(*names: str, **types: pa.DataType) -> pa.Schema:
    """Return a schema of columns with these names. A type is taken from ``types``, else from the
    record column of the same name, else it is int64.
    """
    of_records = {field.name: field.type for field in SCHEMA} | types
    return pa.schema([(name, of_records.get(name, pa.int64())) for name in names])


def ints(column: Any) -> Ints:
    """Return a numeric or boolean column as integers; null becomes MISSING."""
    column = whole(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if column.type != pa.int64():
        column = column.cast(pa.int64())
    if column.null_count:
        column = pc.fill_null(column, MISSING)
    return column.to_numpy(zero_copy_only=False)


def whole(column: Any) -> pa.Array:
    """Return a column as a single array."""
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def codes(column: Any) -> tuple[Ints, list[Any]]:
    """Return a column as indices into its distinct values, and these values; null becomes
    MISSING.
    """
    column = whole(column)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    return ints(column.indices), column.dictionary.to_pylist()


Arrays = TypeVar("Arrays", bound=tuple[npt.NDArray[Any], ...])
"""A table: a named tuple of arrays of equal length."""


def some(table: Arrays, chosen: Bools | Ints) -> Arrays:
    """Return the chosen rows of a table."""
    kind: Any = type(table)
    found: Arrays = kind(*(values[chosen] for values in table))
    return found


def joined(kind: type[Arrays], tables: Iterable[Arrays]) -> Arrays:
    """Concatenate tables; without any, return a table without rows."""
    columns: list[tuple[Any, ...]] = list(zip(*tables, strict=True))
    make: Any = kind
    nothing = ((np.zeros(0, np.int64),),) * len(make._fields)
    found: Arrays = make(*(np.concatenate(each) for each in columns or nothing))
    return found


def starts_of(*keys: Ints) -> Bools:
    """Return a mask of the rows that start a run of equal keys."""
    first = np.ones(len(keys[0]), np.bool_)
    first[1:] = np.any([each[1:] != each[:-1] for each in keys], axis=0)
    return first


def stops_of(first: Bools) -> Bools:
    """Return a mask of the last row of each run, given the first ones."""
    return np.concatenate([first[1:], [True]]) if len(first) else first


def carried(values: Ints, first: Bools) -> Ints:
    """Return the values with each MISSING replaced by the last other value before it, within runs
    that start where ``first`` is set.
    """
    return values[last_of(values != MISSING, first)]


def last_of(said: Bools, first: Bools) -> Ints:
    """Return, for each index, the last index up to it at which ``said`` or ``first`` is set."""
    here = np.where(said | first, np.arange(len(said)), 0)
    return np.maximum.accumulate(here)


def previous(values: Ints, first: Bools) -> Ints:
    """Return each value's predecessor; MISSING where ``first`` is set."""
    before = np.empty_like(values)
    before[1:] = values[:-1]
    before[first] = MISSING
    return before


def order_of(keys: Ints) -> Ints:
    """Return a stable sort order for non-negative keys."""
    count = len(keys)
    bits = max(1, int(count - 1).bit_length())
    if count and int(keys.max()) < 1 << (62 - bits):
        # With the index packed in, an unstable sort works: several times as fast.
        packed = (keys << bits) | np.arange(count)
        packed.sort()
        return packed & ((1 << bits) - 1)
    return np.argsort(keys, kind="stable")


def distinct(values: Ints) -> tuple[Ints, Ints]:
    """Return the sorted distinct values, and the index of each value among them. Faster than
    ``np.unique``: marks values in a table if they are close together, and hashes them otherwise.
    """
    if not len(values):
        return values, np.zeros(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if high - low > len(values) // 4 + 1024:
        return _hashed(values)
    places = values - low
    there = np.zeros(high - low + 1, np.bool_)
    there[places] = True
    return np.flatnonzero(there) + low, (np.cumsum(there) - 1)[places]


def _hashed(values: Ints) -> tuple[Ints, Ints]:
    encoded = pa.array(values).dictionary_encode()
    different = encoded.dictionary.to_numpy()
    order = np.argsort(different)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return different[order], place[encoded.indices.to_numpy()]


SMALL = 4096
"""Numbers below this are looked up in a table, which is faster than a binary search even among
twelve values.
"""


class Known:
    """A lookup among a few distinct values."""

    def __init__(self, values: Ints) -> None:
        self.values = np.unique(values)
        small = self.values[(self.values >= 0) & (self.values < SMALL)]
        self._table = np.full(SMALL, -1, np.int64)
        self._table[small] = np.searchsorted(self.values, small)

    def find(self, wanted: Ints) -> tuple[Ints, Bools]:
        """Return each wanted value's index, and whether the value is known; if not, the index is
        arbitrary.
        """
        if not len(self.values):
            return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
        if len(wanted) and wanted.min() >= 0 and wanted.max() < SMALL:
            place = self._table[wanted]
            return np.maximum(place, 0), place >= 0
        place = np.minimum(np.searchsorted(self.values, wanted), len(self.values) - 1)
        return place, self.values[place] == wanted


def spread(begins: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Expand ranges into pairs: the number of the range, and each index in it."""
    owner = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    within = np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
    return owner, begins[owner] + within

"""Sizes of values in MessagePack, in bytes, many at a time: as ``entity_bytes`` packs them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.kernels.arrays import Ints, ints

_INT_EDGES = np.array([-(1 << 31), -(1 << 15), -(1 << 7), -32, 1 << 7, 1 << 8, 1 << 16, 1 << 32])
_INT_BYTES = np.array([9, 5, 3, 2, 1, 2, 3, 5, 9])
_TEXT_EDGES = np.array([1 << 5, 1 << 8, 1 << 16])
_TEXT_HEADS = np.array([1, 2, 3, 5])
_SHORT_LIST, _LONG_LIST = 16, 1 << 16


def packed_ints(values: Ints) -> Ints:
    """Return the packed size of each number, in bytes."""
    return _INT_BYTES[np.searchsorted(_INT_EDGES, values, side="right")]


def packed_texts(column: pa.ChunkedArray) -> Ints:
    """Return the packed size of each text, in bytes; null counts as an empty one."""
    size = ints(pc.fill_null(pc.binary_length(column.cast(pa.string())), 0))
    return size + _TEXT_HEADS[np.searchsorted(_TEXT_EDGES, size, side="right")]


def packed_list(members: Sequence[int]) -> int:
    """Return the packed size of one list of numbers, in bytes."""
    count = len(members)
    head = 1 if count < _SHORT_LIST else 3 if count < _LONG_LIST else 5
    return head + int(packed_ints(np.array(members, np.int64)).sum())

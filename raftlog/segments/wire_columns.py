"""Columns of many encoded messages of one type, decoded at once.

Protobuf decodes a message in a microsecond, and making columns from the objects takes ten. Here
NumPy steps through all messages in parallel, field by field. It decodes what raftlog's own encoder
writes: known fields in ascending order, each once, packed lists, ASCII text. Any other message is
*odd*, and the caller decodes it with protobuf, so that the result never differs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PADDING = bytes(32)
"""Padding in bytes after the last message, as a varint is read before its end is checked."""
_VARINT_BYTES = 10
_MAX_TAG_BYTES = _MAX_LENGTH_BYTES = 5
_DELIMITED = 2
_TAGS = 256
"""Limit on the known tags, exclusive."""
_NARROW = (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_ENUM)
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)
_HEX = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint8)
_HEX_PAIRS = _HEX.reshape(256, 2)


class Values(NamedTuple):
    """Values of one field: for each, the index of its message, ascending, and its number, or its
    begin and end.
    """

    owner: Ints
    value: Ints
    end: Ints

    def of(self, chosen: Bools) -> Values:
        """Return the chosen values."""
        return Values(*(each[chosen] for each in self))


_NOTHING = Values(*(np.zeros(0, np.int64),) * 3)


class Messages:
    """Encoded messages of one type in one buffer, and which of them are odd."""

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        begins: Ints,
        ends: Ints,
        descriptor: Any,
        without: Collection[str] = (),
    ) -> None:
        """``without``: fields that make a message odd."""
        self._data = data
        self._fields = {
            field.name: field for field in descriptor.fields if field.name not in without
        }
        self.odd = np.zeros(len(begins), np.bool_)
        self._found = self._decode(begins, ends)

    @classmethod
    def of_bodies(
        cls, bodies: Sequence[bytes], descriptor: Any, without: Collection[str] = ()
    ) -> Messages:
        """Return the messages with these bytes."""
        ends = np.cumsum(np.fromiter(map(len, bodies), np.int64, len(bodies)))
        begins = np.concatenate([[0], ends[:-1]])
        data = np.frombuffer(b"".join((*bodies, _PADDING)), np.uint8)
        return cls(data, begins, ends, descriptor, without)

    def __len__(self) -> int:
        return len(self.odd)

    def _decode(self, begins: Ints, ends: Ints) -> dict[str, Values]:
        tags = {_tag(field): field for field in self._fields.values() if _tag(field) < _TAGS}
        known, repeated, narrow = (np.zeros(_TAGS, np.bool_) for _ in range(3))
        for number, field in tags.items():
            known[number] = True
            repeated[number] = field.is_repeated and field.type in _TEXTS
            narrow[number] = field.type in _NARROW and not field.is_repeated
        parts: dict[int, list[Values]] = defaultdict(list)
        at, before = begins.copy(), np.full(len(begins), -1, np.int64)
        left = np.flatnonzero(at < ends)
        while len(left):
            tag, behind_tag = self._varints(at[left])
            value, here = self._varints(behind_tag)
            # Protobuf does not parse a longer tag or length, whatever its value.
            fine = behind_tag - at[left] <= _MAX_TAG_BYTES
            tag[(tag < 0) | (tag >= _TAGS)] = 0
            delimited = tag & 7 == _DELIMITED
            after = np.where(delimited, here + np.clip(value, 0, len(self._data)), here)
            fine &= (here - behind_tag <= _MAX_LENGTH_BYTES) | ~delimited
            last = before[left]
            fine &= known[tag] & ((tag > last) | (repeated[tag] & (tag == last)))
            fine &= (after <= ends[left]) & ((value >= 0) | ~delimited)
            fine &= ~narrow[tag] | (value == value.astype(np.int32))
            self.odd[left[~fine]] = True
            left, tag, here, value, after = (each[fine] for each in (left, tag, here, value, after))
            for number in np.flatnonzero(np.bincount(tag)).tolist():
                chosen = tag == number
                if number & 7 == _DELIMITED:
                    part = Values(left[chosen], here[chosen], after[chosen])
                else:
                    part = Values(left[chosen], value[chosen], value[chosen])
                parts[number].append(part)
            at[left], before[left] = after, tag
            left = left[after < ends[left]]
        return {tags[number].name: _together(some) for number, some in parts.items()}

    def _varints(self, at: Ints) -> tuple[Ints, Ints]:
        """Return the varints at these positions, and the positions after them."""
        byte = self._data[at].astype(np.int64)
        value, behind = byte & 127, at + 1
        more = np.flatnonzero(byte >= 128)
        for index in range(1, _VARINT_BYTES):
            if not len(more):
                return value, behind
            byte = self._data[behind[more]].astype(np.int64)
            value[more] |= (byte & 127) << (7 * index)
            behind[more] += 1
            more = more[byte >= 128]
        # No valid varint is longer: move it past the last message, where padding can be read.
        behind[more] = len(self._data) - len(_PADDING) + 1
        return value, behind

    def _values(self, name: str) -> Values:
        return self._found.get(name, _NOTHING)

    def numbers(self, name: str, *, optional: bool) -> tuple[Ints, Bools]:
        """Return the numbers of a field, and which messages have it; 0 for the others.

        ``optional``: whether a message that lacks the field has no number, rather than 0.
        """
        found = self._values(name)
        value = np.zeros(len(self), np.int64)
        value[found.owner] = found.value
        there = np.full(len(self), not optional)
        there[found.owner] = True
        return value, there

    def texts(self, name: str, *, optional: bool, binary: bool = False) -> pa.Array:
        """Return the texts or bytes of a field."""
        found = self._values(name)
        lengths = np.zeros(len(self), np.int64)
        lengths[found.owner] = found.end - found.value
        data = _slices(self._data, found.value, found.end - found.value)
        if not binary and len(data) and data.max() > 127:
            foreign = np.repeat(found.owner, found.end - found.value)[data > 127]
            self.odd[foreign] = True
            data = np.where(data > 127, ord("?"), data).astype(np.uint8)
        there = None
        if optional:
            there = np.zeros(len(self), np.bool_)
            there[found.owner] = True
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.Array.from_buffers(
            pa.binary() if binary else pa.string(),
            len(self),
            [_bitmap(there), pa.py_buffer(offsets), pa.py_buffer(data)],
        )

    def hex(self, name: str, size: int) -> pa.Array:
        """Return the bytes of a field, ``size`` in each message, as hex digits."""
        found = self._values(name)
        fits = found.end - found.value == size
        begins = np.full(len(self), -1, np.int64)
        begins[found.owner[fits]] = found.value[fits]
        self.odd |= begins < 0
        digits = _HEX_PAIRS[self._data[np.maximum(begins, 0)[:, None] + np.arange(size)]]
        offsets = np.arange(len(self) + 1, dtype=np.int32) * (2 * size)
        return pa.Array.from_buffers(
            pa.string(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(digits)]
        )

    def packed(self, name: str, *, narrow: bool) -> Values:
        """Return the members of a packed list of numbers, each with the index of its message."""
        found = self._values(name)
        owner, at, end = found.owner, found.value, found.end
        parts: list[Values] = []
        while len(owner):
            value, at = self._varints(at)
            fine = at <= end
            if narrow:
                fine &= value == value.astype(np.int32)
            self.odd[owner[~fine]] = True
            owner, at, end, value = (each[fine] for each in (owner, at, end, value))
            parts.append(Values(owner, value, value))
            inside = at < end
            owner, at, end = owner[inside], at[inside], end[inside]
        return _together(parts)

    def inner(self, name: str) -> tuple[Ints, Messages]:
        """Return the messages in a field, and the index of the outer message for each."""
        found = self._values(name)
        descriptor = self._fields[name].message_type
        return found.owner, Messages(self._data, found.value, found.end, descriptor)


def _tag(field: Any) -> int:
    delimited = field.type in _TEXTS or field.is_repeated
    return field.number << 3 | (_DELIMITED if delimited else 0)


def _together(parts: list[Values]) -> Values:
    """Return the values ordered by message, those of one message in their original order."""
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return _NOTHING
    found = Values(*(np.concatenate(some) for some in zip(*parts, strict=True)))
    order = np.argsort(found.owner, kind="stable")
    return Values(*(each[order] for each in found))


def _slices(data: npt.NDArray[np.uint8], begins: Ints, lengths: Ints) -> npt.NDArray[np.uint8]:
    """Return slices of a buffer, concatenated."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return data[np.repeat(begins - (ends - lengths), lengths) + np.arange(total)]


def _bitmap(there: Bools | None) -> pa.Buffer | None:
    return None if there is None else pa.py_buffer(np.packbits(there, bitorder="little"))


def lists(
    owner: Ints, values: pa.Array, kind: pa.DataType, count: int, there: Bools | None = None
) -> pa.Array:
    """Return a column of lists. ``owner``: the row of each member; ``count``: the number of rows;
    ``there``: which rows have a list, or None for all.
    """
    counts = np.bincount(owner, minlength=count)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    missing = None if there is None else pa.array(~there)
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=missing)

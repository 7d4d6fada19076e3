"""Reads changes by their shapes, see ``shapes.py``: what is read has been compared, byte by byte,
with what would be made of it, so it cannot mean anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raftlog import batch
from raftlog.config_writes import twin
from raftlog.config_writes.messages import KIND, MAX_CHANGES, Change, ConfigWrites
from raftlog.config_writes.shapes import (
    BODY_TAG,
    ITEM_TAG,
    KEY_MAX_CHARS,
    RECORD_HEAD_BYTES,
    Shape,
    Shapes,
    record_shape,
    resource_shape,
)
from raftlog.config_writes.twin import varint_at
from raftlog.wire.controller.v1 import controller_pb2 as pb

_MAX_NUMBER = 2**63 - 1

Learn = Callable[[bytes, int], Shape | None]


class Scanner:
    """Reads changes that stand one behind the other."""

    def __init__(self, data: bytes, learn: Learn) -> None:
        """``learn``: the shape of the change at a position; None: it is unusual, or damaged."""
        self._data, self._learn = data, learn
        self._text = data.decode("latin-1")
        self._shape = _NONE

    def changes(self, at: int, end: int) -> list[Change] | None:
        """Those between two positions; None: one is unusual, or damaged.

        They are right only if all texts are ASCII, which is left to be looked at.
        """
        data, text, changes = self._data, self._text, list[Change]()
        type_, key, head, name_size, middle, value_size, _, _ = shape = self._shape
        head_size, middle_size = len(head), len(middle)
        while at < end:
            name_at = at + head_size
            name_end = name_at + name_size
            value_at = name_end + middle_size
            if data[at:name_at] != head or data[name_end:value_at] != middle:
                learned = self._learn(data, at)
                if learned is None:
                    return None
                type_, key, head, name_size, middle, value_size, _, _ = shape = learned
                head_size, middle_size = len(head), len(middle)
                name_at = at + head_size
                name_end = name_at + name_size
                value_at = name_end + middle_size
            at = value_at + value_size
            changes.append((type_, text[name_at:name_end], key, text[value_at:at]))
        self._shape = shape
        return changes if at == end else None


_NONE = Shape(0, "", b"\xff", 0, b"", 0, "", "")
"""Of nothing: neither a record nor a resource begins like that."""


def learned_record(data: bytes, begin: int) -> Shape | None:
    """The shape of the record that begins there; None: it is unusual, or damaged."""
    return _learned(data, begin, begin + RECORD_HEAD_BYTES + 1, record_shape, nested=False)


def learned_resource(data: bytes, begin: int) -> Shape | None:
    """As ``learned_record``, of a resource in a request."""
    try:
        at = varint_at(data, begin + 1)[1] + 1
    except IndexError:
        return None
    return _learned(data, begin, at, resource_shape, nested=True)


def _learned(data: bytes, begin: int, at: int, shapes: Shapes, *, nested: bool) -> Shape | None:
    """``at``: where its type is. ``nested``: key and value are in a message of their own."""
    try:
        name_size, name_at = varint_at(data, at + 2)
        position = name_end = name_at + name_size
        if nested:
            position = varint_at(data, position + 1)[1]
        key_size, key_at = varint_at(data, position + 1)
        value_size, value_at = varint_at(data, key_at + key_size + 1)
        type_ = data[at]
    except IndexError:
        return None
    # No shape is made of a number that damage has left in the place of a length.
    if key_size > KEY_MAX_CHARS or value_at + value_size > len(data):
        return None
    shape = shapes(type_, data[key_at : key_at + key_size].decode("latin-1"), name_size, value_size)
    if shape is None or not data.startswith(shape.head, begin):
        return None
    return shape if data.startswith(shape.middle, name_end) else None


def decoded(chunk: bytes, header: batch.BatchHeader) -> list[Change] | None:
    """As the twin's; None: ask that."""
    begin, end = batch.records_position(chunk, header), header.position + header.size
    changes = Scanner(chunk, learned_record).changes(begin, end)
    if changes is None or len(changes) != header.record_count:
        return None
    return changes if twin.texts(changes).isascii() else None


# --- groups of requests ---------------------------------------------------------------------------


class _Rest(NamedTuple):
    """What a request has between its number and its body."""

    data: bytes
    """With the tag of the body."""
    fields: twin.Fields


def grouped(
    envelope: bytes, max_requests: int, max_bytes: int
) -> list[pb.ControllerRequest | ConfigWrites] | None:
    """The requests of an envelope, plain config writes as groups; None: it is not made of requests
    alone, or of other texts than ASCII.

    Raises DecodeError.
    """
    groups = twin.Groups(max_requests, max_bytes)
    scanner = Scanner(envelope, learned_resource)
    rest: _Rest | None = None
    at, total = 0, len(envelope)
    try:
        while at < total:
            if envelope[at] != ITEM_TAG:
                return None
            size, begin = varint_at(envelope, at + 1)
            at = begin + size
            if at > total:
                return None
            number, behind = varint_at(envelope, begin + 1) if envelope[begin] == 8 else (0, begin)
            message = None
            if rest is None or not envelope.startswith(rest.data, behind):
                message = pb.ControllerRequest.FromString(envelope[begin:at])
                rest = _rest_of(message)
            if rest is not None and envelope.startswith(rest.data, behind):
                size, body_at = varint_at(envelope, behind + len(rest.data))
                changes = scanner.changes(body_at, at) if body_at + size == at else None
                if changes and len(changes) <= MAX_CHANGES and number <= _MAX_NUMBER:
                    groups.add(number, changes, at - begin, rest.fields)
                    continue
            groups.add_message(message or pb.ControllerRequest.FromString(envelope[begin:at]))
    except IndexError:
        return None
    items = groups.done()
    plain = (item for item in items if type(item) is ConfigWrites)
    if not all(item.printable or twin.texts(item.changes).isascii() for item in plain):
        return None
    return items


def _rest_of(request: pb.ControllerRequest) -> _Rest | None:
    """What it has, if it is written as usual; None: it is no plain write."""
    if not twin.is_plain(request):
        return None
    rest = pb.ControllerRequest()
    rest.CopyFrom(request)
    rest.ClearField("correlation_id")
    rest.ClearField(KIND)
    return _Rest(rest.SerializeToString() + BODY_TAG, twin.fields(request))

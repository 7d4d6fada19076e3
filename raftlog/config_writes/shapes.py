"""What ``native.c`` does, in Python, for what nearly all writes look like: texts of ASCII, no field
empty, no number unusual. Everything else is left to ``twin.py``.

A *shape* is all bytes of a write but its name and value, which follow from its type, its key and
two lengths. So a write is made by looking its shape up, and read (``scanner.py``) by comparing with
the shape of the one before it: a few slices a write, where a message of protobuf is an object a
field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from raftlog import batch
from raftlog.config_writes import twin
from raftlog.config_writes.messages import Change, ConfigWrite
from raftlog.config_writes.twin import varint

_SHAPES = 4_096
"""How many are kept of each kind."""
KEY_MAX_CHARS = 249
"""Of a shape's key: what peers send is to take no more memory than that."""
_MAX_TYPE = 0x7F
RECORD_HEAD_BYTES = 8
ITEM_TAG, BODY_TAG = 0x0A, b"\x82\x01"


class Shape(NamedTuple):
    """A write but for two texts: what is before its name, and between its name and its value."""

    type: int
    key: str
    head: bytes
    name_size: int
    middle: bytes
    value_size: int
    head_text: str
    """``head`` with a character for each byte."""
    middle_text: str


Shapes = Callable[[int, str, int, int], Shape | None]


@lru_cache(maxsize=_SHAPES)
def resource_shape(type_: int, key: str, name_size: int, value_size: int) -> Shape | None:
    """Of a resource in a request, behind its tag."""
    if not (0 < type_ <= _MAX_TYPE and key and key.isascii() and name_size and value_size):
        return None
    name = b"\x0a" + varint(len(key)) + key.encode() + b"\x1a" + varint(value_size)
    middle = b"\x1a" + varint(len(name) + value_size) + name
    head = bytes((0x08, type_, 0x12)) + varint(name_size)
    size = len(head) + name_size + len(middle) + value_size
    return _shape(type_, key, b"\x0a" + varint(size) + head, name_size, middle, value_size)


@lru_cache(maxsize=_SHAPES)
def record_shape(type_: int, key: str, name_size: int, value_size: int) -> Shape | None:
    """Of a record of a batch."""
    if not (0 < type_ <= _MAX_TYPE and key and key.isascii() and name_size):
        return None
    middle = b"\x1a" + varint(len(key)) + key.encode() + b"\x22" + varint(value_size)
    body = bytes((0x08, type_, 0x12)) + varint(name_size)
    size = len(body) + name_size + len(middle) + value_size
    head = batch.record_head(twin.RECORD_TYPE, twin.RECORD_VERSION, size) + body
    return _shape(type_, key, head, name_size, middle, value_size)


def _shape(
    type_: int, key: str, head: bytes, name_size: int, middle: bytes, value_size: int
) -> Shape:
    return Shape(
        type_, key, head, name_size, middle, value_size,
        head.decode("latin-1"), middle.decode("latin-1"),
    )  # fmt: skip


def joined(changes: Sequence[Change], shapes: Shapes) -> bytes | None:
    """The changes one behind the other; None: one is unusual. No value is None."""
    parts: list[str] = []
    known = ""
    for type_, name, key, value in changes:
        if key is not known:
            if len(key) > KEY_MAX_CHARS:
                return None
            known = key
        shape = shapes(type_, key, len(name), len(value))  # type: ignore[arg-type]
        if shape is None:
            return None
        parts += (shape.head_text, name, shape.middle_text, value)  # type: ignore[arg-type]
    # A character is a byte, then, in the shapes as well.
    if not "".join(parts[1::2]).isascii():
        return None
    return "".join(parts).encode("latin-1")


def encoded(changes: list[Change], begin: int, end: int) -> bytes | None:
    """As the twin's; None: ask that."""
    return joined(changes[begin:end], record_shape)


def request(write: ConfigWrite) -> bytes | None:
    """As the twin's; None: ask that."""
    body = joined(write.changes, resource_shape)
    if body is None or not 0 <= write.acks <= twin.MAX_ACKS:
        return None
    rest = _request_rest(write.cluster_id, write.timeout_ms, write.acks, write.principal)
    number = write.correlation_id
    return b"".join(
        (b"\x08" + _number(number) if number else b"", rest, BODY_TAG, _number(len(body)), body)
    )


@lru_cache(maxsize=_SHAPES)
def _request_rest(cluster_id: str, timeout_ms: int, acks: int, principal: str) -> bytes:
    """Of a request, between its number and its body."""
    rest = ConfigWrite([], acks, cluster_id, principal, timeout_ms).request()  # type: ignore[arg-type]
    rest.ClearField("incremental_alter_configs")
    return rest.SerializeToString()


def replies(
    numbers: list[int], counts: list[int], offset: int, head: bytes, token_head: bytes, reached: int
) -> bytes:
    """As the twin's. ``offset``: of the first record; ``head``, ``token_head``: see ``codec``."""
    parts: list[bytes] = []
    offset -= 1
    for number, count in zip(numbers, counts, strict=True):
        offset += count
        id_ = _number(number) if number else b""
        last = _number(offset) if offset else b""
        shape = _reply_shape(head, token_head, len(id_), len(last), reached)
        parts += (shape[0], id_, shape[1], last, shape[2])
    return b"".join(parts)


@lru_cache(maxsize=_SHAPES)
def _reply_shape(
    head: bytes, token_head: bytes, id_size: int, offset_size: int, reached: int
) -> tuple[bytes, bytes, bytes]:
    """A response with its tag and length, but for its number and its offset."""
    token_size = len(token_head) + (1 + offset_size if offset_size else 0)
    behind = bytes((0x10, reached)) if reached else b""
    write_head = b"\x0a" + varint(token_size)
    write_size = len(write_head) + token_size + len(behind)
    between = head + b"\x2a" + varint(write_size) + write_head + token_head
    if offset_size:
        between += b"\x18"
    behind += BODY_TAG + b"\x00"
    size = (1 + id_size if id_size else 0) + len(between) + offset_size + len(behind)
    return b"\x0a" + varint(size) + (b"\x08" if id_size else b""), between, behind


_LOW = [bytes((low | 0x80,)) for low in range(0x80)]
_SHORT = [bytes((low,)) for low in range(0x80)]


def _number(value: int) -> bytes:
    """As ``varint``: of numbers that count up only the last digit is new."""
    return _SHORT[value] if value <= 0x7F else _LOW[value & 0x7F] + _high(value >> 7)


_high = lru_cache(maxsize=_SHAPES)(varint)

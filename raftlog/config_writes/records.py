"""The records of config writes in the log: encoded, decoded and folded, in C or in Python.

Every node runs this for every write. The Python functions (``py_…``, ``entity``) are the
specification of the compiled ones, and replace them if they are not compiled.
``RAFTLOG_NATIVE_CODEC=off`` in the environment selects Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import xxhash
from google.protobuf.message import DecodeError

from raftlog import batch
from raftlog.errors import CorruptLogError
from raftlog.wire.records.v1 import records_pb2

VERSION = 6
"""Version of this package's functions: a compiled codec with another version is not used."""
native: Any
"""The compiled codec, or None."""
try:
    from raftlog.config_writes import _native as native  # type: ignore[attr-defined, no-redef]
except ImportError:
    native = None
if (
    os.environ.get("RAFTLOG_NATIVE_CODEC", "").lower() == "off"
    or getattr(native, "VERSION", 0) != VERSION
):
    native = None

Change = tuple[int, str, str, str | None]
"""Resource type, resource name, key, and value, or None to delete the key."""
Configs = dict[tuple[int, str], dict[str, str]]
Undo = dict[tuple[int, str], dict[str, str] | None]

_TYPE, _VERSION = 4, 0
_packed = msgspec.msgpack.Encoder().encode
_hash, _digest = xxhash.xxh3_128_intdigest, xxhash.xxh3_128_digest
_HASH_MASK = (1 << 128) - 1


def py_encoded(changes: Sequence[Change], begin: int, end: int) -> bytes:
    """Return the records of ``changes[begin:end]`` as stored in a batch; no value may be None."""
    parts: list[bytes] = []
    for type_, resource_name, name, value in changes[begin:end]:
        body = records_pb2.ConfigRecord(
            resource_type=type_, resource_name=resource_name, name=name, value=value
        ).SerializeToString()
        parts.append(batch.record_head(_TYPE, _VERSION, len(body)))
        parts.append(body)
    return b"".join(parts)


def encoded(changes: list[Change], begin: int, end: int) -> bytes:
    """Return the records of changes: see ``py_encoded``."""
    if native is None:
        return py_encoded(changes, begin, end)
    return native.encoded(changes, begin, end)


def py_decoded(chunk: bytes, header: batch.BatchHeader) -> list[Change] | None:
    """Return the changes in a batch of config records, or None if it contains any other record or
    is damaged.
    """
    changes: list[Change] = []
    try:
        for type_, version, body in batch.bodies(chunk, header):
            if type_ != _TYPE or version != _VERSION:
                return None
            one = records_pb2.ConfigRecord.FromString(body)
            value = one.value if one.HasField("value") else None
            changes.append((one.resource_type, one.resource_name, one.name, value))
    except (CorruptLogError, DecodeError):
        return None
    return changes


def decoded(chunk: bytes, header: batch.BatchHeader) -> list[Change] | None:
    """Return the changes in a batch: see ``py_decoded``."""
    if native is None:
        return py_decoded(chunk, header)
    begin = batch.records_position(chunk, header)
    end = header.position + header.size
    return native.decoded(chunk, begin, end, header.record_count)


def entity(change: Change) -> bytes:
    """Return a config's canonical bytes: the input of its contribution to the state hash."""
    return _packed(("config", *change))


entity_or_none: Callable[[Change], bytes | None] = entity if native is None else native.entity
"""The native form of ``entity``; returns None if ``entity`` must be called instead."""


def py_fold(changes: Iterable[Change], configs: Configs, undo: Undo) -> tuple[int, int]:
    """Apply changes to the configs; a value of None deletes the key.

    Stores each resource's configs before its first change in ``undo``, or None if it had none.
    Never modifies a resource's dict in place. Returns the increase of the state hash (reduced to
    its width) and of the state's size in bytes.
    """
    # The removed and the added entities, hashed and counted in one pass.
    gone, come = list[bytes](), list[bytes]()
    for resource_type, resource_name, name, value in changes:
        resource = (resource_type, resource_name)
        values = configs.get(resource)
        old = None if values is None else values.get(name)
        if old is not None:
            gone.append(_packed(("config", resource_type, resource_name, name, old)))
        if value is not None:
            come.append(_packed(("config", resource_type, resource_name, name, value)))
        elif old is None:
            continue
        if resource not in undo:
            undo[resource] = values
        if value is not None:
            configs[resource] = {name: value} if values is None else {**values, name: value}
        elif values is not None and len(values) == 1:
            del configs[resource]
        elif values is not None:
            configs[resource] = {key: kept for key, kept in values.items() if key != name}
    state_hash = sum(map(_hash, come)) - sum(map(_hash, gone))
    return state_hash & _HASH_MASK, sum(map(len, come)) - sum(map(len, gone))


def fold(changes: Iterable[Change], configs: Configs, undo: Undo) -> tuple[int, int]:
    """Apply changes to the configs: see ``py_fold``."""
    if native is None:
        return py_fold(changes, configs, undo)
    state_hash, state_bytes = native.fold(changes, configs, undo, _digest, entity)
    return int.from_bytes(state_hash), state_bytes

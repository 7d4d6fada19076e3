"""The codec of the hot messages: the compiled one if there is one, else ``writes.py``.

``RAFTLOG_NATIVE_CODEC=off`` in the environment chooses Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import xxhash

from raftlog import batch
from raftlog.config_writes import writes
from raftlog.config_writes.writes import (
    MAX_BYTES,
    MAX_REQUESTS,
    Change,
    ConfigReplies,
    ConfigWrite,
    ConfigWrites,
    Framed,
)
from raftlog.wire.controller.v1 import controller_pb2 as pb

_native: Any
try:
    from raftlog.config_writes import _native  # type: ignore[attr-defined, no-redef]
except ImportError:
    _native = None
if (
    os.environ.get("RAFTLOG_NATIVE_CODEC", "").lower() == "off"
    or getattr(_native, "VERSION", 0) != writes.VERSION
):
    _native = None

NAME = "python" if _native is None else "native"
"""Name of the codec in use."""

Item = pb.ControllerRequest | ConfigWrites


def grouped_envelope(envelope: bytes) -> list[Item] | None:
    """Return the requests of an envelope, with plain config writes as groups.

    None: it has other items than requests, or there is no compiled codec: then the caller parses
    the messages, and calls ``writes.grouped``. Raises DecodeError.
    """
    if _native is None:
        return None
    items = _native.grouped(envelope, MAX_REQUESTS, MAX_BYTES)
    if items is None:
        return None
    parse = pb.ControllerRequest.FromString
    return [ConfigWrites(*item) if type(item) is tuple else parse(item) for item in items]


ends: Callable[[bytes, int, int, int, int], list[int] | None] = (
    writes.ends if _native is None else _native.ends
)
"""As ``writes.ends``: an envelope is parsed only after its items are counted."""


def request(write: ConfigWrite) -> bytes:
    """Return the bytes of a ControllerRequest."""
    if _native is None or write.timeout_ms < 0:
        return writes.request(write)
    return _native.request(
        write.changes,
        write.correlation_id,
        write.cluster_id,
        write.timeout_ms,
        write.acks,
        write.principal,
    )


def encoded(changes: list[Change], begin: int, end: int) -> bytes:
    """Return the records of ``changes[begin:end]``, as a batch holds them; no value is None."""
    if _native is None:
        return writes.encoded(changes, begin, end)
    return _native.encoded(changes, begin, end)


def decoded(chunk: bytes, header: batch.BatchHeader) -> list[Change] | None:
    """Return the changes of a batch of config records; None if it has any other record, or is
    damaged.
    """
    if _native is None:
        return writes.decoded(chunk, header)
    begin = batch.records_position(chunk, header)
    end = header.position + header.size
    return _native.decoded(chunk, begin, end, header.record_count)


run: Callable[[list[Change], int, int, int], int] = writes.run if _native is None else _native.run
"""As ``writes.run``: a check of each write before it is decided."""

entity_or_none: Callable[[Change], bytes | None] = (
    writes.entity if _native is None else _native.entity
)
"""As ``writes.entity``; None: call that instead. Every write on every node calls this."""


def fold(
    changes: Iterable[Change],
    configs: dict[tuple[int, str], dict[str, str]],
    undo: dict[tuple[int, str], dict[str, str] | None],
) -> tuple[int, int]:
    """Change the configs: as ``writes.fold``. Every write on every controller calls this."""
    if _native is None:
        return writes.fold(changes, configs, undo)
    state_hash, state_bytes = _native.fold(changes, configs, undo, _digest, writes.entity)
    return int.from_bytes(state_hash), state_bytes


_digest = xxhash.xxh3_128_digest


def replies(message: ConfigReplies) -> Framed:
    """Return the responses, as items of an envelope."""
    if _native is None or message.leader_id < 0:
        data = writes.replies(message)
    else:
        head, token_head = _heads(message.leader_id, message.controller_epoch, message.generation)
        data = _native.replies(
            message.correlation_ids,
            message.counts,
            message.base_offset,
            head,
            token_head,
            message.reached,
        )
    framed = Framed(data)
    framed.items = len(message.correlation_ids)
    return framed


@lru_cache(maxsize=16)
def _heads(leader_id: int, controller_epoch: int, generation: int) -> tuple[bytes, bytes]:
    """Return the part that all responses of an epoch share: fields 3 and 4 of the response, 1 and 2
    of its token.
    """
    fields = ((3, leader_id), (4, controller_epoch)), ((1, generation), (2, controller_epoch))
    head, token_head = (
        b"".join(
            writes.varint(number << 3) + writes.varint(value) for number, value in part if value
        )
        for part in fields
    )
    return head, token_head

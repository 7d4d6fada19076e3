"""The codec of the hot messages: the compiled one if available, else ``writes.py``."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from raftlog.config_writes import writes
from raftlog.config_writes.records import Change, native
from raftlog.config_writes.writes import (
    MAX_BYTES,
    MAX_REQUESTS,
    ConfigReplies,
    ConfigWrite,
    ConfigWrites,
    Framed,
)
from raftlog.wire.controller.v1 import controller_pb2 as pb

NAME = "python" if native is None else "native"
"""Name of the codec in use."""

Item = pb.ControllerRequest | ConfigWrites


def grouped_envelope(envelope: bytes) -> list[Item] | None:
    """Return an envelope's requests, with plain config writes as groups.

    Return None if the envelope has other items than requests, or no compiled codec is available:
    the caller then parses the messages and calls ``writes.grouped``. Raises DecodeError.
    """
    if native is None:
        return None
    items = native.grouped(envelope, MAX_REQUESTS, MAX_BYTES)
    if items is None:
        return None
    parse = pb.ControllerRequest.FromString
    return [ConfigWrites(*item) if type(item) is tuple else parse(item) for item in items]


ends: Callable[[bytes, int, int, int, int], list[int] | None] = (
    writes.ends if native is None else native.ends
)
"""See ``writes.ends``. An envelope is parsed only after its items were counted."""


def request(write: ConfigWrite) -> bytes:
    """Return the bytes of a write as a ControllerRequest."""
    if native is None or write.timeout_ms < 0:
        return writes.request(write)
    return native.request(
        write.changes,
        write.correlation_id,
        write.cluster_id,
        write.timeout_ms,
        write.acks,
        write.principal,
    )


run: Callable[[list[Change], int, int, int], int] = writes.run if native is None else native.run
"""See ``writes.run``. Checks each write before it is decided."""


def replies(message: ConfigReplies) -> Framed:
    """Return the responses as items of an envelope."""
    if native is None or message.leader_id < 0:
        data = writes.replies(message)
    else:
        head, token_head = _heads(message.leader_id, message.controller_epoch, message.generation)
        data = native.replies(
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
    """Return the bytes shared by all responses of an epoch: fields 3 and 4 of the response, 1 and 2
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

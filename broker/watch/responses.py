"""Responses to watchers, as bytes: each change is encoded once for all of them.

A response is the concatenation of its fields, as protobuf defines a message, so the same bytes of a
change are in the responses of different watchers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raftlog.errors import ApiError
from raftlog.metadata.entity_words import to_json
from raftlog.metadata.image import Image
from raftlog.metadata.ordered_changes import WHOLE, Change, Position
from raftlog.transport.statuses import error_to_wire
from raftlog.wire.broker.v1 import broker_pb2 as pb


def token(generation: int, epoch: int, position: Position) -> pb.WatchToken:
    """Return a position as watchers know it."""
    part = 0 if position.part == WHOLE else position.part
    return pb.WatchToken(generation=generation, epoch=epoch, offset=position.offset, part=part)


def position_of(message: pb.WatchToken) -> Position:
    """Return the position that a watcher names."""
    return Position(message.offset, message.part or WHOLE)


def change_field(change: Change, path: str) -> bytes:
    """Return a change, as a field of a response."""
    position = change.position
    message = pb.WatchChange(
        kind=change.kind,
        key=change.key,
        path=path,
        offset=position.offset,
        epoch=change.epoch,
        timestamp_ms=change.timestamp_ms,
        principal=change.principal,
        part=0 if position.part == WHOLE else position.part,
    )
    if change.before is not None:
        message.before = to_json(change.before)
    if change.after is not None:
        message.after = to_json(change.after)
    return pb.WatchResponse(changes=[message]).SerializeToString()


def initial_field(kind: str, key: str, path: str, value: Any, image: Image) -> bytes:
    """Return an entity of the initial list, as a field of a response."""
    message = pb.WatchChange(
        kind=kind,
        key=key,
        path=path,
        after=to_json(value),
        offset=image.offset,
        epoch=image.epoch,
        timestamp_ms=image.timestamp_ms,
        initial=True,
    )
    return pb.WatchResponse(changes=[message]).SerializeToString()


def response(at: pb.WatchToken | None, changes: Iterable[bytes] = ()) -> bytes:
    """Return a response up to a token."""
    head = b"" if at is None else pb.WatchResponse(token=at).SerializeToString()
    return head + b"".join(changes)


def ending(
    error: ApiError, at: pb.WatchToken | None = None, oldest: pb.WatchToken | None = None
) -> bytes:
    """Return the last response of a watch."""
    return pb.WatchResponse(token=at, error=error_to_wire(error), oldest=oldest).SerializeToString()

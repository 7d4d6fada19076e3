"""Responses to watchers, as bytes, and the initial list of a watch: the selected entities of one
image. Pure.

Each change is encoded once for all watchers. In protobuf a message is the concatenation of its
fields, so responses to different watchers contain the same bytes for a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from typing import Any, NamedTuple

from raftlog.errors import ApiError
from raftlog.metadata.changes import WHOLE, Change, Position
from raftlog.metadata.image import Image
from raftlog.metadata.kinds import KIND_OF, NamedTopic, entities_of
from raftlog.metadata.selectors import PLURAL, Selection, path_of, unquoted
from raftlog.metadata.words import TYPE_NUMBERS, config_key, to_json
from raftlog.transport.statuses import error_to_wire
from raftlog.wire.broker.v1 import broker_pb2 as pb


def token(generation: int, epoch: int, position: Position) -> pb.WatchToken:
    """Return the token for a position."""
    part = 0 if position.part == WHOLE else position.part
    return pb.WatchToken(generation=generation, epoch=epoch, offset=position.offset, part=part)


def position_of(message: pb.WatchToken) -> Position:
    """Return the position of a token."""
    return Position(message.offset, message.part or WHOLE)


def change_field(change: Change, path: str) -> bytes:
    """Return a change, encoded as a field of a response."""
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
    """Return an entity of the initial list, encoded as a field of a response."""
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
    """Return a response with these changes, up to the token ``at``."""
    head = b"" if at is None else pb.WatchResponse(token=at).SerializeToString()
    return head + b"".join(changes)


def ending(
    error: ApiError, at: pb.WatchToken | None = None, oldest: pb.WatchToken | None = None
) -> bytes:
    """Return the last response of a watch."""
    return pb.WatchResponse(token=at, error=error_to_wire(error), oldest=oldest).SerializeToString()


LOOKS_A_STEP = 512
"""Number of unselected entities after which the list pauses."""

Entity = tuple[str, Any]
"""An entity of the list: its key as text, and its value."""


class Listed(NamedTuple):
    """A selected entity."""

    kind: str
    key: str
    path: str
    value: Any


def listing(image: Image, selection: Selection) -> Iterator[Listed | None]:
    """Yield the selected entities, each kind sorted by key, and None periodically, to let other
    work run.

    Entities selected by their own path are looked up; for any other selector all entities of the
    kind are examined.
    """
    for kind, plural in PLURAL.items():
        exact = sorted(path for path in selection.exact if path.partition("/")[0] == plural)
        below = {f"{path}/" for path in exact}
        wider = [one for one in selection.prefixes if one.partition("/")[0] == plural]
        if not exact and not wider:
            continue
        point = _POINTS.get(kind)
        found: Iterator[Entity]
        if kind == "kv":
            found = _selected_keys(image, exact, wider)
        elif point is not None and plural not in exact and below.issuperset(wider):
            found = (entity for path in exact for entity in point(image, path.split("/")[1:]))
        else:
            found = entities_of(image, KIND_OF[kind])
        for count, (key, value) in enumerate(found, 1):
            path = path_of(kind, key, value)
            if selection.matches(path):
                yield Listed(kind, key, path, value)
            elif not count % LOOKS_A_STEP:
                yield None


def _config_point(image: Image, segments: list[str]) -> Iterator[Entity]:
    if len(segments) < 2 or segments[0] not in TYPE_NUMBERS:
        # All entities of a type.
        yield from entities_of(image, KIND_OF["config"])
        return
    number, name = TYPE_NUMBERS[segments[0]], unquoted(segments[1])
    values = image.configs.get((number, name)) or {}
    for key in sorted(values):
        yield config_key(number, name, key), values[key]


def _topic_point(image: Image, segments: list[str]) -> Iterator[Entity]:
    name = segments[0]
    topic_id = image.topic_ids.get(name)
    if topic_id is not None:
        yield name, NamedTopic(topic_id, name)


def _partition_point(image: Image, segments: list[str]) -> Iterator[Entity]:
    name = segments[0]
    topic_id = image.topic_ids.get(name)
    if topic_id is not None:
        for index in range(image.topics[topic_id].partition_count):
            yield f"{name}-{index}", image.partitions[topic_id, index]


def _broker_point(image: Image, segments: list[str]) -> Iterator[Entity]:
    id_ = segments[0]
    broker = image.brokers.get(int(id_)) if id_.isdecimal() and len(id_) < 11 else None
    if broker is not None:
        yield str(broker.id), broker


def _selected_keys(image: Image, exact: list[str], wider: list[str]) -> Iterator[Entity]:
    keys = [key for path in exact if (key := path.partition("/")[2]) in image.key_values]
    below = (image.key_names.below(prefix.partition("/")[2]) for prefix in wider)
    # No path of a selection is below another one.
    return ((key, image.key_values[key]) for key in merge(keys, *below))


_POINTS: dict[str, Callable[[Image, list[str]], Iterator[Entity]]] = {
    "config": _config_point,
    "topic": _topic_point,
    "partition": _partition_point,
    "broker": _broker_point,
}
"""Look-ups by kind: each yields an entity, given the rest of its path, and the entities below it.
"""

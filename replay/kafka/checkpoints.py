"""Kafka's snapshots: the state that a node had at an offset, to begin with or to compare with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from raftlog.metadata.entities import Broker, with_cause
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import KINDS
from replay.kafka.batches import batches
from replay.kafka.conversion import Conversion, Converted, StateHeader, decoded
from replay.kafka.copies import Checkpoint
from replay.kafka.errors import KafkaLogError, unreadable
from replay.kafka.mapping import Mapping
from replay.kafka.records import KafkaRecord

_HEADER, _FOOTER = "SnapshotHeaderRecord", "SnapshotFooterRecord"
_NOT_IN_THEM = {"leader", "progress"}
"""Kinds of entities that Kafka's snapshots do not have."""
_MAX_DIFFERENCES = 20
MAX_BYTES = 1 << 30
"""Of a snapshot: more than any of a million partitions."""


def records_of(checkpoint: Checkpoint) -> tuple[list[KafkaRecord], StateHeader]:
    """The records between header and footer. Raises KafkaLogError if one of those is not there."""
    try:
        with checkpoint.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read() if size <= MAX_BYTES else b""
    except OSError as error:
        raise unreadable(checkpoint.path, error) from None
    if size > MAX_BYTES:
        raise KafkaLogError(f"{checkpoint.path} has {size} bytes: no snapshot has so many")
    try:
        found = [one for _, source in batches(data) for one in decoded(source)]
    except KafkaLogError as error:
        raise KafkaLogError(f"{checkpoint.path}: {error}") from None
    if len(found) < 2 or found[0].name != _HEADER or found[-1].name != _FOOTER:
        raise KafkaLogError(f"{checkpoint.path} is not a whole snapshot")
    timestamp_ms = found[0].fields["last_contained_log_timestamp"]
    header = StateHeader(checkpoint.end_offset, checkpoint.epoch, timestamp_ms)
    return found[1:-1], header


def image_of(state: Converted) -> Image:
    """The image that the one batch of a checkpoint's state makes."""
    fold = ImageBuilder(Image())
    fold.offset = state.header.base_offset - 1
    fold.apply_decoded(state.header, state.records)
    return fold.snapshot()


def state_of(checkpoint: Checkpoint) -> tuple[Converted, Mapping]:
    """A checkpoint's state as a batch, and the mapping that goes on from there."""
    conversion = Conversion()
    return conversion.state(*records_of(checkpoint)), conversion.mapping


def differences(folded: Image, said: Image) -> list[str]:
    """Where the fold of the log differs from what a snapshot says, in words; at most twenty."""
    found: list[str] = []
    ours, theirs = dict(_entities(folded)), dict(_entities(said))
    for name in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(name), theirs.get(name)
        if one == other:
            continue
        if len(found) == _MAX_DIFFERENCES:
            found.append("and more")
            break
        if one is None or other is None:
            found.append(f"{name} is only in the {'log' if other is None else 'snapshot'}")
        else:
            found.append(f"{name} is {one!r} by the log, {other!r} in the snapshot")
    return found


def _entities(image: Image) -> Iterator[tuple[str, Any]]:
    for kind in KINDS:
        if kind.name in _NOT_IN_THEM:
            continue
        for key in kind.keys(image):
            for content in kind.contents(image, key):
                *names, value = content
                name = " ".join((kind.name, *map(_word, names or _as_names(key))))
                yield name, _comparable(value)


def _as_names(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _word(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _comparable(value: Any) -> Any:
    """Without what only the log says: why a broker is as it is, and where the voters were named."""
    if isinstance(value, Broker):
        return structs.asdict(structs.replace(with_cause(value, 0), reason=""))
    if hasattr(value, "voters"):
        return value.voters
    return value

"""Kafka's snapshots: the state of a node at an offset, to start from or to compare with."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any, NamedTuple

from msgspec import structs

from raftlog.metadata.entities import Broker, Cause, Voters
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.imported import PARTITION_DETAIL
from raftlog.metadata.words import FieldChange, brief, field_changes, to_json
from raftlog.text import counted
from replay.kafka.conversion import Conversion, Converted, StateHeader, decoded
from replay.kafka.copies import Checkpoint
from replay.kafka.log_format import KafkaLogError, batches, require_time, unreadable
from replay.kafka.mapping import ELIGIBLE
from replay.kafka.records import KafkaRecord
from replay.kernels.folding import entities

_HEADER, _FOOTER = "SnapshotHeaderRecord", "SnapshotFooterRecord"
_NOT_IN_THEM = {"leader"}
"""Kinds of entities that Kafka's snapshots do not contain."""
_DEFAULT = ("zk_migration", 0)
"""A state that Kafka's snapshots contain even if no record has set it."""
_ELR_VERSION = "eligible.leader.replicas.version"
_MAX_DIFFERENCES = 20
_KAFKAS_WORDS = {
    "eligible_leader_replicas": "ELR",
    "last_known_elr": "last known ELR",
    "isr": "ISR",
    "directories": "directories",
}
"""Names of fields that have another name in Kafka."""
MAX_BYTES = 1 << 30
"""Largest accepted snapshot, in bytes, more than a million partitions need."""


def records_of(checkpoint: Checkpoint) -> tuple[list[KafkaRecord], StateHeader]:
    """Return the records between header and footer, and the snapshot's position. Raises
    KafkaLogError if the snapshot is damaged or incomplete.
    """
    try:
        with checkpoint.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read() if size <= MAX_BYTES else b""
    except OSError as error:
        raise unreadable(checkpoint.path, error) from None
    if size > MAX_BYTES:
        raise KafkaLogError(f"{checkpoint.path} has {size} bytes: at most {MAX_BYTES} are accepted")
    try:
        found = [one for _, source in batches(data) for one in decoded(source)]
    except KafkaLogError as error:
        raise KafkaLogError(f"{checkpoint.path}: {error}") from None
    if len(found) < 2 or found[0].name != _HEADER or found[-1].name != _FOOTER:
        raise KafkaLogError(f"{checkpoint.path} is not a complete snapshot")
    timestamp_ms = found[0].fields["last_contained_log_timestamp"]
    require_time(timestamp_ms, str(checkpoint.path))
    header = StateHeader(checkpoint.end_offset, checkpoint.epoch, max(timestamp_ms, 0))
    return found[1:-1], header


def image_of(state: Converted) -> Image:
    """Return the image of a checkpoint's state, given as one batch."""
    fold = ImageBuilder(Image())
    fold.offset = state.header.base_offset - 1
    fold.apply_decoded(state.header, state.records)
    return fold.snapshot()


def state_of(checkpoint: Checkpoint) -> tuple[Converted, Conversion]:
    """Return a checkpoint's state as a batch, and a conversion that continues after it."""
    conversion = Conversion()
    return conversion.state(*records_of(checkpoint)), conversion


class Difference(NamedTuple):
    """An entity that differs between the log and a snapshot; ``ours`` (the log) or ``theirs`` is
    None if it is missing there.
    """

    kind: str
    key: str
    ours: Any
    theirs: Any

    @property
    def changes(self) -> list[FieldChange]:
        """The fields that differ; empty if the entity is only on one side."""
        if self.ours is None or self.theirs is None:
            return []
        return field_changes(to_json(self.ours), to_json(self.theirs))

    @property
    def words(self) -> str:
        """Text with the entity and the differing fields on both sides."""
        entity = f"{self.kind} {self.key}".rstrip()
        changes = ", ".join(
            f"{one.field} is {brief(one.before)} in the log, {brief(one.after)} in the snapshot"
            for one in self.changes
        )
        return f"{entity}: {changes}" if changes else f"{entity} is {self.side}"

    @property
    def side(self) -> str:
        """The side that has an entity which the other side lacks."""
        return f"only in the {'log' if self.theirs is None else 'snapshot'}"


def differences(folded: Image, snapshot: Image) -> list[Difference]:
    """Return the entities in which the fold of the log differs from a snapshot."""
    ours, theirs = _comparable(folded), _comparable(snapshot)
    return [
        Difference(*name, ours.get(name), theirs.get(name))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]


def first_in_words(found: list[Difference]) -> list[str]:
    """Return texts about the first differences, and the number of the others."""
    words = [one.words for one in found[:_MAX_DIFFERENCES]]
    if more := len(found) - len(words):
        words.append(f"and {counted(more, 'more entity', 'more entities')}")
    return words


def summarize(found: list[Difference]) -> str:
    """Return all differences in Kafka's terms, such as: 11 partitions of 7 topics: ELR; 1 broker:
    fenced.
    """
    entities: dict[str, set[str]] = defaultdict(set)
    fields: dict[str, dict[str, None]] = defaultdict(dict)
    for one in found:
        kind = "partition" if one.kind == PARTITION_DETAIL else one.kind
        entities[kind].add(one.key)
        names = [_KAFKAS_WORDS.get(each.field, each.field) for each in one.changes]
        if not names and one.kind == PARTITION_DETAIL:
            names = [_KAFKAS_WORDS[name] for name in one.ours or one.theirs]
        fields[kind] |= dict.fromkeys(name.replace("_", " ") for name in names or [one.side])
    return "; ".join(
        f"{_number(kind, keys)}: {', '.join(fields[kind])}" for kind, keys in entities.items()
    )


def _number(kind: str, keys: set[str]) -> str:
    noun = kind.replace("_", " ")
    if kind != "partition":
        return counted(len(keys), noun)
    topics = {key.rpartition("-")[0] for key in keys}
    return f"{counted(len(keys), noun)} of {counted(len(topics), 'topic')}"


def _comparable(image: Image) -> dict[tuple[str, str], Any]:
    """Return the entities of an image, without what logs and Kafka's snapshots always represent
    differently.
    """
    has_elr = image.features.get(_ELR_VERSION, 0) > 0
    found: dict[tuple[str, str], Any] = {}
    for kind, key, value in entities(image):
        if kind in _NOT_IN_THEM or (kind, value) == _DEFAULT:
            continue
        if isinstance(value, Broker):
            # Snapshots do not contain the reason and cause.
            found[kind, key] = structs.replace(value, reason="", cause=Cause.UNSPECIFIED)
        elif isinstance(value, Voters):
            # Snapshots do not contain the record's offset.
            found[kind, key] = value.voters
        elif kind != PARTITION_DETAIL or has_elr:
            found[kind, key] = value
        # Kafka's snapshots contain eligible replicas only from a certain feature level on.
        elif rest := {name: ids for name, ids in value.items() if name not in ELIGIBLE}:
            found[kind, key] = rest
    return found

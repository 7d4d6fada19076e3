"""Changes to entities by the records of a log, with the values before and after.

The fold itself reports each change (:meth:`ImageDraft.replace`, for the state hash), and the
recorder here stores it. This is the only definition of a change, for `raftlog history`, watches and
replays. All changes in a log have an order, the same on every node. A record may change several
entities (deleting a topic also deletes its partitions), so a position in that order consists of the
record's offset and the number of preceding changes by the same record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import msgspec

from raftlog import batch
from raftlog.metadata.fold import ImageBuilder, apply
from raftlog.metadata.image import Image
from raftlog.metadata.imported import imported_key
from raftlog.metadata.kinds import KIND_OF, NamedTopic
from raftlog.metadata.records import RecordType, parse_body
from raftlog.metadata.words import to_json


class ChangeRecorder(ImageBuilder):
    """A draft that records each change to an entity as (kind, key, before, after); None stands for
    an absent entity.
    """

    __slots__ = ("changes",)

    def __init__(self, base: Image) -> None:
        super().__init__(base)
        self.changes: list[tuple[str, str, Any, Any]] = []

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Account for a change in the state hash, and record it."""
        super().replace(kind, key, old, new)
        self.note(kind, key, old, new)

    def note(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Record a change without accounting for it in the state hash."""
        if kind == "topic":
            # In the state hash, the key contains the id, and the value is the name.
            old, new = (
                None if name is None else NamedTopic(cast("bytes", key[0]), str(name))
                for name in (old, new)
            )
        imported = kind == "imported"
        if imported:
            kind, id_ = (str(each) for each in key)
            key = (imported_key(self, kind, id_),)
            old, new = (
                None if value is None else msgspec.json.decode(str(value)) for value in (old, new)
            )
        if old is not None or new is not None:
            value = new if new is not None else old
            words = key[0] if imported else KIND_OF[kind].words(self, (*key, value))
            self.changes.append((kind, str(words), old, new))

    def record_batch(
        self, chunk: bytes, header: batch.BatchHeader
    ) -> Iterator[tuple[int, str, str, list[tuple[str, str, Any, Any]]]]:
        """Fold one batch. Yield the offset, the type, the recovery (as ``Changed``) and the changes
        of each record that has any.

        The result of a numbered write belongs to the last record.
        """
        offset, name, recovery = header.base_offset, "", ""
        self._begin_batch(offset, header.timestamp_ms)
        for type_, version, body in batch.bodies(chunk, header):
            message = parse_body(type_, version, body)
            apply(self, type_, message, offset, header.epoch)
            name, recovery = record_type_name(type_), ""
            if type_ == RecordType.PARTITION_CHANGE and message.HasField("recovery"):
                from google.protobuf.json_format import MessageToJson

                recovery = MessageToJson(
                    message.recovery, preserving_proto_field_name=True, indent=None
                )
            if self.changes:
                yield offset, name, recovery, self._taken()
            offset += 1
        self.offset, self.epoch = header.last_offset, header.epoch
        self._remember_write(header)
        if self.changes:
            yield header.last_offset, name, "", self._taken()

    def _taken(self) -> list[tuple[str, str, Any, Any]]:
        changes, self.changes = self.changes, []
        return changes


class Changed(NamedTuple):
    """One change to one entity.

    ``before`` and ``after``: JSON, or None if absent. ``principal``: the author; empty for the
    controller itself, or if unknown. ``recovery``: for a partition whose leader was elected from
    the replicas' reports, an UncleanRecovery as JSON.
    """

    offset: int
    epoch: int
    timestamp_ms: int
    principal: str
    client_id: int
    sequence: int
    type_name: str
    kind: str
    key: str
    before: str | None
    after: str | None
    recovery: str = ""


def changes_of_chunk(
    recorder: ChangeRecorder, chunk: bytes, wanted: Callable[[str], bool] = lambda kind: True
) -> Iterator[Changed]:
    """Fold the batches of a chunk that follow the recorder's image, and yield their changes.

    ``wanted``: the kinds to yield. Raises FoldError, UnknownRecordError, CorruptLogError.
    """
    for header in batch.headers(chunk, verify=False):
        if header.last_offset > recorder.offset:
            yield from _changes_of_batch(recorder, chunk, header, wanted)


def _changes_of_batch(
    recorder: ChangeRecorder,
    chunk: bytes,
    header: batch.BatchHeader,
    wanted: Callable[[str], bool],
) -> Iterator[Changed]:
    author = (header.timestamp_ms, header.principal, header.client_id, header.sequence)
    for offset, type_, recovery, changes in recorder.record_batch(chunk, header):
        for kind, key, old, new in changes:
            if wanted(kind):
                before, after = (None if value is None else to_json(value) for value in (old, new))
                values = before, after, recovery if kind == "partition" else ""
                yield Changed(offset, header.epoch, *author, type_, kind, key, *values)


def record_type_name(type_: int) -> str:
    """Return the name of a record type as used in columns, or the number of an unknown type."""
    return RecordType(type_).name if type_ in list(RecordType) else str(type_)


WHOLE = 2**31 - 1
"""The part of a position that is after all changes of its record."""


class Position(NamedTuple):
    """A position in the order of all changes: after the first ``part`` changes of the record at
    ``offset``.
    """

    offset: int
    part: int = WHOLE


class Change(NamedTuple):
    """One change to one entity by the record at ``position.offset``.

    ``before`` and ``after``: the entity in the image, or None if absent.
    """

    position: Position
    """The position after this change; its part is WHOLE for the last change of a record."""
    epoch: int
    timestamp_ms: int
    principal: str
    kind: str
    key: str
    before: Any
    after: Any


def ordered_changes(draft: ChangeRecorder, chunk: bytes) -> list[Change]:
    """Fold a chunk of the log into the draft, and return all its changes in order.

    Skips batches at or below the draft's offset. The bytes must already be verified. Raises
    FoldError, UnknownRecordError.
    """
    found: list[Change] = []
    for header in batch.headers(chunk, verify=False):
        if header.last_offset <= draft.offset:
            continue
        # The result of a numbered write is a separate change, at the offset of its last record.
        of_record: dict[int, list[tuple[str, str, Any, Any]]] = {}
        for offset, _, _, changes in draft.record_batch(chunk, header):
            of_record.setdefault(offset, []).extend(changes)
        author = (header.epoch, header.timestamp_ms, header.principal)
        for offset, changes in of_record.items():
            last = len(changes)
            found.extend(
                Change(Position(offset, WHOLE if part == last else part), *author, *change)
                for part, change in enumerate(changes, 1)
            )
    return found

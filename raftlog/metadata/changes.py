"""Changes of entities by the records of a log, with the value before and after.

The fold itself reports each change (:meth:`ImageDraft.replace`, for the state hash), and the
recorder here keeps it. The one notion of a change, for `raftlog history`, watches and replays.

All changes of a log have an order, the same on every node. A record may change several entities (a
deleted topic takes its partitions along), so a place in it is the record's offset and the number of
its changes before.
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
    """A draft that records each change of an entity as (kind, key, before, after); None: absent."""

    __slots__ = ("changes",)

    def __init__(self, base: Image) -> None:
        super().__init__(base)
        self.changes: list[tuple[str, str, Any, Any]] = []

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Account a change, and record it."""
        super().replace(kind, key, old, new)
        self.note(kind, key, old, new)

    def note(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Record a change, without accounting it in the state hash."""
        if kind == "topic":
            # The state hash has the id in the key, and the name for the value.
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
        """Fold one batch. Returns the offset, the type, the recovery (as ``Changed``) and the
        changes of each record that has any.

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
    """One change of one entity. ``before`` and ``after`` are JSON; None if it was absent.

    ``principal``: the author; empty: the controller itself, or unknown. ``recovery``: an
    UncleanRecovery as JSON, of a partition whose leader was elected by what replicas reported.
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
    """Fold the batches of a chunk that follow the recorder's image, and return their changes.

    ``wanted``: the kinds to return. Raises FoldError, UnknownRecordError, CorruptLogError.
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
    """Return the name of a record type, as in columns; the number of an unknown one."""
    return RecordType(type_).name if type_ in list(RecordType) else str(type_)


WHOLE = 2**31 - 1
"""The part of a position after all changes of its record."""


class Position(NamedTuple):
    """A place in the order of all changes: after the first ``part`` changes of the record."""

    offset: int
    part: int = WHOLE


class Change(NamedTuple):
    """One change of one entity by the record at ``position.offset``. ``before`` and ``after``: its
    value in the image, None: absent.
    """

    position: Position
    """Position after this change: WHOLE if it is the last of its record."""
    epoch: int
    timestamp_ms: int
    principal: str
    kind: str
    key: str
    before: Any
    after: Any


def ordered_changes(draft: ChangeRecorder, chunk: bytes) -> list[Change]:
    """Fold a chunk of the log into the draft, and return all its changes, in order.

    Batches at or below the draft's offset are skipped. The bytes must have been verified before.
    Raises FoldError, UnknownRecordError.
    """
    found: list[Change] = []
    for header in batch.headers(chunk, verify=False):
        if header.last_offset <= draft.offset:
            continue
        # The result of a numbered write is a change of its own, at the offset of its last record.
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

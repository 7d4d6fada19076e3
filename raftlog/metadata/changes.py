"""Changes of entities by the records of a log, with the value before and after.

The fold itself reports each change (:meth:`ImageDraft.replace`, for the state hash), and the
recorder here keeps it. The one notion of a change, for `raftlog history` and for replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import msgspec

from raftlog import batch
from raftlog.metadata.acls import AccessControlEntry
from raftlog.metadata.entities import (
    Client,
    ClientResult,
    ExportCursor,
    Hostname,
    KeyValue,
    Lease,
    Partition,
)
from raftlog.metadata.entity_words import config_key, result_key, to_json
from raftlog.metadata.fold import ImageBuilder, apply
from raftlog.metadata.image import Image
from raftlog.metadata.imported import imported_key
from raftlog.metadata.records import RecordType, parse_body


class NamedTopic(msgspec.Struct, frozen=True):
    """A topic in its changes: one that is created again under a name is another topic."""

    id: bytes
    name: str


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
        if kind == "imported":
            kind, id_ = (str(each) for each in key)
            key = (imported_key(self, kind, id_),)
            old, new = (
                None if value is None else msgspec.json.decode(str(value)) for value in (old, new)
            )
        if old is not None or new is not None:
            self.changes.append(
                (kind, self._words(kind, key, new if new is not None else old), old, new)
            )

    def record_batch(
        self, chunk: bytes, header: batch.BatchHeader
    ) -> Iterator[tuple[int, str, list[tuple[str, str, Any, Any]]]]:
        """Fold one batch. Returns the offset, the type and the changes of each record that has any.

        The result of a numbered write belongs to the last record.
        """
        offset, name = header.base_offset, ""
        self._begin_batch(offset, header.timestamp_ms)
        for type_, version, body in batch.bodies(chunk, header):
            apply(self, type_, parse_body(type_, version, body), offset, header.epoch)
            name = record_type_name(type_)
            if self.changes:
                yield offset, name, self._taken()
            offset += 1
        self.offset, self.epoch = header.last_offset, header.epoch
        self._remember_write(header)
        if self.changes:
            yield header.last_offset, name, self._taken()

    def _taken(self) -> list[tuple[str, str, Any, Any]]:
        changes, self.changes = self.changes, []
        return changes

    def _words(self, kind: str, key: tuple[object, ...], value: Any) -> str:
        if isinstance(value, NamedTopic):
            return value.name
        if isinstance(value, Partition):
            return f"{self.topics[value.topic_id].name}-{value.index}"
        if isinstance(value, Client | Lease):
            return str(value.id)
        if isinstance(value, KeyValue):
            return value.key
        if isinstance(value, ClientResult):
            return result_key(value)
        if isinstance(value, Hostname | ExportCursor):
            return value.name
        if isinstance(value, AccessControlEntry):
            return value.id.hex()
        if kind == "config":
            resource_type, resource_name, name = key
            return config_key(int(str(resource_type)), str(resource_name), str(name))
        if kind == "applied":
            return str(value.broker_id)
        return str(key[0]) if key else ""


class Changed(NamedTuple):
    """One change of one entity. ``before`` and ``after`` are JSON; None: it was absent.

    ``principal``: the author; empty: the controller itself, or unknown.
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
    for offset, type_, changes in recorder.record_batch(chunk, header):
        for kind, key, old, new in changes:
            if wanted(kind):
                before, after = (None if value is None else to_json(value) for value in (old, new))
                yield Changed(offset, header.epoch, *author, type_, kind, key, before, after)


def record_type_name(type_: int) -> str:
    """Return the name of a record type, as in columns; the number of an unknown one."""
    return RecordType(type_).name if type_ in list(RecordType) else str(type_)

"""Changes of entities: one row for each entity that a record changed, with the value before and
after.

The fold itself says what it changes (:meth:`ImageDraft.replace`, for the state hash); here somebody
listens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame

from raftlog.metadata.acls import AccessControlEntry
from raftlog.metadata.entities import Client, ClientResult, ExportCursor, Hostname, Partition
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from replay.entities import config_key, result_key, to_json
from replay.fold import apply_row, by_group
from replay.workers import set_aside_what_is_loaded

_COLUMNS = (
    "group_kind", "group_id", "offset", "epoch", "type", "version", "body",
    "timestamp_ms", "principal", "client_id", "sequence", "type_name", "all_below_done",
)  # fmt: skip
_CHANGED = pa.schema(
    [
        ("offset", pa.int64()),
        ("epoch", pa.int32()),
        ("timestamp_ms", pa.int64()),
        ("principal", pa.string()),
        ("client_id", pa.int64()),
        ("sequence", pa.int64()),
        ("type_name", pa.string()),
        ("kind", pa.string()),
        ("key", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
    ]
)
_CHANGED_DDL = (
    "offset long, epoch int, timestamp_ms long, principal string, client_id long, sequence long, "
    "type_name string, kind string, key string, before string, after string"
)


class NamedTopic(msgspec.Struct, frozen=True):
    """A topic as its changes show it: one that is made anew under a name is another one."""

    id: bytes
    name: str


class ChangeRecorder(ImageBuilder):
    """A draft that notes each change of an entity as (kind, key, before, after); None: not
    there.
    """

    __slots__ = ("changes",)

    def __init__(self, base: Image) -> None:
        super().__init__(base)
        self.changes: list[tuple[str, str, Any, Any]] = []

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Account a change, and note it."""
        super().replace(kind, key, old, new)
        if kind == "topic":
            # The state hash has the id in the key, and the name for the value.
            old, new = (
                None if name is None else NamedTopic(cast("bytes", key[0]), str(name))
                for name in (old, new)
            )
        if old is not None or new is not None:
            self.changes.append(
                (kind, self._words(kind, key, new if new is not None else old), old, new)
            )

    def _words(self, kind: str, key: tuple[object, ...], value: Any) -> str:
        if isinstance(value, NamedTopic):
            return value.name
        if isinstance(value, Partition):
            return f"{self.topics[value.topic_id].name}-{value.index}"
        if isinstance(value, Client):
            return str(value.id)
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


def changes(
    records: DataFrame,
    *,
    partitions: int | None = None,
    only: Column | None = None,
    among: DataFrame | None = None,
) -> DataFrame:
    """One row a change, unordered: the record's offset, epoch, time and author, and the entity's
    key, ``before`` and ``after``, JSON.

    ``only``: a condition on ``group_kind`` and ``group_id``; ``among``: the groups that count.
    """
    return by_group(records, _COLUMNS, partitions, only=only, among=among).mapInArrow(
        _record_changes, _CHANGED_DDL
    )


def _record_changes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    set_aside_what_is_loaded()
    current: tuple[str, str] | None = None
    draft = ChangeRecorder(Image())
    for batch in batches:
        rows: list[tuple[Any, ...]] = []
        columns = (batch.column(name).to_pylist() for name in _COLUMNS)
        for row in zip(*columns, strict=True):
            (
                group_kind,
                group_id,
                offset,
                epoch,
                type_,
                version,
                body,
                *author,
                type_name,
                all_below_done,
            ) = row
            if (group_kind, group_id) != current:
                current, draft = (group_kind, group_id), ChangeRecorder(Image())
            timestamp_ms, _, _, sequence = author
            batch_row = (timestamp_ms, sequence, all_below_done)
            apply_row(draft, group_id, offset, epoch, type_, version, body, *batch_row)
            for kind, key, old, new in draft.changes:
                before, after = (None if value is None else to_json(value) for value in (old, new))
                rows.append((offset, epoch, *author, type_name, kind, key, before, after))
            draft.changes.clear()
        arrays = list(zip(*rows, strict=True)) or [()] * len(_CHANGED)
        yield pa.record_batch(
            [pa.array(column, field.type) for column, field in zip(arrays, _CHANGED, strict=True)],
            schema=_CHANGED,
        )

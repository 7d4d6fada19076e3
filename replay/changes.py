"""Changes of entities: one row for each entity that a record changed, with the value before and
after.

As `raftlog.metadata.changes` records them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from raftlog.metadata.image import Image
from raftlog.metadata.words import to_json
from replay.fold import by_group
from replay.kernels.folding import STATE, Noting, apply_row
from replay.workers import prepare_worker

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


def changes(
    records: DataFrame,
    *,
    partitions: int | None = None,
    only: Column | None = None,
    since: int | None = None,
    base: DataFrame | None = None,
    imported: bool = False,
) -> DataFrame:
    """Return one row a change, unordered: the record's offset, epoch, time and author, and the
    entity's key, ``before`` and ``after``, JSON.

    ``only``, ``since``, ``base``, ``imported``: see ``by_group``.
    """
    rows = by_group(
        records, _COLUMNS, partitions, only=only, since=since, base=base, imported=imported
    )
    return rows.mapInArrow(_record_changes, _CHANGED_DDL)


def _record_changes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    current: tuple[str, str] | None = None
    draft = Noting(Image())
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
                current, draft = (group_kind, group_id), Noting(Image())
            timestamp_ms, _, _, sequence = author
            batch_row = (timestamp_ms, sequence, all_below_done)
            # What was there already is no change.
            draft.listens = type_ != STATE
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

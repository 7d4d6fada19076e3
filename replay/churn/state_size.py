"""How large the state was, and so a snapshot of it, from the fold itself: what each record adds to
it and takes away.

Entity by entity, so no state is ever held whole: a task adds up, for each period and kind, what its
own groups' changes come to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from raftlog.metadata.entities import entity_bytes
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.snapshot import BATCH_BYTES
from replay.fold import FOLD_COLUMNS, by_group
from replay.kernels.folding import apply_row
from replay.workers import set_aside_what_is_loaded

_TIMESTAMP = FOLD_COLUMNS.index("timestamp_ms") - 2
"""Where a row has it, behind its group."""
_GREW = pa.schema(
    [
        ("period_ms", pa.int64()),
        ("kind", pa.string()),
        ("entities", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
_GREW_DDL = "period_ms long, kind string, entities long, bytes long"
_BATCH_OVERHEAD = 100
"""Bytes about the entities of each batch of a snapshot, more or less."""


class SizeRecorder(ImageBuilder):
    """A draft that adds up what its changes do to the size of a snapshot: kind -> [entities,
    bytes].
    """

    __slots__ = ("grown",)

    def __init__(self, base: Image) -> None:
        super().__init__(base)
        self.grown: dict[str, list[int]] = {}

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Account a change by size alone: the hash is not asked for."""
        grown = self.grown.setdefault(kind, [0, 0])
        for value, sign in ((old, -1), (new, 1)):
            if value is not None:
                grown[0] += sign
                grown[1] += sign * _in_snapshot(len(entity_bytes((*key, value))))


def _in_snapshot(length: int) -> int:
    """An entity as a repeated field of SnapshotEntitiesRecord: its tag and length go before it."""
    return length + 2 + (length >= 1 << 7) + (length >= 1 << 14)


def state_growth(records: DataFrame, period_ms: int, *, partitions: int | None = None) -> DataFrame:
    """How many entities and bytes of snapshot each period brought: period_ms (its beginning), kind,
    entities, bytes; negative if less.
    """
    grouped = by_group(records, FOLD_COLUMNS, partitions)
    return (
        grouped.mapInArrow(_sizer(period_ms), _GREW_DDL)
        .groupBy("period_ms", "kind")
        .agg(sf.sum("entities").alias("entities"), sf.sum("bytes").alias("bytes"))
    )


def _sizer(period_ms: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def size_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_aside_what_is_loaded()
        current: tuple[str, str] | None = None
        draft = SizeRecorder(Image())
        sums: dict[tuple[int, str], list[int]] = {}
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in FOLD_COLUMNS)
            for kind, id_, *row in zip(*columns, strict=True):
                if (kind, id_) != current:
                    current, draft = (kind, id_), SizeRecorder(Image())
                apply_row(draft, id_, *row)
                period = row[_TIMESTAMP] - row[_TIMESTAMP] % period_ms
                for changed, (entities, size) in draft.grown.items():
                    total = sums.setdefault((period, changed), [0, 0])
                    total[0] += entities
                    total[1] += size
                draft.grown.clear()
        rows = [(period, kind, entities, size) for (period, kind), (entities, size) in sums.items()]
        arrays = list(zip(*rows, strict=True)) or [()] * len(_GREW)
        yield pa.record_batch(
            [pa.array(column, field.type) for column, field in zip(arrays, _GREW, strict=True)],
            schema=_GREW,
        )

    return size_groups


def state_sizes(grown: DataFrame) -> DataFrame:
    """The size at the end of each period in which it changed: period_ms, entities, snapshot_bytes
    (about).
    """
    in_order = Window.orderBy("period_ms")
    # A row a period: few enough for one task.
    sums = grown.groupBy("period_ms").agg(
        sf.sum("entities").alias("entities"), sf.sum("bytes").alias("bytes")
    )
    total = sf.sum("bytes").over(in_order)
    return sums.select(
        "period_ms",
        sf.sum("entities").over(in_order).alias("entities"),
        (total + (sf.floor(total / BATCH_BYTES) + 2) * _BATCH_OVERHEAD).alias("snapshot_bytes"),
    )

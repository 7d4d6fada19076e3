"""Passes over an export (:mod:`replay.kernels.passes`) in the tasks of a pool."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from raftlog.metadata.records import RecordType
from raftlog.segments.columns import SCHEMA
from raftlog.segments.manifest import Segment
from replay.engine.plan import Bucket, ByColumns, Shuffle, stretches
from replay.engine.pool import Pool
from replay.engine.reading import slices
from replay.export import Export
from replay.kernels.passes import ANYWHERE, BY_PARTITION, IN_ORDER, Pass

Found = TypeVar("Found")


class ExportLog:
    """An export read by a pool; implements :class:`replay.kernels.passes.Rows`."""

    def __init__(self, export: Export, pool: Pool) -> None:
        # Slices within a part, and results of stretches, must be in log order.
        in_order = sorted(export.segments, key=lambda one: one.base_offset)
        self.export = replace(export, segments=tuple(in_order))
        self._pool = pool

    @property
    def end_offset(self) -> int:
        """See ``Rows``."""
        return self.export.manifest.end_offset

    def run(self, work: Pass[Found]) -> list[Found]:
        """See ``Rows``."""
        if work.by == ANYWHERE:
            parts = stretches(self.export, self._pool.stretches(self.export))
            return list(self._pool.map(partial(_run, self.export, work), parts))
        if work.by == IN_ORDER:
            shuffle = in_order(self.export, work.columns, work.types)
        else:
            shuffle = partition_shuffle(self.export, work.columns, work.by, work.types)
        return list(self._pool.map_buckets(partial(_run_bucket, work), shuffle))

    def table(self, columns: Sequence[str], types: Collection[RecordType]) -> pa.Table:
        """See ``Rows``."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        parts = stretches(self.export, self._pool.stretches(self.export))
        work = partial(_records, self.export, schema, types)
        found = self._pool.rows(work, parts, schema)
        return found.sort_by("offset") if "offset" in schema.names else found


def in_order(
    export: Export, columns: Sequence[str], types: Collection[RecordType] | None
) -> Shuffle:
    """Return a shuffle with one bucket that contains all records of the given types."""
    return Shuffle(export, columns, ByColumns((), by_topic=False), types, buckets=1)


def partition_shuffle(
    export: Export,
    columns: Sequence[str],
    by: Sequence[str] = BY_PARTITION,
    types: Collection[RecordType] | None = None,
) -> Shuffle:
    """Return the shuffle for a pass by columns; by topic if the export has bucket files for
    that.
    """
    by_topic = tuple(by) == BY_PARTITION and types is not None and bool(export.buckets)
    return Shuffle(export, columns, ByColumns(by, by_topic=by_topic), types)


def _run(export: Export, work: Pass[Any], segments: Sequence[Segment]) -> Any:
    part = work.begin()
    for table in slices(export, work.columns, types=work.types, segments=segments):
        part.take(table)
    return part.end()


def _run_bucket(work: Pass[Any], bucket: Bucket) -> Any:
    part = work.begin()
    for table in bucket.tables:
        part.take(table)
    return part.end()


def _records(
    export: Export,
    schema: pa.Schema,
    types: Collection[RecordType],
    segments: Sequence[Segment],
) -> pa.Table:
    found = slices(export, schema.names, types=types, segments=segments)
    return pa.concat_tables([schema.empty_table(), *(each.cast(schema) for each in found)])

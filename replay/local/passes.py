"""Passes over an export, in the tasks of a pool: worker processes of this machine, or Spark's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from raftlog.segments.columns import SCHEMA
from raftlog.segments.manifest import Segment
from replay.kernels.arrays import Bools, Ints, codes, ints
from replay.kernels.folding import COLUMNS, Groups, rows
from replay.kernels.passes import ANYWHERE, BY_PARTITION, Fold, Pass
from replay.local.pool import Pool
from replay.local.reading import slices
from replay.local.shares import Share, check_bucket, of_topics, shares
from replay.opened import Export

Found = TypeVar("Found")


class ExportLog:
    """An export, read by a pool; see :class:`replay.kernels.passes.Log`."""

    def __init__(self, export: Export, pool: Pool) -> None:
        # A part's slices are in order, and so are what parts have found of stretches of the log.
        in_order = sorted(export.segments, key=lambda one: one.base_offset)
        self.export = replace(export, segments=tuple(in_order))
        self._pool = pool

    @property
    def end_offset(self) -> int:
        """End offset of the export, exclusive."""
        return self.export.manifest.end_offset

    def run(self, work: Pass[Found]) -> list[Found]:
        """Return the findings of each part."""
        if work.by == BY_PARTITION and work.types is not None:
            return self._by_topic(work)
        if work.by == ANYWHERE:
            tasks = [_Task(self.export, work, each) for each in self._shares()]
        else:
            size = self._pool.size
            tasks = [_Task(self.export, work, None, each, size) for each in range(size)]
        return list(self._pool.map(_run, tasks))

    def _by_topic(self, work: Pass[Found]) -> list[Found]:
        tasks = [(self.export, work, share) for share in shares(self.export, self._pool.size)]
        return [found for some in self._pool.map(_run_share, tasks) for found in some]

    def table(self, columns: Sequence[str], types: Collection[RecordType]) -> pa.Table:
        """Return all records of some types in order."""
        work = Pass(_Kept, columns, types)
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        found = [each for part in self.run(work) for each in part]
        return pa.concat_tables([schema.empty_table(), *(each.cast(schema) for each in found)])

    def fold(
        self,
        begin: Callable[[], Fold[Found]],
        tasks: int | None = None,
        *,
        types: Collection[RecordType] | None = None,
    ) -> list[Found]:
        """Return the findings of each worker's fold."""
        size = tasks or self._pool.size
        folds = [_FoldTask(self.export, begin, share, types) for share in shares(self.export, size)]
        return [found for some in self._pool.map(_fold, folds) for found in some]

    def _shares(self) -> list[Sequence[Segment]]:
        """Files that follow one another, for each worker about as many records."""
        segments, size = self.export.segments, self._pool.size
        before = np.cumsum([0, *(each.records for each in segments)])
        share = np.minimum(before[:-1] * size // max(1, int(before[-1])), size - 1)
        parts = [[each for each, to in zip(segments, share, strict=True) if to == worker]
                 for worker in range(size)]  # fmt: skip
        return [part for part in parts if part]


class _Kept:
    """Part that keeps the records themselves."""

    def __init__(self) -> None:
        self._found: list[pa.Table] = []

    def take(self, table: pa.Table) -> None:
        if table.num_rows:
            self._found.append(table)

    def end(self) -> list[pa.Table]:
        return self._found


class _FoldTask(NamedTuple):
    export: Export
    begin: Callable[[], Fold[Any]]
    share: Share
    types: Collection[RecordType] | None


def _fold(task: _FoldTask) -> list[Any]:
    """Return a fold for each bucket of the share."""
    export, share = task.export, task.share
    found = []
    for bucket in share.buckets:
        if share.filed:
            check_bucket(export, bucket)
        fold = task.begin()
        groups = Groups(bucket=bucket, buckets=share.of)
        own = bucket if share.filed else None
        for table in slices(export, COLUMNS, types=task.types, bucket=own):
            for row in rows(table, groups):
                fold.row(row.kind, row.id, row.record)
        found.append(fold.end())
    return found


class _Task(NamedTuple):
    export: Export
    work: Pass[Any]
    segments: Sequence[Segment] | None
    bucket: int = 0
    buckets: int = 1


def _run(task: _Task) -> Any:
    work, part = task.work, task.work.begin()

    def of_bucket(table: pa.Table) -> Bools:
        return bucket_of(work.by, table, task.buckets) == task.bucket

    for table in slices(
        task.export,
        work.columns,
        types=work.types,
        only=of_bucket if task.buckets > 1 else None,
        segments=task.segments,
    ):
        part.take(table)
    return part.end()


def _run_share(task: tuple[Export, Pass[Any], Share]) -> list[Any]:
    """Return a part for each bucket of the share."""
    export, work, share = task
    found = []
    hashes = partial(bucket_of, work.by)
    for tables in of_topics(export, share, work.columns, work.types or (), hashes):
        part = work.begin()
        for table in tables:
            part.take(table)
        found.append(part.end())
    return found


def bucket_of(by: Sequence[str], table: pa.Table, buckets: int) -> Ints:
    """Which bucket each record is in: those with the same in the columns ``by`` in one."""
    total = np.zeros(table.num_rows, np.int64)
    for name in by:
        if pa.types.is_integer(table[name].type):
            total += ints(table[name])
            continue
        numbers, values = codes(table[name])
        hashes = np.array([0, *(crc32((each or "").encode()) for each in values)], np.int64)
        total = total * 31 + hashes[np.maximum(numbers, -1) + 1]
    return total % buckets

"""Verification in Spark's tasks: without checkpoints the fold is made by groups."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pyspark.sql import SparkSession

from raftlog.metadata.entities import format_hash
from raftlog.segments.manifest import Checkpoint
from raftlog.segments.range_checks import Fault
from raftlog.text import counted
from replay.jobs.state import Point
from replay.jobs.verify import SLICES_PER_WORKER, Engine, Fold, VerifyResult, verify
from replay.opened import Export
from replay.points import state_hashes
from replay.request import JobRequest
from replay.source import records
from replay.spark_jobs.state import find_point
from replay.spark_pool import SparkPool

TASKS = (1, 7, 200)
"""The fold must not depend on how many tasks it has: it is made with each of these numbers."""


class _InSpark(Engine):
    def __init__(self, spark: SparkSession, export: Export, request: JobRequest) -> None:
        super().__init__(export, SparkPool(spark, export.record_count))
        self._spark, self._request = spark, request

    def end(self) -> Point:
        return find_point(records(self._spark, self._export), self._export)

    def fold(self, known: list[Checkpoint], offsets: Collection[int], end: int) -> Fold:
        if not known:
            return self._fold_by_groups(offsets)
        count = SLICES_PER_WORKER * self._spark.sparkContext.defaultParallelism
        return self.fold_slices(known, offsets, end, count)

    def _fold_by_groups(self, offsets: Collection[int]) -> Fold:
        tasks = [self._request.partitions] if self._request.partitions else list(TASKS)
        rows = records(self._spark, self._export)
        imported = bool(self._export.manifest.origin)
        hashes, faults = _fold(
            lambda count: state_hashes(rows, offsets, partitions=count, imported=imported), tasks
        )
        said = {offset: format_hash(state_hash) for offset, state_hash in hashes.items()}
        return Fold(said, faults, tasks, 0)


def _fold(
    fold: Callable[[int], dict[int, int]], tasks: list[int]
) -> tuple[dict[int, int], list[Fault]]:
    """Return the hashes by the first number of tasks, and where the others say something else."""
    hashes, *others = (fold(count) for count in tasks)
    faults = []
    for count, other in zip(tasks[1:], others, strict=True):
        for offset in sorted(
            offset for offset, state_hash in hashes.items() if other[offset] != state_hash
        ):
            message = (
                f"at offset {offset} the fold gives {format_hash(hashes[offset])} in"
                f" {counted(tasks[0], 'task')}, and {format_hash(other[offset])} in {count}: that"
                " is a defect of the fold, or files changed meanwhile"
            )
            faults.append(Fault(offset, offset, "TASKS", "", message))
    return hashes, faults


def run(spark: SparkSession, export: Export, request: JobRequest) -> VerifyResult:
    """Check the files, then fold, if they are whole and the history is."""
    return verify(export, request, _InSpark(spark, export, request))

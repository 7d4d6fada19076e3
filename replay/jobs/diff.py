"""What differs between two points: which entities were created, deleted, or changed, and in which
fields.

Only the groups that a record between the points changes are folded, from their beginning; what else
there is cannot differ.
"""

from __future__ import annotations

import sys

import msgspec
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Column as TableColumn
from rich.table import Table

from raftlog.metadata.authors import author, why_nobody
from raftlog.metadata.differences import FieldChange, field_changes, raw, words
from raftlog.plural import counted
from replay.asked import ask
from replay.based import base_rows, topic_there
from replay.beginning import Began, began
from replay.changes import changes
from replay.errors import ReplayError
from replay.fold import touched_groups
from replay.jobs.state import Point, find_point
from replay.local import fold as local
from replay.local.pool import Pool
from replay.opened import Export, require_whole_history
from replay.request import JobRequest, format_time
from replay.selection import select
from replay.source import records

SAMPLES = ("applied", "progress")
"""Kinds that change all the time: left out of a diff of everything, and counted."""


class Difference(msgspec.Struct, frozen=True):
    """One entity that is not as it was.

    ``change``: created, changed or deleted; ``before`` and ``after``: JSON, null: not there.

    ``changes``: how many records changed it meanwhile; the last of them is at ``last_offset``, of
    ``last_principal``.
    """

    kind: str
    key: str
    change: str
    fields: list[FieldChange]
    before: msgspec.Raw
    after: msgspec.Raw
    changes: int
    last_offset: int
    last_timestamp_ms: int
    last_principal: str


class DiffResult(msgspec.Struct, frozen=True):
    """The first differences by kind and key; ``counts`` of all: kind -> change -> how many.

    ``begin`` null: the empty log.

    ``left_out``: entities of the kinds in SAMPLES that differ, unless they were asked for.

    ``origin``: what kind of cluster's log it is, empty for raftlog's own.
    ``checkpoint``: what the fold began with; null: at the beginning.
    """

    begin: Point | None
    end: Point
    differences: list[Difference]
    counts: dict[str, dict[str, int]]
    left_out: dict[str, int]
    origin: str = ""
    checkpoint: Began | None = None

    @property
    def total(self) -> int:
        """How many entities differ, those left out not among them."""
        return sum(sum(changes.values()) for changes in self.counts.values())


def run(spark: SparkSession, export: Export, request: JobRequest) -> DiffResult:
    """Fold what was touched, once.

    Raises ReplayError for points that are none, or in the wrong order.
    """
    require_whole_history(export)
    rows = records(spark, export)
    end = find_point(rows, export)
    begin = _begin(rows, export, request, end)
    differing = _differing(spark, export, rows, begin.offset if begin is not None else -1, request)
    differing.persist(StorageLevel.MEMORY_AND_DISK)
    kind = request.key[0] if request.key else ""
    kept = differing if kind else differing.where(~sf.col("kind").isin(*SAMPLES))
    try:
        # A few rows: kinds by three.
        by_kind = differing.groupBy("kind", "change").count().orderBy("kind", "change").collect()
        first = kept.orderBy("kind", "key").limit(request.limit).collect()
    finally:
        differing.unpersist()
    counts: dict[str, dict[str, int]] = {}
    left_out: dict[str, int] = {}
    for row in by_kind:
        if not kind and row.kind in SAMPLES:
            left_out[row.kind] = left_out.get(row.kind, 0) + row["count"]
        else:
            counts.setdefault(row.kind, {})[row.change] = row["count"]
    shown = [
        Difference(
            **row.asDict()
            | {
                "fields": field_changes(row.before, row.after),
                "before": raw(row.before),
                "after": raw(row.after),
            }
        )
        for row in first
    ]
    return DiffResult(begin, end, shown, counts, left_out, checkpoint=began(export))


def run_local(export: Export, request: JobRequest, pool: Pool) -> DiffResult:
    """The same without Spark."""
    require_whole_history(export)
    end = Point(*local.end_of(export))
    _require_order(request, end)
    begin = None
    if request.from_offset is not None or request.from_time_ms is not None:
        at = local.ends_at(export, until_offset=request.from_offset, until_ms=request.from_time_ms)
        begin = None if at is None else Point(*at)
    asked = None if request.key is None else ask(*request.key)
    nets = local.differing(export, pool, asked, begin.offset if begin is not None else -1)
    counts: dict[str, dict[str, int]] = {}
    left_out: dict[str, int] = {}
    shown: list[Difference] = []
    for net in nets:
        if asked is None and net.kind in SAMPLES:
            left_out[net.kind] = left_out.get(net.kind, 0) + 1
            continue
        of_kind = counts.setdefault(net.kind, {})
        of_kind[net.change] = of_kind.get(net.change, 0) + 1
        if len(shown) < request.limit:
            shown.append(_difference(net))
    return DiffResult(begin, end, shown, counts, left_out, checkpoint=began(export))


def _difference(net: local.Net) -> Difference:
    return Difference(
        kind=net.kind,
        key=net.key,
        change=net.change,
        fields=field_changes(net.before, net.after),
        before=raw(net.before),
        after=raw(net.after),
        changes=net.changes,
        last_offset=net.last.offset,
        last_timestamp_ms=net.last.timestamp_ms,
        last_principal=net.last.principal,
    )


def _require_order(request: JobRequest, end: Point) -> None:
    """Raises ReplayError for a beginning that is none, or behind the end."""
    if request.from_offset is not None:
        if request.from_offset < 0:
            raise ReplayError(f"there is no offset {request.from_offset}: a log begins at offset 0")
        if request.from_offset > end.offset:
            raise ReplayError(
                f"offset {request.from_offset} lies behind the end of the diff, offset {end.offset}"
            )
    elif request.from_time_ms is not None and (
        request.from_time_ms > end.timestamp_ms and request.at_time_ms is not None
    ):
        raise ReplayError(
            f"{format_time(request.from_time_ms)} lies behind the end of the diff,"
            f" {format_time(end.timestamp_ms)}"
        )


def _begin(rows: DataFrame, export: Export, request: JobRequest, end: Point) -> Point | None:
    """The last whole batch at or before the first point; None: there is none, as nothing was asked
    for or nothing was there yet.
    """
    _require_order(request, end)
    if request.from_offset is not None:
        before: Column = sf.col("batch_last_offset") <= request.from_offset
    elif request.from_time_ms is not None:
        before = sf.col("timestamp_ms") <= request.from_time_ms
    else:
        return None
    point = rows.where(before)
    return None if export.begin is None and point.isEmpty() else find_point(point, export)


def _differing(
    spark: SparkSession, export: Export, rows: DataFrame, begin_offset: int, request: JobRequest
) -> DataFrame:
    """One row an entity whose value at the end is not what it was behind ``begin_offset``."""
    meanwhile = sf.col("offset") > begin_offset
    only, entities, asked = None, None, None
    if request.key is not None:
        selection = select(*request.key)
        asked, only, entities = selection.asked, selection.groups, selection.entities
        rows = selection.narrow(rows, topic_there(export, asked.topic_name))
    among = touched_groups(rows.where(meanwhile)) if begin_offset >= 0 else None
    changed = changes(
        rows,
        partitions=request.partitions,
        only=only,
        among=among,
        base=base_rows(spark, export, asked),
    ).where(meanwhile)
    if entities is not None:
        changed = changed.where(entities)
    of_each = changed.groupBy("kind", "key").agg(
        sf.min_by("before", "offset").alias("before"),
        sf.max_by("after", "offset").alias("after"),
        sf.count("*").alias("changes"),
        sf.max("offset").alias("last_offset"),
        sf.max("timestamp_ms").alias("last_timestamp_ms"),
        sf.max_by("principal", "offset").alias("last_principal"),
    )
    change = sf.when(sf.col("before").isNull(), "created").when(sf.col("after").isNull(), "deleted")
    return of_each.where(~sf.col("before").eqNullSafe(sf.col("after"))).withColumn(
        "change", change.otherwise("changed")
    )


def render(result: DiffResult, console: Console) -> None:
    """For people."""
    begin, end = result.begin, result.end
    first = (
        f"offset {begin.offset}, {format_time(begin.timestamp_ms)}"
        if begin is not None
        else "the empty log"
    )
    console.print(f"From {first}, to offset {end.offset}, {format_time(end.timestamp_ms)}")
    if result.checkpoint is not None:
        console.print(result.checkpoint.words)
    if result.differences:
        table = Table(
            TableColumn("entity", overflow="fold"),
            TableColumn("difference", overflow="fold"),
            "last changed",
            *(() if result.origin else ("by",)),
        )
        for one in result.differences:
            table.add_row(
                f"{one.kind} {one.key}".rstrip(),
                words(one.before, one.after, one.fields, one.kind),
                f"{format_time(one.last_timestamp_ms)} at {one.last_offset}",
                *(() if result.origin else (author(one.last_principal),)),
            )
        console.print(table)
    counts = "; ".join(
        f"{kind}: {', '.join(f'{count} {change}' for change, count in changes.items())}"
        for kind, changes in result.counts.items()
    )
    more = (
        f" ({len(result.differences)} shown: raise --limit for more)"
        if len(result.differences) < result.total
        else ""
    )
    differ = counted(result.total, "entity differs", "entities differ")
    console.print(f"{differ}{': ' if counts else ''}{counts}{more}")
    if result.origin and result.differences:
        console.print(why_nobody(result.origin))
    if result.left_out:
        kinds = ", ".join(f"{count} {kind}" for kind, count in result.left_out.items())
        console.print(f"Left out, as they always move: {kinds} (name the kind to see them)")


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("diff"))

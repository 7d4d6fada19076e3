"""The state at an offset or at a time: every entity, and the state hash that each node had then; or
one entity, or all of a kind.
"""

from __future__ import annotations

import sys

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Column, Table

from raftlog.metadata.acl_words import in_words
from raftlog.metadata.differences import brief
from raftlog.metadata.entities import format_hash
from raftlog.plural import counted
from replay.asked import ask
from replay.based import base_rows, topic_there
from replay.beginning import Began, began
from replay.errors import ReplayError
from replay.fold import fold, totals
from replay.local import fold as local
from replay.local.pool import Pool
from replay.opened import Export, require_whole_history
from replay.request import JobRequest, format_time
from replay.selection import select
from replay.source import records


class Point(msgspec.Struct, frozen=True):
    """How far the records in question reach: the last one's offset, epoch and time, and how many
    there are.
    """

    offset: int
    epoch: int
    timestamp_ms: int
    records: int


class EntityRow(msgspec.Struct, frozen=True):
    """One entity; ``value`` is its JSON."""

    kind: str
    key: str
    value: msgspec.Raw


class StateResult(msgspec.Struct, frozen=True):
    """The state. ``rows`` are the first entities by kind and key; ``entities`` counts all of them.

    ``asked``: the kind and the key asked for; then that is all there is, and ``state_hash``, which
    is of everything, is empty. ``checkpoint``: what the fold began with; null: at the beginning.
    """

    point: Point
    state_hash: str
    entities: dict[str, int]
    rows: list[EntityRow]
    asked: tuple[str, str] | None = None
    checkpoint: Began | None = None


def find_point(rows: DataFrame, export: Export) -> Point:
    """Where the rows of an export end. Raises ReplayError if there are none."""
    last = rows.select(
        sf.max("offset").alias("offset"),
        sf.max("epoch").alias("epoch"),
        sf.max("timestamp_ms").alias("timestamp_ms"),
        sf.count("*").alias("records"),
    ).collect()[0]
    begin, below = export.begin, export.begin_offset - export.manifest.history_begin
    if last.offset is not None:
        return Point(last.offset, last.epoch, last.timestamp_ms, below + last.records)
    if begin is None:
        raise ReplayError("no whole batch lies within the offsets asked for")
    return Point(begin.offset, begin.epoch, begin.timestamp_ms, below)


def run(spark: SparkSession, export: Export, request: JobRequest) -> StateResult:
    """Fold, once; show the first entities. Raises ReplayError for a key of no known form."""
    require_whole_history(export)
    rows = records(spark, export)
    point = find_point(rows, export)
    if request.key is not None:
        return _some(spark, export, rows, point, request, request.key)
    folded = fold(
        rows,
        partitions=request.partitions,
        with_entities=True,
        base=base_rows(spark, export),
    ).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        total = totals(folded)
        first = (
            folded.where(sf.col("key").isNotNull())
            .orderBy("kind", "key")
            .limit(request.limit)
            .collect()
        )
    finally:
        folded.unpersist()
    state_hash = format_hash(total.state_hash)
    return StateResult(point, state_hash, total.entities, _shown(first), checkpoint=began(export))


def run_local(export: Export, request: JobRequest, pool: Pool) -> StateResult:
    """The same without Spark."""
    require_whole_history(export)
    asked = None if request.key is None else ask(*request.key)
    point = Point(*local.end_of(export))
    folded = local.fold(export, pool, asked=asked, limit=request.limit)
    rows = [EntityRow(kind, key, msgspec.Raw(value.encode())) for kind, key, value in folded.first]
    state_hash = format_hash(folded.state_hash) if asked is None else ""
    return StateResult(point, state_hash, folded.counts, rows, request.key, began(export))


def _some(
    spark: SparkSession,
    export: Export,
    rows: DataFrame,
    point: Point,
    request: JobRequest,
    asked: tuple[str, str],
) -> StateResult:
    """Only the groups in question are folded."""
    selection = select(*asked)
    folded = fold(
        selection.narrow(rows, topic_there(export, selection.asked.topic_name)),
        partitions=request.partitions,
        with_entities=True,
        only=selection.groups,
        base=base_rows(spark, export, selection.asked),
    )
    found = folded.where(sf.col("key").isNotNull() & selection.entities).persist(
        StorageLevel.MEMORY_AND_DISK
    )
    try:
        counts = {
            row.kind: row["count"]
            for row in found.groupBy("kind").count().orderBy("kind").collect()
        }
        first = found.orderBy("kind", "key").limit(request.limit).collect()
    finally:
        found.unpersist()
    return StateResult(point, "", counts, _shown(first), asked, began(export))


def _shown(rows: list[Row]) -> list[EntityRow]:
    return [EntityRow(row.kind, row.key, msgspec.Raw(row.value.encode())) for row in rows]


def _in_words(row: EntityRow) -> str:
    """One line a field, but for what fields say nothing of."""
    value = msgspec.json.decode(row.value)
    if row.kind == "acl":
        return in_words(value)
    fields = value.items() if isinstance(value, dict) else ()
    return "\n".join(f"{name}: {brief(field)}" for name, field in fields) or brief(value)


def render(result: StateResult, console: Console) -> None:
    """For people."""
    point = result.point
    console.print(
        f"State at offset {point.offset}, epoch {point.epoch}, {format_time(point.timestamp_ms)}"
    )
    if result.checkpoint is not None:
        console.print(result.checkpoint.words)
    if result.asked is not None:
        _render_some(result, result.asked, console)
        return
    console.print(f"State hash {result.state_hash}")
    table = Table("kind", Column("key", overflow="fold"), Column("value", overflow="fold"))
    for row in result.rows:
        table.add_row(row.kind, row.key, bytes(row.value).decode())
    console.print(table)
    console.print(_counted(result))


def _render_some(result: StateResult, asked: tuple[str, str], console: Console) -> None:
    name = " ".join(asked).strip()
    if not result.rows:
        console.print(f"There is no {name} at that point")
        return
    table = Table(Column("entity", overflow="fold"), Column("value", overflow="fold"))
    for row in result.rows:
        table.add_row(f"{row.kind} {row.key}".rstrip(), _in_words(row))
    console.print(table)
    console.print(_counted(result))


def _counted(result: StateResult) -> str:
    total = sum(result.entities.values())
    counts = ", ".join(f"{count} {kind}" for kind, count in result.entities.items())
    more = (
        f" ({len(result.rows)} shown: raise --limit for more)" if len(result.rows) < total else ""
    )
    return f"{counted(total, 'entity', 'entities')}: {counts}{more}"


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("state"))

"""The state at an offset or at a time: every entity, and the state hash that each node had then."""

from __future__ import annotations

import sys

import msgspec
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Column, Table

from raftlog.metadata.entities import format_hash
from replay.errors import ReplayError
from replay.fold import fold, totals
from replay.request import JobRequest, format_time
from replay.source import Export, records, require_whole_history


class Point(msgspec.Struct, frozen=True):
    """How far the records in question reach: the last one's offset, epoch and time, and how many there are."""

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
    """The state. ``rows`` are the first entities by kind and key; ``entities`` counts all of them."""

    point: Point
    state_hash: str
    entities: dict[str, int]
    rows: list[EntityRow]


def find_point(rows: DataFrame) -> Point:
    """Where the rows end. Raises ReplayError if there are none."""
    last = rows.select(
        sf.max("offset").alias("offset"),
        sf.max("epoch").alias("epoch"),
        sf.max("timestamp_ms").alias("timestamp_ms"),
        sf.count("*").alias("records"),
    ).collect()[0]
    if last.offset is None:
        raise ReplayError("no whole batch lies within the offsets asked for")
    return Point(last.offset, last.epoch, last.timestamp_ms, last.records)


def run(spark: SparkSession, export: Export, request: JobRequest) -> StateResult:
    """Fold, once; show the first entities."""
    require_whole_history(export)
    rows = records(spark, export)
    point = find_point(rows)
    folded = fold(rows, partitions=request.partitions, with_entities=True).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        total = totals(folded)
        first = folded.where(sf.col("key").isNotNull()).orderBy("kind", "key").limit(request.limit).collect()
    finally:
        folded.unpersist()
    shown = [EntityRow(row.kind, row.key, msgspec.Raw(row.value.encode())) for row in first]
    return StateResult(point, format_hash(total.state_hash), total.entities, shown)


def render(result: StateResult, console: Console) -> None:
    """For people."""
    point = result.point
    console.print(f"State at offset {point.offset}, epoch {point.epoch}, {format_time(point.timestamp_ms)}")
    console.print(f"State hash {result.state_hash}")
    table = Table("kind", Column("key", overflow="fold"), Column("value", overflow="fold"))
    for row in result.rows:
        table.add_row(row.kind, row.key, bytes(row.value).decode())
    console.print(table)
    total = sum(result.entities.values())
    counts = ", ".join(f"{count} {kind}" for kind, count in result.entities.items())
    more = f" ({len(result.rows)} shown: raise --limit for more)" if len(result.rows) < total else ""
    console.print(f"{total} entities: {counts}{more}")


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("state"))

"""The history of one topic, broker, config or client: what changed, when, by whom, from what, to what."""

from __future__ import annotations

import sys

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Column, Table

from replay.changes import changes
from replay.entities import parse_config_key
from replay.errors import ReplayError
from replay.request import JobRequest, format_time
from replay.source import Export, records, require_whole_history

KINDS = ("topic", "broker", "config", "client", "hostname")


class Change(msgspec.Struct, frozen=True):
    """One change of one entity. ``before`` and ``after`` are JSON; null: it was not there."""

    offset: int
    epoch: int
    timestamp_ms: int
    principal: str
    client_id: int
    sequence: int
    type_name: str
    kind: str
    key: str
    before: msgspec.Raw
    after: msgspec.Raw


class HistoryResult(msgspec.Struct, frozen=True):
    """The first changes in order of offsets, and how many there are."""

    kind: str
    key: str
    changes: list[Change]
    total: int


def run(spark: SparkSession, export: Export, request: JobRequest) -> HistoryResult:
    """Fold the groups that the key is in, and keep what changed. Raises ReplayError for a key of no known form."""
    require_whole_history(export)
    kind, key = request.key or ("", "")
    changed = _changes_of(records(spark, export), kind, key, request.partitions)
    # A history that fits the limit, as most do, costs one fold; a longer one another, to be counted.
    first = changed.orderBy("offset", "kind", "key").limit(request.limit + 1).collect()
    total = len(first) if len(first) <= request.limit else changed.count()
    shown = [Change(**row.asDict() | {"before": _raw(row.before), "after": _raw(row.after)}) for row in first]
    return HistoryResult(kind, key, shown[: request.limit], total)


def _raw(text: str | None) -> msgspec.Raw:
    return msgspec.Raw((text or "null").encode())


def _changes_of(rows: DataFrame, kind: str, key: str, partitions: int | None) -> DataFrame:
    """The changes of one key. A topic's name may have belonged to several topics, one after the other: all of them count."""
    if kind == "config":
        group_id, resource, name = parse_config_key(key)
        changed = changes(
            rows.where((sf.col("group_kind") == kind) & (sf.col("group_id") == group_id)), partitions=partitions
        )
        return changed.where(sf.col("key") == f"{resource}:{name}") if name else changed
    if kind in ("broker", "client", "hostname"):
        if kind != "hostname" and not key.isdigit():
            raise ReplayError(f"{kind} {key!r} is not a {kind} id")
        only = (sf.col("group_kind") == kind) & (sf.col("group_id") == key)
        return changes(rows, partitions=partitions, only=only)
    if kind != "topic":
        raise ReplayError(f"no history of a {kind!r}: it is one of {', '.join(KINDS)}")
    ids = rows.where(sf.col("topic_name") == key).select(sf.col("topic_id").alias("group_id"))
    of_topic = rows.where(sf.col("group_kind") == "topic").join(ids, "group_id", "left_semi")
    return changes(of_topic, partitions=partitions)


def difference(before: object, after: object) -> str:
    """Two values for people: the fields that differ, if both are objects."""
    if isinstance(before, dict) and isinstance(after, dict):
        fields = [name for name in after if before.get(name) != after[name]]
        return "\n".join(f"{name}: {_brief(before.get(name))} → {_brief(after[name])}" for name in fields)
    if before is None:
        return f"created: {_brief(after)}"
    return f"deleted: {_brief(before)}" if after is None else f"{_brief(before)} → {_brief(after)}"


def _brief(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def render(result: HistoryResult, console: Console) -> None:
    """For people."""
    table = Table(
        "offset", Column("time", no_wrap=True), "by", Column("key", overflow="fold"), Column("change", overflow="fold")
    )
    for change in result.changes:
        table.add_row(
            str(change.offset),
            format_time(change.timestamp_ms),
            change.principal or "controller",
            f"{change.kind} {change.key}",
            difference(msgspec.json.decode(change.before), msgspec.json.decode(change.after)),
        )
    console.print(table)
    more = f" ({len(result.changes)} shown: raise --limit for more)" if len(result.changes) < result.total else ""
    console.print(f"{result.total} changes of {result.kind} {result.key}{more}")


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("history"))

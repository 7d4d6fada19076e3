"""The report: what happened to the cluster, on one page that opens offline.

See :mod:`replay.report`.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TypeVar

from msgspec import Struct, structs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from rich.console import Console

from replay.audit.profiles import choose
from replay.errors import ReplayError
from replay.jobs import audit, availability, churn, lao
from replay.opened import Export, require_whole_history
from replay.report import page
from replay.report.axis import choose_axis
from replay.report.model import MAX_PERIODS, Axis, Header, ReportResult
from replay.report.summary import verdict
from replay.report.timeline import make_timeline
from replay.report.words import number, period
from replay.request import JobRequest
from replay.rows import keeper
from replay.source import records
from replay.timelines_of import timelines_of

Result = TypeVar("Result", bound=Struct)
_WHOLE = {"periods", "objectives", "types", "forecasts"}
"""Lists that are short by themselves, or drawn over time."""


def run(spark: SparkSession, export: Export, request: JobRequest) -> ReportResult:
    """Ask all jobs, draw the page, write it to ``request.output``.

    Raises ReplayError if it can't be written.
    """
    require_whole_history(export)
    output = page.writable(request.output)
    rows = records(spark, export)
    header, axis = _header(rows, export)
    charted = structs.replace(request, limit=max(request.limit, MAX_PERIODS))
    whole = audit.history_of(rows, export, request)
    with whole.kept() as history:
        audited = audit.judge(history, choose(request.rules, export.manifest.origin), request.limit)
    with ExitStack() as lived:
        lives = timelines_of(rows, keeper(lived))
        with ExitStack() as keep:
            lag = lao.tables(rows, lives.brokers, stall_ms=request.stall_ms, keep=keep)
            waited = lao.summarize(lag, request)
            timeline = make_timeline(rows, lives, axis, lag, audited.findings, header.origin)
        with ExitStack() as keep:
            served = availability.summarize(availability.tables(rows, lives, keep=keep), charted)
        with ExitStack() as keep:
            moved = churn.tables(rows, lives, partitions=request.partitions, keep=keep)
            changed = churn.summarize(moved, export, charted)
    result = ReportResult(
        output=str(output),
        header=header,
        timeline=timeline,
        audit=audited,
        lao=waited,
        availability=_rows(served, request.limit),
        churn=_rows(changed, request.limit),
    )
    page.write(page.render_page(result), output)
    return result


def _rows(result: Result, limit: int) -> Result:
    """The result with its tables cut to so many rows."""
    tables = {
        name: getattr(result, name) for name in result.__struct_fields__ if name not in _WHOLE
    }
    return structs.replace(
        result, **{name: rows[:limit] for name, rows in tables.items() if isinstance(rows, list)}
    )


def _header(rows: DataFrame, export: Export) -> tuple[Header, Axis]:
    """Whose log, and from when to when."""
    last = rows.select(
        sf.min("offset").alias("first_offset"),
        sf.max("offset").alias("last_offset"),
        sf.min("epoch").alias("first_epoch"),
        sf.max("epoch").alias("last_epoch"),
        sf.min("timestamp_ms").alias("begins_ms"),
        sf.max("timestamp_ms").alias("ends_ms"),
        sf.count("*").alias("records"),
    ).collect()[0]
    if not last.records:
        raise ReplayError("no whole batch lies within the offsets asked for")
    manifest = export.manifest
    header = Header(
        cluster_id=manifest.cluster_id,
        generation=manifest.generation,
        first_offset=last.first_offset,
        last_offset=last.last_offset,
        records=last.records,
        first_epoch=last.first_epoch,
        last_epoch=last.last_epoch,
        metadata_version=manifest.metadata_version,
        exported_at=manifest.exported_at,
        origin=manifest.origin,
    )
    return header, choose_axis(last.begins_ms, last.ends_ms)


def render(result: ReportResult, console: Console) -> None:
    """For people: where it is, and its first line."""
    axis = result.timeline.axis
    console.print(
        f"{number(result.header.records)} records, {period(axis.begins_ms, axis.ends_ms)} UTC"
    )
    console.print(verdict(result).text)
    console.print(f"written: {result.output}", soft_wrap=True)


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("report"))

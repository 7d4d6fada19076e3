"""Watch an export while it is written: the audit or LAO by micro-batches, alerts as rows in a
directory (:mod:`replay.streaming`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from rich.console import Console

from raftlog.segments.manifest import Manifest
from raftlog.text import counted
from replay.engine.pool import Pool
from replay.errors import ReplayError
from replay.export import Export
from replay.jobs.sql import plain
from replay.lag.result import in_words
from replay.request import JobRequest
from replay.rules import choose
from replay.spark.pool import spark_of
from replay.streaming import audit, lao
from replay.streaming.ledger import ALERTS, Done, Ledger, output
from replay.streaming.watch import Judge, start, to_its_end
from replay.text import FIXED, Field, duration, format_time, listing
from replay.text import console as text_console

_FILES = 2
"""Most files in one micro-batch."""
_JUDGES: dict[str, Callable[[JobRequest, Manifest], Judge]] = {
    audit.NAME: lambda request, manifest: audit.judge(
        choose(request.rules, manifest.origin),
        request.super_users,
        allow_everyone_if_no_acl_found=request.allow_everyone_if_no_acl_found,
        state_from=manifest.state_from or 0,
    ),
    lao.NAME: lambda request, _: lao.judge(request.stall_ms),
}
"""Judge of each watch job, for a request and the log that is watched."""


class WatchResult(msgspec.Struct, frozen=True):
    """How far the watch has come in all (``end_offset`` is exclusive), how many alerts are ``new``
    in this run, and the first of them.

    ``columns`` are those of the alerts; the whole of them is in ``directory``/alerts.
    """

    job: str
    directory: str
    records: int
    end_offset: int
    total: int
    new: int
    columns: list[str]
    alerts: list[list[Any]]

    @property
    def passed(self) -> bool:
        """True if this run gave no alert."""
        return not self.new


def run(export: Export, request: JobRequest, pool: Pool) -> WatchResult:
    """Continue where the directory ends, up to the present end of the export; or without end, at an
    interval.

    Raises ReplayError.
    """
    if request.watch not in _JUDGES or not request.output:
        raise ReplayError(
            f"say what to watch ({', '.join(_JUDGES)}), and in which directory (--output)"
        )
    spark = spark_of(pool)
    ledger = Ledger(Path(request.output), request.watch)
    before = ledger.done

    def tell(done_before: Done) -> None:
        _tell(_result(spark, ledger, done_before, request.limit), as_json=request.json)

    judge_for = _JUDGES[request.watch]
    with ledger.alone():
        to_its_end(
            lambda: start(
                spark,
                request.export,
                ledger,
                judge_for(request, export.manifest),
                every=None if request.every_s is None else f"{request.every_s} seconds",
                max_files=_FILES,
                # Who goes on for ever has no end at which to say what was found.
                done=None if request.every_s is None else tell,
            )
        )
    return _result(spark, ledger, before, request.limit)


def _result(spark: SparkSession, ledger: Ledger, before: Done, limit: int) -> WatchResult:
    """Return the findings since the ledger's position ``before``."""
    done = ledger.done
    columns, rows = _new(spark, ledger, before.batch, limit)
    return WatchResult(
        job=done.job,
        directory=str(ledger.directory),
        records=done.end_offset - before.end_offset,
        end_offset=done.end_offset,
        total=done.alerts,
        new=done.alerts - before.alerts,
        columns=columns,
        alerts=rows,
    )


def _tell(result: WatchResult, *, as_json: bool) -> None:
    """One micro-batch's, at once; with ``as_json`` one line."""
    if as_json:
        print(msgspec.json.encode(result).decode(), flush=True)
    else:
        render(result, text_console())


def _new(
    spark: SparkSession, ledger: Ledger, batch: int, limit: int
) -> tuple[list[str], list[list[Any]]]:
    """Return the first alerts behind a micro-batch."""
    alerts = output(spark, ledger.directory)
    if alerts is None:
        return [], []
    found = alerts.where(sf.col("batch") > batch).orderBy("batch", "offset").limit(limit)
    return found.columns, [plain(row) for row in found.collect()]


def render(result: WatchResult, console: Console) -> None:
    """Print the result for people."""
    if result.alerts:
        shown = _STALLS if result.job == lao.NAME else _FINDINGS
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.alerts]
        console.print(listing("", rows, *shown).table())
    console.print(
        f"{result.job}: {counted(result.records, 'new record')}, up to offset"
        f" {result.end_offset - 1}: {counted(result.new, 'new alert')}, {result.total} in all"
        + (f". They are rows in {result.directory}/{ALERTS}" if result.total else ""),
        soft_wrap=True,
    )


_FINDINGS = tuple(
    Field(name, itemgetter(name)) for name in ("rule", "offset", "subject", "found", "expected")
)
_STALLS = (
    Field("from", itemgetter("began_ms"), format_time, FIXED),
    Field(
        "for",
        lambda row: duration(row["waited_ms"]) + (" so far" if row["offset"] is None else ""),
        kind=FIXED,
    ),
    Field("brokers", lambda row: ", ".join(map(str, row["broker_ids"])) or "-"),
    Field("records", itemgetter("records")),
    Field(
        "until offset", itemgetter("offset"), lambda offset: "-" if offset is None else str(offset)
    ),
    Field("why", lambda row: in_words(row["cause"], row["reason"])),
)

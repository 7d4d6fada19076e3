"""Audit an export while it is written: in micro-batches, with alerts as rows in a directory
(:mod:`replay.streaming`).
"""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from rich.console import Console

from raftlog.text import counted
from replay.engine.pool import Pool
from replay.errors import ReplayError
from replay.export import Export
from replay.jobs.sql import plain
from replay.request import JobRequest
from replay.rules import choose
from replay.spark.pool import spark_of
from replay.streaming import audit
from replay.streaming.ledger import ALERTS, Done, Ledger, output
from replay.streaming.watch import run_to_end, start
from replay.text import Field, listing
from replay.text import console as text_console

_FILES = 2
"""Maximum number of files in a micro-batch."""


class WatchResult(msgspec.Struct, frozen=True):
    """Result of a run: the end of the judged log (exclusive), the number of ``new`` alerts, and the
    first of these.

    ``columns``: the columns of alerts. ``directory``/alerts contains all alerts.
    """

    directory: str
    records: int
    end_offset: int
    total: int
    new: int
    columns: list[str]
    alerts: list[list[Any]]

    @property
    def passed(self) -> bool:
        """Whether this run raised no alert."""
        return not self.new


def run(export: Export, request: JobRequest, pool: Pool) -> WatchResult:
    """Continue from the position in the directory to the current end of the export, or indefinitely
    if the request has an interval. Raises ReplayError.
    """
    if not request.output:
        raise ReplayError("no directory for the alerts: give one with --output")
    spark, manifest = spark_of(pool), export.manifest
    ledger = Ledger(Path(request.output))
    judge = audit.judge(
        choose(request.rules, manifest.origin),
        request.super_users,
        allow_everyone_if_no_acl_found=request.allow_everyone_if_no_acl_found,
        state_from=manifest.state_from or 0,
    )
    before = ledger.done

    def tell(done_before: Done) -> None:
        _tell(_result(spark, ledger, done_before, request.limit), as_json=request.json)

    with ledger.alone():
        run_to_end(
            lambda: start(
                spark,
                request.export,
                ledger,
                judge,
                every=None if request.every_s is None else f"{request.every_s} seconds",
                max_files=_FILES,
                # An indefinite watch reports after each micro-batch.
                done=None if request.every_s is None else tell,
            )
        )
    return _result(spark, ledger, before, request.limit)


def _result(spark: SparkSession, ledger: Ledger, before: Done, limit: int) -> WatchResult:
    """Return the result since the position ``before``."""
    done = ledger.done
    columns, rows = _new(spark, ledger, before.batch, limit)
    return WatchResult(
        directory=str(ledger.directory),
        records=done.end_offset - before.end_offset,
        end_offset=done.end_offset,
        total=done.alerts,
        new=done.alerts - before.alerts,
        columns=columns,
        alerts=rows,
    )


def _tell(result: WatchResult, *, as_json: bool) -> None:
    """Print the result of one micro-batch; with ``as_json`` as one line."""
    if as_json:
        print(msgspec.json.encode(result).decode(), flush=True)
    else:
        render(result, text_console())


def _new(
    spark: SparkSession, ledger: Ledger, batch: int, limit: int
) -> tuple[list[str], list[list[Any]]]:
    """Return the columns, and the first alerts after a micro-batch."""
    alerts = output(spark, ledger.directory)
    if alerts is None:
        return [], []
    found = alerts.where(sf.col("batch") > batch).orderBy("batch", "offset").limit(limit)
    return found.columns, [plain(row) for row in found.collect()]


def render(result: WatchResult, console: Console) -> None:
    """Print the result as text."""
    if result.alerts:
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.alerts]
        console.print(listing("", rows, *_FINDINGS).table())
    console.print(
        f"{counted(result.records, 'new record')}, up to offset"
        f" {result.end_offset - 1}: {counted(result.new, 'new alert')}, {result.total} in total"
        + (f", stored in {result.directory}/{ALERTS}" if result.total else ""),
        soft_wrap=True,
    )


_FINDINGS = tuple(
    Field(name, itemgetter(name)) for name in ("rule", "offset", "subject", "found", "expected")
)

"""Watch an export while it is written: the audit or LAO by micro-batches, alerts as rows in a directory (:mod:`replay.streaming`)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Column, Table

from replay.errors import ReplayError
from replay.jobs.sql import plain
from replay.request import JobRequest
from replay.source import Export, require_whole_history
from replay.streaming import audit
from replay.streaming.ledger import Ledger, output
from replay.streaming.watch import Judge, start

CHECKS_FILES = True
"""It reads raw segments, and checks each batch of them."""
_FILES = 8
"""In one micro-batch, at most."""
_JUDGES: dict[str, Callable[[], Judge]] = {audit.NAME: audit.judge}


class WatchResult(msgspec.Struct, frozen=True):
    """How far the watch has come in all (``end_offset`` is exclusive), how many alerts are ``new`` in this run, and the first of them.

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
        """Whether this run gave no alert."""
        return not self.new


def run(spark: SparkSession, export: Export, request: JobRequest) -> WatchResult:
    """Go on where the directory ends, up to what there is now; or for ever, every so many seconds. Raises ReplayError."""
    if request.watch not in _JUDGES or not request.output:
        raise ReplayError(f"say what to watch ({', '.join(_JUDGES)}), and in which directory (--output)")
    require_whole_history(export)
    ledger = Ledger(Path(request.output), request.watch)
    before = ledger.done
    every = None if request.every_s is None else f"{request.every_s} seconds"
    query = start(spark, request.export, ledger, _JUDGES[request.watch](), every=every, max_files=_FILES)
    query.awaitTermination()
    done = ledger.done
    columns, rows = _new(spark, ledger, before.batch, request.limit)
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


def _new(spark: SparkSession, ledger: Ledger, batch: int, limit: int) -> tuple[list[str], list[list[Any]]]:
    """The first alerts behind a micro-batch."""
    alerts = output(spark, ledger.directory)
    if alerts is None:
        return [], []
    found = alerts.where(sf.col("batch") > batch).orderBy("batch", "offset").limit(limit)
    return found.columns, [plain(row) for row in found.collect()]


def render(result: WatchResult, console: Console) -> None:
    """For people."""
    shown = [name for name in ("rule", "cause", "offset", "subject", "found", "expected") if name in result.columns]
    if result.alerts:
        table = Table(*(Column(name, overflow="fold") for name in shown))
        for row in result.alerts:
            table.add_row(*(str(row[result.columns.index(name)]) for name in shown))
        console.print(table)
    console.print(
        f"{result.job}: {result.records} new records, up to offset {result.end_offset - 1}: {result.new} new alerts, "
        f"{result.total} in all. They are rows in {result.directory}/alerts",
        soft_wrap=True,
    )


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("watch"))

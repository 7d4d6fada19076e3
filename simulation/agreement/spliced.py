"""One audit over many runs: their records set one behind the other, as if they were one long
history of one cluster.

An audit costs Spark seconds, however short the history; hundreds of runs one by one would take an
hour. So offsets, epochs, brokers' ids, topics and hosts of each run are moved out of the way of
the others, and at its end everything of it is removed: its access control entries, its topics, then
its brokers. Rules compare offsets, epochs and ids among themselves, so they judge each run as they
would judge it alone; nobody is named before the run's first entry, from which on rights are judged.
(What a record's ``body`` says is not moved: nothing that decodes it can be asked of this.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from raftlog.metadata.records import RecordType
from raftlog.segments.columns import SCHEMA
from raftlog.segments.manifest import RECORDS, read_manifest
from replay.audit.check import audit
from replay.audit.history import History
from simulation.agreement.run_and_export import ExportedRun

Row = dict[str, Any]

_OFFSETS = (
    "offset",
    "batch_base_offset",
    "batch_last_offset",
    "broker_epoch",
    "lowest_acknowledged_offset",
    "high_watermark",
    "cursor_end_offset",
)
"""-1 stands for unknown."""
_OFFSETS_OR_ZERO = ("proposer_epoch", "client_id", "lease_id")
"""0 stands for nobody."""
_BROKERS = ("broker_id", "leader", "proposer_id")
"""The ids of simulated brokers begin with 1; -1 and 0 stand for nobody."""
_BROKER_LISTS = ("replicas", "isr", "adding_replicas", "removing_replicas")
_REPORTS = ("isr_with_epochs", "applied")
IDS_APART = 100_000
TIME_APART_MS = 100_000_000
"""More than any run lasts."""


class _Mover:
    """Moves the rows of one run: ``base`` is added to offsets, ``epochs`` to epochs, ``number``
    tells the runs apart.
    """

    def __init__(self, number: int, base: int, epochs: int) -> None:
        self._number, self._base, self._epochs = number, base, epochs
        self._ids = number * IDS_APART
        self._topics: dict[str, None] = {}
        self._brokers: dict[int, int] = {}
        """Registered ones -> their broker epochs, both moved."""
        self._entries: dict[str, None] = {}
        self._with_rights = False
        self._last: Row = {}

    def moved(self, row: Row) -> Row:
        """A row in its new place."""
        for name in _OFFSETS:
            if row.get(name) is not None and row[name] >= 0:
                row[name] += self._base
        for name in _OFFSETS_OR_ZERO:
            if row.get(name):
                row[name] += self._base
        for name in _BROKERS:
            if row.get(name) is not None:
                row[name] = self._broker(row[name])
        for name in _BROKER_LISTS:
            if row.get(name) is not None:
                row[name] = [self._broker(member) for member in row[name]]
        for name in _REPORTS:
            if row.get(name) is not None:
                row[name] = [self._report(report) for report in row[name]]
        row["epoch"] += self._epochs
        row["timestamp_ms"] += self._number * TIME_APART_MS
        if row["topic_id"] is not None:
            row["topic_id"] = f"{self._number:08x}{row['topic_id'][8:]}"
        if row["group_id"] is not None:
            is_offset = row["group_kind"] in {"client", "lease"}
            row["group_id"] = (
                str(int(row["group_id"]) + self._base)
                if is_offset
                else f"{self._number}-{row['group_id']}"
            )
        row["body"] = b""
        if not self._with_rights:
            row["principal"] = ""
        self._note(row)
        return row

    def _broker(self, broker_id: int) -> int:
        return broker_id + self._ids if broker_id > 0 else broker_id

    def _report(self, report: Row) -> Row:
        offsets = {
            name: value + self._base * (value >= 0)
            for name, value in report.items()
            if name != "broker_id"
        }
        return {"broker_id": self._broker(report["broker_id"]), **offsets}

    def _note(self, row: Row) -> None:
        self._last = row
        if row["type"] == RecordType.TOPIC:
            self._topics[row["topic_id"]] = None
        elif row["type"] == RecordType.REMOVE_TOPIC:
            self._topics.pop(row["topic_id"], None)
        elif row["type"] == RecordType.REGISTER_BROKER:
            self._brokers[row["broker_id"]] = row["broker_epoch"]
        elif row["type"] == RecordType.UNREGISTER_BROKER:
            self._brokers.pop(row["broker_id"], None)
        elif row["type"] == RecordType.ACCESS_CONTROL_ENTRY:
            self._entries[row["group_id"]] = None
            self._with_rights = True
        elif row["type"] == RecordType.REMOVE_ACCESS_CONTROL_ENTRY:
            self._entries.pop(row["group_id"], None)

    def removals(self) -> Iterator[Row]:
        """One batch behind the last row: everything that is there goes, topics before brokers."""
        gone: list[Row] = [
            {
                "type": RecordType.REMOVE_ACCESS_CONTROL_ENTRY,
                "group_kind": "acl",
                "group_id": entry,
            }
            for entry in self._entries
        ]
        gone += [
            {
                "type": RecordType.REMOVE_TOPIC,
                "group_kind": "topic",
                "topic_id": topic,
                "group_id": topic,
            }
            for topic in self._topics
        ]
        gone += [
            {
                "type": RecordType.UNREGISTER_BROKER,
                "group_kind": "broker",
                "broker_id": one,
                "broker_epoch": epoch,
            }
            for one, epoch in self._brokers.items()
        ]
        first = self._last["offset"] + 1
        batch = {"batch_base_offset": first, "batch_last_offset": first + len(gone) - 1}
        kept = {
            name: self._last[name] for name in ("epoch", "timestamp_ms", "timestamp", "version")
        }
        for index, row in enumerate(gone):
            yield {
                **kept,
                **batch,
                "offset": first + index,
                "control": False,
                "principal": "",
                "client_id": 0,
                "sequence": 0,
                "all_below_done": 0,
                "type_name": RecordType(row["type"]).name,
                "body": b"",
                **row,
            }


def splice(runs: Sequence[ExportedRun], target: Path) -> tuple[list[int], int]:
    """Write the runs' records into one Parquet file: where each begins, and where all of it ends
    (exclusive).
    """
    bases: list[int] = []
    end, epochs = 0, 0
    with pq.ParquetWriter(target, SCHEMA) as writer:
        for number, run in enumerate(runs):
            bases.append(end)
            mover = _Mover(number, end, epochs)
            rows = [mover.moved(row) for row in _rows(run)]
            rows += mover.removals()
            end, epochs = rows[-1]["offset"] + 1, rows[-1]["epoch"]
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    return bases, end


def _rows(run: ExportedRun) -> Iterator[Row]:
    for segment in read_manifest(run.directory).of_kind(RECORDS):
        yield from pq.read_table(run.directory / segment.file).to_pylist()


def audit_spliced(
    spark: SparkSession, runs: Sequence[ExportedRun], target: Path
) -> list[dict[str, list[int]]]:
    """What the audit finds in each of the runs: rule -> offsets in that run.

    ``target``: a file to be written. No run may be empty.
    """
    bases, end = splice(runs, target)
    rows: DataFrame = spark.read.schema(from_arrow_schema(SCHEMA)).parquet(str(target))
    found: list[dict[str, list[int]]] = [{} for _ in runs]
    with History(rows, end).kept() as history:
        findings = audit(history).select("rule", "offset").orderBy("offset").collect()
    for finding in findings:
        number = bisect_right(bases, finding.offset) - 1
        found[number].setdefault(finding.rule, []).append(finding.offset - bases[number])
    return found

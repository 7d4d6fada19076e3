"""The Spark data source "raftlog": raw segments of an export as rows.

Spark finds it through ``pyspark_raftlog``.

``spark.read.format("raftlog").load(EXPORT)`` has the columns of the Parquet form
(:mod:`raftlog.segments.columns`), read from the log's exact bytes. Options limit what is read:
``startingOffset`` (inclusive) and ``endingOffset`` (exclusive), ``startingTimestamp`` (inclusive)
and ``endingTimestamp`` (exclusive), the latter two in milliseconds or ISO 8601.

Spark itself applies a query's conditions. Nothing is pushed down, because Spark 4.3 keeps the
conditions that it pushed into a Python source for one query on a DataFrame, and applies them to the
next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from raftlog.segments.columns import SCHEMA
from raftlog.segments.errors import ExportGapError, ExportMismatchError
from raftlog.segments.files import is_uri
from raftlog.segments.manifest import RAW, Manifest, read_manifest
from replay.engine.pool import prepare_worker
from replay.errors import ReplayError
from replay.request import parse_time_ms
from replay.spark.raw_runs import RawRun, Span, plan, read

RUN_RECORDS = 250_000
"""Maximum number of records per task."""


class RunPartition(InputPartition):
    """The run of records that a task reads, or None."""

    def __init__(self, run: RawRun | None) -> None:
        super().__init__(run)
        self.run = run


class RawReader(DataSourceReader):
    """Reads the export as it is when the query is planned.

    Raises ExportError and its subclasses, and ReplayError.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.target = target_of(options)
        self.schema = schema
        self.wanted = _wanted(options)
        check_columns(schema)

    def partitions(self) -> list[RunPartition]:
        """Return the runs of the segments that may contain wanted records."""
        manifest = read_manifest(self.target)
        runs = plan(self.target, manifest, manifest.of_kind(RAW), self.wanted, RUN_RECORDS)
        return [RunPartition(run) for run in runs] or [RunPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one run."""
        prepare_worker()
        yield from rows(partition, self.schema)


def _wanted(options: Mapping[str, str]) -> Span:
    """Return the span that the options select. Raises ReplayError."""
    wanted = Span()
    for name, value_of in (("Offset", _offset), ("Timestamp", parse_time_ms)):
        column = "offset" if name == "Offset" else "timestamp_ms"
        low, high = getattr(wanted, column)
        first, end = options.get(f"starting{name}"), options.get(f"ending{name}")
        low = low if first is None else value_of(first)
        wanted = wanted.within(**{column: (low, high if end is None else value_of(end) - 1)})
    return wanted


def _offset(text: str) -> int:
    if not text.isdigit():
        raise ReplayError(f"{text!r} is not an offset: give a number, 0 or above")
    return int(text)


def full_schema() -> StructType:
    """Return the schema with all columns."""
    return from_arrow_schema(SCHEMA)


def target_of(options: Mapping[str, str]) -> str:
    """Return the location of the export. Raises ReplayError."""
    target = options.get("path")
    if not target:
        raise ReplayError('the data source "raftlog" needs the path of an export: .load(PATH)')
    # Workers may have another working directory.
    return target if is_uri(target) or target.startswith("file:") else str(Path(target).absolute())


def check_columns(schema: StructType) -> None:
    """Raise ReplayError unless a requested schema is a subset of the columns."""
    known = {field.name: field.dataType for field in full_schema().fields}
    for field in schema.fields:
        if field.name not in known:
            raise ReplayError(
                f'the data source "raftlog" has no column {field.name!r}: it has {", ".join(known)}'
            )
        if field.dataType != known[field.name]:
            kind = known[field.name].simpleString()
            raise ReplayError(
                f"column {field.name!r} is of type {kind}, not {field.dataType.simpleString()}"
            )


def rows(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one run, with the requested columns in the types that Spark expects."""
    if not isinstance(partition, RunPartition) or partition.run is None:
        return
    columns = to_arrow_schema(schema, timezone="UTC")
    for table in read(partition.run):
        yield from table.select(columns.names).cast(columns).to_batches()


Position = dict[str, Any]
"""Position of a stream: the log's ``cluster_id`` and ``generation``, and ``offset``, the next one
to read.
"""


class RawStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams the records of an export, including those added later.

    Raises ExportError and its subclasses, and ReplayError.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.target = target_of(options)
        self.schema = schema
        self._starting = options.get("startingOffset") or "earliest"
        self._max_files = _number(options, "maxFilesPerTrigger")
        self._last: int | None = None
        """End offset of the query (exclusive), or None if it continues with new records."""
        check_columns(schema)

    def initialOffset(self) -> Position:  # noqa: N802
        """Return the position at which a query without a checkpoint starts."""
        manifest = read_manifest(self.target)
        if self._starting == "earliest":
            return _position(manifest, manifest.history_begin)
        if self._starting == "latest":
            return _position(manifest, manifest.end_offset)
        if not self._starting.isdigit():
            raise ReplayError(
                f"startingOffset {self._starting!r} is not earliest, latest or an offset"
            )
        offset = int(self._starting)
        if not manifest.history_begin <= offset <= manifest.end_offset:
            raise ReplayError(
                f"startingOffset {offset} is not in {self.target}: "
                f"it holds offsets {manifest.history_begin} to {manifest.end_offset - 1}"
            )
        return _position(manifest, offset)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit set by the option maxFilesPerTrigger."""
        return ReadAllAvailable() if self._max_files is None else ReadMaxFiles(self._max_files)

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        """Return the end of the next micro-batch, which consists of whole files."""
        manifest = self._manifest(start)
        last = manifest.end_offset if self._last is None else self._last
        # Files may have been merged since then, so the last end may now be within a file.
        ends = sorted({min(segment.last_offset + 1, last) for segment in manifest.of_kind(RAW)})
        ahead = [end for end in ends if end > start["offset"]]
        if isinstance(limit, ReadMaxFiles):
            ahead = ahead[: limit.max_files]
        return _position(manifest, ahead[-1]) if ahead else start

    def reportLatestOffset(self) -> Position:  # noqa: N802
        """Return the end of the export."""
        manifest = read_manifest(self.target)
        return _position(manifest, manifest.end_offset)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Make the query stop at the current end of the export."""
        self._last = read_manifest(self.target).end_offset

    def partitions(self, start: Position, end: Position) -> list[RunPartition]:
        """Return the runs of a micro-batch."""
        manifest = self._manifest(start)
        wanted = Span(offset=(start["offset"], end["offset"] - 1))
        return [
            RunPartition(run)
            for run in plan(self.target, manifest, manifest.of_kind(RAW), wanted, RUN_RECORDS)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one run."""
        yield from rows(partition, self.schema)

    def _manifest(self, start: Position) -> Manifest:
        """Return the manifest, after checking that the stream can continue in this export."""
        manifest = read_manifest(self.target)
        if (manifest.cluster_id, manifest.generation) != (start["cluster_id"], start["generation"]):
            raise ExportMismatchError(
                f"{self.target} holds cluster {manifest.cluster_id} generation"
                f" {manifest.generation}, but the stream has read cluster {start['cluster_id']}"
                f" generation {start['generation']}: another log needs a new checkpoint, and a"
                " watch a new directory"
            )
        if not manifest.history_begin <= start["offset"] <= manifest.end_offset:
            raise ExportGapError(
                f"the stream continues at offset {start['offset']}, but {self.target} holds offsets"
                f" {manifest.history_begin} to {manifest.end_offset - 1}: it is not the export that"
                " was read before"
            )
        return manifest


def _position(manifest: Manifest, offset: int) -> Position:
    return {"cluster_id": manifest.cluster_id, "generation": manifest.generation, "offset": offset}


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdigit() or not int(text):
        raise ReplayError(f"{name} {text!r} is not valid: give a number above 0")
    return int(text)

"""The Spark data source "raftlog", streaming: an export that is still written, from its beginning
or from now on.

``spark.readStream.format("raftlog").load(EXPORT)``. What the manifest names is what there is, so
the stream's offsets are the log's: each micro-batch is a range of them, a restart reads the same
range again, and files that were merged meanwhile change nothing. A range ends where a file ended
when it was planned: batches of the log are whole.

Options: ``startingOffset`` (``earliest``, ``latest`` or a number; counts when the query has no
checkpoint yet), ``maxFilesPerTrigger``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from raftlog.segments.errors import ExportGapError, ExportMismatchError
from raftlog.segments.manifest import RAW, Manifest, read_manifest
from replay.datasource import RUN_RECORDS, RunPartition, check_columns, rows, target_of
from replay.errors import ReplayError
from replay.rawruns import plan
from replay.spans import Span

Position = dict[str, Any]
"""Position of a stream: ``cluster_id`` and ``generation`` of the log, and ``offset``, the next one
to read.
"""


class RawStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader of an export: of its records, and of those added to it.

    Raises ExportError and its kinds, ReplayError.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.target = target_of(options)
        self.schema = schema
        self._starting = options.get("startingOffset") or "earliest"
        self._max_files = _number(options, "maxFilesPerTrigger")
        self._last: int | None = None
        """End offset of the query (exclusive); None: the query goes on with new records."""
        check_columns(schema)

    def initialOffset(self) -> Position:  # noqa: N802
        """Return the position at which a query without a checkpoint begins."""
        manifest = read_manifest(self.target)
        if self._starting == "earliest":
            return _position(manifest, manifest.history_begin)
        if self._starting == "latest":
            return _position(manifest, manifest.end_offset)
        if not self._starting.isdigit():
            raise ReplayError(
                f"startingOffset {self._starting!r} is neither earliest, latest, nor an offset"
            )
        offset = int(self._starting)
        if not manifest.history_begin <= offset <= manifest.end_offset:
            raise ReplayError(
                f"startingOffset {offset} is not in {self.target}: "
                f"it holds offsets {manifest.history_begin} to {manifest.end_offset - 1}"
            )
        return _position(manifest, offset)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of the reader's option."""
        return ReadAllAvailable() if self._max_files is None else ReadMaxFiles(self._max_files)

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        """Return the end of the next micro-batch: whole files."""
        manifest = self._manifest(start)
        last = manifest.end_offset if self._last is None else self._last
        # Files may have been merged over what was the last one's end.
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
        """End with what there is now."""
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
        """Return the manifest, if the stream can go on in it."""
        manifest = read_manifest(self.target)
        if (manifest.cluster_id, manifest.generation) != (start["cluster_id"], start["generation"]):
            raise ExportMismatchError(
                f"{self.target} holds cluster {manifest.cluster_id} generation"
                f" {manifest.generation}, and the stream has read cluster {start['cluster_id']}"
                f" generation {start['generation']}: another log needs another checkpoint, and a"
                " watch another directory"
            )
        if not manifest.history_begin <= start["offset"] <= manifest.end_offset:
            raise ExportGapError(
                f"the stream goes on at offset {start['offset']}, and {self.target} holds offsets"
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
        raise ReplayError(f"{name} {text!r} is not a number above 0")
    return int(text)

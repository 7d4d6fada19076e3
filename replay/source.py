"""An export as Spark reads it: which files a question needs, whether they are whole, and their
rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from raftlog.errors import RaftlogError
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.segments.columns import SCHEMA
from raftlog.segments.errors import ExportError
from raftlog.segments.manifest import RECORDS, Manifest, Segment, read_manifest
from raftlog.segments.place import is_uri, open_place
from raftlog.segments.verify import check_segment
from replay.errors import ReplayError
from replay.remote import hadoop_uri, read_through_fsspec
from replay.request import JobRequest, format_time
from replay.workers import set_aside_what_is_loaded

_FAULTS_SCHEMA = "fault string"
_GLOB = re.compile(r"([\[\]{}*?\\])")


@dataclass(frozen=True, slots=True)
class Export:
    """An export, as far as a question reaches into it.

    ``segments`` are those that may hold records of interest.

    ``target``: an absolute path, or a URI for fsspec.
    """

    target: str
    manifest: Manifest
    segments: tuple[Segment, ...]
    at_offset: int | None = None
    at_time_ms: int | None = None

    @property
    def record_count(self) -> int:
        """How many records ``segments`` hold: no question is about more."""
        return sum(segment.records for segment in self.segments)


def open_export(request: JobRequest) -> Export:
    """Read the manifest and choose the files.

    Raises ExportError and its kinds, ReplayError if nothing is there to answer with.
    """
    target = request.export
    if not is_uri(target):
        target = str(Path(str(open_place(target))).absolute())
    manifest = read_manifest(target)
    require_known_level(manifest, target)
    everything = manifest.of_kind(RECORDS)
    if not everything:
        raise ReplayError(
            f"{target} is an export without records: run the export again once the log has some"
        )
    at_offset, at_time_ms = request.at_offset, request.at_time_ms
    first, end = everything[0], manifest.end_offset
    if at_offset is not None and not manifest.history_begin <= at_offset < end:
        raise ReplayError(
            f"offset {at_offset} is not in {target}: it holds offsets {manifest.history_begin} to"
            f" {end - 1}"
        )
    if at_time_ms is not None and at_time_ms < first.min_timestamp_ms:
        raise ReplayError(
            f"{target} holds nothing from {format_time(at_time_ms)} or before: it begins at"
            f" {format_time(first.min_timestamp_ms)}"
        )
    end_ms = everything[-1].max_timestamp_ms
    if request.since_ms is not None and request.since_ms > end_ms:
        raise ReplayError(
            f"{target} holds nothing from {format_time(request.since_ms)} on: it ends at"
            f" {format_time(end_ms)}"
        )
    segments = tuple(
        segment
        for segment in everything
        if (at_offset is None or segment.base_offset <= at_offset)
        and (at_time_ms is None or segment.min_timestamp_ms <= at_time_ms)
    )
    return Export(target, manifest, segments, at_offset, at_time_ms)


def require_known_level(manifest: Manifest, target: str) -> None:
    """Records of a later metadata.version may mean what this build does not know.

    Raises ReplayError.
    """
    level = manifest.metadata_version or 0
    if level > LATEST_METADATA_VERSION:
        raise ReplayError(
            f"{target} was exported at metadata.version {level}, and this build knows up to"
            f" {LATEST_METADATA_VERSION}: use a newer raftlog"
        )


def require_whole_history(export: Export) -> None:
    """A fold needs every record from the first. Raises ReplayError."""
    if export.manifest.history_begin > 0 and export.manifest.state_from is None:
        raise ReplayError(
            f"{export.target} begins at offset {export.manifest.history_begin}: the state cannot be"
            " folded without what came before"
        )


def check_files(spark: SparkSession, export: Export) -> None:
    """Check owner, size and hash of the files in question, spread over the workers.

    Raises ExportError naming the first bad one.
    """
    count = len(export.segments)
    tasks = min(count, 4 * spark.sparkContext.defaultParallelism)
    faults = (
        spark.range(0, count, 1, tasks)
        .mapInArrow(_checker(export), _FAULTS_SCHEMA)
        .limit(20)
        .collect()
    )
    if faults:
        raise ExportError(min(row.fault for row in faults))


def _checker(export: Export) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    target, segments = export.target, export.segments
    cluster_id, generation = export.manifest.cluster_id, export.manifest.generation

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_aside_what_is_loaded()
        for batch in batches:
            faults: list[str] = []
            for index in batch.column(0).to_pylist():
                try:
                    check_segment(target, segments[index], cluster_id, generation)
                except RaftlogError as error:
                    # As a row, not as an exception: an exception would arrive wrapped in two stack
                    # traces.
                    faults.append(str(error))
            yield pa.record_batch([pa.array(faults, pa.string())], names=["fault"])

    return check


def records(spark: SparkSession, export: Export) -> DataFrame:
    """The rows in question: columns as in :mod:`raftlog.segments.columns`, whole batches only."""
    rows = _rows(spark, export.target, export.segments)
    for condition in _conditions(export):
        rows = rows.where(condition)
    return rows


def _rows(spark: SparkSession, target: str, segments: tuple[Segment, ...]) -> DataFrame:
    root: str | None = target
    if is_uri(target):
        root = hadoop_uri(spark, target)
        if root is None:
            return read_through_fsspec(spark, target, segments)
    # Spark takes a path for a pattern.
    paths = [_GLOB.sub(r"\\\1", f"{root}/{segment.file}") for segment in segments]
    return spark.read.schema(from_arrow_schema(SCHEMA)).parquet(*paths)


def _conditions(export: Export) -> Iterator[Column]:
    if export.at_offset is not None:
        # The offset is sorted, so it prunes row groups; a batch is applied whole or not at all.
        yield sf.col("offset") <= export.at_offset
        yield sf.col("batch_last_offset") <= export.at_offset
    if export.at_time_ms is not None:
        yield sf.col("timestamp_ms") <= export.at_time_ms

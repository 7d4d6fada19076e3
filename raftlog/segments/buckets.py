"""The records of a range, repeated by entity group: a reader of a few topics reads only their
share, without a shuffle.

A row is in the bucket of the group that it changes. If it ends a batch that names a client, it is
also in that client's bucket, as the batch's header changes the client. A row that changes every
topic is in all buckets. In each file the rows are in log order. The files contain nothing but the
records, and can be recreated.

``raftlog export --compact`` creates them for ranges that are no longer merged.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import structs

from raftlog.segments import files
from raftlog.segments.files import Place
from raftlog.segments.manifest import (
    BUCKETS,
    BY_GROUP,
    RAW,
    RECORDS,
    Bucket,
    Bucketing,
    Manifest,
    Segment,
)
from raftlog.segments.parquet_files import identity, parquet_writer, rows_by_bucket
from raftlog.segments.range_checks import check_segment
from raftlog.segments.writer import ExportWriter

COUNT = 16
"""Number of buckets: as many as the tasks of a full read can use. With a million records, a bucket
is half as large as one row group of the records.
"""
ROWS = 16_384
"""Number of rows in a bucket's row group, which is in memory until it is full. The row groups of
all buckets together are as large as two row groups of the records.
"""


def add_buckets(writer: ExportWriter) -> int:
    """Create the buckets of each range that lacks them and is no longer merged (a range of at least
    half the size of a file). Return the number of these ranges.

    Every appended record must have been published. Raises ExportError and its subclasses: damaged
    files are not copied.
    """
    made = 0
    manifest = writer.manifest
    bucketing = manifest.bucketing or Bucketing(by=BY_GROUP, count=COUNT)
    if bucketing.by != BY_GROUP:
        return 0
    known = {one.base_offset for one in bucketing.segments}
    sizes = {one.base_offset: one.bytes for one in manifest.of_kind(RAW)}
    for segment in manifest.of_kind(RECORDS):
        large = (
            segment.records * 2 > writer.max_records
            or sizes.get(segment.base_offset, 0) * 2 > writer.max_bytes
        )
        if large and segment.base_offset not in known:
            new = write_buckets(writer.place, manifest, segment, bucketing.count)
            ordered = sorted((*bucketing.segments, *new), key=lambda one: one.base_offset)
            bucketing = structs.replace(bucketing, segments=tuple(ordered))
            writer.amend(bucketing=bucketing)
            made += 1
    return made


def write_buckets(
    place: Place, manifest: Manifest, segment: Segment, count: int
) -> tuple[Bucket, ...]:
    """Write the files of one range, durably and under their final names; the caller then writes the
    manifest.
    """
    check_segment(place, segment, manifest.cluster_id, manifest.generation)
    span = f"{segment.base_offset:020d}-{segment.last_offset:020d}.parquet"
    made = [_OpenBucket(place, f"{BUCKETS}/{bucket:02d}-{span}", bucket) for bucket in range(count)]
    with ExitStack() as undo:
        for one in made:
            undo.callback(one.abandon)
        with place.open(segment.file) as opened:
            source = pq.ParquetFile(opened, page_checksum_verification=True, pre_buffer=False)
            named = identity(manifest.cluster_id, manifest.generation)
            for one in made:
                one.open(source.schema_arrow, named)
            for rows in source.iter_batches(2 * ROWS, use_threads=False):
                for one, part in zip(made, rows_by_bucket(pa.table(rows), count), strict=True):
                    one.add(part)
        buckets = tuple(one.finish(place, segment) for one in made)
        undo.pop_all()
    return buckets


class _OpenBucket:
    """The unfinished file of one bucket."""

    def __init__(self, place: Place, name: str, bucket: int) -> None:
        self._name, self._bucket = name, bucket
        self._path: Path = place.temporary(name)
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._rows = self._written = 0

    def open(self, schema: pa.Schema, named: dict[bytes, bytes]) -> None:
        self._path.parent.mkdir(exist_ok=True)
        # Only the column names and types, without the other file's metadata.
        self._writer = parquet_writer(self._path, schema.remove_metadata(), named)

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        if self._rows >= ROWS:
            self._write()

    def _write(self) -> None:
        assert self._writer is not None
        self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=2 * ROWS)
        self._written += self._rows
        self._waiting, self._rows = [], 0

    def finish(self, place: Place, segment: Segment) -> Bucket:
        if self._waiting:
            self._write()
        assert self._writer is not None
        self._writer.close()
        size, sha256 = self._path.stat().st_size, files.sha256_of(self._path)
        place.put(self._path, self._name)
        return Bucket(
            **structs.asdict(segment)
            | {
                "kind": BUCKETS,
                "file": self._name,
                "records": self._written,
                "bytes": size,
                "sha256": sha256,
                "bucket": self._bucket,
            }
        )

    def abandon(self) -> None:
        """Close the file, ignoring errors; the next writer removes its remains."""
        with suppress(OSError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

"""One range of offsets in the making: its raw file and its Parquet file, written side by side under
temporary names.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from raftlog import batch
from raftlog.segments import files, manifest
from raftlog.segments.columns import SCHEMA, RowBuffer
from raftlog.segments.manifest import RAW, RECORDS, Segment
from raftlog.segments.place import Place
from raftlog.segments.raw import RawHeader, RawWriter

ROW_GROUP_RECORDS = 131_072
ROW_GROUP_BYTES = 64 << 20
"""A row group is written when it reaches either: it bounds the memory of writer and reader."""
_DICTIONARY_COLUMNS = [
    "principal",
    "type_name",
    "group_kind",
    "group_id",
    "topic_id",
    "topic_name",
    "resource_name",
    "config_name",
    "reason",
    "rack",
    "feature_name",
    "incarnation_id",
]
_CLUSTER_KEY = b"raftlog.cluster_id"
_GENERATION_KEY = b"raftlog.generation"


def raw_name(base_offset: int, last_offset: int | None = None) -> str:
    """A raw segment's path within the export; ``last_offset`` is in the names of those that were
    merged.
    """
    return (
        f"{RAW}/{base_offset:020d}.rls"
        if last_offset is None
        else f"{RAW}/{base_offset:020d}-{last_offset:020d}.rls"
    )


def records_name(base_offset: int, last_offset: int) -> str:
    """A Parquet segment's path within the export."""
    return f"{RECORDS}/{base_offset:020d}-{last_offset:020d}.parquet"


def identity(cluster_id: str, generation: int) -> dict[bytes, bytes]:
    """What a Parquet segment carries of its log."""
    return {_CLUSTER_KEY: cluster_id.encode(), _GENERATION_KEY: str(generation).encode()}


def parquet_writer(path: Path, schema: pa.Schema, named: dict[bytes, bytes]) -> pq.ParquetWriter:
    """Writes records as Parquet, with the log that they are of (``identity``)."""
    writer = pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=_DICTIONARY_COLUMNS,
        write_page_checksum=True,
        store_schema=False,
    )
    writer.add_key_value_metadata(named)
    return writer


def identity_of(file: BinaryIO) -> tuple[str, int] | None:
    """The (cluster id, generation) that a Parquet segment carries; None if it carries none."""
    metadata = pq.read_metadata(file).metadata or {}
    if _CLUSTER_KEY not in metadata or _GENERATION_KEY not in metadata:
        return None
    return metadata[_CLUSTER_KEY].decode(), int(metadata[_GENERATION_KEY])


def rows_of(file: BinaryIO) -> int:
    """How many rows a Parquet segment says it has."""
    rows: int = pq.read_metadata(file).num_rows
    return rows


class OpenPair:
    """A pair of segments that still grows. Blocking; one thread."""

    def __init__(self, place: Place, header: RawHeader, *, whole_name: bool = False) -> None:
        """``whole_name``: the raw file's name says where it ends, too: there may be another one
        that begins here.
        """
        self.base_offset = self.end_offset = header.base_offset
        self.features: dict[str, int] = {}
        """Levels of the features that records in here have set (0: removed)."""
        self.raw_bytes = 0
        self._place = place
        self._whole_name = whole_name
        self._first: batch.BatchHeader | None = None
        self._last: batch.BatchHeader | None = None
        self._times_ms = (0, 0)
        """The lowest and the highest timestamp."""
        self._batches = 0
        self._rows = RowBuffer()
        self._raw_temp = place.temporary(raw_name(header.base_offset))
        self._records_temp = place.temporary(f"{RECORDS}/{header.base_offset:020d}.parquet")
        self._raw = RawWriter(self._raw_temp, header)
        self._parquet = parquet_writer(
            self._records_temp, SCHEMA, identity(header.cluster_id, header.generation)
        )

    @property
    def records(self) -> int:
        """How many records are in it."""
        return self.end_offset - self.base_offset

    def append(self, chunk: bytes, header: batch.BatchHeader) -> None:
        """Add one verified batch of a chunk.

        Raises UnknownRecordError, CorruptLogError, OSError.
        """
        self._rows.add(chunk, header)
        self._raw.append(
            chunk[header.position : header.position + header.size],
            batches=1,
            end_offset=header.end_offset,
        )
        self.features.update(self._rows.features)
        if self._first is None:
            self._first, self._times_ms = header, (header.timestamp_ms, header.timestamp_ms)
        low_ms, high_ms = self._times_ms
        self._times_ms = min(low_ms, header.timestamp_ms), max(high_ms, header.timestamp_ms)
        self._last = header
        self._batches += 1
        self.end_offset = header.end_offset
        self.raw_bytes += header.size
        if self._rows.rows >= ROW_GROUP_RECORDS or self._rows.bytes >= ROW_GROUP_BYTES:
            self._write_rows()

    def _write_rows(self) -> None:
        self._parquet.write_table(self._rows.take(), row_group_size=ROW_GROUP_RECORDS)

    def finish(self) -> tuple[Segment, Segment]:
        """Complete both files, durably and under their names: the caller writes the manifest next.

        Not for an empty pair.
        """
        if self._rows.rows:
            self._write_rows()
        self._parquet.close()
        raw_sha256 = self._raw.finish()
        raw_file = raw_name(self.base_offset, self.end_offset - 1 if self._whole_name else None)
        raw = self._publish(RAW, self._raw_temp, raw_file, raw_sha256)
        name = records_name(self.base_offset, self.end_offset - 1)
        return raw, self._publish(
            RECORDS, self._records_temp, name, files.sha256_of(self._records_temp)
        )

    def _publish(self, kind: str, temp: Path, name: str, sha256: str) -> Segment:
        size = temp.stat().st_size
        self._place.put(temp, name)
        if self._first is None or self._last is None:
            raise ValueError("an empty pair of segments has no range")
        return manifest.Segment(
            kind=kind,
            file=name,
            base_offset=self.base_offset,
            last_offset=self.end_offset - 1,
            first_epoch=self._first.epoch,
            last_epoch=self._last.epoch,
            min_timestamp_ms=self._times_ms[0],
            max_timestamp_ms=self._times_ms[1],
            batches=self._batches,
            records=self.records,
            bytes=size,
            sha256=sha256,
        )

    def abandon(self) -> None:
        """Close and remove both files. Never an error: on a full disk closing fails, too, and what
        is left is the next writer's to remove.
        """
        for close in (self._raw.abandon, self._parquet.close):
            with suppress(OSError, pa.ArrowException):
                close()
        for temp in (self._raw_temp, self._records_temp):
            with suppress(OSError):
                temp.unlink(missing_ok=True)

"""One process of pyarrow: ``python -m benchmarks.replay.arrow_side EXPORT [STEP …]``.

It performs the same fold, in order, on one image.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.replay.steps import Step, perform
from raftlog.metadata.entities import HASH_MASK, format_hash
from raftlog.metadata.fold import ImageBuilder, apply, fold_identity
from raftlog.metadata.image import Image
from raftlog.metadata.records import parse_body
from raftlog.segments.manifest import RECORDS, read_manifest

_FOLDED = (
    "offset",
    "epoch",
    "timestamp_ms",
    "batch_last_offset",
    "client_id",
    "sequence",
    "all_below_done",
    "type",
    "version",
    "group_kind",
    "body",
)


def batches(directory: str, columns: tuple[str, ...] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows in order, with verified pages, as Spark reads them."""
    for segment in read_manifest(directory).of_kind(RECORDS):
        file = pq.ParquetFile(
            Path(directory) / segment.file, page_checksum_verification=True, pre_buffer=False
        )
        yield from file.iter_batches(columns=None if columns is None else list(columns))


def scan(directory: str) -> None:
    """Decode all columns of an export, and discard them."""
    for _ in batches(directory):
        pass


def fold(directory: str) -> str:
    """Return the state hash at the end."""
    image = ImageBuilder(Image())
    for rows in batches(directory, _FOLDED):
        columns = [rows.column(name).to_pylist() for name in _FOLDED]
        for (
            offset,
            epoch,
            timestamp_ms,
            last,
            client_id,
            sequence,
            done,
            type_,
            version,
            kind,
            body,
        ) in zip(*columns, strict=True):
            image.timestamp_ms = timestamp_ms
            if kind is not None:
                apply(image, type_, parse_body(type_, version, body), offset, epoch)
            if client_id and sequence and offset == last:
                fold_identity(image, client_id, sequence, done, offset, epoch)
    return format_hash(image.state_hash & HASH_MASK)


def main(directory: str, wanted: list[str]) -> None:
    """Run the steps ``wanted``, or all if none is named."""
    steps: dict[str, Step] = {"scan": lambda: scan(directory), "fold": lambda: fold(directory)}
    perform({name: step for name, step in steps.items() if not wanted or name in wanted})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])

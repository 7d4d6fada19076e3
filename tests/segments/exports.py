"""Exports of whole logs, and changes that a forger or a disk would make."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from log_history import LogHistory
from msgspec.structs import replace

from raftlog.segments import files
from raftlog.segments.manifest import (
    MANIFEST_NAME,
    RECORDS,
    Manifest,
    Segment,
    StateHash,
    encode,
    read_manifest,
)
from raftlog.segments.writer import ExportWriter

Target = TypeVar("Target", str, Path)


class Crash(BaseException):
    """The process has died."""


def written(
    log: LogHistory, directory: Target, *, said: Sequence[StateHash] = (), **options: Any
) -> Target:
    """Write a whole log as an export; ``options`` are those of ExportWriter."""
    with ExportWriter(directory, log.cluster_id, log.generation, **options) as writer:
        writer.append_chunk(b"".join(log.batches))
        writer.record(said)
        writer.commit(writer.next_offset)
    return directory


def publish(directory: Path, manifest: Manifest | None = None, **fields: Any) -> Manifest:
    """Write a manifest, by default the present one with other fields, with a right checksum."""
    changed = replace(manifest or read_manifest(directory), **fields)
    (directory / MANIFEST_NAME).write_bytes(encode(changed))
    return changed


def flip(path: Path, position: int | None = None) -> None:
    """Flip a bit of a file, by default in its middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if position is None else position] ^= 1
    path.write_bytes(data)


@contextmanager
def flipped(path: Path, position: float, bit: int) -> Iterator[None]:
    """Flip a bit of a file for a while. ``position``: of its byte, as a share of the file."""
    good = path.read_bytes()
    bad = bytearray(good)
    bad[int(position * len(bad))] ^= 1 << bit
    path.write_bytes(bad)
    try:
        yield
    finally:
        path.write_bytes(good)


def fit(directory: Path, segment: Segment) -> None:
    """Make the manifest match a changed file, as a defective writer or a forger would."""
    path = directory / segment.file
    fits = replace(segment, bytes=path.stat().st_size, sha256=files.sha256_of(path))
    known = read_manifest(directory).segments
    publish(directory, segments=tuple(fits if one == segment else one for one in known))


def rewrite(directory: Path, change: Callable[[pa.Table], pa.Table]) -> Segment:
    """Change the rows of the second Parquet file, and make the manifest match."""
    segment = read_manifest(directory).of_kind(RECORDS)[1]
    path = directory / segment.file
    metadata = pq.read_metadata(path).metadata
    kept = {key: value for key, value in metadata.items() if key.startswith(b"raftlog.")}
    table, schema = change(pq.read_table(path)), pq.read_schema(path)
    with pq.ParquetWriter(path, schema, store_schema=False, write_page_checksum=True) as writer:
        writer.add_key_value_metadata(kept)
        writer.write_table(table)
    fit(directory, segment)
    return segment


def flip_column(directory: Path, segment: Segment, name: str) -> None:
    """Flip a bit of the compressed data of a column's only page, well after its header."""
    group = pq.read_metadata(directory / segment.file).row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    (one,) = (each for each in columns if each.path_in_schema == name)
    flip(directory / segment.file, one.data_page_offset + one.total_compressed_size // 2)

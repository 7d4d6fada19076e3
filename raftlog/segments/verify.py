"""Check an export: every file that the manifest names is there, is whole, and belongs to this log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from raftlog import batch
from raftlog.segments import files, pair
from raftlog.segments.errors import CorruptExportError, ExportError, ExportMismatchError
from raftlog.segments.manifest import RAW, RECORDS, Manifest, Segment, read_manifest
from raftlog.segments.place import Place, open_place
from raftlog.segments.raw import read_header, read_stream


def check_segment(target: Path | str | Place, segment: Segment, cluster_id: str, generation: int) -> None:
    """Check one file against the manifest: owner, size and hash. Raises ExportMismatchError, CorruptExportError, ExportError."""
    place = open_place(target)
    try:
        with files.named_errors("read", f"{place}/{segment.file}"):
            size = place.size(segment.file)
    except ExportError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            raise _corrupt(segment, "it is missing") from error
        raise
    with files.named_errors("read", f"{place}/{segment.file}"), place.open(segment.file) as file:
        identity = _identity(file, segment)
        # Before the hash: "from another cluster" says more than "other bytes than expected".
        if identity is not None and identity != (cluster_id, generation):
            raise _foreign(segment, identity, (cluster_id, generation))
        if size != segment.bytes:
            raise _corrupt(segment, f"it has {size} bytes, and the manifest says {segment.bytes}")
        file.seek(0)
        actual = files.sha256_of_stream(file)
        if actual != segment.sha256:
            raise _corrupt(segment, f"its SHA-256 is {actual}, and the manifest says {segment.sha256}")
        # What was written may be wrong, too: a record that is there twice would be folded twice.
        if segment.kind == RECORDS and (rows := pair.rows_of(file)) != segment.records:
            raise _corrupt(segment, f"it has {rows} rows, and the manifest says {segment.records} records")


def _identity(file: BinaryIO, segment: Segment) -> tuple[str, int] | None:
    """Whose file it says to be; None if it can't tell (then the hash decides)."""
    try:
        if segment.kind == RAW:
            header = read_header(file, segment.file)
            return header.cluster_id, header.generation
        return pair.identity_of(file)
    except (CorruptExportError, pa.ArrowException, OSError, ValueError):
        return None


def _foreign(segment: Segment, found: tuple[str, int], owner: tuple[str, int]) -> ExportMismatchError:
    return ExportMismatchError(
        f"{segment.describe()} belongs to cluster {found[0]} generation {found[1]}, "
        f"and the export to cluster {owner[0]} generation {owner[1]}"
    )


def _corrupt(segment: Segment, why: str) -> CorruptExportError:
    return CorruptExportError(
        f"{segment.describe()} is corrupt: {why}",
        file=segment.file,
        base_offset=segment.base_offset,
        last_offset=segment.last_offset,
    )


def read_segment(
    target: Path | str | Place, segment: Segment, *, owner: tuple[str, int] | None = None
) -> Iterator[bytes]:
    """Each batch of a raw segment, as :func:`raftlog.segments.raw.read_stream` gives them.

    A sound file may still be the wrong one: it must have the offsets that the manifest gives it, and be of the cluster and the
    generation of ``owner``. Raises CorruptExportError, ExportMismatchError, ExportError.
    """
    place = open_place(target)
    with files.named_errors("read", f"{place}/{segment.file}"), place.open(segment.file) as file:
        size = place.size(segment.file)
        header = read_header(file, segment.file)
        if owner is not None and (header.cluster_id, header.generation) != owner:
            raise _foreign(segment, (header.cluster_id, header.generation), owner)
        if header.base_offset != segment.base_offset:
            raise _corrupt(segment, f"it begins at offset {header.base_offset}")
        file.seek(0)
        yield from read_stream(file, size, segment.file, end_offset=segment.last_offset + 1)


def verify_export(target: Path | str | Place, progress: Callable[[Segment], None] | None = None) -> Manifest:
    """Check the manifest, every file's owner, size and hash, and every batch of the raw segments (CRC32C, offsets, counts).

    ``progress`` is called after each good segment. Raises ExportError or one of its kinds, at the first fault.
    """
    place = open_place(target)
    manifest = read_manifest(place)
    for segment in manifest.segments:
        check_segment(place, segment, manifest.cluster_id, manifest.generation)
        if segment.kind == RAW:
            _check_batches(place, segment)
        if progress is not None:
            progress(segment)
    return manifest


def _check_batches(place: Place, segment: Segment) -> None:
    """The hash says that the file is what was written; this says that what was written is the log."""
    batches, offset = 0, segment.base_offset
    for data in read_segment(place, segment):
        for header in batch.headers(data, verify=False):
            if header.base_offset != offset:
                raise _corrupt(segment, f"it holds offset {header.base_offset} where {offset} is due")
            batches, offset = batches + 1, header.end_offset
    if (batches, offset) != (segment.batches, segment.last_offset + 1):
        raise _corrupt(segment, f"it holds {batches} batches up to offset {offset - 1}")

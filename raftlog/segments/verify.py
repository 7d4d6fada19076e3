"""Check an export: every file that the manifest names is there, is whole, and belongs to this
log.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from raftlog import batch
from raftlog.segments import files, pair
from raftlog.segments.checkpoints import load_checkpoint
from raftlog.segments.errors import CorruptExportError
from raftlog.segments.manifest import RAW, Manifest, Segment, read_manifest
from raftlog.segments.place import Place, open_place
from raftlog.segments.raw import read_header
from raftlog.segments.reading import corrupt, foreign, read_segment, reading


def check_segment(
    target: Path | str | Place, segment: Segment, cluster_id: str, generation: int
) -> None:
    """Check one file against the manifest: owner, size and hash.

    Raises ExportMismatchError, CorruptExportError, ExportError.
    """
    place = open_place(target)
    with reading(place, segment):
        size = place.size(segment.file)
    with reading(place, segment), place.open(segment.file) as file:
        identity = _identity(file, segment)
        # Before the hash: "from another cluster" says more than "other bytes than expected".
        if identity is not None and identity != (cluster_id, generation):
            raise foreign(segment, identity, (cluster_id, generation))
        if size != segment.bytes:
            raise corrupt(segment, f"it has {size} bytes, and the manifest says {segment.bytes}")
        file.seek(0)
        actual = files.sha256_of_stream(file)
        if actual != segment.sha256:
            raise corrupt(
                segment, f"its SHA-256 is {actual}, and the manifest says {segment.sha256}"
            )
        # What was written may be wrong, too: a record that is there twice would be folded twice.
        if segment.kind != RAW and (rows := pair.rows_of(file)) != segment.records:
            raise corrupt(
                segment, f"it has {rows} rows, and the manifest says {segment.records} records"
            )


def _identity(file: BinaryIO, segment: Segment) -> tuple[str, int] | None:
    """Whose file it says to be; None if it can't tell (then the hash decides)."""
    try:
        if segment.kind == RAW:
            header = read_header(file, segment.file)
            return header.cluster_id, header.generation
        return pair.identity_of(file)
    except (CorruptExportError, pa.ArrowException, OSError, ValueError):
        return None


def verify_export(
    target: Path | str | Place, progress: Callable[[Segment], None] | None = None
) -> Manifest:
    """Check the manifest, every file's owner, size and hash, and every batch of the raw segments
    (CRC32C, offsets, counts), and that each checkpoint is what the manifest says (which state it
    should be, only a fold knows).

    ``progress`` is called after each good segment. Raises ExportError or one of its kinds, at the
    first fault.
    """
    place = open_place(target)
    manifest = read_manifest(place)
    for segment in manifest.segments:
        check_segment(place, segment, manifest.cluster_id, manifest.generation)
        if segment.kind == RAW:
            _check_batches(place, segment)
        if progress is not None:
            progress(segment)
    for bucket in manifest.buckets:
        check_segment(place, bucket, manifest.cluster_id, manifest.generation)
    for one in manifest.checkpoints:
        load_checkpoint(place, manifest.owner, one)
    return manifest


def _check_batches(place: Place, segment: Segment) -> None:
    """The hash says that the file is what was written; this says that what was written is the
    log.
    """
    batches, offset = 0, segment.base_offset
    for data in read_segment(place, segment):
        for header in batch.headers(data, verify=False):
            if header.base_offset != offset:
                raise corrupt(
                    segment, f"it holds offset {header.base_offset} where {offset} is due"
                )
            batches, offset = batches + 1, header.end_offset
    if (batches, offset) != (segment.batches, segment.last_offset + 1):
        raise corrupt(segment, f"it holds {batches} batches up to offset {offset - 1}")

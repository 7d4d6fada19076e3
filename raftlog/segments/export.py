"""Bring an export up to the high watermark of a log, from wherever its chunks come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raftlog.segments.errors import ExportError, ExportGapError
from raftlog.segments.writer import ExportWriter

READ_BYTES = 1 << 20


class ChunkSource(Protocol):
    """A log to export: a running node as seen by an observer, or a data directory at rest. Only committed offsets."""

    @property
    def cluster_id(self) -> str:
        """Of the log."""

    @property
    def generation(self) -> int:
        """Of the log."""

    @property
    def start_offset(self) -> int:
        """The first offset the source still has."""

    @property
    def high_watermark(self) -> int:
        """Exclusive. May grow while the export runs; it is read once, at the start."""

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that begins at ``offset``: at least one, then as many as fit; none above the high watermark."""


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What an export did. Offsets: first inclusive, end exclusive; equal if there was nothing new."""

    directory: Path
    cluster_id: str
    generation: int
    first_offset: int
    end_offset: int
    history_begin: int
    batches: int
    files: int
    bytes: int

    @property
    def records(self) -> int:
        """How many records are new in the export."""
        return self.end_offset - self.first_offset


Progress = Callable[[int, int], None]
"""Called with (records exported so far, records to export)."""


def export(source: ChunkSource, directory: Path | str, progress: Progress | None = None) -> ExportSummary:
    """Export what is new in ``source`` since the manifest. Memory is bounded; an export that was broken off goes on.

    Raises ExportGapError if the log no longer holds what comes next, ExportMismatchError for another cluster or generation,
    CorruptLogError naming the offset, ExportError if the directory can't be used.
    """
    high_watermark = source.high_watermark
    with ExportWriter(directory, source.cluster_id, source.generation, start_offset=source.start_offset) as writer:
        before = writer.manifest
        first = writer.next_offset
        if source.start_offset > first:
            raise ExportGapError(
                f"a gap: the export in {directory} ends before offset {first}, and the log begins at offset {source.start_offset}:"
                " it was dropped before that, after a snapshot. Begin another export in an empty directory"
            )
        while writer.next_offset < high_watermark:
            offset = writer.next_offset
            chunk = source.read(offset, READ_BYTES)
            if not chunk:
                raise ExportError(f"the log gave nothing at offset {offset}, below its high watermark {high_watermark}")
            writer.append_chunk(chunk)
            if progress is not None:
                progress(writer.next_offset - first, max(high_watermark, writer.next_offset) - first)
        manifest = writer.commit(max(high_watermark, writer.next_offset))
    new = manifest.segments[len(before.segments) :]
    return ExportSummary(
        directory=Path(directory),
        cluster_id=manifest.cluster_id,
        generation=manifest.generation,
        first_offset=first,
        end_offset=manifest.end_offset,
        history_begin=manifest.history_begin,
        batches=sum(segment.batches for segment in new) // 2,
        files=len(new),
        bytes=sum(segment.bytes for segment in new),
    )

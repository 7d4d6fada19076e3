"""Bring an export up to the high watermark of a log, from wherever its chunks come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raftlog import batch
from raftlog.segments.checkpointing import CHECKPOINT_RECORDS
from raftlog.segments.errors import ExportError, ExportGapError
from raftlog.segments.manifest import ManifestSigner, StateHash
from raftlog.segments.place import Place, open_place
from raftlog.segments.writer import ExportWriter, Published

READ_BYTES = 1 << 20


class ChunkSource(Protocol):
    """A log to export: a running node as seen by an observer, or a data directory at rest.

    Only committed offsets.
    """

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
        """Whole batches from the one that begins at ``offset``: at least one, then as many as fit;
        none above the high watermark.
        """


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What an export did.

    Offsets: first inclusive, end exclusive; equal if there was nothing new. ``not_folded``: why
    there are no more checkpoints; empty: there are.
    """

    cluster_id: str
    generation: int
    first_offset: int
    end_offset: int
    history_begin: int
    batches: int
    files: int
    bytes: int
    checkpoints: int
    not_folded: str

    @property
    def records(self) -> int:
        """How many records are new in the export."""
        return self.end_offset - self.first_offset


Progress = Callable[[int, int], None]
"""Called with (records exported so far, records to export)."""


StateHashSource = Callable[[], Sequence[StateHash]]
"""Asks the nodes what state they have, as far as they answer.

The offsets may lie beyond what was exported.
"""


def export(
    source: ChunkSource,
    target: Path | str | Place,
    progress: Progress | None = None,
    *,
    state_hashes: StateHashSource | None = None,
    published: Published | None = None,
    signer: ManifestSigner | None = None,
    checkpoint_records: int = CHECKPOINT_RECORDS,
) -> ExportSummary:
    """Export what is new in ``source`` since the manifest.

    Memory is bounded; an export that was broken off goes on.

    ``target``: a directory or a URI. ``published`` is called after each publish of the manifest.
    ``checkpoint_records``: see ExportWriter.
    Raises ExportGapError if the log no longer holds what comes next, ExportMismatchError for
    another cluster or generation, CorruptLogError naming the offset, ExportError if the target
    can't be used.
    """
    place = open_place(target)
    high_watermark = source.high_watermark
    with ExportWriter(
        place,
        source.cluster_id,
        source.generation,
        start_offset=source.start_offset,
        published=published,
        signer=signer,
        checkpoint_records=checkpoint_records,
    ) as writer:
        require_no_gap(source, writer, place)
        writer.make_checkpoints()
        first = writer.next_offset
        while writer.next_offset < high_watermark:
            writer.append_chunk(_next_chunk(source, writer.next_offset))
            if progress is not None:
                progress(
                    writer.next_offset - first, max(high_watermark, writer.next_offset) - first
                )
        publish(source, writer, state_hashes)
        return summary_of(first, writer)


def require_no_gap(source: ChunkSource, writer: ExportWriter, place: Place) -> None:
    """The log must still hold what comes next. Raises ExportGapError."""
    if source.start_offset > writer.next_offset:
        raise ExportGapError(
            f"a gap: the export in {place} ends before offset {writer.next_offset}, and the log"
            f" begins at offset {source.start_offset}: it was dropped before that, after a"
            " snapshot. Begin another export in an empty directory"
        )


def publish(
    source: ChunkSource, writer: ExportWriter, state_hashes: StateHashSource | None
) -> None:
    """Publish what was appended, up to an offset at which a node has said its state, if one can be
    had: then the end can be checked.
    """
    if state_hashes is not None:
        said = state_hashes()
        writer.record(said)
        until = max((one.offset + 1 for one in said), default=0)
        while writer.next_offset < until:
            chunk = _up_to(source.read(writer.next_offset, READ_BYTES), until)
            if not chunk:
                break
            writer.append_chunk(chunk)
    writer.commit(max(source.high_watermark, writer.next_offset))


def _next_chunk(source: ChunkSource, offset: int) -> bytes:
    chunk = source.read(offset, READ_BYTES)
    if not chunk:
        raise ExportError(
            f"the log gave nothing at offset {offset}, below its high watermark"
            f" {source.high_watermark}"
        )
    return chunk


def _up_to(chunk: bytes, until: int) -> bytes:
    """The batches that end at or before ``until`` (exclusive)."""
    for header in batch.headers(chunk, verify=False):
        if header.end_offset > until:
            return chunk[: header.position]
    return chunk


def summary_of(first_offset: int, writer: ExportWriter) -> ExportSummary:
    """What a writer has added to an export that ended before ``first_offset``."""
    manifest, added = writer.manifest, writer.added
    return ExportSummary(
        cluster_id=manifest.cluster_id,
        generation=manifest.generation,
        first_offset=first_offset,
        end_offset=manifest.end_offset,
        history_begin=manifest.history_begin,
        batches=added.batches,
        files=added.files,
        bytes=added.bytes,
        checkpoints=added.checkpoints,
        not_folded=writer.not_folded,
    )

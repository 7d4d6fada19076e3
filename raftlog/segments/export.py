"""Export of a log up to its high watermark, once or until stopped, from any source of chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raftlog import batch
from raftlog.errors import ApiError, CorruptLogError, ErrorCode
from raftlog.segments.buckets import add_buckets
from raftlog.segments.checkpoints import CHECKPOINT_RECORDS
from raftlog.segments.compact import compact
from raftlog.segments.errors import ExportError, ExportGapError, ExportMismatchError
from raftlog.segments.files import Place, open_place
from raftlog.segments.manifest import ManifestSigner, StateHash
from raftlog.segments.writer import (
    MAX_SEGMENT_BYTES,
    MAX_SEGMENT_RECORDS,
    Beginning,
    ExportWriter,
    Published,
)

READ_BYTES = 1 << 20


class ChunkSource(Protocol):
    """A source of committed records to export: the log of a running cluster, or the data directory
    of a stopped node.
    """

    @property
    def cluster_id(self) -> str:
        """Cluster id of the log."""

    @property
    def generation(self) -> int:
        """Generation of the log."""

    @property
    def connections(self) -> int:
        """Number of connections made to the cluster so far; 0 for a data directory, whose log may
        end before the cluster's does.
        """

    @property
    def start_offset(self) -> int:
        """First offset of the source."""

    @property
    def high_watermark(self) -> int:
        """High watermark, exclusive. It may grow during the export; it is read once, at the
        start.
        """

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches from ``offset``, where one must begin: at least one, then as many as
        fit; none above the high watermark.
        """


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """Result of an export.

    The first offset is inclusive, the end exclusive; they are equal if nothing was new.
    ``not_folded``: why no more checkpoints are made, or empty while they are made.
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
        """Number of records added to the export."""
        return self.end_offset - self.first_offset


Progress = Callable[[int, int], None]
"""Called with (records exported so far, records to export)."""


StateHashSource = Callable[[], Sequence[StateHash]]
"""Function that requests the nodes' state hashes; it returns those of the nodes that answer. Their
offsets may lie beyond the export.
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
    beginning: Beginning | None = None,
) -> ExportSummary:
    """Export the records of ``source`` that are not in the manifest yet.

    Memory is bounded; an interrupted export continues at the next call. ``target``: a directory or
    a URI. ``published`` is called after each publish of the manifest. ``checkpoint_records``,
    ``beginning``: see ExportWriter. Raises ExportGapError if the log no longer has the next offset,
    ExportMismatchError for another cluster, generation or log, CorruptLogError naming the offset,
    ExportError if the target cannot be used.
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
        beginning=beginning,
    ) as writer:
        seam = Seam(source, writer, place)
        seam.require_same_log()
        writer.make_checkpoints()
        first = writer.next_offset
        while writer.next_offset < high_watermark:
            seam.append(_next_chunk(source, writer.next_offset))
            if progress is not None:
                progress(
                    writer.next_offset - first, max(high_watermark, writer.next_offset) - first
                )
        publish(source, writer, seam, state_hashes)
        return summary_of(first, writer)


class Seam:
    """The boundary between an export and its source: both must belong to the same log.

    Two logs of one generation can differ after a node's directory was restored from an older copy.
    So the export's last batch is compared with the source's, at the start and after each new
    connection. (A log can be replaced only while its process is stopped.)
    """

    def __init__(self, source: ChunkSource, writer: ExportWriter, place: Place) -> None:
        self._source, self._writer, self._place = source, writer, place
        self._compared_at = -1
        """Number of connections at the last comparison."""

    def append(self, chunk: bytes) -> None:
        """Append a chunk of the source, if it belongs to the same log. Raises like ``export``."""
        self.require_same_log()
        self._writer.append_chunk(chunk)

    def require_same_log(self) -> None:
        """Raise ExportGapError or ExportMismatchError unless the source continues the export."""
        source = self._source
        if source.connections != self._compared_at:
            self._compare(self._writer.next_offset)
            self._compared_at = source.connections

    def _compare(self, end_offset: int) -> None:
        source, last = self._source, self._writer.last_batch()
        if source.start_offset > end_offset:
            raise ExportGapError(
                f"gap: the export in {self._place} ends before offset {end_offset}, but the log now"
                f" starts at {source.start_offset}; the records in between were deleted before they"
                " were exported. Start a new export in an empty directory"
            )
        if last is None or (source.high_watermark < end_offset and not source.connections):
            return
        (header,) = batch.headers(last, verify=False)
        if source.start_offset > header.base_offset:
            return
        there, why = b"", "ends before it"
        try:
            if source.high_watermark >= end_offset:
                there = source.read(header.base_offset, len(last))
        except (ValueError, CorruptLogError) as error:
            why = f"has no batch that begins there ({error})"
        except ApiError as error:
            if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            why = f"has no batch that begins there ({error})"
        if there.startswith(last):
            return
        for other in batch.headers(there, verify=False):
            why = f"has another batch there, of epoch {other.epoch}"
            break
        raise ExportMismatchError(
            f"{self._place} ends with a batch at offset {header.base_offset}, of epoch"
            f" {header.epoch}, but the log {why}: it is not the log that was exported. Was a node's"
            " directory replaced by an older copy? Keep this export, and start a new one in an"
            " empty directory"
        )

    def require_log_hash(self, said: Sequence[StateHash]) -> None:
        """Raise ExportMismatchError if nodes report log hashes at the end of the export, and none
        equals the export's.
        """
        known = self._writer.log_hash
        named = [one for one in said if one.offset + 1 == known.end_offset and one.log_hash]
        ours = (known.begin_offset, known.digest.hex())
        if not (named and known.is_known) or any(
            (one.log_hash_begin_offset, one.log_hash) == ours for one in named
        ):
            return
        raise ExportMismatchError(
            f"up to offset {known.end_offset - 1} the log hash of {self._place} is {ours[1]}, but"
            f" {named[0].describe()} has {named[0].log_hash}: the log is not the one that was"
            " exported. Keep this export, and start a new one in an empty directory"
        )


def publish(
    source: ChunkSource,
    writer: ExportWriter,
    seam: Seam,
    state_hashes: StateHashSource | None,
) -> None:
    """Publish the appended records, extended if possible to an offset at which a node reported its
    state, so that the end can be verified.
    """
    if state_hashes is not None:
        said = state_hashes()
        writer.record(said)
        until = max((one.offset + 1 for one in said), default=0)
        while writer.next_offset < until:
            chunk = _up_to(source.read(writer.next_offset, READ_BYTES), until)
            if not chunk:
                break
            seam.append(chunk)
        seam.require_log_hash(said)
    writer.commit(max(source.high_watermark, writer.next_offset))


def _next_chunk(source: ChunkSource, offset: int) -> bytes:
    chunk = source.read(offset, READ_BYTES)
    if not chunk:
        raise ExportError(
            f"the log returned no records at offset {offset}, below its high watermark"
            f" {source.high_watermark}"
        )
    return chunk


def _up_to(chunk: bytes, until: int) -> bytes:
    """Return the batches that end at or before ``until`` (exclusive)."""
    for header in batch.headers(chunk, verify=False):
        if header.end_offset > until:
            return chunk[: header.position]
    return chunk


def summary_of(first_offset: int, writer: ExportWriter) -> ExportSummary:
    """Return what a writer has added to an export that ended before ``first_offset``."""
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


PUBLISH_INTERVAL_S = 30.0
POLL_S = 0.5
"""Longest wait of one poll for new records, in seconds, and so the longest delay of a stop."""
_PASSING = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Temporary errors: an election or an outage of the cluster."""


class GrowingSource(ChunkSource, Protocol):
    """A source whose log is still being written."""

    def poll(self, offset: int, max_bytes: int, wait_s: float) -> bytes:
        """Read like ``read``, but also at the log's end. Return empty bytes if nothing new arrives
        in time. Raises ApiError.
        """


@dataclass(frozen=True, slots=True)
class PublishPolicy:
    """When to publish: ``interval_s`` after the first unpublished record, or when a segment reaches
    either size limit.

    ``compact_at``: number of small ranges that are merged into one; 0 to never merge.
    ``checkpoint_records``: see ExportWriter.
    """

    interval_s: float = PUBLISH_INTERVAL_S
    max_records: int = MAX_SEGMENT_RECORDS
    max_bytes: int = MAX_SEGMENT_BYTES
    compact_at: int = 0
    checkpoint_records: int = CHECKPOINT_RECORDS


def follow(
    source: GrowingSource,
    target: Path | str | Place,
    policy: PublishPolicy,
    *,
    stop: Callable[[], bool],
    state_hashes: StateHashSource | None = None,
    published: Published | None = None,
    waiting: Callable[[str], None] | None = None,
    signer: ManifestSigner | None = None,
    beginning: Beginning | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ExportSummary:
    """Export new records as they arrive, until ``stop()`` returns True; then publish the rest, and
    return.

    Without a leader it waits: ``waiting`` is called with the reason, and with an empty string when
    the export continues. Raises like :func:`raftlog.segments.export.export`, and ApiError for a
    permanent refusal (another cluster, generation or log).
    """
    place = open_place(target)
    with ExportWriter(
        place,
        source.cluster_id,
        source.generation,
        start_offset=source.start_offset,
        max_segment_records=policy.max_records,
        max_segment_bytes=policy.max_bytes,
        checkpoint_records=policy.checkpoint_records,
        beginning=beginning,
        published=published,
        signer=signer,
    ) as writer:
        seam = Seam(source, writer, place)
        seam.require_same_log()
        writer.make_checkpoints()
        first, due, told = writer.next_offset, None, ""
        while not stop():
            try:
                chunk = source.poll(writer.next_offset, READ_BYTES, POLL_S)
                seam.require_same_log()
                why = ""
            except ApiError as error:
                if error.code not in _PASSING:
                    raise
                chunk, why = b"", str(error)
            if waiting is not None and why != told:
                waiting(why)
            told = why
            if chunk:
                writer.append_chunk(chunk)
            if not writer.unpublished:
                due = None
            elif due is None:
                due = clock() + policy.interval_s
            elif clock() >= due:
                publish(source, writer, seam, state_hashes)
                due = None
                if policy.compact_at:
                    compact(writer, at_least=policy.compact_at)
                    add_buckets(writer)
        publish(source, writer, seam, state_hashes)
        return summary_of(first, writer)

"""Keep an export up to date with a log that grows, until told to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from raftlog.errors import ApiError, ErrorCode
from raftlog.segments.buckets import add_buckets
from raftlog.segments.checkpointing import CHECKPOINT_RECORDS
from raftlog.segments.compact import compact
from raftlog.segments.export import (
    READ_BYTES,
    ChunkSource,
    ExportSummary,
    Seam,
    StateHashSource,
    publish,
    summary_of,
)
from raftlog.segments.manifest import ManifestSigner
from raftlog.segments.place import Place, open_place
from raftlog.segments.writer import MAX_SEGMENT_BYTES, MAX_SEGMENT_RECORDS, ExportWriter, Published

PUBLISH_INTERVAL_S = 30.0
POLL_S = 0.5
"""So long one poll waits for something new: also how long a stop may take."""
_PASSING = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""What an election, or an outage of the cluster, looks like: it passes."""


class GrowingSource(ChunkSource, Protocol):
    """A log that is being written."""

    def poll(self, offset: int, max_bytes: int, wait_s: float) -> bytes:
        """As ``read``, at the log's end, too: empty if nothing new comes in time.

        Raises ApiError.
        """


@dataclass(frozen=True, slots=True)
class PublishPolicy:
    """When what was read is published: ``interval_s`` after the first record that is not, or at
    either bound of a segment's size.

    ``compact_at``: so many small ranges are merged into one; 0: never. ``checkpoint_records``: see
    ExportWriter.
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
    clock: Callable[[], float] = time.monotonic,
) -> ExportSummary:
    """Export what is new as it comes, until ``stop()``; then publish what was read, and return.

    A cluster without a leader is waited for: ``waiting`` is told why, and the empty string when it
    goes on. Raises as :func:`raftlog.segments.export.export` does, and ApiError for what does not
    pass (another cluster, generation or log).
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

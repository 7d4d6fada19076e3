"""Retention: which snapshot a node deletes next, together with the log below the following one, and
which readers prevent that.

Each node truncates its own log by size and by age. It keeps records that an export has yet to read:
its log start does not move past any export cursor in the image that is committed here. A cursor
that has stopped moving must not fill the disk: above ``metadata.export.cursor.max.bytes`` the log
start passes it anyway, and the node logs that. A cursor that was passed no longer holds anything
back, as the next records of its export are already deleted here.

A snapshot, with the log above it, is kept while it is being fetched: the broker or node that starts
from it needs both. Otherwise a snapshot that takes longer to fetch than the interval between
snapshots could never be fetched completely, and a node that needs one could never start. The same
bound in bytes applies, and nothing is kept for fetches on a disk below its reserve.

Why: docs/decisions/007-snapshots.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import structlog

from controller.settings import ControllerSettings
from raftlog.metadata.entities import ExportCursor
from raftlog.node.storage.api import SnapshotId

log = structlog.get_logger(__name__)


class Held(NamedTuple):
    """A stored snapshot, and the log time at its end in milliseconds."""

    snapshot_id: SnapshotId
    last_timestamp_ms: int


class Verdict(NamedTuple):
    """The decision of retention.

    ``start``: the snapshot to truncate the log up to (None to delete nothing). ``held_by``: export
    cursors that block a deletion that is otherwise due. ``passed``: cursors already below
    ``start``.
    """

    start: SnapshotId | None
    held_by: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()


NOTHING = Verdict(None)


def next_start(
    held: Sequence[Held],
    log_start_offset: int,
    used_bytes: Callable[[], int],
    now_ms: int,
    settings: ControllerSettings,
) -> SnapshotId | None:
    """Return the snapshot to truncate the log up to, by size and age alone, or None to delete
    nothing.

    Older snapshots are then deleted with the log below it. ``held``: ascending. ``now_ms``: quorum
    time, not this node's clock, which could be years ahead and so delete all history. The newest
    snapshot always stays.
    """
    if len(held) < 2:
        return None
    if held[0].snapshot_id.end_offset < log_start_offset:
        # The oldest snapshot is useless: the log after it is gone, as another snapshot was
        # installed.
        return next(
            one.snapshot_id for one in held if one.snapshot_id.end_offset >= log_start_offset
        )
    # Records before a batch are not younger than the batch, whatever their own timestamps [log time
    # was years ahead and was set back: the records in between would stay for years].
    youngest_ms = min(one.last_timestamp_ms for one in held)
    too_old = now_ms - youngest_ms > settings.metadata_max_retention_ms
    if too_old or used_bytes() > settings.metadata_max_retention_bytes:
        return held[1].snapshot_id
    return None


def judge(
    start: SnapshotId,
    log_start_offset: int,
    cursors: Sequence[ExportCursor],
    used_bytes: Callable[[], int],
    settings: ControllerSettings,
) -> Verdict:
    """Decide whether the log may be truncated up to ``start``, as ``next_start`` proposes, given
    the exports' cursors.
    """
    needy = tuple(
        one.name for one in cursors if log_start_offset <= one.end_offset < start.end_offset
    )
    if needy and used_bytes() <= settings.metadata_export_cursor_max_bytes:
        return Verdict(None, held_by=needy)
    return Verdict(start, passed=needy)


def highest_start(
    starts: Sequence[SnapshotId], log_start_offset: int, fetched: Iterable[SnapshotId]
) -> SnapshotId | None:
    """Return the highest of ``starts`` (ascending) below which no snapshot fetch needs any data, or
    None.
    """
    needed = min(
        (one.end_offset for one in fetched if one.end_offset >= log_start_offset), default=None
    )
    free = [one for one in starts if needed is None or one.end_offset <= needed]
    return free[-1] if free else None


class Retention:
    """Applies one node's retention policies in order, and keeps their results for logs and
    metrics.
    """

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self.held_by: tuple[str, ...] = ()
        """Export cursors that block a deletion on this node."""
        self.passed = 0
        """Number of times that the log start has passed an export cursor in this process."""
        self._enough = 0
        """Number of snapshots at the time when the oldest was first kept because of a fetch; 0
        while none is kept for that reason.
        """

    def decide(
        self,
        held: Sequence[Held],
        log_start_offset: int,
        used_bytes: Callable[[], int],
        now_ms: int,
        cursors: Callable[[], Sequence[ExportCursor]],
        fetched: Callable[[], Iterable[SnapshotId]] = tuple,
    ) -> Verdict:
        """Return the decision for now.

        ``cursors`` and ``fetched``, the snapshots being fetched, are called only if a deletion is
        due.
        """
        start = next_start(held, log_start_offset, used_bytes, now_ms, self._settings)
        used = used_bytes() if start is not None else 0
        if start is None or used > self._settings.metadata_export_cursor_max_bytes:
            # Snapshots are no longer kept for fetches.
            self._enough = 0
        else:
            kept = used > self._settings.metadata_max_retention_bytes
            start = self._unless_fetched(held, start, log_start_offset, fetched(), all_kept=kept)
            if start is None:
                return NOTHING
        verdict = NOTHING
        if start is not None:
            verdict = judge(start, log_start_offset, cursors(), used_bytes, self._settings)
        if verdict.held_by != self.held_by:
            self.held_by = verdict.held_by
            if verdict.held_by:
                log.warning(
                    "export cursors hold the log back",
                    cursors=list(verdict.held_by),
                    log_start_offset=log_start_offset,
                    used_bytes=used_bytes(),
                    max_bytes=self._settings.metadata_export_cursor_max_bytes,
                )
        return verdict

    def _unless_fetched(
        self,
        held: Sequence[Held],
        start: SnapshotId,
        log_start_offset: int,
        fetched: Iterable[SnapshotId],
        *,
        all_kept: bool,
    ) -> SnapshotId | None:
        """Return the snapshot up to which the log may be truncated without harm to snapshot
        fetches, or None.

        ``all_kept``: also consider the snapshots that were kept for earlier fetches.
        """
        ids = [one.snapshot_id for one in held]
        first = ids.index(start)
        more = max(0, len(held) - self._enough) if self._enough and all_kept else 0
        found = highest_start(ids[first : first + more + 1], log_start_offset, fetched)
        if found is None:
            self._enough = self._enough or len(held)
        elif found == ids[first + more]:
            self._enough = 0
        return found

    def advanced(self, verdict: Verdict) -> None:
        """Record that the log now begins at the verdict's start."""
        if verdict.passed:
            assert verdict.start is not None
            self.passed += len(verdict.passed)
            log.error(
                "the log was truncated beyond export cursors: these exports cannot continue from"
                " this node",
                cursors=list(verdict.passed),
                log_start_offset=verdict.start.end_offset,
                max_bytes=self._settings.metadata_export_cursor_max_bytes,
            )

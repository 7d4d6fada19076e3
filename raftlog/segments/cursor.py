"""The cursor of an export in the exported cluster, which keeps nodes from dropping unread records.

The cursor is set before the first record is read, and moved after each publish, when the records
below it are in the manifest. Each move writes a record to the exported log itself, so records about
the progress of exports and brokers alone do not move it; otherwise two exports would keep each
other busy forever on an idle cluster. It is moved at least once an hour, which distinguishes a live
export from an abandoned one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from raftlog import batch
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.metadata.records import RecordType
from raftlog.segments.manifest import Manifest

BOOKKEEPING = frozenset({RecordType.EXPORT_CURSOR, RecordType.PROGRESS, RecordType.NO_OP})
"""Record types that follow from other records and so do not move the cursor."""
LAG_MAX_RECORDS = 1000
"""Minimum lag, in records, at which the cursor is always moved."""
STALE_S = 3600.0
INTERVAL_S = 10.0
"""Shortest time between two moves of a cursor by one process, in seconds, as otherwise every
publish would add a record.
"""
_REFUSALS = frozenset(
    {ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST}
)


class Cursor(NamedTuple):
    """A cursor in the cluster. ``end_offset`` is exclusive; ``timestamp_ms`` is the time of its
    last move.
    """

    end_offset: int
    target: str
    timestamp_ms: int


class Cursors(Protocol):
    """The export cursors of a cluster. Both methods raise ApiError."""

    def get(self, name: str) -> Cursor | None:
        """Return the cursor with this name, or None."""

    def put(self, name: str, end_offset: int, target: str) -> None:
        """Set a cursor, durably."""


class CursorKeeper:
    """The cursor ``name`` of the export at ``target``.

    ``failed`` is called with the reason for a temporary failure to move the cursor; the export
    continues, but the nodes then keep more of the log than it needs.
    """

    def __init__(
        self,
        cursors: Cursors,
        name: str,
        target: str,
        *,
        failed: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cursors, self._name, self._target = cursors, name, target
        self._failed = failed
        self._clock = clock
        self._end_offset = -1
        self._moved_at = 0.0
        self._tried_at = float("-inf")
        self._news_end = self._published_end = 0

    def begin(self, next_offset: int) -> None:
        """Keep the log from the next offset to be read.

        Raises ApiError, and ConfigError if the cursor belongs to another export.
        """
        found = self._cursors.get(self._name)
        self._published_end = next_offset
        if found is not None and found.target not in ("", self._target):
            raise ConfigError(
                f"the cursor {self._name} belongs to the export {found.target}, not to"
                f" {self._target}: choose another name, or, if that export no longer exists, delete"
                f" the cursor (`raftlog cluster cursors delete {self._name}`)"
            )
        if found is not None and found.end_offset <= next_offset:
            self._end_offset, self._moved_at = found.end_offset, found.timestamp_ms / 1000
        else:
            # This may move the cursor back, if this export was started over: it has yet to read
            # what the previous one had read.
            self._cursors.put(self._name, next_offset, self._target)
            self._end_offset, self._moved_at = next_offset, self._clock()

    def hear(self, chunk: bytes) -> None:
        """Record whether a chunk contains a record that should move the cursor."""
        news, end = False, 0
        for header in batch.headers(chunk, verify=False):
            end = header.end_offset
            news = news or any(
                type_ not in BOOKKEEPING for type_, _, _ in batch.bodies(chunk, header)
            )
        if news:
            # The same batch may be read again.
            self._news_end = max(self._news_end, end)

    def published(self, manifest: Manifest) -> None:
        """Move the cursor to the manifest's end.

        Raises ApiError for a permanent refusal, for example because another export owns the cursor.
        """
        self._published_end = manifest.end_offset
        if self._clock() - self._tried_at >= INTERVAL_S:
            self._move()

    def finish(self) -> None:
        """Move the cursor for the last time. Raises like ``published``."""
        self._move()

    def _move(self) -> None:
        end_offset, now = self._published_end, self._clock()
        behind = end_offset - self._end_offset
        news = self._news_end > self._end_offset
        if behind <= 0 or not (
            news or behind >= LAG_MAX_RECORDS or now - self._moved_at >= STALE_S
        ):
            return
        self._tried_at = now
        try:
            self._cursors.put(self._name, end_offset, self._target)
        except ApiError as error:
            if error.code in _REFUSALS:
                raise
            self._failed(f"the cursor {self._name} stays at offset {self._end_offset}: {error}")
            return
        self._end_offset, self._moved_at = end_offset, now

"""Keeps an export's cursor in the cluster where the export is, so that nodes do not drop what it
has yet to read.

The cursor is set before the first record is read, and moved behind each publish: what it lies above
is whole and named by the manifest. Moving it is a record in the very log that is exported. So
records that only say how far exports and brokers have come are no reason to move it; else two
exports would keep each other busy on an idle cluster for ever. It is moved once an hour all the
same, by which one tells an export that lives from one that was forgotten.
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
"""Records that follow from others: of themselves nothing new has happened."""
LAG_MAX_RECORDS = 1000
"""Behind the export by so much the cursor is moved whatever the records say."""
STALE_S = 3600.0
INTERVAL_S = 10.0
"""The least time between two moves of a cursor by one process: with less of it, every publish would
be a record.
"""
_REFUSALS = frozenset(
    {ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REQUEST}
)
"""What does not pass by itself."""


class Cursor(NamedTuple):
    """As the cluster has it.

    ``end_offset``: exclusive; ``timestamp_ms``: when it was moved last.
    """

    end_offset: int
    target: str
    timestamp_ms: int


class Cursors(Protocol):
    """The cluster's export cursors. Both raise ApiError."""

    def get(self, name: str) -> Cursor | None:
        """The cursor of that name."""

    def put(self, name: str, end_offset: int, target: str) -> None:
        """Set it, durably."""


class CursorKeeper:
    """The cursor ``name`` of the export at ``target``.

    ``failed`` is told why the cursor could not be moved, when that may pass: the export goes on,
    and keeps more of the log than it needs.
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
        """Hold the log from what is read next on.

        Raises ApiError; ConfigError for a cursor that is another export's.
        """
        found = self._cursors.get(self._name)
        self._published_end = next_offset
        if found is not None and found.target not in ("", self._target):
            raise ConfigError(
                f"the cursor {self._name} is that of the export {found.target}, not of"
                f" {self._target}: take another name, or remove it (`raftlog cluster cursors delete"
                f" {self._name}`) if that export is no more"
            )
        if found is not None and found.end_offset <= next_offset:
            self._end_offset, self._moved_at = found.end_offset, found.timestamp_ms / 1000
        else:
            # Back, if this export was begun anew: it has yet to read what the one before had.
            self._cursors.put(self._name, next_offset, self._target)
            self._end_offset, self._moved_at = next_offset, self._clock()

    def hear(self, chunk: bytes) -> None:
        """What is read: whether anything has happened that the cursor is to be moved for."""
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
        """The export reaches to the manifest's end now.

        Raises ApiError for what does not pass: somebody else has the cursor.
        """
        self._published_end = manifest.end_offset
        if self._clock() - self._tried_at >= INTERVAL_S:
            self._move()

    def finish(self) -> None:
        """Nothing more will be published. Raises as ``published`` does."""
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

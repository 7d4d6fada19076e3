"""Group commit: which flushes wait, how far the log is durable, and whether the store is broken.

No I/O.

One sync runs at a time; it covers the log end as it was when it began, lowered by every truncation
since: what was appended behind a truncation is not covered, although its offsets may be. Flushes
asked for meanwhile share the next sync.

Why: docs/decisions/006-vote-outside-the-log.md
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.errors import FatalError, StorageError

FlushDone = Callable[[int | StorageError], None]


class GroupCommit:
    """``start_sync(inline)`` begins a sync and answers, now or later, with ``sync_finished``."""

    def __init__(self, start_sync: Callable[[bool], None]) -> None:
        self._start_sync = start_sync
        self.end_offset = 0
        self.durable_end_offset = 0
        self.failure: FatalError | None = None
        self._covered_end_offset = 0
        self._syncing: list[FlushDone] = []
        self._waiting: list[FlushDone] = []
        self._reporting = False

    def recovered(self, end_offset: int) -> None:
        """The log ends here, all of it durable."""
        self.end_offset = self.durable_end_offset = end_offset

    def truncated(self, end_offset: int) -> None:
        """The log ends here now, and so does everything known or about to be known as durable."""
        self.end_offset = end_offset
        self.durable_end_offset = min(self.durable_end_offset, end_offset)
        self._covered_end_offset = min(self._covered_end_offset, end_offset)

    def flush(self, done: FlushDone, *, inline: bool) -> None:
        """Call ``done`` once, after all asked for before it, when what is in the log now is
        durable, or the store broken.
        """
        self._waiting.append(done)
        if not self._syncing:
            # Never inline from within a report: this done would overtake those not yet called.
            self._sync(inline=inline and not self._reporting)

    def fail(self, error: FatalError) -> FatalError:
        """Break the store. Returns the first error: it is what every later call raises."""
        if self.failure is None:
            self.failure = error
        return self.failure

    def outcome(self) -> StorageError | None:
        """What to tell a callback: the failure, as a StorageError."""
        if self.failure is None or isinstance(self.failure, StorageError):
            return self.failure
        return StorageError(str(self.failure))

    def sync_finished(self, error: FatalError | None) -> None:
        """The sync that was started has ended."""
        if error is not None:
            self.fail(error)
        dones, self._syncing = self._syncing, []
        if self.failure is not None:
            dones, self._waiting = dones + self._waiting, []
        else:
            self.durable_end_offset = self._covered_end_offset
            if self._waiting:
                self._sync(inline=False)
        self._reporting = True
        try:
            for done in dones:
                # Looked at anew each time: the one before may have truncated, or met an error.
                done(self.outcome() or self.durable_end_offset)
        finally:
            self._reporting = False

    def _sync(self, *, inline: bool) -> None:
        self._syncing, self._waiting = self._waiting, []
        self._covered_end_offset = self.end_offset
        self._start_sync(inline)

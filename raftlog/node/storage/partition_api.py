"""The disk seam of a broker's partition replicas: many small logs in one store.

The real one is RocksDB, the simulated one a dict.

The rules are those of :mod:`raftlog.node.storage.api`: ``append`` makes bytes readable at once and
durable never by itself; one ``flush`` makes durable what was appended before it, for all partitions
together; after any error the store is broken and each later call raises the same StorageError;
reads return whole batches that were verified, or raise CorruptLogError.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from raftlog.errors import StorageError

RUNS_MAX = 128


class Run(NamedTuple):
    """A run of consecutive batches, which begins where the previous run ends."""

    end_offset: int
    """End offset, exclusive."""
    last_timestamp_ms: int
    """Timestamp of its newest batch, in ms."""
    size: int
    """Size in bytes. The rest of a truncated run counts as 0: it must not push others out."""


class LogRuns:
    """The age and size of the parts of one partition's log, oldest first: retention needs no disk
    access.
    """

    __slots__ = ("_grain", "_runs", "last_base", "size")

    def __init__(self, runs: Iterable[Run] = (), last_base: int = -1) -> None:
        self._runs = deque(runs)
        self._grain = 0
        """Size in bytes at which a run is complete."""
        self.size = sum(run.size for run in self._runs)
        """Size of all runs, in bytes."""
        self.last_base = last_base
        """Begin of a batch with which the last run, or a part of it, ends; -1 if unknown."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogRuns) and (self.runs, self.last_base) == (
            other.runs,
            other.last_base,
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, oldest first."""
        return tuple(self._runs)

    @property
    def last_timestamp_ms(self) -> int:
        """Timestamp of the newest batch in the last run, or 0."""
        return self._runs[-1].last_timestamp_ms if self._runs else 0

    def append(self, base: int, end: int, timestamp_ms: int, size: int) -> None:
        """Add whole batches that were written from ``base`` on."""
        runs = self._runs
        self.last_base, self.size = base, self.size + size
        if runs and runs[-1].size < self._grain:
            last = runs[-1]
            runs[-1] = Run(end, max(last.last_timestamp_ms, timestamp_ms), last.size + size)
            return
        runs.append(Run(end, timestamp_ms, size))
        if len(runs) > RUNS_MAX:
            self._join_neighbours()

    def _join_neighbours(self) -> None:
        runs, joined = list(self._runs), deque[Run]()
        for first, second in zip(runs[::2], runs[1::2], strict=False):
            newest = max(first.last_timestamp_ms, second.last_timestamp_ms)
            joined.append(Run(second.end_offset, newest, first.size + second.size))
        if len(runs) % 2:
            joined.append(runs[-1])
        self._runs = joined
        self._grain = self.size // (RUNS_MAX // 2)

    def truncate(self, end_offset: int) -> None:
        """Drop everything at or above ``end_offset``."""
        runs = self._runs
        cut = None
        begin = runs[-2].end_offset if len(runs) > 1 else -1
        while runs and runs[-1].end_offset > end_offset:
            cut = runs.pop()
            begin = runs[-1].end_offset if runs else -1
        if cut is not None and begin < end_offset:
            runs.append(Run(end_offset, cut.last_timestamp_ms, 0))
        self.size = sum(run.size for run in runs)
        self.last_base = -1

    def drop_before(self, start_offset: int) -> int:
        """Drop the runs below the new ``start_offset``; return their size in bytes, at least."""
        runs, before = self._runs, self.size
        while runs and runs[0].end_offset <= start_offset:
            self.size -= runs.popleft().size
        return before - self.size

    def boundary(self, offset: int) -> int:
        """Return the highest end of a run that is not above ``offset``, or -1."""
        return max((run.end_offset for run in self._runs if run.end_offset <= offset), default=-1)

    def bytes_from(self, offset: int) -> int:
        """Return the size of the log from ``offset`` on, in bytes, at most a run too many."""
        size = 0
        for run in reversed(self._runs):
            if run.end_offset <= offset:
                break
            size += run.size
        return size

    def clear(self) -> None:
        """Empty the log."""
        self._runs.clear()
        self.size, self.last_base = 0, -1


PartitionKey = tuple[bytes, int]
"""(topic id, partition index)."""


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """One replica as the store found it: every byte durable and checked.

    Offsets: start inclusive, end exclusive.
    """

    key: PartitionKey
    start_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, first offset), ascending: the whole log's epoch index."""
    runs: LogRuns = field(default_factory=LogRuns)
    """Age and size of its parts."""


class PartitionStore(Protocol):
    """The partition replicas of one broker. All methods are called from the event loop's thread."""

    @property
    def busy_s(self) -> float:
        """Duration of the flush in progress, in seconds, measured at the disk; 0: none is."""

    def recover(self) -> tuple[RecoveredPartition, ...]:
        """Check and describe what is stored.

        Called once, before anything else. Raises CorruptLogError, StorageError.
        """

    def append(self, key: PartitionKey, chunk: bytes, base_offset: int, end_offset: int) -> None:
        """Write whole batches at the end of a replica's log, which begins at 0 if it is new.

        Raises StorageError.
        """

    def flush(self, done: Callable[[StorageError | None], None], *, inline: bool) -> None:
        """Make all appends, truncations and deletions so far durable, then call ``done``, once, in
        order.

        ``inline`` true: the caller is idle, so the sync may run right here; it is a hint. Calls
        that wait for a running sync share the next one.
        """

    def truncate(self, key: PartitionKey, end_offset: int) -> None:
        """Drop everything at or above ``end_offset``, a batch boundary.

        As durable as an append: flush follows.
        """

    def advance_start(self, key: PartitionKey, start_offset: int, *, dropped_bytes: int) -> None:
        """Drop everything below ``start_offset``, a batch boundary of the replica.

        As durable as an append. ``dropped_bytes``: approximate size of the dropped part; its space
        is freed later.
        """

    def reset(self, key: PartitionKey, start_offset: int) -> None:
        """Drop everything: the replica is empty, and its next record has this offset.

        As durable as an append.
        """

    def read(self, key: PartitionKey, offset: int, *, until: int, max_bytes: int) -> bytes:
        """Return whole batches, from the one that contains ``offset`` up to ``until`` (exclusive; a
        batch boundary), verified.

        At least one batch, then as many as fit ``max_bytes``. Empty when ``offset == until``.
        Raises CorruptLogError.
        """

    def delete(self, key: PartitionKey) -> None:
        """Delete a replica; no error without one. As durable as an append."""

    def free_bytes(self) -> int:
        """Return the free space of the store's file system, in bytes."""

    def close(self) -> None:
        """Close the store. Unflushed writes may or may not stay."""

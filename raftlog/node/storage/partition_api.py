"""The storage interface of a broker's partition replicas: many small logs in one store.

Production uses RocksDB, the simulation a dict. The rules are those of
:mod:`raftlog.node.storage.api`: ``append`` makes bytes readable at once, but never durable; one
``flush`` makes everything appended before it durable, for all partitions together; after any error
the store is broken, and each later call raises the same StorageError; reads return whole verified
batches, or raise CorruptLogError.
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
    last_timestamp_ms: int
    """Timestamp of the newest batch, in ms."""
    size: int
    """Size in bytes, or 0 for the rest of a truncated run, which must not make retention delete
    other runs.
    """


class LogRuns:
    """Age and size of the parts of one partition's log, oldest first, so that retention needs no
    disk access.
    """

    __slots__ = ("_grain", "_runs", "last_base", "size")

    def __init__(self, runs: Iterable[Run] = (), last_base: int = -1) -> None:
        self._runs = deque(runs)
        self._grain = 0
        """Size in bytes at which a run is complete."""
        self.size = sum(run.size for run in self._runs)
        self.last_base = last_base
        """Base offset of a batch, or of consecutive batches, at the end of the last run; -1 if
        unknown.
        """

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
        """Timestamp of the newest batch in the last run, in ms, or 0."""
        return self._runs[-1].last_timestamp_ms if self._runs else 0

    def append(self, base: int, end: int, timestamp_ms: int, size: int) -> None:
        """Add whole batches that were written from offset ``base`` on."""
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
        """Drop the runs that end at or below the new ``start_offset``, and return their size in
        bytes.
        """
        runs, before = self._runs, self.size
        while runs and runs[0].end_offset <= start_offset:
            self.size -= runs.popleft().size
        return before - self.size

    def boundary(self, offset: int) -> int:
        """Return the highest end of a run at or below ``offset``, or -1."""
        return max((run.end_offset for run in self._runs if run.end_offset <= offset), default=-1)

    def bytes_from(self, offset: int) -> int:
        """Return the size of the log from ``offset`` onwards, in bytes; it may be too high by up to
        the size of one run.
        """
        size = 0
        for run in reversed(self._runs):
            if run.end_offset <= offset:
                break
            size += run.size
        return size

    def clear(self) -> None:
        """Drop all runs."""
        self._runs.clear()
        self.size, self.last_base = 0, -1


PartitionKey = tuple[bytes, int]
"""(topic id, partition index)."""


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """One replica as the store found it: every byte is durable and checked.

    Start offsets are inclusive, end offsets exclusive.
    """

    key: PartitionKey
    start_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    """The epoch index of the whole log: (leader epoch, first offset), ascending."""
    runs: LogRuns = field(default_factory=LogRuns)
    """Age and size of the parts of the log."""


class PartitionStore(Protocol):
    """The partition replicas of one broker. Call all methods on the event loop's thread."""

    @property
    def busy_s(self) -> float:
        """Duration of the flush in progress in seconds, measured at the disk, or 0."""

    def recover(self) -> tuple[RecoveredPartition, ...]:
        """Check and describe the stored data. Call it once, before any other method.

        Raises CorruptLogError, StorageError.
        """

    def append(self, key: PartitionKey, chunk: bytes, base_offset: int, end_offset: int) -> None:
        """Write whole batches at the end of a replica's log, which begins at 0 if it is new.

        Raises StorageError.
        """

    def flush(self, done: Callable[[StorageError | None], None], *, inline: bool) -> None:
        """Make all appends, truncations and deletions so far durable, then call ``done``.

        Each ``done`` is called exactly once, in order. ``inline`` is a hint that the caller is
        idle, so that the sync may run right here. Calls that wait for a running sync share the next
        one.
        """

    def truncate(self, key: PartitionKey, end_offset: int) -> None:
        """See ``LogStore.truncate``."""

    def advance_start(self, key: PartitionKey, start_offset: int, *, dropped_bytes: int) -> None:
        """Delete everything below ``start_offset``, a batch boundary of the replica.

        Becomes durable with the next ``flush``. ``dropped_bytes`` is the approximate size of the
        deleted part, whose space is freed later.
        """

    def reset(self, key: PartitionKey, start_offset: int) -> None:
        """Delete everything: the replica is then empty, and its next record has ``start_offset``.

        Becomes durable with the next ``flush``.
        """

    def read(self, key: PartitionKey, offset: int, *, until: int, max_bytes: int) -> bytes:
        """Return whole verified batches, from the one that contains ``offset`` to ``until``
        (exclusive, a batch boundary).

        Returns at least one batch, then as many as fit ``max_bytes``; empty if ``offset == until``.
        Raises CorruptLogError.
        """

    def delete(self, key: PartitionKey) -> None:
        """Delete a replica, if it exists. Becomes durable with the next ``flush``."""

    def free_bytes(self) -> int:
        """See ``LogStore.free_bytes``."""

    def close(self) -> None:
        """Close the store. Unflushed writes may or may not survive."""

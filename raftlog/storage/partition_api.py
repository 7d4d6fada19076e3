"""The disk seam of a broker's partition replicas: many small logs in one store.

The real one is RocksDB, the simulated one a dict.

The rules are those of :mod:`raftlog.storage.api`: ``append`` makes bytes readable at once and
durable never by itself; one ``flush`` makes durable what was appended before it, for all partitions
together; after any error the store is broken and each later call raises the same StorageError;
reads return whole batches that were verified, or raise CorruptLogError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from raftlog.errors import StorageError
from raftlog.storage.log_runs import LogRuns

PartitionKey = tuple[bytes, int]
"""(topic id, partition index)."""


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """One replica as it was found: every byte durable and checked.

    Offsets: start inclusive, end exclusive.
    """

    key: PartitionKey
    start_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, first offset), ascending: the whole log's epoch index."""
    runs: LogRuns = field(default_factory=LogRuns)
    """How old and how large its parts are."""


class PartitionStore(Protocol):
    """The partition replicas of one broker. All methods are called from the event loop's thread."""

    def recover(self) -> tuple[RecoveredPartition, ...]:
        """Check and describe what is stored.

        Called once, before anything else. Raises CorruptLogError, StorageError.
        """

    def append(self, key: PartitionKey, chunk: bytes, base_offset: int, end_offset: int) -> None:
        """Write whole batches at the end of a replica's log, which begins at 0 if it is new.

        Raises StorageError.
        """

    def flush(self, done: Callable[[StorageError | None], None], *, inline: bool) -> None:
        """Make durable all that was appended, truncated and deleted so far, then call ``done``,
        once, in order.

        ``inline`` true: the caller is idle, so the sync may run right here; it is a hint. Calls
        that wait for a running sync share the next one.
        """

    def truncate(self, key: PartitionKey, end_offset: int) -> None:
        """Drop everything at or above ``end_offset``, a batch boundary.

        As durable as an append: flush follows.
        """

    def advance_start(self, key: PartitionKey, start_offset: int, *, dropped_bytes: int) -> None:
        """Drop everything below ``start_offset``, a batch boundary that the replica has.

        As durable as an append. ``dropped_bytes``: about how much that is; space comes back later.
        """

    def reset(self, key: PartitionKey, start_offset: int) -> None:
        """Drop everything: the replica is empty, and its next record has this offset.

        As durable as an append.
        """

    def read(self, key: PartitionKey, offset: int, *, until: int, max_bytes: int) -> bytes:
        """Whole batches, from the one that holds ``offset`` up to ``until`` (exclusive; a batch
        boundary), verified.

        At least one batch, then as many as fit ``max_bytes``. Empty when ``offset == until``.
        Raises CorruptLogError.
        """

    def delete(self, key: PartitionKey) -> None:
        """Forget a replica whole; no error if there is none. As durable as an append."""

    def free_bytes(self) -> int:
        """What the file system of the store still takes."""

    def close(self) -> None:
        """Give the store back. What was not flushed may or may not stay."""

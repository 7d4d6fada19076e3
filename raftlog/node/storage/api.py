"""The disk seam: the storage interface of a node.

The real one is RocksDB, the simulated one a dict.

Rules every implementation keeps (one test suite runs against all of them):

* ``append`` makes bytes readable at once and durable never by itself; only a ``flush`` that
  reported *done* makes everything appended before it durable. Nothing may be acknowledged before.
* After any error the store is broken: each later call raises the same StorageError.
* Reads return whole batches whose CRC32C and contiguity were checked, or raise CorruptLogError
  naming the offset.

Why: docs/decisions/021-three-seams-and-simulated-twins.md
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from raftlog.bounds import DIRECTORY_NONCES_MAX
from raftlog.endpoint import VotersAt
from raftlog.errors import FatalError, StorageError
from raftlog.metadata.control_records import GenerationAt
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.metadata.snapshot_file import SnapshotId as SnapshotId  # noqa: PLC0414 (the seam names it)

FORMAT_VERSION = 2
"""The newest supported format of a data directory."""
NO_NODE_ID = -1
"""Node id of a broker's directory that was formatted without one: its first start gets it
(KIP-426).
"""
INITIAL_FORMAT_VERSION = 1
"""Format version of a new directory.

Version 2 begins when the log start first moves: until then an older program can use it.
"""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The cluster, node and directory id of a data directory.

    ``directory_id`` is a UUID: a new disk is a new replica.
    """

    cluster_id: str
    node_id: int
    directory_id: str
    generation: int = 0
    """The generation of the log that the directory belongs to; 0: none yet."""
    format_version: int = INITIAL_FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class DirectoryStart:
    """A start of a node on its data directory, by which a copy of the directory is told apart."""

    count: int = 0
    """Number of starts on the directory, this one included; 0: none yet."""
    nonces: tuple[int, ...] = ()
    """Random numbers drawn at the last starts, newest first, at most ``DIRECTORY_NONCES_MAX``."""

    def next(self, nonce: int) -> DirectoryStart:
        """Return the start that follows this one."""
        return DirectoryStart(self.count + 1, (nonce, *self.nonces[: DIRECTORY_NONCES_MAX - 1]))

    def follows(self, known: KnownStart) -> bool:
        """Return whether the directory was at ``known`` once, or may have been: this start is that
        one or a later one.
        """
        later_by = self.count - known.count
        return later_by >= 0 and (
            later_by >= len(self.nonces) or self.nonces[later_by] == known.nonce
        )


@dataclass(frozen=True, slots=True)
class KnownStart:
    """The newest start of another node's directory that this node knows."""

    directory_id: str
    count: int
    nonce: int


@dataclass(frozen=True, slots=True)
class DirectoryStarts:
    """The starts that a data directory remembers: its own, and those of the other voters'."""

    count: int = 0
    nonces: tuple[int, ...] = ()
    refused: bool = False
    """True if a leader has refused the own start: the next one is the same start still."""
    known: tuple[KnownStart, ...] = ()

    @property
    def own(self) -> DirectoryStart:
        """The newest start on this directory."""
        return DirectoryStart(self.count, self.nonces)


@dataclass(frozen=True, slots=True)
class VoteState:
    """The epoch and the vote that must survive a crash (KIP-595 quorum-state).

    ``voted_id`` and ``leader_id``: -1 for none.
    """

    epoch: int = 0
    voted_id: int = -1
    voted_directory_id: str = ""
    leader_id: int = -1


AcceptHeader = Callable[[SnapshotHeader], None]
"""Check that raises CorruptLogError for a snapshot that is whole, but not one for this node.

Runs in the disk's thread.
"""


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The log as the store found it when it was opened: every byte durable and checked.

    Offsets: start inclusive, end exclusive.
    """

    vote: VoteState
    start_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    """(epoch, first offset), ascending: the whole log's epoch index."""
    last_timestamp_ms: int = 0
    """Timestamp in ms of the last batch, or of the snapshot if no batch follows it; 0 for an empty
    log.
    """
    start_epoch: int = 0
    """Epoch of the record before ``start_offset``, or 0."""
    snapshots: tuple[SnapshotId, ...] = ()
    """Ids of the complete snapshots, ascending. If ``start_offset`` is above 0, one ends there or
    later.
    """
    voters: tuple[VotersAt, ...] = ()
    """The voter set of the newest snapshot, if there is one (empty if it names none), and those of
    the log after it, ascending.

    Empty: never named, the configured set counts.
    """
    generations: tuple[GenerationAt, ...] = ()
    """Generations in the newest snapshot, and in the log after it."""
    bound_generation: int = 0
    """Generation in the directory's identity."""


class LogStore(Protocol):
    """The log, vote and identity of one node. All calls come from the event loop's thread."""

    @property
    def identity(self) -> NodeIdentity:
        """Identity of the directory."""

    @property
    def busy_s(self) -> float:
        """Duration in seconds of the sync or vote in progress, 0 if none is: measured at the disk,
        however late the loop is.
        """

    @property
    def last_sync_s(self) -> float:
        """Duration of the last sync, in seconds."""

    def bind_generation(self, generation: int) -> None:
        """Record durably the generation of the directory's log.

        Raises StorageError.
        """

    @property
    def starts(self) -> DirectoryStarts:
        """The remembered starts of this directory and of the other voters'."""

    def begin_start(self) -> None:
        """Count this start, durably, with a new nonce: unless the last one was refused.

        Raises StorageError.
        """

    def keep_starts(self, starts: DirectoryStarts) -> None:
        """Replace the remembered starts, durably. Raises StorageError."""

    def recover(self) -> RecoveredLog:
        """Check and describe what is stored. Called once, before anything else."""

    def append(self, chunk: bytes, base_offset: int, end_offset: int) -> None:
        """Write a chunk at the log end: readable at once, not durable. Raises StorageError."""

    def flush(self, done: Callable[[int | StorageError], None], *, inline: bool) -> None:
        """Make all records appended so far durable, then call ``done`` with the durable end offset,
        or with the error.

        ``inline`` true: the caller is idle, so the sync may run right here and ``done`` before this
        returns; it is a hint. Otherwise the event loop calls ``done`` later. Calls that wait for a
        running sync share the next one, and each ``done`` is called exactly once, in order.
        """

    def truncate(self, end_offset: int) -> None:
        """Drop everything at or above ``end_offset``, a batch boundary.

        As durable as an append: flush follows.
        """

    def read(self, offset: int, *, until: int, max_bytes: int) -> bytes:
        """Return whole batches from the one that begins at ``offset`` up to ``until`` (exclusive; a
        batch boundary), verified.

        At least one batch, then as many as fit ``max_bytes``. Empty when ``offset == until``.
        Raises CorruptLogError, and ValueError if ``offset`` is not a batch boundary within the log.
        """

    def batch_before(self, end_offset: int) -> tuple[int, int] | None:
        """Return (base offset, CRC-32C) of the batch that ends at ``end_offset``; None if none
        does. Raises CorruptLogError.
        """

    def write_vote(
        self,
        vote: VoteState,
        done: Callable[[StorageError | None], None],
        *,
        inline: bool = False,
    ) -> None:
        """Replace the vote durably, then call ``done``; may call it at once.

        ``inline``: as in ``flush``.
        """

    # --- snapshots -------------------------------------------------------------------------------

    def store_snapshot(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """Write a part of an incomplete snapshot; ``position`` 0 begins it anew.

        Not durable, not visible.

        Several may be incomplete at once (one fetched, one made here). Raises StorageError, and
        ValueError if ``position`` is not where the last part ended.
        """

    def freeze_snapshot(
        self,
        snapshot_id: SnapshotId,
        done: Callable[[FatalError | None], None],
        accept: AcceptHeader | None = None,
    ) -> None:
        """Verify an incomplete snapshot whole, make it durable, and publish it under its name, all
        or nothing.

        ``done(None)`` later from the loop (or at once) on success; CorruptLogError: the content is
        unsound, or ``accept`` raised this for its header, and the snapshot is gone while the store
        works; StorageError: the store is broken.
        """

    def drop_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Drop an incomplete snapshot. No error without one."""

    def snapshot_size(self, snapshot_id: SnapshotId) -> int:
        """Return the size of a complete snapshot in bytes. Raises LookupError."""

    def snapshot_header(self, snapshot_id: SnapshotId) -> SnapshotHeader:
        """Return the header of a complete snapshot. Raises LookupError, CorruptLogError."""

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Return bytes of a complete snapshot from ``position`` on, as stored; empty at its end.

        Raises LookupError, ValueError, StorageError.
        """

    def install_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Replace the whole log by a complete snapshot: the log is then empty and begins at its
        end.

        Crash-atomic with ``freeze_snapshot``: ``recover`` does it if the newest snapshot is of
        another log than the one it finds (``log_bounds.is_part``). As durable as an append: flush
        follows. Raises LookupError, StorageError.
        """

    def advance_log_start(self, snapshot_id: SnapshotId) -> None:
        """Drop the log below the end of a complete snapshot, and the snapshots before it; their
        space is freed.

        The first call raises the format version of the directory: older programs refuse it from
        then on.
        """

    def free_bytes(self) -> int:
        """Return the free space of the store's file system, in bytes."""

    def used_bytes(self) -> int:
        """Return the approximate size of log and snapshots on disk, in bytes."""

    def close(self) -> None:
        """Release the directory.

        Unflushed records may or may not stay: they were not acknowledged.
        """

"""The storage interface of a node.

Production uses RocksDB, the simulation a dict. One test suite checks these rules for all
implementations:

* ``append`` makes bytes readable at once, but never durable. Only a successful ``flush`` makes
  everything that was appended before it durable. Nothing may be acknowledged before that.
* After any error the store is broken: each later call raises the same StorageError.
* Reads return whole batches whose CRC32C and contiguity were checked, or raise CorruptLogError with
  the offset.

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
"""Node id of a broker's directory that was formatted without one. The first start sets it
(KIP-426).
"""
INITIAL_FORMAT_VERSION = 1
"""Format version of a new directory. The first move of the log start raises it to 2; until then an
older program can use the directory.
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
    """The generation of the directory's log, or 0 if it has none yet."""
    format_version: int = INITIAL_FORMAT_VERSION


@dataclass(frozen=True, slots=True)
class DirectoryStart:
    """A start of a node on its data directory, which distinguishes the directory from a copy."""

    count: int = 0
    """Number of starts on the directory, including this one; 0 before the first."""
    nonces: tuple[int, ...] = ()
    """Random numbers drawn at the last starts, newest first, at most ``DIRECTORY_NONCES_MAX``."""

    def next(self, nonce: int) -> DirectoryStart:
        """Return the start after this one."""
        return DirectoryStart(self.count + 1, (nonce, *self.nonces[: DIRECTORY_NONCES_MAX - 1]))

    def follows(self, known: KnownStart) -> bool:
        """Return whether this start is ``known`` or may be a later start on the same directory."""
        later_by = self.count - known.count
        return later_by >= 0 and (
            later_by >= len(self.nonces) or self.nonces[later_by] == known.nonce
        )


@dataclass(frozen=True, slots=True)
class KnownStart:
    """The newest start on another node's directory that this node knows."""

    directory_id: str
    count: int
    nonce: int


@dataclass(frozen=True, slots=True)
class DirectoryStarts:
    """The starts that a data directory records: its own, and those of the other voters'
    directories.
    """

    count: int = 0
    nonces: tuple[int, ...] = ()
    refused: bool = False
    """Whether a leader has refused the latest own start; then the next start keeps its number and
    nonce.
    """
    known: tuple[KnownStart, ...] = ()

    @property
    def own(self) -> DirectoryStart:
        """The latest start on this directory."""
        return DirectoryStart(self.count, self.nonces)


@dataclass(frozen=True, slots=True)
class VoteState:
    """The epoch and the vote, which must survive a crash (KIP-595 quorum-state).

    ``voted_id`` and ``leader_id`` are -1 for none.
    """

    epoch: int = 0
    voted_id: int = -1
    voted_directory_id: str = ""
    leader_id: int = -1


AcceptHeader = Callable[[SnapshotHeader], None]
"""Check that raises CorruptLogError if an intact snapshot is not acceptable to this node. Runs in
the disk thread.
"""


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """The log as the store found it at its opening: every byte is durable and checked.

    Start offsets are inclusive, end offsets exclusive.
    """

    vote: VoteState
    start_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    """The epoch index of the whole log: (epoch, first offset), ascending."""
    last_timestamp_ms: int = 0
    """Timestamp in ms of the last batch, or of the snapshot if no batch follows it; 0 for an empty
    log.
    """
    start_epoch: int = 0
    """Epoch of the record before ``start_offset``, or 0."""
    snapshots: tuple[SnapshotId, ...] = ()
    """Ids of the complete snapshots, ascending. If ``start_offset`` is above 0, at least one ends
    there or later.
    """
    voters: tuple[VotersAt, ...] = ()
    """The voter set of the newest snapshot, if there is a snapshot (an empty set if it has none),
    followed by the voter sets of the log after it, ascending.

    Empty if there is no voter set; then the configured set applies.
    """
    generations: tuple[GenerationAt, ...] = ()
    """Generations in the newest snapshot, and in the log after it."""
    bound_generation: int = 0
    """Generation in the directory's identity."""


class LogStore(Protocol):
    """The log, vote and identity of one node. Call all methods on the event loop's thread."""

    @property
    def identity(self) -> NodeIdentity:
        """Identity of the directory."""

    @property
    def busy_s(self) -> float:
        """Duration in seconds of the sync or vote in progress, or 0. It is measured at the disk,
        independent of delays on the event loop.
        """

    @property
    def last_sync_s(self) -> float:
        """Duration of the last sync, in seconds."""

    def bind_generation(self, generation: int) -> None:
        """Durably record the generation of the directory's log. Raises StorageError."""

    @property
    def starts(self) -> DirectoryStarts:
        """The recorded starts of this directory and of the other voters' directories."""

    def begin_start(self) -> None:
        """Durably count this start, with a new nonce, unless the last start was refused.

        Raises StorageError.
        """

    def keep_starts(self, starts: DirectoryStarts) -> None:
        """Durably replace the recorded starts. Raises StorageError."""

    def recover(self) -> RecoveredLog:
        """Check and describe the stored data. Call it once, before any other method."""

    def append(self, chunk: bytes, base_offset: int, end_offset: int) -> None:
        """Write a chunk at the log end: readable at once, not durable. Raises StorageError."""

    def flush(self, done: Callable[[int | StorageError], None], *, inline: bool) -> None:
        """Make all records appended so far durable, then call ``done`` with the durable end offset
        or the error.

        ``inline`` is a hint that the caller is idle: then the sync may run right here, and call
        ``done`` before this method returns. Otherwise the event loop calls ``done`` later. Calls
        that wait for a running sync share the next one. Each ``done`` is called exactly once, in
        order.
        """

    def truncate(self, end_offset: int) -> None:
        """Delete everything at or above ``end_offset``, a batch boundary.

        Becomes durable with the next ``flush``.
        """

    def read(self, offset: int, *, until: int, max_bytes: int) -> bytes:
        """Return whole verified batches from ``offset`` (the start of a batch) to ``until``
        (exclusive, a batch boundary).

        Returns at least one batch, then as many as fit ``max_bytes``; empty if ``offset == until``.
        Raises CorruptLogError, and ValueError if ``offset`` is not a batch boundary within the log.
        """

    def batch_before(self, end_offset: int) -> tuple[int, int] | None:
        """Return (base offset, CRC-32C) of the batch that ends at ``end_offset``, or None if no
        batch does.

        Raises CorruptLogError.
        """

    def write_vote(
        self,
        vote: VoteState,
        done: Callable[[StorageError | None], None],
        *,
        inline: bool = False,
    ) -> None:
        """Durably replace the vote, then call ``done``, possibly at once.

        ``inline`` is as in ``flush``.
        """

    # --- snapshots -------------------------------------------------------------------------------

    def store_snapshot(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        """Write a part of an incomplete snapshot, neither durable nor visible; ``position`` 0
        starts it over.

        Several snapshots may be incomplete at once (one being fetched, one being made here). Raises
        StorageError, and ValueError if ``position`` is not where the last part ended.
        """

    def freeze_snapshot(
        self,
        snapshot_id: SnapshotId,
        done: Callable[[FatalError | None], None],
        accept: AcceptHeader | None = None,
    ) -> None:
        """Verify an incomplete snapshot, make it durable and publish it under its name, all or
        nothing.

        Calls ``done`` later from the event loop, or at once:
        * with None on success;
        * with CorruptLogError if the content is damaged or ``accept`` raised it for the header: the
          snapshot is deleted, and the store keeps working;
        * with StorageError if the store is broken.
        """

    def drop_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Delete an incomplete snapshot, if it exists."""

    def snapshot_size(self, snapshot_id: SnapshotId) -> int:
        """Return the size of a complete snapshot, in bytes. Raises LookupError."""

    def snapshot_header(self, snapshot_id: SnapshotId) -> SnapshotHeader:
        """Return the header of a complete snapshot. Raises LookupError, CorruptLogError."""

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        """Return the stored bytes of a complete snapshot from ``position`` onwards; empty at its
        end.

        Raises LookupError, ValueError, StorageError.
        """

    def install_snapshot(self, snapshot_id: SnapshotId) -> None:
        """Replace the whole log with a complete snapshot: the log is then empty and starts at its
        end.

        Atomic with ``freeze_snapshot`` across a crash: ``recover`` installs the newest snapshot if
        it belongs to another log than the one found (``log_bounds.is_part``). Becomes durable with
        the next ``flush``. Raises LookupError, StorageError.
        """

    def advance_log_start(self, snapshot_id: SnapshotId) -> None:
        """Delete the log below the end of a complete snapshot, and the snapshots before it, and
        free their space.

        The first call raises the format version of the directory, which older programs then refuse.
        """

    def free_bytes(self) -> int:
        """Return the free space of the store's file system, in bytes."""

    def used_bytes(self) -> int:
        """Return the approximate size of the log and the snapshots on disk, in bytes."""

    def close(self) -> None:
        """Release the directory.

        Unflushed records may or may not survive, as they were not acknowledged.
        """

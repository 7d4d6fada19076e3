"""What the core knows of the local log: its ends, its epochs, and the snapshots beside it.

The bytes are the shell's.
"""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from raftlog.metadata.log_generation import Lineage
from raftlog.quorum.epoch_index import EpochIndex
from raftlog.quorum.events import LogSpan
from raftlog.quorum.log_ends import LogEnds
from raftlog.storage.api import RecoveredLog, SnapshotId


class LogState(LogEnds):
    """The metadata log: it may begin with a snapshot."""

    def __init__(self, recovered: RecoveredLog) -> None:
        super().__init__(
            recovered.start_offset,
            recovered.end_offset,
            recovered.epochs,
            start_epoch=recovered.start_epoch,
        )
        self.snapshots = list(recovered.snapshots)
        """Complete ones, ascending."""
        self.lineage = Lineage(recovered.generations)

    @override
    def append(self, span: LogSpan) -> None:
        super().append(span)
        if span.generations:
            self.lineage.append(span.generations)

    @override
    def truncate(self, end_offset: int) -> None:
        super().truncate(end_offset)
        self.lineage.truncate(end_offset)

    def add_snapshot(self, snapshot_id: SnapshotId) -> None:
        """It is complete and durable."""
        self.snapshots = sorted({*self.snapshots, snapshot_id})

    def advance_start(self, snapshot_id: SnapshotId) -> None:
        """The log below the end of the snapshot was dropped, and the snapshots before that one."""
        self.start, self.start_epoch = snapshot_id.end_offset, snapshot_id.epoch
        # The snapshot is durable, and so is what it holds.
        self.flushed_end = max(self.flushed_end, self.start)
        self.epochs.drop_before(self.start, self.end)
        self.snapshots = [known for known in self.snapshots if known >= snapshot_id]

    def reset(self, snapshot_id: SnapshotId, generations: Sequence[int]) -> None:
        """The log was replaced by a snapshot: it is empty and begins at its end."""
        self.lineage.reset(generations)
        self.start = self.end = self.flushed_end = snapshot_id.end_offset
        self.start_epoch = snapshot_id.epoch
        self.epochs = EpochIndex()
        self.snapshots = [snapshot_id]

    def snapshot_for(self, offset: int, last_epoch: int) -> SnapshotId | None:
        """The newest snapshot, if a log that ends at ``offset`` in ``last_epoch`` can go on only
        from one; else None.

        That is: from nothing, from below the log start, or from a history that parted before the
        log start.
        """
        if not self.snapshots:
            return None
        behind = offset == 0 or offset < self.start or last_epoch < self.start_epoch
        if behind or (offset == self.start and last_epoch != self.start_epoch):
            return self.snapshots[-1]
        return None

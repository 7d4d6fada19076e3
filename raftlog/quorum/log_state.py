"""What the core knows of the local log: its ends, its epochs, and the snapshots beside it. The bytes are the shell's."""

from __future__ import annotations

from raftlog.quorum.epoch_index import EpochIndex
from raftlog.quorum.events import LogSpan
from raftlog.storage.api import RecoveredLog, SnapshotId


class LogState:
    """start <= flushed end <= end; everything below the flushed end is durable here."""

    def __init__(self, recovered: RecoveredLog) -> None:
        self.start = recovered.start_offset
        self.start_epoch = recovered.start_epoch
        """The epoch of the record before the start; 0 if there is none."""
        self.snapshots = list(recovered.snapshots)
        """Complete ones, ascending."""
        self.end = recovered.end_offset
        self.flushed_end = recovered.end_offset
        self.epochs = EpochIndex(recovered.epochs)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, that of the snapshot if the log behind it is empty, 0 if there never was one."""
        return self.epochs.last_epoch or self.start_epoch

    def append(self, span: LogSpan) -> None:
        """A sound span was written at the end."""
        for epoch, start in span.epochs:
            self.epochs.append(epoch, start)
        self.end = span.end_offset

    def truncate(self, end_offset: int) -> None:
        """Everything at or above ``end_offset`` was dropped."""
        self.epochs.truncate(end_offset)
        self.end = end_offset
        self.flushed_end = min(self.flushed_end, end_offset)

    def flushed(self, end_offset: int) -> None:
        """Everything below ``end_offset`` is durable."""
        self.flushed_end = max(self.flushed_end, min(end_offset, self.end))

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """See :meth:`EpochIndex.end_offset_for_epoch`."""
        return self.epochs.end_offset_for_epoch(
            epoch, log_start=self.start, log_end=self.end, start_epoch=self.start_epoch
        )

    # --- snapshots ----------------------------------------------------------------------------------------------------

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

    def reset(self, snapshot_id: SnapshotId) -> None:
        """The log was replaced by a snapshot: it is empty and begins at its end."""
        self.start = self.end = self.flushed_end = snapshot_id.end_offset
        self.start_epoch = snapshot_id.epoch
        self.epochs = EpochIndex()
        self.snapshots = [snapshot_id]

    def snapshot_for(self, offset: int, last_epoch: int) -> SnapshotId | None:
        """The newest snapshot, if a log that ends at ``offset`` in ``last_epoch`` can go on only from one; else None.

        That is: from nothing, from below the log start, or from a history that parted before the log start (kraft-rules 1.6).
        """
        if not self.snapshots:
            return None
        behind = offset == 0 or offset < self.start or last_epoch < self.start_epoch
        if behind or (offset == self.start and last_epoch != self.start_epoch):
            return self.snapshots[-1]
        return None

    def divergence(self, offset: int, last_epoch: int) -> tuple[int, int] | None:
        """None if a log that ends at ``offset`` in ``last_epoch`` is a prefix of this one; else where to look next.

        The answer is (epoch, end offset) as of :meth:`end_offset_for_epoch`: the other side truncates to it and asks again.
        """
        if (last_epoch == self.epochs.last_epoch and self.epochs.last_start < offset <= self.end) or (
            offset == self.start == 0
        ):
            return None
        epoch, end = self.end_offset_for_epoch(last_epoch)
        return None if epoch == last_epoch and offset <= end else (epoch, end)

    def is_covered_by(self, last_epoch: int, end_offset: int) -> bool:
        """Whether a log with this last epoch and end is at least as complete as this one (Raft 5.4.1)."""
        return (last_epoch, end_offset) >= (self.last_epoch, self.end)

    def accepts(self, span: LogSpan, max_epoch: int) -> bool:
        """Whether a span continues this log exactly, with epochs that neither go back nor pass ``max_epoch``."""
        if span.base_offset != self.end or span.end_offset <= span.base_offset or not span.epochs:
            return False
        if span.epochs[0][1] != span.base_offset:
            return False
        epoch, offset = self.last_epoch, span.base_offset - 1
        for next_epoch, start in span.epochs:
            if next_epoch < epoch or start <= offset or start >= span.end_offset:
                return False
            epoch, offset = next_epoch, start
        return 0 < epoch <= max_epoch

"""The core's knowledge of a log, whose bytes the shell stores: its ends, its epochs, and its
snapshots. Epochs show whether records continue a log, and where two logs diverge (KIP-101,
KIP-595).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from typing_extensions import override

from raftlog.metadata.control_records import Lineage
from raftlog.node.storage.api import RecoveredLog, SnapshotId
from raftlog.quorum.events import LogSpan


class EpochIndex:
    """The (epoch, first offset) of each run of equal epochs in a log, both strictly ascending."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.last_epoch = 0
        """Epoch of the last record; 0 for an empty log, since epoch 0 never has a leader. Read in
        each step, so not a property.
        """
        self.last_start = -1
        """First offset of the last epoch, or -1."""
        for epoch, start in entries:
            self.append(epoch, start)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """All (epoch, first offset) pairs."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    @property
    def first_epoch(self) -> int:
        """Epoch of the first record, or -1."""
        return self._epochs[0] if self._epochs else -1

    def append(self, epoch: int, start: int) -> None:
        """Record that the records from ``start`` onwards belong to ``epoch``. Raises ValueError if
        an epoch or an offset decreases.
        """
        if self._epochs:
            if epoch == self._epochs[-1]:
                return
            if epoch < self._epochs[-1] or start <= self._starts[-1]:
                raise ValueError(
                    f"epoch {epoch} at {start} after epoch {self._epochs[-1]} at {self._starts[-1]}"
                )
        self._epochs.append(epoch)
        self._starts.append(start)
        self.last_epoch, self.last_start = epoch, start

    def truncate(self, end_offset: int) -> None:
        """Forget epochs that begin at or above ``end_offset``."""
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()
        self._update_last()

    def drop_before(self, offset: int, log_end: int) -> None:
        """Forget the epochs below ``offset``, the new log start."""
        keep_from = (
            max(0, bisect_right(self._starts, offset) - 1)
            if offset < log_end
            else len(self._starts)
        )
        del self._starts[:keep_from], self._epochs[:keep_from]
        if self._starts:
            self._starts[0] = max(offset, self._starts[0])
        self._update_last()

    def _update_last(self) -> None:
        self.last_epoch = self._epochs[-1] if self._epochs else 0
        self.last_start = self._starts[-1] if self._starts else -1

    def end_offset_for_epoch(
        self, epoch: int, *, log_start: int, log_end: int, start_epoch: int = 0
    ) -> tuple[int, int]:
        """Return the highest epoch in this log that is not above ``epoch``, and its end
        (exclusive).

        ``start_epoch``: the epoch of the record before the log start. Returns (0, ``log_start``) if
        every epoch in this log is above ``epoch``: the two logs have nothing in common.
        """
        at = bisect_right(self._epochs, epoch)
        if at == 0:
            return (start_epoch if start_epoch <= epoch else 0), (
                log_start if self._epochs else log_end
            )
        return self._epochs[at - 1], self._starts[at] if at < len(self._starts) else log_end


class LogEnds:
    """The ends and epochs of a log: start <= flushed end <= end. Everything below the flushed end
    is durable.
    """

    first_epoch = 1
    """Lowest epoch that writes records: epoch 0 has no leader."""

    def __init__(
        self, start: int, end: int, epochs: Iterable[tuple[int, int]], *, start_epoch: int = 0
    ) -> None:
        self.start = start
        self.start_epoch = start_epoch
        """Epoch of the record before the log start, or 0."""
        self.end = end
        self.flushed_end = end
        self.epochs = EpochIndex(epochs)

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record, or of the snapshot if the log after it is empty; 0 if there
        never was a record.
        """
        return self.epochs.last_epoch or self.start_epoch

    def append(self, span: LogSpan) -> None:
        """Record a valid span that was written at the end."""
        for epoch, start in span.epochs:
            self.epochs.append(epoch, start)
        self.end = span.end_offset

    def truncate(self, end_offset: int) -> None:
        """Record that everything at or above ``end_offset`` was dropped."""
        self.epochs.truncate(end_offset)
        self.end = end_offset
        self.flushed_end = min(self.flushed_end, end_offset)

    def flushed(self, end_offset: int) -> None:
        """Record that everything below ``end_offset`` is durable."""
        end_offset = min(end_offset, self.end)
        self.flushed_end = max(self.flushed_end, end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """See :meth:`EpochIndex.end_offset_for_epoch`."""
        return self.epochs.end_offset_for_epoch(
            epoch, log_start=self.start, log_end=self.end, start_epoch=self.start_epoch
        )

    def divergence(self, offset: int, last_epoch: int) -> tuple[int, int] | None:
        """Return None if a log that ends at ``offset`` in ``last_epoch`` is a prefix of this one;
        otherwise the (epoch, end offset) to compare next.

        Computed as in :meth:`end_offset_for_epoch`. The other side truncates to this point and
        compares again.
        """
        if (
            last_epoch == self.epochs.last_epoch and self.epochs.last_start < offset <= self.end
        ) or (offset == self.start == 0):
            return None
        epoch, end = self.end_offset_for_epoch(last_epoch)
        return None if epoch == last_epoch and offset <= end else (epoch, end)

    def truncation_point(self, epoch: int, end_offset: int) -> int | None:
        """Return where to truncate this log if ``epoch`` is the leader's last epoch that is not
        above this log's, and ends at ``end_offset``. Return None if nothing would be dropped, which
        no leader requests.

        The leader's end of an epoch that this log does not have may lie inside a batch of an older
        epoch; this log is then truncated to the end of the older epoch, which is compared next.
        """
        if epoch < 0 or end_offset < 0 or epoch > self.last_epoch:
            return None
        local_epoch, local_end = self.end_offset_for_epoch(epoch)
        target = min(end_offset, local_end) if local_epoch == epoch else local_end
        return target if target < self.end else None

    def is_up_to_date(self, last_epoch: int, end_offset: int) -> bool:
        """Return whether a log with this last epoch and end is at least as complete as this one
        (Raft 5.4.1).
        """
        return (last_epoch, end_offset) >= (self.last_epoch, self.end)

    def accepts(self, span: LogSpan, max_epoch: int) -> bool:
        """Return whether a span exactly continues this log, with epochs that never decrease and
        stay within ``max_epoch``.
        """
        if span.base_offset != self.end or span.end_offset <= span.base_offset or not span.epochs:
            return False
        if span.epochs[0][1] != span.base_offset:
            return False
        epoch, offset = self.last_epoch, span.base_offset - 1
        for next_epoch, start in span.epochs:
            if next_epoch < epoch or start <= offset or start >= span.end_offset:
                return False
            epoch, offset = next_epoch, start
        return self.first_epoch <= epoch <= max_epoch


class LogState(LogEnds):
    """The ends and epochs of the metadata log, which may begin after a snapshot."""

    def __init__(self, recovered: RecoveredLog) -> None:
        super().__init__(
            recovered.start_offset,
            recovered.end_offset,
            recovered.epochs,
            start_epoch=recovered.start_epoch,
        )
        self.snapshots = list(recovered.snapshots)
        """The complete snapshots, ascending."""
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
        """Record a complete and durable snapshot."""
        self.snapshots = sorted({*self.snapshots, snapshot_id})

    def advance_start(self, snapshot_id: SnapshotId) -> None:
        """Record that the log below the snapshot's end was dropped, with all earlier snapshots."""
        self.start, self.start_epoch = snapshot_id.end_offset, snapshot_id.epoch
        # The snapshot is durable, and so are the records that it replaces.
        self.flushed_end = max(self.flushed_end, self.start)
        self.epochs.drop_before(self.start, self.end)
        self.snapshots = [known for known in self.snapshots if known >= snapshot_id]

    def reset(self, snapshot_id: SnapshotId, generations: Sequence[int]) -> None:
        """Start over at the end of a snapshot that has replaced the log."""
        self.lineage.reset(generations)
        self.start = self.end = self.flushed_end = snapshot_id.end_offset
        self.start_epoch = snapshot_id.epoch
        self.epochs = EpochIndex()
        self.snapshots = [snapshot_id]

    def snapshot_for(self, offset: int, last_epoch: int) -> SnapshotId | None:
        """Return the newest snapshot if a log that ends at ``offset`` in ``last_epoch`` needs one
        to continue, or None.

        A log needs a snapshot if it is empty, ends below the log start, or diverged before the log
        start.
        """
        if not self.snapshots:
            return None
        behind = offset == 0 or offset < self.start or last_epoch < self.start_epoch
        if behind or (offset == self.start and last_epoch != self.start_epoch):
            return self.snapshots[-1]
        return None

"""What the core knows of the local log: its ends and its epochs. The bytes are the shell's."""

from __future__ import annotations

from raftlog.quorum.epoch_index import EpochIndex
from raftlog.quorum.events import LogSpan
from raftlog.storage.api import RecoveredLog


class LogState:
    """start <= flushed end <= end; everything below the flushed end is durable here."""

    def __init__(self, recovered: RecoveredLog) -> None:
        self.start = recovered.start_offset
        self.end = recovered.end_offset
        self.flushed_end = recovered.end_offset
        self.epochs = EpochIndex(recovered.epochs)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, 0 if there is none."""
        return self.epochs.last_epoch

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
        return self.epochs.end_offset_for_epoch(epoch, log_start=self.start, log_end=self.end)

    def divergence(self, offset: int, last_epoch: int) -> tuple[int, int] | None:
        """None if a log that ends at ``offset`` in ``last_epoch`` is a prefix of this one; else where to look next.

        The answer is (epoch, end offset) as of :meth:`end_offset_for_epoch`: the other side truncates to it and asks again.
        """
        if offset == self.start == 0:
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

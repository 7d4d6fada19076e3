"""The ends and epochs of a replicated log, of metadata or of a partition: what continues it, and
where two of them part.
"""

from __future__ import annotations

from collections.abc import Iterable

from raftlog.quorum.epoch_index import EpochIndex
from raftlog.quorum.events import LogSpan


class LogEnds:
    """start <= flushed end <= end; everything below the flushed end is durable here."""

    first_epoch = 1
    """The lowest epoch that writes records: 0 is primordial in the quorum."""

    def __init__(
        self, start: int, end: int, epochs: Iterable[tuple[int, int]], *, start_epoch: int = 0
    ) -> None:
        self.start = start
        self.start_epoch = start_epoch
        """The epoch of the record before the start; 0 if there is none."""
        self.end = end
        self.flushed_end = end
        self.epochs = EpochIndex(epochs)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, that of the snapshot if the log behind it is empty, 0 if
        there never was one.
        """
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
        end_offset = min(end_offset, self.end)
        self.flushed_end = max(self.flushed_end, end_offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """See :meth:`EpochIndex.end_offset_for_epoch`."""
        return self.epochs.end_offset_for_epoch(
            epoch, log_start=self.start, log_end=self.end, start_epoch=self.start_epoch
        )

    def divergence(self, offset: int, last_epoch: int) -> tuple[int, int] | None:
        """None if a log that ends at ``offset`` in ``last_epoch`` is a prefix of this one; else
        where to look next.

        The answer is (epoch, end offset) as of :meth:`end_offset_for_epoch`: the other side
        truncates to it and asks again.
        """
        if (
            last_epoch == self.epochs.last_epoch and self.epochs.last_start < offset <= self.end
        ) or (offset == self.start == 0):
            return None
        epoch, end = self.end_offset_for_epoch(last_epoch)
        return None if epoch == last_epoch and offset <= end else (epoch, end)

    def truncation_point(self, epoch: int, end_offset: int) -> int | None:
        """Where to cut this log when the leader's has ``epoch`` last, of those not above this
        one's, and that ends at ``end_offset``.

        None if that would drop nothing: no leader asks for it. The leader's end of an epoch that
        this log does not have may lie inside a batch of an older one: that one's end is what the
        leader is asked about next.
        """
        if epoch < 0 or end_offset < 0 or epoch > self.last_epoch:
            return None
        local_epoch, local_end = self.end_offset_for_epoch(epoch)
        target = min(end_offset, local_end) if local_epoch == epoch else local_end
        return target if target < self.end else None

    def is_up_to_date(self, last_epoch: int, end_offset: int) -> bool:
        """Whether a log with this last epoch and end is at least as complete as this one (Raft
        5.4.1).
        """
        return (last_epoch, end_offset) >= (self.last_epoch, self.end)

    def accepts(self, span: LogSpan, max_epoch: int) -> bool:
        """Whether a span continues this log exactly, with epochs that neither go back nor pass
        ``max_epoch``.
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

"""Where each epoch of the log begins: what divergence is found by (KIP-101, KIP-595)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class EpochIndex:
    """(epoch, first offset) of each run of equal epochs in a log, both strictly ascending."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.last_epoch = 0
        """The epoch of the last record; 0, which never has a leader, if there is none.

        Read in each step: no property.
        """
        self.last_start = -1
        """Where the last epoch begins; -1 if there is none."""
        for epoch, start in entries:
            self.append(epoch, start)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """All (epoch, first offset)."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    @property
    def first_epoch(self) -> int:
        """The epoch of the first record; -1 if there is none."""
        return self._epochs[0] if self._epochs else -1

    def append(self, epoch: int, start: int) -> None:
        """Records of ``epoch`` follow from ``start`` on.

        Raises ValueError if an epoch or an offset would go back.
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
        self._cut()

    def drop_before(self, offset: int, log_end: int) -> None:
        """The log below ``offset`` was dropped."""
        keep_from = (
            max(0, bisect_right(self._starts, offset) - 1)
            if offset < log_end
            else len(self._starts)
        )
        del self._starts[:keep_from], self._epochs[:keep_from]
        if self._starts:
            self._starts[0] = max(offset, self._starts[0])
        self._cut()

    def _cut(self) -> None:
        self.last_epoch = self._epochs[-1] if self._epochs else 0
        self.last_start = self._starts[-1] if self._starts else -1

    def end_offset_for_epoch(
        self, epoch: int, *, log_start: int, log_end: int, start_epoch: int = 0
    ) -> tuple[int, int]:
        """The highest epoch here that is not above ``epoch``, and where it ends (exclusive).

        ``start_epoch`` is that of the record before the log start. (0, ``log_start``) if every
        epoch here is above ``epoch``: the two logs have nothing in common.
        """
        at = bisect_right(self._epochs, epoch)
        if at == 0:
            return (start_epoch if start_epoch <= epoch else 0), (
                log_start if self._epochs else log_end
            )
        return self._epochs[at - 1], self._starts[at] if at < len(self._starts) else log_end

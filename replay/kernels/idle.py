"""NoOp records, which a controller of Kafka writes at regular times while it is active
(``metadata.max.idle.interval.ms``): how far they are apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from replay.kernels.arrays import Ints

_ENOUGH = 3
"""Least number of records from which the interval is known. One may have another's time, at the end
of a transaction.
"""


class Idle(NamedTuple):
    """Idle records (NO_OP) of one epoch. ``longest_ms``: the longest interval between two that
    follow each other.
    """

    records: int
    first_ms: int
    last_ms: int
    longest_ms: int

    def followed_by(self, later: Idle) -> Idle:
        """Both, in the order of the log."""
        between_ms = later.first_ms - self.last_ms
        longest_ms = max(self.longest_ms, between_ms, later.longest_ms)
        return Idle(self.records + later.records, self.first_ms, later.last_ms, longest_ms)

    @property
    def due_ms(self) -> int | None:
        """Return the latest time at which the next record was due, by the intervals before it: a
        controller that had not written by then was not active any more. None: too few records to
        tell.
        """
        if self.records < _ENOUGH or not self.longest_ms:
            return None
        return self.last_ms + self.longest_ms


def idle(epoch: Ints, timestamp_ms: Ints) -> Iterator[tuple[int, Idle]]:
    """Yield the intervals of NoOp records in order, epoch by epoch; an epoch may come several
    times.
    """
    if not len(epoch):
        return
    starts = np.flatnonzero(np.diff(epoch, prepend=epoch[0] - 1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(epoch)], strict=True):
        at_ms = timestamp_ms[start:end]
        longest_ms = int(np.diff(at_ms).max(initial=0))
        yield int(epoch[start]), Idle(end - start, int(at_ms[0]), int(at_ms[-1]), longest_ms)

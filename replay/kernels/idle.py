"""NoOp records, which a controller of Kafka writes at regular times while it is active
(``metadata.max.idle.interval.ms``): how far they are apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from replay.kernels.arrays import Ints

_ENOUGH = 3
"""So many tell the interval. One may stand at another's time, at the end of a transaction."""


class Idle(NamedTuple):
    """Those of one epoch. ``longest_ms``: between two that follow each other."""

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
        """When the next one would have come at the latest, as the others did: who has not written
        it was active no more. None: too few to say.
        """
        if self.records < _ENOUGH or not self.longest_ms:
            return None
        return self.last_ms + self.longest_ms


def idle(epoch: Ints, timestamp_ms: Ints) -> Iterator[tuple[int, Idle]]:
    """Of NoOp records in order, epoch by epoch; one may come several times."""
    if not len(epoch):
        return
    starts = np.flatnonzero(np.diff(epoch, prepend=epoch[0] - 1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(epoch)], strict=True):
        at_ms = timestamp_ms[start:end]
        longest_ms = int(np.diff(at_ms).max(initial=0))
        yield int(epoch[start]), Idle(end - start, int(at_ms[0]), int(at_ms[-1]), longest_ms)

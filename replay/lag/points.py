"""The timeline of LAO: each sample, and its lag."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replay.kernels.arrays import MISSING, NEVER, Ints
from replay.lag.model import LaoPoint
from replay.lag.samples import Samples, shifted
from replay.lag.waits import Asked, Waited, raising


@dataclass(frozen=True)
class Points:
    """Points of the timeline, one place a sample.

    ``lag_offsets``: from LAO to the last committed record; ``lag_ms``: the age of the oldest record
    above LAO that was waited for then, 0 if there was none (MISSING: LAO is unknown). ``covered``:
    how many such records the sample newly covers, ``oldest_ms``: when the oldest of them was
    written (NEVER: none), ``waited_ms``: how long it had waited, as controllers have measured it or
    else up to the sample.
    """

    samples: Samples
    lag_offsets: Ints
    lag_ms: Ints
    covered: Ints
    oldest_ms: Ints
    waited_ms: Ints

    def rows(self, places: Ints) -> list[LaoPoint]:
        """Return some of them."""
        sampled = self.samples

        def known(values: Ints, place: int) -> int | None:
            return None if values[place] == MISSING else int(values[place])

        return [
            LaoPoint(
                int(sampled.offset[place]),
                int(sampled.epoch[place]),
                int(sampled.timestamp_ms[place]),
                known(sampled.lao, place),
                int(sampled.high_watermark[place]),
                known(self.lag_offsets, place),
                known(self.lag_ms, place),
                int(self.covered[place]),
                None if self.oldest_ms[place] == NEVER else int(self.waited_ms[place]),
            )
            for place in places.tolist()
        ]


def points(sampled: Samples, asked: Asked, found: Waited) -> Points:
    """Return the points of a pass that looked for the record behind each sample's LAO."""
    known = sampled.lao != MISSING
    at = np.searchsorted(asked.offsets, np.where(known, sampled.lao + 1, 0))
    at = np.minimum(at, max(len(asked.offsets) - 1, 0))
    nothing = np.full(len(sampled), NEVER, np.int64)
    next_, next_ms = (
        (found.next[at], found.next_ms[at]) if len(asked.offsets) else (nothing, nothing)
    )
    lag_ms = np.where(next_ < sampled.high_watermark, sampled.timestamp_ms - next_ms, 0)
    rising = raising(sampled)
    covered, oldest_ms = np.zeros(len(sampled), np.int64), nothing.copy()
    covered[rising], oldest_ms[rising] = found.covered[:-1], found.oldest_ms[:-1]
    return Points(
        sampled,
        np.where(known, np.maximum(sampled.high_watermark - 1 - sampled.lao, 0), MISSING),
        np.where(known, lag_ms, MISSING),
        covered,
        oldest_ms,
        _waited_ms(sampled, covered, oldest_ms),
    )


def _waited_ms(sampled: Samples, covered: Ints, oldest_ms: Ints) -> Ints:
    """Return how long the oldest record had waited: up to the sample at the most. If the controller
    has measured all records that the sample covers, this is the longest measured wait.

    It has measured no record of a controller before it: where LAO stood, it has said itself.
    """
    most = np.where(oldest_ms == NEVER, 0, sampled.timestamp_ms - oldest_ms)
    own = (shifted(sampled.epoch) == sampled.epoch) & (shifted(sampled.lao) != MISSING)
    measured = own & (sampled.measured != MISSING) & (sampled.measured >= covered)
    return np.where(measured, np.minimum(most, -(-sampled.measured_us // 1000)), most)

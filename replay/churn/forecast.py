"""A straight line through what was, drawn on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

DAY_MS = 86_400_000


class Trend(NamedTuple):
    """A linear trend: ``per_day`` more each day, ``now`` at the time of the last point."""

    now: float
    per_day: float

    def after(self, days: float) -> int:
        """Return the value ``days`` after the last point.

        A falling line is not extrapolated: a value that shrinks for a while does not vanish.
        """
        return round(self.now + max(0.0, self.per_day) * days)


def trend(points: Sequence[tuple[int, float]]) -> Trend | None:
    """Return the line of least squares through (time in ms, value), moved so that it goes through
    the last one. None for fewer than two.
    """
    if len(points) < 2:
        return None
    days = [(at - points[-1][0]) / DAY_MS for at, _ in points]
    values = [value for _, value in points]
    middle, mean = sum(days) / len(days), sum(values) / len(values)
    spread = sum((day - middle) ** 2 for day in days)
    slope = (
        sum((day - middle) * (value - mean) for day, value in zip(days, values, strict=True))
        / spread
    )
    return Trend(values[-1], slope)

"""Curves of the timeline, a value for each step of the axis: impaired partitions, and how the log
grew.
"""

from __future__ import annotations

import numpy as np

from replay.churn.growth import Growth
from replay.kernels.arrays import Ints
from replay.report import model
from replay.report.axis import buckets_of, start_of
from replay.report.model import MAX_TYPES, Axis, Level
from replay.report.moments import Changes, Troubled

OTHER = "other"


def impaired(found: Troubled, axis: Axis) -> list[Level]:
    """Return the numbers of partitions without a leader and of those with fewer members in the ISR
    than replicas: the most within each step.
    """
    highest = (_highest(each, axis).tolist() for each in (found.leaderless_by, found.short_by))
    return [
        Level(start_of(axis, step), leaderless, short)
        for step, (leaderless, short) in enumerate(zip(*highest, strict=True))
    ]


def _highest(changes: Changes, axis: Axis) -> Ints:
    """A step begins at the level at which the last one ended: the highest is that, or one
    within.
    """
    level = np.cumsum(changes.by)
    step = buckets_of(axis, changes.at_ms)
    # How many changes came before each step: its level is behind the last of them.
    before = np.searchsorted(step, np.arange(axis.buckets))
    high = np.concatenate([[0], level])[before]
    np.maximum.at(high, step, level)
    return high


def growth(found: Growth, axis: Axis) -> list[model.Growth]:
    """Records by step and type; the rarer types as one."""
    totals: dict[str, int] = {}
    for (_, name), records in found.steps.items():
        totals[name] = totals.get(name, 0) + records
    told = set(sorted(totals, key=lambda name: (-totals[name], name))[:MAX_TYPES])
    summed: dict[tuple[int, str], int] = {}
    for (step, name), records in sorted(found.steps.items()):
        key = step, name if name in told else OTHER
        summed[key] = summed.get(key, 0) + records
    return [
        model.Growth(start_of(axis, step), name, count) for (step, name), count in summed.items()
    ]

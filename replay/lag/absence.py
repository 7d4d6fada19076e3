"""Intervals without a broker in service: LAO is of unfenced brokers, so it does not exist until the
first one is unfenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from replay.outages.fencings import Service

AT_THE_END = (1 << 63) - 1
"""Offset that stands for the end: behind the last one."""


class Return(NamedTuple):
    """The record that unfenced the first broker; AT_THE_END both: none did."""

    offset: int
    timestamp_ms: int


def returns(served: Iterable[Service]) -> list[Return]:
    """Return each end of a time in which no broker was in service; such a time is before the first
    one.
    """
    steps: dict[int, tuple[int, int]] = {}

    def step(offset: int, timestamp_ms: int, by: int) -> None:
        # One batch may do both: its records have offsets of their own, but one that replaces a
        # registration does both at one.
        before = steps.get(offset, (timestamp_ms, 0))
        steps[offset] = (max(before[0], timestamp_ms), before[1] + by)

    serving = 0
    for each in served:
        if each.fenced:
            continue
        step(each.begins, each.begins_ms, 1)
        if each.ends is None or each.ends_ms is None:
            serving += 1
        else:
            step(each.ends, each.ends_ms, -1)
    found, level = [], 0
    for offset, (timestamp_ms, by) in sorted(steps.items()):
        if level == 0 and by > 0:
            found.append(Return(offset, timestamp_ms))
        level += by
    return found if serving else [*found, Return(AT_THE_END, AT_THE_END)]

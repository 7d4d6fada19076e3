"""The time axis of a report."""

from __future__ import annotations

from replay.kernels.arrays import Ints
from replay.lag.waits import Steps
from replay.report.model import MAX_BUCKETS, Axis


def choose_axis(begins_ms: int, ends_ms: int) -> Axis:
    """Return the axis from the first record to the last, both inclusive."""
    length_ms = max(1, ends_ms - begins_ms + 1)
    return Axis(begins_ms, ends_ms, -(-length_ms // MAX_BUCKETS))


def steps_of(axis: Axis) -> Steps:
    """Return the steps of the axis."""
    return Steps(axis.begins_ms, axis.bucket_ms)


def buckets_of(axis: Axis, at_ms: Ints) -> Ints:
    """Return the step of the axis, from 0, in which each time lies."""
    return (at_ms - axis.begins_ms) // axis.bucket_ms


def start_of(axis: Axis, bucket: int) -> int:
    """Return the begin of a step of the axis."""
    return axis.begins_ms + bucket * axis.bucket_ms

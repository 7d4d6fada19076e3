"""The time axis of a report, and columns on it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from replay.report.model import MAX_BUCKETS, Axis


def choose_axis(begins_ms: int, ends_ms: int) -> Axis:
    """The axis from the first record to the last, both inclusive."""
    length_ms = max(1, ends_ms - begins_ms + 1)
    return Axis(begins_ms, ends_ms, -(-length_ms // MAX_BUCKETS))


def bucket_of(axis: Axis, at_ms: str) -> Column:
    """The step of the axis, from 0, in which the time in the column ``at_ms`` lies."""
    # floor() of a double: exact below 2**53, which milliseconds are.
    return sf.floor((sf.col(at_ms) - axis.begins_ms) / axis.bucket_ms).cast("int")


def start_of(axis: Axis, bucket: int) -> int:
    """When a step of the axis begins."""
    return axis.begins_ms + bucket * axis.bucket_ms


def clip(intervals: DataFrame, axis: Axis) -> DataFrame:
    """The intervals with ``ends_ms`` at the axis's end where they had not ended."""
    return intervals.withColumn("ends_ms", sf.coalesce("ends_ms", sf.lit(axis.ends_ms)))

"""What was in force at an offset: points looked up in intervals, columnar and without a join that
grows faster than its sides.

The log is cut into slices of equal length. An interval stands in each slice that it touches, a
point in one, so that a point meets only what is near it: however often a broker was fenced, and
however many ISRs it was proposed for, no two of its lists meet whole.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

SLICES = 2048
"""At most: what an interval that covers the whole log costs in rows."""
_SLICE_MIN = 1024


def slice_length(end_offset: int) -> int:
    """How many offsets a slice has, for a history that ends before ``end_offset``."""
    return max(_SLICE_MIN, -(-end_offset // SLICES))


def slice_of(offset: Column, length: int) -> Column:
    """The slice of an offset."""
    return sf.floor(offset / sf.lit(length)).cast("int")


def in_force(
    points: DataFrame,
    intervals: DataFrame,
    *,
    end_offset: int,
    on: tuple[str, ...] = (),
    how: str = "left",
) -> DataFrame:
    """Each point with the columns of the interval of the same ``on`` that is in force at its offset
    ``at`` (at -1: none is).

    ``intervals`` have ``begins`` (inclusive) and ``ends`` (exclusive, null: never). Intervals of
    one ``on`` that do not overlap give one row a point at the most; ``how`` as in a join. The other
    columns of the two sides must differ in name.
    """
    length = slice_length(end_offset)
    last = sf.coalesce(sf.col("ends") - 1, sf.lit(end_offset - 1))
    touched = sf.sequence(
        slice_of(sf.col("begins"), length), slice_of(sf.greatest(last, sf.col("begins")), length)
    )
    # Under names of its own: both sides may come from the same records.
    keys = {name: f"interval_{name}" for name in on}
    spread = intervals.withColumnsRenamed(keys).withColumn("interval_slice", sf.explode(touched))
    placed = points.withColumn("slice", slice_of(sf.col("at"), length))
    condition = (sf.col("slice") == sf.col("interval_slice")) & (sf.col("begins") <= sf.col("at"))
    condition &= sf.col("ends").isNull() | (sf.col("at") < sf.col("ends"))
    for name, key in keys.items():
        condition &= sf.col(name) == sf.col(key)
    return placed.join(spread, condition, how).drop("slice", "interval_slice", *keys.values())

"""A stretch of time: what of an interval lies in it, and how much of it lies in each of its hours
or days.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
_HOURS_UP_TO_DAYS = 3


class Stretch(NamedTuple):
    """From ``since_ms`` on, up to ``until_ms``."""

    since_ms: int
    until_ms: int

    @classmethod
    def of(cls, records: DataFrame, since_ms: int | None) -> Stretch:
        """That of the records, from ``since_ms`` on if it is within them; None: all of it."""
        whole = records.agg(
            sf.min("timestamp_ms").alias("first"), sf.max("timestamp_ms").alias("last")
        ).collect()[0]
        return cls(
            whole.first if since_ms is None else min(max(since_ms, whole.first), whole.last),
            whole.last,
        )

    @property
    def length_ms(self) -> int:
        """How long it is."""
        return max(0, self.until_ms - self.since_ms)

    @property
    def period_ms(self) -> int:
        """What it is cut into for people: hours, or days if it has more than three."""
        return HOUR_MS if self.length_ms <= _HOURS_UP_TO_DAYS * DAY_MS else DAY_MS

    def clip(self, intervals: DataFrame) -> DataFrame:
        """What of the intervals lies in it: begins_ms and ends_ms, without nulls; what lasts still
        ends with the stretch.
        """
        begins = sf.greatest(sf.col("begins_ms"), sf.lit(self.since_ms))
        ends = sf.least(sf.coalesce("ends_ms", sf.lit(self.until_ms)), sf.lit(self.until_ms))
        inside = (sf.col("begins_ms") <= self.until_ms) & (
            sf.coalesce("ends_ms", sf.lit(self.until_ms)) >= self.since_ms
        )
        return intervals.where(inside).withColumns({"begins_ms": begins, "ends_ms": ends})

    def by_period(self, clipped: DataFrame, **flags: Column) -> DataFrame:
        """How long the intervals lasted in each period, added up: period_ms (its beginning), and
        for each of ``flags`` its sum in ms.

        ``flags`` are 0 or 1 for an interval. The cost is that of adding up its two ends, however
        many periods an interval spans.
        """
        length = self.period_ms
        begun = clipped.select(
            sf.col("begins_ms").alias("at"),
            *(flag.cast("long").alias(name) for name, flag in flags.items()),
        )
        ended = clipped.select(
            sf.col("ends_ms").alias("at"),
            *((-flag.cast("long")).alias(name) for name, flag in flags.items()),
        )
        period = sf.col("at") - sf.col("at") % length
        left = period + length - sf.col("at")
        sums = [
            column
            for name in flags
            for column in (
                sf.sum(name).alias(f"{name}_net"),
                sf.sum(sf.col(name) * left).alias(f"{name}_inside"),
            )
        ]
        changed = begun.unionByName(ended).groupBy(period.alias("period_ms")).agg(*sums)
        first = self.since_ms - self.since_ms % length
        calendar = clipped.sparkSession.range(first, self.until_ms + 1, length, 1).select(
            sf.col("id").alias("period_ms")
        )
        # A row a period: few enough for one task.
        before = Window.orderBy("period_ms").rowsBetween(Window.unboundedPreceding, -1)
        nothing = sf.lit(0).cast("long")
        totals = {
            name: sf.coalesce(sf.sum(f"{name}_net").over(before), nothing) * length
            + sf.coalesce(f"{name}_inside", nothing)
            for name in flags
        }
        joined = calendar.join(changed, "period_ms", "left")
        return joined.select("period_ms", *(total.alias(name) for name, total in totals.items()))

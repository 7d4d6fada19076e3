"""What came before and what comes next in the whole log, without one task that sees it all.

A window without keys runs in a single task, however long the log is. Here rows are cut into buckets
of offsets: a window runs in each bucket, and what a bucket leaves behind is carried to the others
by a window over one row a bucket. Memory and time of a task are those of a bucket; nothing depends
on how records are spread over brokers, topics or epochs.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

_BUCKET = "_bucket"


class Running(NamedTuple):
    """What is carried along the log: the ``last`` value that is not null, the ``max``, or the
    ``sum``.

    ``including``: the row's own value counts; else only those before it.
    """

    value: Column
    how: Literal["last", "max", "sum"] = "last"
    including: bool = True


class Order(NamedTuple):
    """How rows are put in order: in buckets of 2 ** ``bits`` offsets, or all in one (None)."""

    bits: int | None

    def so_far(self, rows: DataFrame, order: str = "offset", **columns: Running) -> DataFrame:
        """Add a column for each of ``columns``, in the order of the column ``order`` (an offset, at
        most one row each).

        Where nothing was there yet: null, and 0 for a sum.
        """
        keyed = rows.withColumn(_BUCKET, self._bucket(order))
        within = Window.partitionBy(_BUCKET).orderBy(order)
        local = {
            name: _running(running).over(
                within.rowsBetween(Window.unboundedPreceding, 0 if running.including else -1)
            )
            for name, running in columns.items()
        }
        joined = keyed.withColumns(local)
        carried: dict[str, Column] = {name: sf.lit(None) for name in columns}
        if self.bits is not None:
            joined = joined.join(sf.broadcast(_carried(keyed, order, columns)), _BUCKET, "left")
            carried = {name: sf.col(f"_carried_{name}") for name in columns}
        combined = {
            name: _combined(running.how, sf.col(name), carried[name])
            for name, running in columns.items()
        }
        return joined.select(
            *rows.columns, *(column.alias(name) for name, column in combined.items())
        )

    def next_event(
        self, rows: DataFrame, events: DataFrame, *, at: str, key: str, name: str
    ) -> DataFrame:
        """Add the struct column ``name``: the first of ``events`` whose ``key`` is at or above the
        row's ``at``; null if there is none.

        Both are offsets; ``events`` has one row a key at most. Rows whose ``at`` is null get null.
        """
        event = sf.struct(*(sf.col(column) for column in events.columns))
        marked = events.select(
            self._bucket(key).alias(_BUCKET), sf.col(key).alias("_at"), event.alias(name)
        )
        asked = rows.withColumns(
            {_BUCKET: self._bucket(at), "_at": sf.col(at), "_asked": sf.lit(1)}
        )
        both = asked.unionByName(marked.withColumn("_asked", sf.lit(0)), allowMissingColumns=True)
        # Backwards, so that the frame grows towards the row: a frame to the end of the bucket would
        # cost its square.
        behind = (
            Window.partitionBy(_BUCKET)
            .orderBy(sf.desc("_at"), sf.asc("_asked"))
            .rowsBetween(Window.unboundedPreceding, Window.currentRow)
        )
        local = both.withColumn(
            name, sf.when(sf.col("_at").isNotNull(), sf.last(name, ignorenulls=True).over(behind))
        )
        found = local.where(sf.col("_asked") == 1)
        if self.bits is not None:
            ahead = _first_of_later_buckets(marked, name)
            found = found.join(sf.broadcast(ahead), _BUCKET, "left").withColumn(
                name, sf.coalesce(name, "_ahead")
            )
        return found.select(*rows.columns, name)

    def _bucket(self, offset: str) -> Column:
        return (
            sf.lit(0).cast("long")
            if self.bits is None
            else sf.shiftright(sf.col(offset), self.bits)
        )


BUCKETS = Order(16)
"""For any log: a million records are 16 tasks' work, a billion 15,000 rows to carry."""
ONE_TASK = Order(None)
"""For a log whose records one task can sort: the same, with less to plan and to start."""
_ONE_TASK_RECORDS = 1_000_000


def order_for(records: int) -> Order:
    """The cheaper of the two for so many records."""
    return ONE_TASK if records <= _ONE_TASK_RECORDS else BUCKETS


def _running(running: Running) -> Column:
    if running.how == "last":
        return sf.last(running.value, ignorenulls=True)
    return sf.max(running.value) if running.how == "max" else sf.sum(running.value)


def _combined(how: str, local: Column, carried: Column) -> Column:
    if how == "last":
        return sf.coalesce(local, carried)
    if how == "max":
        return sf.greatest(local, carried)
    return sf.coalesce(local, sf.lit(0)) + sf.coalesce(carried, sf.lit(0))


def _carried(keyed: DataFrame, order: str, columns: dict[str, Running]) -> DataFrame:
    """For each bucket what all buckets before it left behind."""

    def of_bucket(running: Running) -> Column:
        if running.how == "last":
            return sf.max_by(running.value, sf.when(running.value.isNotNull(), sf.col(order)))
        return sf.max(running.value) if running.how == "max" else sf.sum(running.value)

    left = keyed.groupBy(_BUCKET).agg(
        *(of_bucket(running).alias(name) for name, running in columns.items())
    )
    before = Window.orderBy(_BUCKET).rowsBetween(Window.unboundedPreceding, -1)
    return left.select(
        _BUCKET,
        *(
            _running(running._replace(value=sf.col(name))).over(before).alias(f"_carried_{name}")
            for name, running in columns.items()
        ),
    )


def _first_of_later_buckets(marked: DataFrame, name: str) -> DataFrame:
    """For each bucket the first event of those after it: one row a bucket up to the last
    event's.
    """
    firsts = marked.groupBy(_BUCKET).agg(sf.min_by(name, "_at").alias("_ahead"))
    previous = sf.coalesce(sf.lag(_BUCKET).over(Window.orderBy(_BUCKET)), sf.lit(0).cast("long"))
    spread = firsts.withColumn("_first", previous).where(sf.col("_first") < sf.col(_BUCKET))
    buckets = sf.explode(sf.sequence(sf.col("_first"), sf.col(_BUCKET) - 1))
    return spread.select(buckets.alias(_BUCKET), "_ahead")

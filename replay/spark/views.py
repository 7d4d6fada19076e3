"""An export as views for SQL: ``register(spark, EXPORT)``, and ask.

* ``records``: the log, a row a record (:mod:`raftlog.segments.columns`);
* ``changes``: what they changed: a row for each entity, with its value before and after
  (:mod:`replay.engine.fold`);
* ``brokers``: registrations, a row for each interval in which one's facts are constant
  (:mod:`replay.spark.timelines`, as the rest);
* ``partitions``: replicas, leader, ISR of partitions;
* ``topics``: from creation to removal;
* ``configs``: values of config keys;
* ``controllers``: who led the quorum;
* ``lao``: LAO and its lag, at each progress record (:mod:`replay.lag.waits`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession

from replay.engine.audit import check_files
from replay.engine.fold import CHANGED, change_work
from replay.export import Export, open_export, require_whole_history
from replay.kernels.facts import Facts
from replay.lag.timeline import points_table
from replay.request import JobRequest
from replay.spark import timelines
from replay.spark.pool import SparkPool
from replay.spark.tables import records


class _Records:
    """The records and their facts: read once for all views."""

    def __init__(self, spark: SparkSession, export: Export) -> None:
        self.rows = records(spark, export)
        self._pool, self._export = SparkPool(spark, export.record_count), export

    @cached_property
    def facts(self) -> Facts:
        return timelines.facts_of(self.rows)

    @property
    def changes(self) -> DataFrame:
        return self._pool.bucket_frame(*change_work(self._export), CHANGED)


VIEWS: dict[str, Callable[[_Records], DataFrame]] = {
    "records": lambda of: of.rows,
    "changes": lambda of: of.changes,
    "brokers": lambda of: timelines.brokers(of.rows, of.facts),
    "partitions": lambda of: timelines.partitions(of.rows, of.facts),
    "topics": lambda of: timelines.topics(of.rows, of.facts),
    "configs": lambda of: timelines.configs(of.rows, of.facts),
    "controllers": lambda of: timelines.controllers(of.rows),
    "lao": lambda of: points_table(of.rows),
}
"""Each view's name, and how it comes from the records."""


def register(
    spark: SparkSession,
    target: str,
    *,
    at_offset: int | None = None,
    at_time_ms: int | None = None,
    prefix: str = "",
    verify: bool = True,
) -> Export:
    """Make temporary views over the export at a path or a URI, as far as the two limits (both
    inclusive) let it reach.

    The views show what the export held now; register again to see more. ``prefix`` comes before
    their names, for two exports in one session. ``verify``: read all files first and compare their
    hashes. Raises ExportError and its kinds, ReplayError.
    """
    export = open_export(
        JobRequest(job="sql", export=str(target), at_offset=at_offset, at_time_ms=at_time_ms)
    )
    require_whole_history(export)
    if verify:
        check_files(export, SparkPool(spark, export.record_count))
    register_export(spark, export, prefix)
    return export


def register_export(
    spark: SparkSession, export: Export, prefix: str = "", names: Collection[str] = tuple(VIEWS)
) -> None:
    """Make the views over an open export, or some of them: brokers, topics, partitions and configs
    need a look at the records.
    """
    of = _Records(spark, export)
    for name in names:
        VIEWS[name](of).createOrReplaceTempView(prefix + name)

"""An export as views for SQL: ``register(spark, EXPORT)``, and ask.

* ``records``: the log, a row a record (:mod:`raftlog.segments.columns`);
* ``changes``: what they changed: a row for each entity, with its value before and after
  (:mod:`replay.changes`);
* ``brokers``: registrations, a row for each interval in which one's facts are constant
  (:mod:`replay.timelines`, as the rest);
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

from replay import timelines
from replay.changes import changes
from replay.kernels.facts import Facts
from replay.lag.timeline import points_table
from replay.opened import Export, open_export, require_whole_history
from replay.request import JobRequest
from replay.source import check_files, records


class _Records:
    """The records and their facts: read once for all views."""

    def __init__(self, rows: DataFrame, *, imported: bool) -> None:
        self.rows, self.imported = rows, imported

    @cached_property
    def facts(self) -> Facts:
        return timelines.facts_of(self.rows)


VIEWS: dict[str, Callable[[_Records], DataFrame]] = {
    "records": lambda of: of.rows,
    "changes": lambda of: changes(of.rows, imported=of.imported),
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
        check_files(spark, export)
    register_export(spark, export, prefix)
    return export


def register_export(
    spark: SparkSession, export: Export, prefix: str = "", names: Collection[str] = tuple(VIEWS)
) -> None:
    """Make the views over an open export, or some of them: brokers, topics, partitions and configs
    need a look at the records.
    """
    of = _Records(records(spark, export), imported=bool(export.manifest.origin))
    for name in names:
        VIEWS[name](of).createOrReplaceTempView(prefix + name)

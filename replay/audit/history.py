"""What the rules look at: the records, and the timelines made of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from replay import timelines
from replay.audit.steps import steps

RARE = frozenset(
    {
        RecordType.REGISTER_BROKER,
        RecordType.UNREGISTER_BROKER,
        RecordType.BROKER_REGISTRATION_CHANGE,
        RecordType.TOPIC,
        RecordType.REMOVE_TOPIC,
        RecordType.FEATURE_LEVEL,
        RecordType.LEADER_CHANGE,
        RecordType.RECOVERY,
        RecordType.OPEN_CLIENT,
        RecordType.CLOSE_CLIENT,
        RecordType.HOSTNAME,
        RecordType.ACCESS_CONTROL_ENTRY,
        RecordType.REMOVE_ACCESS_CONTROL_ENTRY,
    }
)
"""The types that many rules ask for, and that few records are of."""
_RARE_COLUMNS = (
    "offset",
    "epoch",
    "timestamp_ms",
    "principal",
    "batch_base_offset",
    "batch_last_offset",
    "type",
    "group_id",
    "broker_id",
    "broker_epoch",
    "incarnation_id",
    "rack",
    "fenced",
    "in_controlled_shutdown",
    "reason",
    "cause",
    "topic_id",
    "topic_name",
    "feature_name",
    "feature_level",
    "leader_id",
    "acl_resource_type",
    "resource_name",
    "pattern_type",
    "acl_principal",
    "host",
    "operation",
    "permission_type",
)


@dataclass(frozen=True)
class History:
    """A history, or a piece of one.

    ``records``: as :func:`replay.source.records` gives them, all below ``end_offset``. Findings are
    those at or behind ``since``: below it stands what is there to be remembered (see
    :mod:`replay.audit.memory`), which has been judged before. ``brokers_before``,
    ``partitions_before`` and ``topics_before``: the intervals that were open before the records,
    null for a history that is given from its beginning. ``super_users``: the principals that no
    access control entry holds back, which the log does not name.
    """

    records: DataFrame
    end_offset: int
    since: int = 0
    brokers_before: DataFrame | None = None
    partitions_before: DataFrame | None = None
    topics_before: DataFrame | None = None
    super_users: frozenset[str] = frozenset()

    @cached_property
    def brokers(self) -> DataFrame:
        """See :func:`replay.timelines.brokers`."""
        return timelines.brokers(self.of(*timelines.BROKER_TYPES), self.brokers_before)

    @cached_property
    def topics(self) -> DataFrame:
        """See :func:`replay.timelines.topics`."""
        return timelines.topics(
            self.of(RecordType.TOPIC, RecordType.REMOVE_TOPIC), self.topics_before
        )

    @cached_property
    def steps(self) -> DataFrame:
        """The timeline of the partitions, each interval beside its neighbours: see
        :func:`replay.audit.steps.steps`.
        """
        return steps(timelines.partitions(self.records, self.partitions_before, lives=self.topics))

    @property
    def partitions(self) -> DataFrame:
        """See :func:`replay.timelines.partitions`."""
        return self.steps.select(*timelines.PARTITION_COLUMNS)

    @cached_property
    def rare(self) -> DataFrame:
        """The records of the types RARE, without the columns that they do not fill."""
        return _of(self.records, RARE).select(*_RARE_COLUMNS)

    @contextmanager
    def kept(self) -> Iterator[History]:
        """While it lasts, what many rules are made of is computed once and kept by the executors.

        What is small is computed at once: Spark then knows that it is, and brings it to the large
        tables instead of sorting them.
        """
        small = (self.rare, self.brokers, self.topics)
        kept = (*small, self.steps)
        for table in small:
            table.persist(StorageLevel.MEMORY_AND_DISK)
        # On disk alone: what does not fit into memory would be read back into it, a whole partition
        # at a time.
        self.steps.persist(StorageLevel.DISK_ONLY)
        try:
            for table in small:
                table.count()
            yield self
        finally:
            for table in kept:
                table.unpersist()

    def of(self, *types: RecordType) -> DataFrame:
        """The records of some types; of RARE ones only the columns that they fill."""
        return _of(self.rare if RARE.issuperset(types) else self.records, types)


def _of(records: DataFrame, types: Iterable[RecordType]) -> DataFrame:
    return records.where(sf.col("type").isin(*(int(each) for each in sorted(types))))

"""What the rules look at: the records, and the timelines made of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from raftlog.metadata.records import RecordType
from replay import timelines


@dataclass(frozen=True)
class History:
    """A history, or a piece of one.

    ``records``: as :func:`replay.source.records` gives them, all below ``end_offset``. Findings are those at or behind ``since``: below it
    stands what is there to be remembered (see :mod:`replay.audit.memory`), which has been judged before.
    ``brokers_before``, ``partitions_before`` and ``topics_before``: the intervals that were open before the records, null for a history
    that is given from its beginning.
    """

    records: DataFrame
    end_offset: int
    since: int = 0
    brokers_before: DataFrame | None = None
    partitions_before: DataFrame | None = None
    topics_before: DataFrame | None = None

    @cached_property
    def brokers(self) -> DataFrame:
        """See :func:`replay.timelines.brokers`."""
        return timelines.brokers(self.of(*timelines.BROKER_TYPES), self.brokers_before)

    @cached_property
    def partitions(self) -> DataFrame:
        """See :func:`replay.timelines.partitions`."""
        return timelines.partitions(self.records, self.partitions_before, topics_before=self.topics_before)

    @contextmanager
    def kept(self) -> Iterator[History]:
        """While it lasts the timelines, of which many rules are made, are computed once, at the first use, and kept by the executors."""
        timelines_ = (self.brokers, self.partitions)
        for timeline in timelines_:
            timeline.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield self
        finally:
            for timeline in timelines_:
                timeline.unpersist()

    def of(self, *types: RecordType) -> DataFrame:
        """The records of some types."""
        return self.records.where(self.records["type"].isin(*(int(each) for each in types)))

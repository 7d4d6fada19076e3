"""The history as Spark passes it to the rules: the records, spread so that records judged together
are together, and the facts of rare records, which every task receives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from raftlog.metadata.records import RecordType
from replay.kernels.arrays import NEVER
from replay.kernels.facts import RARE, RARE_COLUMNS, BrokerSpan, Facts, TopicLife
from replay.kernels.rules import clients, configs, progress, rights
from replay.kernels.rules.quorum import Epoch
from replay.kernels.steps import COLUMNS, PARTITION_TYPES, STATE_SCHEMA

BEFORE = -1
"""Offset of a row with a partition's state before the records."""
_STATE_IN = {"begins": "batch_last_offset", "begins_ms": "timestamp_ms"}
"""Columns of such a row that stand in columns of records."""


@dataclass(frozen=True)
class History:
    """A history, or a piece of one.

    ``records``: as :func:`replay.source.records` gives them, all below ``end_offset``. Findings are
    those at or behind ``since``: below it stands what is there to be remembered (see
    :mod:`replay.audit.memory`), which has been judged before. ``partitions_before`` and
    ``topics_before``: what was open before the records, and ``brokers_before``: the last span of
    each broker; null for a history that is given from its beginning. ``super_users`` and
    ``allow_everyone_if_no_acl_found``: of the nodes' configuration, which the log does not say.
    ``state_from``: what stands below it is a state, and no history.
    """

    records: DataFrame
    end_offset: int
    since: int = 0
    brokers_before: DataFrame | None = None
    partitions_before: DataFrame | None = None
    topics_before: DataFrame | None = None
    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = False
    state_from: int = 0

    @cached_property
    def rare(self) -> DataFrame:
        """The records of the types RARE, without the columns that they do not fill."""
        return of_types(self.records, RARE).select(*RARE_COLUMNS)

    @cached_property
    def facts(self) -> Facts:
        """Facts of the rare records. One Spark job; each of these records becomes a row in the
        driver.
        """
        return Facts(
            self.rare.toArrow().sort_by("offset"),
            self.end_offset,
            self.since,
            self.super_users,
            self.allow_everyone_if_no_acl_found,
            brokers_before=remembered_spans(self.brokers_before, BrokerSpan, ended=True),
            topics_before=remembered_spans(self.topics_before, TopicLife),
            state_from=self.state_from,
        )

    @cached_property
    def counted(self) -> tuple[Counter[int], list[Epoch]]:
        """Number of records of each type, and the range of each epoch. One Spark job."""
        of_epoch = (
            sf.min("offset").alias("first"),
            sf.max("offset").alias("last"),
            sf.min("timestamp_ms").alias("first_ms"),
            sf.max("timestamp_ms").alias("last_ms"),
            sf.count("*").alias("count"),
        )
        types: Counter[int] = Counter()
        epochs = []
        for row in self.records.groupBy("type", "epoch").agg(*of_epoch).collect():
            types[row["type"]] += row["count"]
            epochs.append(
                Epoch(row["epoch"], row["first"], row["last"], row["first_ms"], row["last_ms"])
            )
        return types, epochs

    @property
    def of_partitions(self) -> DataFrame:
        """The records of partitions, all of one in one task and in order, behind what was before:
        see BEFORE.
        """
        rows = of_types(self.records, PARTITION_TYPES).select(*COLUMNS)
        if self.partitions_before is not None:
            rows = rows.unionByName(_as_records(self.partitions_before, rows))
        return _in_order(rows, "topic_id", "partition_id")

    @property
    def of_clients(self) -> DataFrame:
        """The last record of each batch that names a client; all of one client in one task."""
        numbered = (
            (sf.col("client_id") != 0)
            & (sf.col("sequence") != 0)
            & (sf.col("offset") == sf.col("batch_last_offset"))
        )
        return _in_order(self.records.where(numbered).select(*clients.COLUMNS), "client_id")

    @property
    def of_progress(self) -> DataFrame:
        """The progress records: one task's work."""
        rows = of_types(self.records, (RecordType.PROGRESS,)).select(*progress.COLUMNS)
        return rows.repartition(1).sortWithinPartitions("offset")

    @property
    def of_configs(self) -> DataFrame:
        """The config records, where they are."""
        return of_types(self.records, configs.TYPES).select(*configs.COLUMNS)

    @property
    def of_rights(self) -> DataFrame:
        """The records of clients' requests; all of a batch in one task."""
        rows = of_types(self.records, rights.TYPES).where(sf.col("principal") != "")
        return _in_order(rows.select(*rights.COLUMNS), "batch_base_offset")

    @contextmanager
    def kept(self) -> Iterator[History]:
        """While it lasts, the rare records are read once."""
        self.rare.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            yield self
        finally:
            self.rare.unpersist()

    def of(self, *types: RecordType) -> DataFrame:
        """Return the records of some types; of RARE ones only the columns that they fill."""
        return of_types(self.rare if RARE.issuperset(types) else self.records, types)


def of_types(records: DataFrame, types: Collection[RecordType]) -> DataFrame:
    """Return the records of some types."""
    return records.where(sf.col("type").isin(*(int(each) for each in sorted(types))))


def _in_order(rows: DataFrame, *keys: str) -> DataFrame:
    return rows.repartition(*keys).sortWithinPartitions("offset")


def _as_records(before: DataFrame, records: DataFrame) -> DataFrame:
    """Return the remembered state of partitions, in the columns of their records."""
    # What an earlier build remembered has intervals that have ended, too.
    open_ = before.where(sf.col("ends").isNull()) if "ends" in before.columns else before
    places = {_STATE_IN.get(name, name): name for name in STATE_SCHEMA.names}

    def column(name: str, kind: object) -> Column:
        if name == "offset":
            return sf.lit(BEFORE).cast("long").alias(name)
        known = places.get(name)
        # What an earlier build remembered may have fewer columns.
        given = sf.col(known) if known in before.columns else sf.lit(None)
        return given.cast(kind).alias(name)  # type: ignore[arg-type]

    return open_.select(*(column(each.name, each.dataType) for each in records.schema.fields))


def state_of(rows: pa.Table) -> pa.Table:
    """Return the rows that are BEFORE, as STATE_SCHEMA."""
    return pa.table({name: rows[_STATE_IN.get(name, name)] for name in STATE_SCHEMA.names}).cast(
        STATE_SCHEMA
    )


Span = TypeVar("Span", BrokerSpan, TopicLife)


def remembered_spans(
    frame: DataFrame | None, kind: type[Span], *, ended: bool = False
) -> list[Span]:
    """Return the remembered spans in order; with ``ended`` those too that have ended."""
    if frame is None:
        return []
    rows: list[Any] = sorted(frame.toArrow().to_pylist(), key=lambda row: int(row["begins"]))
    return [
        # What an earlier build remembered may have fewer columns.
        kind(**{name: row.get(name) for name in kind._fields} | _end(row))
        for row in rows
        if ended or row["ends"] is None
    ]


def _end(row: dict[str, Any]) -> dict[str, Any]:
    return {"ends": NEVER} if row["ends"] is None else {}

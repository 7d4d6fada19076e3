"""The audit: no record in the log admits a broker to an ISR under a stale epoch.

Rules, after KIP-903 and promise of the controller that a request under another broker epoch changes nothing:

* ``STALE_BROKER_EPOCH``: a member was proposed for an ISR under an epoch that was not its registration's at that offset.
* ``BROKER_NOT_REGISTERED``: a member entered an ISR while no registration of it was in force (for records that name no epoch).
* ``STALE_PROPOSER_EPOCH``: the change itself was asked for by a broker under an epoch that was not its registration's.

Columnar: no record is decoded, and each join has one partner a row.
"""

from __future__ import annotations

import sys

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from rich.console import Console
from rich.table import Column as TableColumn
from rich.table import Table

from raftlog.metadata.records import RecordType
from replay.registrations import registrations
from replay.request import JobRequest, format_time
from replay.source import Export, records, require_whole_history

STALE_BROKER_EPOCH = "STALE_BROKER_EPOCH"
BROKER_NOT_REGISTERED = "BROKER_NOT_REGISTERED"
STALE_PROPOSER_EPOCH = "STALE_PROPOSER_EPOCH"
_RECORD = ("offset", "epoch", "timestamp_ms", "principal", "topic_id", "partition_id")


class Finding(msgspec.Struct, frozen=True):
    """One offence. ``claimed_epoch`` None: the record named none; ``registered_epoch`` None: no registration was in force."""

    rule: str
    offset: int
    epoch: int
    timestamp_ms: int
    principal: str
    topic_id: str
    topic_name: str | None
    partition_id: int
    broker_id: int
    claimed_epoch: int | None
    registered_epoch: int | None


class AuditResult(msgspec.Struct, frozen=True):
    """``checked`` is the number of records that name an ISR; ``findings`` the first by offset, of ``total``."""

    checked: int
    total: int
    findings: list[Finding]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.total


def run(spark: SparkSession, export: Export, request: JobRequest) -> AuditResult:
    """Audit the records in question."""
    require_whole_history(export)
    rows = records(spark, export)
    changed = isr_changes(rows)
    found = findings(rows, changed)
    first = found.orderBy("offset", "partition_id", "broker_id", "rule").limit(request.limit + 1).collect()
    total = len(first) if len(first) <= request.limit else found.count()
    shown = [Finding(**row.asDict()) for row in first[: request.limit]]
    return AuditResult(changed.count(), total, shown)


def isr_changes(rows: DataFrame) -> DataFrame:
    """The records that name an ISR; also those that name a proposer without one."""
    kinds = (int(RecordType.PARTITION), int(RecordType.PARTITION_CHANGE))
    named = sf.col("isr").isNotNull() | (sf.coalesce("proposer_epoch", sf.lit(0)) > 0)
    return rows.where(sf.col("type").isin(*kinds) & named).select(
        *_RECORD, "isr", "isr_with_epochs", "proposer_id", "proposer_epoch"
    )


def findings(rows: DataFrame, changed: DataFrame) -> DataFrame:
    """Every offence, with the epoch that was in force and the topic's name."""
    registered = registrations(rows)
    offences = _stale(_claims(changed), registered).unionByName(_unregistered(_unclaimed(changed), registered))
    # Offences are few: here a partner is looked up by a range.
    held = registered.withColumnRenamed("broker_epoch", "registered_epoch")
    in_force = offences.join(held, _in_force(offences, held), "left").select(offences["*"], "registered_epoch")
    names = rows.where(sf.col("type") == int(RecordType.TOPIC)).select("topic_id", "topic_name")
    return in_force.join(names, "topic_id", "left")


def _in_force(left: DataFrame, right: DataFrame) -> Column:
    begun = right["begins"] <= left["offset"]
    not_ended = right["ends"].isNull() | (left["offset"] < right["ends"])
    return (left["broker_id"] == right["broker_id"]) & begun & not_ended


def _claims(changed: DataFrame) -> DataFrame:
    """One row for each epoch that a record names, with the rule that it would break.

    -1 is "unknown to the proposer" and proves nothing. A proposer's epoch is an offset after the first record's, so 0 is a change
    that the controller made by itself.
    """

    def claim(rule: str, broker_id: Column, broker_epoch: Column) -> Column:
        return sf.struct(sf.lit(rule).alias("rule"), broker_id.alias("broker_id"), broker_epoch.alias("claimed_epoch"))

    members = sf.filter(
        "isr_with_epochs", lambda member: (member.broker_epoch >= 0) & sf.array_contains("isr", member.broker_id)
    )
    of_members = sf.transform(members, lambda member: claim(STALE_BROKER_EPOCH, member.broker_id, member.broker_epoch))
    of_proposer = claim(STALE_PROPOSER_EPOCH, sf.col("proposer_id"), sf.col("proposer_epoch"))
    asked = sf.when(sf.col("proposer_epoch") > 0, sf.array(of_proposer)).otherwise(sf.array())
    # Null for the records that have no such fields: explode passes over them.
    return changed.select(*_RECORD, sf.inline(sf.concat(of_members, asked)))


def _stale(claims: DataFrame, registered: DataFrame) -> DataFrame:
    """The claims that name no registration in force: looked up by the claimed epoch itself, so one partner at most."""
    named = registered.withColumnRenamed("broker_epoch", "claimed_epoch")
    joined = claims.join(named, ["broker_id", "claimed_epoch"], "left")
    good = (sf.col("begins") <= sf.col("offset")) & (sf.col("ends").isNull() | (sf.col("offset") < sf.col("ends")))
    bad = joined.where(~sf.coalesce(good, sf.lit(False)))
    return bad.select("rule", *_RECORD, "broker_id", "claimed_epoch")


def _unclaimed(changed: DataFrame) -> DataFrame:
    """One row a member that entered an ISR without a proposed epoch; who stays in an ISR is not admitted again."""
    before = sf.lag("isr").over(Window.partitionBy("topic_id", "partition_id").orderBy("offset"))
    nobody = sf.array().cast("array<int>")
    claimed = sf.transform(
        sf.filter(sf.coalesce("isr_with_epochs", sf.array()), lambda member: member.broker_epoch >= 0),
        lambda member: member.broker_id,
    )
    isrs = changed.where(sf.col("isr").isNotNull()).withColumn("before", sf.coalesce(before, nobody))
    entered = sf.array_except(sf.array_except("isr", "before"), claimed)
    return isrs.select(*_RECORD, sf.explode(entered).alias("broker_id"))


def _unregistered(entered: DataFrame, registered: DataFrame) -> DataFrame:
    bad = entered.join(registered, _in_force(entered, registered), "left_anti")
    claimed = sf.lit(None).cast("long").alias("claimed_epoch")
    return bad.select(sf.lit(BROKER_NOT_REGISTERED).alias("rule"), *_RECORD, "broker_id", claimed)


def render(result: AuditResult, console: Console) -> None:
    """For people."""
    if result.passed:
        console.print(f"Audit passed: {result.checked} records name an ISR, none admits a broker under a stale epoch")
        return
    table = Table(
        "rule",
        "offset",
        TableColumn("time", no_wrap=True),
        "by",
        "partition",
        "broker",
        "claimed epoch",
        "registered epoch",
    )
    for finding in result.findings:
        table.add_row(
            finding.rule,
            str(finding.offset),
            format_time(finding.timestamp_ms),
            finding.principal or "controller",
            f"{finding.topic_name or finding.topic_id}-{finding.partition_id}",
            str(finding.broker_id),
            "-" if finding.claimed_epoch is None else str(finding.claimed_epoch),
            "none" if finding.registered_epoch is None else str(finding.registered_epoch),
        )
    console.print(table)
    offsets = ", ".join(str(offset) for offset in sorted({finding.offset for finding in result.findings}))
    console.print(
        f"Audit failed: {result.total} findings in {result.checked} records that name an ISR, at offsets {offsets}"
    )


if __name__ == "__main__":
    from replay.submit import main

    sys.exit(main("audit"))

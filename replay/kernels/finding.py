"""A finding: one offence against one rule, in a fixed schema, whether it came from one run or from
a stream.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from replay.audit.rules import Rule

_OFFSETS = pa.list_(pa.field("element", pa.int64()))
SCHEMA = pa.schema(
    [
        ("rule", pa.string()),
        ("severity", pa.string()),
        ("offset", pa.int64()),
        ("offsets", _OFFSETS),
        ("epoch", pa.int32()),
        ("timestamp_ms", pa.int64()),
        ("principal", pa.string()),
        ("subject", pa.string()),
        ("topic_id", pa.string()),
        ("topic_name", pa.string()),
        ("partition_id", pa.int32()),
        ("broker_id", pa.int32()),
        ("found", pa.string()),
        ("expected", pa.string()),
        ("documentation", pa.string()),
    ]
)
"""The columns of findings."""
FINDING_DDL = (
    "rule string, severity string, offset long, offsets array<long>, epoch int, timestamp_ms long,"
    " principal string, subject string, topic_id string, topic_name string, partition_id int,"
    " broker_id int, found string, expected string, documentation string"
)
"""The same for Spark. See :class:`Finding`."""


class Finding(msgspec.Struct, frozen=True):
    """One offence.

    ``offset``: of the record that broke the rule; ``offsets``: the same, then those that show it.

    ``subject``: what it is about, for people; the ids after it are those that it has. ``found`` and
    ``expected``: what the log says, and what it would say if the rule had been kept. ``principal``
    and ``epoch`` (the controller's) are the record's; null where they are not known.
    """

    rule: str
    severity: str
    offset: int
    offsets: list[int]
    epoch: int | None
    timestamp_ms: int | None
    principal: str | None
    subject: str
    topic_id: str | None
    topic_name: str | None
    partition_id: int | None
    broker_id: int | None
    found: str
    expected: str
    documentation: str


class Place(msgspec.Struct, frozen=True):
    """Place of an offence: the record, and its subject."""

    offset: int
    epoch: int | None
    timestamp_ms: int | None
    principal: str | None
    subject: str
    topic_id: str | None = None
    topic_name: str | None = None
    partition_id: int | None = None


def offence(
    rule: Rule,
    place: Place,
    *,
    found: str,
    expected: str,
    broker_id: int | None = None,
    also: int | None = None,
) -> Finding:
    """Return a finding. ``also``: one more offset that shows it."""
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        offset=place.offset,
        offsets=[place.offset] if also is None else [place.offset, also],
        epoch=place.epoch,
        timestamp_ms=place.timestamp_ms,
        principal=place.principal,
        subject=place.subject,
        topic_id=place.topic_id,
        topic_name=place.topic_name,
        partition_id=place.partition_id,
        broker_id=broker_id,
        found=found,
        expected=expected,
        documentation=rule.documentation,
    )


def order(finding: Finding) -> tuple[object, ...]:
    """Return the sort key of a finding: null before everything."""
    of = (finding.offset, finding.rule, finding.partition_id, finding.broker_id)
    return tuple((value is not None, value) for value in of)


def as_batch(findings: Sequence[Finding]) -> pa.RecordBatch:
    """Findings as Arrow, for Spark."""
    return pa.RecordBatch.from_pylist([msgspec.structs.asdict(each) for each in findings], SCHEMA)

"""The rule about access control entries: the writer of a record had the right to it, by the entries
below the batch.

What a record needs is what the request behind it needs, and the verdict is that of
:mod:`raftlog.node.security.authorizer`. Two things are not in the log: the hosts that requests came
from, and ``super.users``. So a principal that had the right from some host is not a finding, and
the question names the super users.

A verdict changes only where an entry about the question is added or removed. So each question
(principal, operation, resource) has a line of such turns, into which its records are sorted: no
record is compared with the entries.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.acls import AclResourceType
from raftlog.metadata.records import RecordType
from raftlog.metadata.words import OPERATIONS, RESOURCES
from replay import rules
from replay.kernels.facts import Facts, Row
from replay.kernels.findings import Finding, offence, place_of
from replay.kernels.rights import (
    CONFIG_TYPES,
    NEEDS,
    Entries,
    Question,
    Wholes,
    begins,
    creates_topic,
    needed,
)

COLUMNS = (
    "offset",
    "epoch",
    "timestamp_ms",
    "principal",
    "batch_base_offset",
    "type",
    "group_id",
    "topic_id",
    "topic_name",
    "resource_type",
    "resource_name",
    "client_name",
    "lease_name",
    "proposer_epoch",
)
"""Columns that the kernel needs of the records of TYPES."""
TYPES = (*NEEDS, *CONFIG_TYPES)


class Rights:
    """Each record that a request of a client led to; of one batch and one question the first."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._begins = begins(facts)
        self._entries = Entries(facts)
        self._wholes = Wholes(facts)
        self._asked_last: dict[Question, int] = {}

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Yield the findings in a slice with the columns COLUMNS, of records of TYPES."""
        for row in self._judged(table):
            question = needed(row, self._facts)
            if question is None:
                continue
            batch = row["batch_base_offset"]
            if self._asked_last.get(question) == batch:
                continue
            ways, turned = self._entries.at(question, batch - 1)
            if not ways:
                self._asked_last[question] = batch
                yield _found(row, question, turned)

    def _judged(self, table: pa.Table) -> Iterator[Row]:
        if self._begins is None or not table.num_rows:
            return
        nobody = pa.array(["", *sorted(self._facts.super_users)], pa.string())
        column = table["principal"]
        if pa.types.is_dictionary(column.type):
            column = column.cast(pa.string())
        by_client = pc.invert(pc.is_in(column, nobody))
        # A change that a leader has proposed is a broker's own.
        own = pc.greater(pc.fill_null(table["proposer_epoch"], 0), 0)
        behind = pc.greater(table["batch_base_offset"], self._begins)
        rows = table.filter(pc.and_(pc.and_(by_client, pc.invert(own)), behind))
        for row in rows.to_pylist():
            if not self._wholes.holds(row):
                yield row


def _found(row: Row, question: Question, turned: int | None) -> Finding:
    type_, name = question.on_type, question.on_name
    on = _in_words(type_, name)
    operation = OPERATIONS.get(question.operation, str(question.operation))
    either = " or on the cluster" if creates_topic(question) else ""
    return offence(
        rules.WRITE_WITHOUT_RIGHT,
        place_of(row, on, topic_name=name if type_ == AclResourceType.TOPIC else None),
        also=turned,
        found=f"{RecordType(row['type']).name} by {row['principal']}",
        expected=f"the right to {operation} on {on}{either}",
    )


def _in_words(resource_type: int, name: str) -> str:
    if resource_type == AclResourceType.CLUSTER:
        return "the cluster"
    return f"{RESOURCES.get(resource_type, str(resource_type))} {name}"

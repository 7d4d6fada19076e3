"""The rule about access control entries: a record's writer had the right to it, according to the
entries before the batch.

A record needs the rights of the request that caused it; the decision is that of
:mod:`raftlog.node.security.authorizer`. The log contains neither the hosts from which requests came
nor ``super.users``. So there is no finding if the principal had the right from some host, and the
request for the audit names the super users.

A decision changes only where a relevant entry is added or removed. So each query (principal,
operation, resource) has a timeline of such offsets, in which its records are looked up, so that not
every record must be compared with all entries.
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
    CompoundChanges,
    Entries,
    Question,
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
TYPES = (*NEEDS, *CONFIG_TYPES)


class Rights:
    """Judges, for each batch and query, the first record that resulted from a client's request."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._begins = begins(facts)
        self._entries = Entries(facts)
        self._compound = CompoundChanges(facts)
        self._asked_last: dict[Question, int] = {}

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Yield the findings in a slice of records of TYPES, with the columns COLUMNS."""
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
        # A change proposed by a leader is the broker's own.
        own = pc.greater(pc.fill_null(table["proposer_epoch"], 0), 0)
        later = pc.greater(table["batch_base_offset"], self._begins)
        rows = table.filter(pc.and_(pc.and_(by_client, pc.invert(own)), later))
        for row in rows.to_pylist():
            if not self._compound.holds(row):
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

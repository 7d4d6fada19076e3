"""Findings of the audit in a fixed schema, and a slice of steps prepared for the partition
rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from raftlog.metadata.entities import RECOVERING
from raftlog.metadata.records import RecordType
from replay.kernels.arrays import MISSING, Bools, Ints, typed
from replay.kernels.lists import NOTHING, pairs_of
from replay.kernels.steps import Partitions, Steps
from replay.rules import Rule

_TEXTS = ("rule", "severity", "subject", "found", "expected", "documentation")
SCHEMA = typed(
    "rule", "severity", "offset", "offsets", "epoch", "timestamp_ms", "principal", "subject",
    "topic_id", "topic_name", "partition_id", "broker_id", "found", "expected", "documentation",
    **dict.fromkeys(_TEXTS, pa.string()),
    offsets=pa.list_(pa.field("element", pa.int64())),
)  # fmt: skip
"""The columns of findings."""


class Finding(msgspec.Struct, frozen=True):
    """One offence.

    ``offset``: offset of the record that broke the rule. ``offsets``: that offset, then those of
    records that prove the offence. ``subject``: text about the subject of the finding; the ids
    after it are set where they apply. ``found``, ``expected``: what the log contains, and what it
    would contain if the rule had been kept. ``principal``, ``epoch`` (the controller's): those of
    the record; null if unknown.
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
    """The place of an offence: the record, and its subject."""

    offset: int
    epoch: int | None
    timestamp_ms: int | None
    principal: str | None
    subject: str
    topic_id: str | None = None
    topic_name: str | None = None
    partition_id: int | None = None


PLACED = ("offset", "epoch", "timestamp_ms", "principal")
"""Columns that identify the record of an offence."""


def place_of(row: Mapping[str, Any], subject: str, **topic: Any) -> Place:
    """Return the place of an offence, from the columns of its record."""
    offset, epoch, timestamp_ms, principal = (row[name] for name in PLACED)
    return Place(offset, epoch, timestamp_ms, principal, subject, **topic)


def place_in(table: pa.Table, row: int, subject: str, **topic: Any) -> Place:
    """Return the place of an offence, from a row of a slice."""
    return place_of({name: table[name][row].as_py() for name in PLACED}, subject, **topic)


def offence(
    rule: Rule,
    place: Place,
    *,
    found: str,
    expected: str,
    broker_id: int | None = None,
    also: int | None = None,
) -> Finding:
    """Return a finding. ``also``: a further offset that proves it."""
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
    """Return the sort key of a finding; null sorts first."""
    of = (finding.offset, finding.rule, finding.partition_id, finding.broker_id)
    return tuple((value is not None, value) for value in of)


def as_table(findings: Sequence[Finding]) -> pa.Table:
    """Return findings as rows of SCHEMA."""
    return pa.Table.from_pylist([msgspec.structs.asdict(each) for each in findings], SCHEMA)


class Judged:
    """A slice of steps with derived columns for the rules.

    ``unproposed``: a broker entered the ISR that no leader proposed. ``unclean``: the record
    declares an unclean leader, alone in the ISR and RECOVERING; in an export without the column
    ``leader_recovery_state``, being alone suffices.
    """

    def __init__(self, steps: Steps, partitions: Partitions) -> None:
        self.steps = steps
        self.lists = steps.lists
        self._partitions = partitions

    @cached_property
    def changed(self) -> Bools:
        """Rows changed by a PARTITION_CHANGE."""
        return self.steps.real & (self.steps.type == RecordType.PARTITION_CHANGE)

    @cached_property
    def proposed(self) -> Bools:
        """Rows proposed by a leader."""
        return self.steps.real & (self.steps.proposer_epoch > 0)

    @cached_property
    def isr_before(self) -> Ints:
        """The ISR before each row; NOTHING if there was none."""
        return self.steps.before("isr")

    @cached_property
    def has_before(self) -> Bools:
        """True where the partition had an earlier state."""
        return ~self.steps.first

    @cached_property
    def unclean(self) -> Bools:
        """True where the record declares an unclean leader."""
        steps = self.steps
        alone = (self.lists.single(steps.isr) == steps.leader) & (steps.leader != MISSING)
        recovering = (steps.recovery == RECOVERING) | (steps.recovery == MISSING)
        return self.changed & recovering & alone

    @cached_property
    def unproposed(self) -> Bools:
        """True where a broker entered the ISR without having been proposed by a leader."""
        places, _ = self.unproposed_members
        found = np.zeros(len(self.steps.key), np.bool_)
        found[places] = True
        return found

    @cached_property
    def unproposed_members(self) -> tuple[Ints, Ints]:
        """The brokers that entered an ISR without a proposal: the row, and the broker's bit."""
        steps, lists = self.steps, self.lists
        rows = np.flatnonzero(steps.real & (steps.isr != self.isr_before))
        isr, before, said = steps.isr[rows], self.isr_before[rows], steps.proposed_isr[rows]
        found = [
            pairs_of(
                lists.word(isr, word) & ~lists.word(before, word) & ~lists.word(said, word), word
            )
            for word in range(lists.word_count)
        ]
        return (
            rows[np.concatenate([places for places, _ in found])],
            np.concatenate([bits for _, bits in found]),
        )

    def unproposed_list(self, row: int) -> list[int]:
        """Return the unproposed brokers of a row, in the order of its ISR."""
        steps, members = self.steps, self.lists.members
        before, said = int(self.isr_before[row]), int(steps.proposed_isr[row])
        known = set(members[before]) if before != NOTHING else set()
        known |= set(members[said]) if said != NOTHING else set()
        return [each for each in dict.fromkeys(members[int(steps.isr[row])]) if each not in known]

    def place(self, row: int) -> Place:
        """Return the place of an offence in a row."""
        steps = self.steps
        key, offset = int(steps.key[row]), int(steps.begins[row])
        return partition_place(
            self._partitions,
            key,
            offset,
            (steps.text("epoch", row), int(steps.begins_ms[row]), steps.text("principal", row)),
        )


def partition_place(
    partitions: Partitions,
    key: int,
    offset: int,
    record: tuple[int | None, int | None, str | None],
    name_at: int | None = None,
) -> Place:
    """Return the place of an offence about a partition.

    ``record``: epoch, time and principal of the record that broke the rule. ``name_at``: offset at
    which to look up the topic's name; by default, ``offset``.
    """
    topic_id, number = partitions.topic_of(key), key & 0xFFFFFFFF
    name = partitions.name_of(key, offset if name_at is None else name_at)
    subject = f"partition {topic_id if name is None else name}-{number}"
    return Place(offset, *record, subject, topic_id, name, number)

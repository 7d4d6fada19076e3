"""The audit as kernels: of partitions, clients, progress and rights; and the findings in the facts
alone.

Findings are those at or behind ``facts.since``, against the rules that were chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from types import ModuleType
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from replay.kernels.facts import Facts
from replay.kernels.findings import Finding, Judged
from replay.kernels.rights import begins
from replay.kernels.rules import (
    clients,
    configs,
    departed,
    directories,
    kafka,
    members,
    partitions,
    progress,
    quorum,
    registrations,
    rights,
)
from replay.kernels.rules.quorum import Epoch, epochs_of, together
from replay.kernels.steps import COLUMNS, PARTITION_TYPES, Partitions, Steps
from replay.rules import (
    BROKER_EPOCH_REUSED,
    EPOCH_WITHOUT_CONTROLLER,
    REGISTERED_UNFENCED,
    RULES,
    Rule,
)

FAMILIES: tuple[ModuleType, ...] = (
    members,
    partitions,
    departed,
    directories,
    registrations,
    progress,
    quorum,
    kafka,
    clients,
    configs,
    rights,
)
"""Each has RULES."""


class Kernel(Protocol):
    """Kernel that judges a part of the records, slice by slice."""

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Yield the findings in a slice."""
        ...

    def end(self) -> Iterator[Finding]:
        """Yield the findings at the end of the records."""
        ...


class _Judge(Protocol):
    def check(self, table: pa.Table) -> Iterator[Finding]: ...


def _asked(family: ModuleType, rules: Collection[Rule]) -> bool:
    return any(rule in rules for rule in family.RULES)


class PartitionRules:
    """The rules about partitions, for those in one bucket. ``known``: their known states, where
    another reader goes through their steps, too.
    """

    def __init__(
        self, facts: Facts, rules: Collection[Rule] = RULES, known: Partitions | None = None
    ) -> None:
        self.partitions = known or Partitions(facts)
        self._members = members.Members(facts) if _asked(members, rules) else None
        self._departed = (
            departed.Departed(facts, self.partitions) if _asked(departed, rules) else None
        )
        self._directories = directories.Directories(facts) if _asked(directories, rules) else None
        self._partitions = _asked(partitions, rules)
        self._chosen = _Chosen(facts, rules)

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Yield the findings in a slice: :data:`replay.kernels.steps.COLUMNS`."""
        if table.num_rows:
            yield from self.judge(self.partitions.step(table))

    def judge(self, steps: Steps) -> Iterator[Finding]:
        """Yield the findings in the steps of a slice."""
        yield from self._chosen(self._judge(steps))

    def _judge(self, steps: Steps) -> Iterator[Finding]:
        judged = Judged(steps, self.partitions)
        if self._partitions:
            yield from partitions.check(judged)
        if self._members is not None:
            yield from self._members.check(judged)
        if self._departed is not None:
            yield from self._departed.check(judged)
        if self._directories is not None:
            yield from self._directories.check(judged)

    def end(self) -> Iterator[Finding]:
        """Yield the findings about the remaining brokers."""
        if self._departed is not None:
            yield from self._chosen(self._departed.end())

    @staticmethod
    def asked(rules: Collection[Rule]) -> bool:
        """Return whether any of the rules is one of these."""
        return any(_asked(family, rules) for family in (members, partitions, departed, directories))


class RecordRules:
    """A family of rules that judges the records one by one: one class of those in BY_RECORD."""

    def __init__(
        self, make: Callable[[Facts], _Judge], facts: Facts, rules: Collection[Rule] = RULES
    ) -> None:
        self._family, self._chosen = make(facts), _Chosen(facts, rules)

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Yield the findings in a slice with the family's COLUMNS."""
        yield from self._chosen(self._family.check(table))

    def end(self) -> Iterator[Finding]:
        """Yield nothing: the records have been judged one by one."""
        yield from ()


BY_RECORD: dict[ModuleType, Callable[[Facts], _Judge]] = {
    progress: progress.Progress,
    clients: clients.Clients,
    configs: configs.Configs,
    rights: rights.Rights,
}
"""Families that judge the records one by one. Each has COLUMNS, and TYPES if not of all records.
Progress records are judged in one bucket, those of a client in one, and the records of the others
wherever whole batches come.
"""


def asks(family: ModuleType, rules: Collection[Rule], facts: Facts) -> bool:
    """Return whether a family has one of the rules, and the log has records for it."""
    if not _asked(family, rules):
        return False
    return family is not rights or begins(facts) is not None


def fact_rules(
    facts: Facts, epochs: Iterable[Epoch], rules: Collection[Rule] = RULES
) -> Iterator[Finding]:
    """Yield the findings in the rare records: registrations, hostnames, controllers."""
    chosen = _Chosen(facts, rules)
    if _asked(registrations, rules):
        yield from chosen(registrations.check(facts))
    if _asked(quorum, rules):
        yield from chosen(quorum.check(facts, epochs))
    if _asked(kafka, rules):
        yield from chosen(kafka.check(facts))


JUDGED_COLUMNS = tuple(
    dict.fromkeys(
        (*COLUMNS, *progress.COLUMNS, *clients.COLUMNS, *configs.COLUMNS, *rights.COLUMNS)
    )
)
"""Columns of all records that ``judge_records`` needs."""


def judge_records(
    rows: pa.Table, facts: Facts, rules: Collection[Rule], known: Partitions
) -> Iterator[Finding]:
    """Yield all findings in records that are in memory, in order: a piece of a log.

    ``known``: the states of partitions before them, and behind them when all is judged.
    """

    def of_types(types: Collection[RecordType]) -> pa.Table:
        return rows.filter(
            pc.is_in(rows["type"], pa.array([int(each) for each in types], pa.int32()))
        )

    yield from fact_rules(facts, together(epochs_of(rows)), rules)
    # Also without a rule about them: a later piece needs their states.
    parts: list[tuple[Kernel, pa.Table]] = [
        (PartitionRules(facts, rules, known), of_types(PARTITION_TYPES))
    ]
    for family, make in BY_RECORD.items():
        if asks(family, rules, facts):
            table = of_types(family.TYPES) if hasattr(family, "TYPES") else rows
            parts.append((RecordRules(make, facts, rules), table))
    for kernel, table in parts:
        yield from kernel.check(table)
        yield from kernel.end()


_HOW_IT_CAME = {
    each.id for each in (EPOCH_WITHOUT_CONTROLLER, BROKER_EPOCH_REUSED, REGISTERED_UNFENCED)
}
"""Rules that a state says nothing of: its records stand where no history had them."""


class _Chosen:
    """Filter of the requested findings."""

    def __init__(self, facts: Facts, rules: Collection[Rule]) -> None:
        self._since, self._ids = facts.since, {rule.id for rule in rules}
        self._state_from = facts.state_from

    def __call__(self, found: Iterable[Finding]) -> Iterator[Finding]:
        return (each for each in found if each.offset >= self._since and self._counts(each))

    def _counts(self, found: Finding) -> bool:
        in_state = found.offset < self._state_from and found.rule in _HOW_IT_CAME
        return found.rule in self._ids and not in_state

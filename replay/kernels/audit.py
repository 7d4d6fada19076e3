"""The audit as kernels: rules about partitions, about single records, and about the facts alone.

Only findings of the chosen rules at or after ``facts.since`` are yielded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from replay.kernels.census import Census, Epoch
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
from replay.kernels.steps import COLUMNS, PARTITION_TYPES, Partitions, Steps
from replay.rules import (
    BROKER_EPOCH_REUSED,
    EPOCH_WITHOUT_CONTROLLER,
    REGISTERED_UNFENCED,
    RULES,
    Rule,
)

OF_PARTITIONS: dict[str, Callable[[Facts, Partitions], Any]] = {
    "partitions": lambda _, __: partitions,
    "members": lambda facts, _: members.Members(facts),
    "departed": departed.Departed,
    "directories": lambda facts, _: directories.Directories(facts),
}
"""Families whose ``check`` judges steps of partitions."""
BY_RECORD: dict[str, tuple[Any, Callable[[Facts], Any]]] = {
    "progress": (progress, progress.Progress),
    "clients": (clients, clients.Clients),
    "configs": (configs, configs.Configs),
    "rights": (rights, rights.Rights),
}
"""Families that judge records one by one: the module, which has COLUMNS, and TYPES if it does not
need all records; and its class. Progress records are judged in a single bucket, a client's records
in one bucket, and records of other families wherever their batches are read.
"""
OF_FACTS: dict[str, Callable[[Facts, Iterable[Epoch]], Iterator[Finding]]] = {
    "registrations": lambda facts, _: registrations.check(facts),
    "quorum": quorum.check,
    "kafka": lambda facts, _: kafka.check(facts),
}
"""Families that judge rare records: registrations, hostnames, controllers."""


def asked(family: str, rules: Collection[Rule]) -> bool:
    """Return whether one of the rules belongs to a family."""
    return any(rule.family == family for rule in rules)


def asks(family: str, rules: Collection[Rule], facts: Facts) -> bool:
    """Return whether one of the rules belongs to a family of BY_RECORD, and the log has records for
    it.
    """
    return asked(family, rules) and (family != "rights" or begins(facts) is not None)


class PartitionRules:
    """The rules about the partitions in one bucket. ``known``: the partitions' states, if another
    reader of the same steps shares them.
    """

    def __init__(
        self, facts: Facts, rules: Collection[Rule] = RULES, known: Partitions | None = None
    ) -> None:
        self.partitions = known or Partitions(facts)
        self._families = [
            make(facts, self.partitions)
            for family, make in OF_PARTITIONS.items()
            if asked(family, rules)
        ]
        self._chosen = _Chosen(facts, rules)

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Yield the findings in a slice with the columns :data:`replay.kernels.steps.COLUMNS`."""
        if table.num_rows:
            yield from self.judge(self.partitions.step(table))

    def judge(self, steps: Steps) -> Iterator[Finding]:
        """Yield the findings in the steps of a slice."""
        judged = Judged(steps, self.partitions)
        for family in self._families:
            yield from self._chosen(family.check(judged))

    def end(self) -> Iterator[Finding]:
        """Yield the findings about brokers that remain in ISRs."""
        for family in self._families:
            if isinstance(family, departed.Departed):
                yield from self._chosen(family.end())


class RecordRules:
    """The rules of a family of BY_RECORD."""

    def __init__(self, family: str, facts: Facts, rules: Collection[Rule] = RULES) -> None:
        self._family, self._chosen = BY_RECORD[family][1](facts), _Chosen(facts, rules)

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Yield the findings in a slice with the family's COLUMNS."""
        yield from self._chosen(self._family.check(table))

    def end(self) -> Iterator[Finding]:
        """Yield nothing, as records are judged one by one."""
        yield from ()


def fact_rules(
    facts: Facts, epochs: Iterable[Epoch], rules: Collection[Rule] = RULES
) -> Iterator[Finding]:
    """Yield the findings in the rare records."""
    chosen = _Chosen(facts, rules)
    for family, check in OF_FACTS.items():
        if asked(family, rules):
            yield from chosen(check(facts, epochs))


JUDGED_COLUMNS = tuple(
    dict.fromkeys((*COLUMNS, *(name for each, _ in BY_RECORD.values() for name in each.COLUMNS)))
)
"""Record columns that ``judge_records`` needs."""


def judge_records(
    rows: pa.Table, facts: Facts, rules: Collection[Rule], known: Partitions
) -> Iterator[Finding]:
    """Yield all findings in a piece of a log that is in memory, in order.

    ``known``: the partitions' states before the piece; updated to those after it.
    """

    def of_types(types: Collection[RecordType]) -> pa.Table:
        numbers = pa.array([int(each) for each in types], pa.int32())
        return rows.filter(pc.is_in(rows["type"], numbers))

    census = Census()
    census.take(rows)
    yield from fact_rules(facts, census.epochs, rules)
    # Needed even without rules about partitions, as the next piece needs their states.
    of_partitions = PartitionRules(facts, rules, known)
    yield from of_partitions.check(of_types(PARTITION_TYPES))
    yield from of_partitions.end()
    for family, (module, _) in BY_RECORD.items():
        if asks(family, rules, facts):
            table = of_types(module.TYPES) if hasattr(module, "TYPES") else rows
            yield from RecordRules(family, facts, rules).check(table)


_HOW_IT_CAME = {
    each.id for each in (EPOCH_WITHOUT_CONTROLLER, BROKER_EPOCH_REUSED, REGISTERED_UNFENCED)
}
"""Rules that do not apply to the records of a state, as these were never written in this order."""


class _Chosen:
    """A filter for the requested findings."""

    def __init__(self, facts: Facts, rules: Collection[Rule]) -> None:
        self._since, self._ids = facts.since, {rule.id for rule in rules}
        self._state_from = facts.state_from

    def __call__(self, found: Iterable[Finding]) -> Iterator[Finding]:
        return (each for each in found if each.offset >= self._since and self._counts(each))

    def _counts(self, found: Finding) -> bool:
        in_state = found.offset < self._state_from and found.rule in _HOW_IT_CAME
        return found.rule in self._ids and not in_state

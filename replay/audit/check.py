"""All rules over a history: one table of findings."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import reduce
from types import ModuleType

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replay.audit import clients, hostnames, members, partitions, progress, quorum, registrations, standing
from replay.audit.history import History
from replay.audit.rules import RULES, Rule
from replay.errors import ReplayError

FAMILIES: tuple[ModuleType, ...] = (members, partitions, standing, registrations, progress, hostnames, quorum, clients)
"""Each has RULES, and ``check``: History -> findings of them, FINDING_DDL, unordered."""


def choose(names: Collection[str]) -> tuple[Rule, ...]:
    """The rules of these ids; all if there are none. Raises ReplayError for an id that is none."""
    wanted = {name.strip().upper().replace("-", "_") for name in names}
    unknown = sorted(wanted - {rule.id for rule in RULES})
    if unknown:
        raise ReplayError(f"there is no rule {', '.join(unknown)}: there are {', '.join(rule.id for rule in RULES)}")
    return tuple(rule for rule in RULES if not wanted or rule.id in wanted)


def audit(history: History, rules: Collection[Rule] = RULES) -> DataFrame:
    """The offences against ``rules``: FINDING_DDL, unordered. Nothing runs yet."""
    asked = [family for family in FAMILIES if set(family.RULES) & set(rules)]
    checks: list[Callable[[History], DataFrame]] = [family.check for family in asked]
    found = reduce(DataFrame.unionByName, (check(history) for check in checks))
    found = found.where(sf.col("offset") >= history.since)
    if all(rule in rules for family in asked for rule in family.RULES):
        return found
    return found.where(sf.col("rule").isin(*(rule.id for rule in rules)))

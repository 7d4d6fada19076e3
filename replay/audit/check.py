"""All rules over a history: one table of findings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import reduce
from types import ModuleType

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from replay.audit import (
    clients,
    departed,
    entries,
    hostnames,
    members,
    partitions,
    progress,
    quorum,
    registrations,
    rights,
)
from replay.audit.history import History
from replay.audit.rules import RULES, WRITE_WITHOUT_RIGHT, Rule

FAMILIES: tuple[ModuleType, ...] = (
    members,
    partitions,
    departed,
    registrations,
    progress,
    hostnames,
    quorum,
    clients,
    rights,
)
"""Each has RULES, and ``check``: History -> findings of them, FINDING_DDL, unordered."""


def beginnings(history: History, rules: Collection[Rule]) -> dict[str, int | None]:
    """Rule -> the offset behind which it judges; None: nothing, and it need not be asked.

    One row of Spark.
    """
    begins: dict[str, int | None] = dict.fromkeys((rule.id for rule in rules), -1)
    if WRITE_WITHOUT_RIGHT in rules:
        (row,) = entries.begins(history).collect()
        begins[WRITE_WITHOUT_RIGHT.id] = row.begins
    return begins


def audit(history: History, rules: Collection[Rule] = RULES) -> DataFrame:
    """The offences against ``rules``: FINDING_DDL, unordered. Nothing runs yet."""
    return reduce(DataFrame.unionByName, by_family(history, rules))


def by_family(history: History, rules: Collection[Rule] = RULES) -> Iterator[DataFrame]:
    """The same, one table a family: Spark plans anew after each part of a query, so that one for
    all costs more than many.
    """
    for family in FAMILIES:
        chosen = [rule for rule in family.RULES if rule in rules]
        if chosen:
            check: Callable[[History], DataFrame] = family.check
            found = check(history).where(sf.col("offset") >= history.since)
            every = len(chosen) == len(family.RULES)
            yield (
                found if every else found.where(sf.col("rule").isin(*(rule.id for rule in chosen)))
            )

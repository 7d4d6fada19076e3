"""The audit in Spark: the kernels of :mod:`replay.kernels.audit`, each over the records that it
judges.

Spark reads, spreads and sorts; the kernels judge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from replay.audit.history import BEFORE, History, state_of
from replay.audit.rules import RULES, WRITE_WITHOUT_RIGHT, Rule
from replay.kernels import audit as kernels
from replay.kernels.entries import begins
from replay.kernels.facts import Facts
from replay.kernels.finding import FINDING_DDL, as_batch
from replay.kernels.rules import clients, configs, progress, rights
from replay.kernels.steps import STATE_SCHEMA, Partitions
from replay.workers import prepare_worker, slices_of

STATE_DDL = (
    "topic_id string, partition_id int, begins long, begins_ms long, leader int,"
    " leader_recovery_state int, replicas array<int>, adding_replicas array<int>,"
    " removing_replicas array<int>, isr array<int>, eligible_leader_replicas array<int>,"
    " last_known_elr array<int>,"
    " leader_epoch int, partition_epoch int"
)
"""STATE_SCHEMA for Spark."""
Batches = Iterator[pa.RecordBatch]


def beginnings(history: History, rules: Collection[Rule]) -> dict[str, int | None]:
    """Rule -> the offset behind which it judges; None: nothing, and it need not be asked."""
    found: dict[str, int | None] = dict.fromkeys((rule.id for rule in rules), -1)
    if WRITE_WITHOUT_RIGHT in rules:
        found[WRITE_WITHOUT_RIGHT.id] = begins(history.facts)
    return found


def audit(history: History, rules: Collection[Rule] = RULES) -> DataFrame:
    """Return the offences against ``rules``: FINDING_DDL, unordered.

    What few records show is found at once, the rest when the table is asked.
    """
    return reduce(DataFrame.unionByName, _tables(history, tuple(rules)))


def _tables(history: History, rules: tuple[Rule, ...]) -> Iterator[DataFrame]:
    facts = history.facts
    found = list(kernels.fact_rules(facts, history.counted[1], rules))
    spark = history.records.sparkSession
    rows = [tuple(row.values()) for row in as_batch(found).to_pylist()]
    yield spark.createDataFrame(rows, FINDING_DDL)
    if kernels.PartitionRules.asked(rules):
        yield history.of_partitions.mapInArrow(_of_partitions(facts, rules), FINDING_DDL)
    # Nothing runs yet, so a table that is not asked for costs nothing.
    for family, records, make in (
        (progress, history.of_progress, kernels.progress_rules),
        (clients, history.of_clients, kernels.client_rules),
        (configs, history.of_configs, kernels.config_rules),
        (rights, history.of_rights, kernels.right_rules),
    ):
        if kernels.asks(family, rules, facts):
            yield records.mapInArrow(_of_kernel(facts, rules, make), FINDING_DDL)


def partitions(history: History) -> DataFrame:
    """Return the state of the partitions before a history: STATE_DDL."""
    facts = history.facts

    def states(batches: Batches) -> Batches:
        prepare_worker()
        before, records = _split(batches)
        known = Partitions(facts, before)
        for table in records:
            if table.num_rows:
                known.step(table)
        # A topic that is gone does not come back, but by a log that is wrong in its own piece.
        table = known.table(there=True)
        yield from table.cast(STATE_SCHEMA).to_batches()

    return history.of_partitions.mapInArrow(states, STATE_DDL)


def _of_partitions(facts: Facts, rules: tuple[Rule, ...]) -> Callable[[Batches], Batches]:
    def judge(batches: Batches) -> Batches:
        prepare_worker()
        before, records = _split(batches)
        yield from _judged(kernels.PartitionRules(facts, rules, Partitions(facts, before)), records)

    return judge


def _of_kernel(
    facts: Facts,
    rules: tuple[Rule, ...],
    make: Callable[[Facts, Collection[Rule]], kernels.Kernel],
) -> Callable[[Batches], Batches]:
    def judge(batches: Batches) -> Batches:
        prepare_worker()
        yield from _judged(make(facts, rules), slices_of(batches))

    return judge


def _judged(kernel: kernels.Kernel, records: Iterable[pa.Table]) -> Batches:
    for table in records:
        if found := list(kernel.check(table)):
            yield as_batch(found)
    if found := list(kernel.end()):
        yield as_batch(found)


def _split(batches: Batches) -> tuple[pa.Table | None, Iterator[pa.Table]]:
    """Split batches into the state before, which comes first, and the records."""
    slices = slices_of(batches)
    known: list[pa.Table] = []

    def records(first: pa.Table | None) -> Iterator[pa.Table]:
        if first is not None:
            yield first
        yield from slices

    for table in slices:
        before = pc.equal(table["offset"], BEFORE)
        known.append(table.filter(before))
        rest = table.filter(pc.invert(before))
        if rest.num_rows:
            return state_of(pa.concat_tables(known)), records(rest)
    return (state_of(pa.concat_tables(known)) if known else None), records(None)

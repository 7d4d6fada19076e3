"""Timelines of partitions, config keys and controllers as rows: one per interval, once its end is
known. :mod:`replay.spark.views` defines an interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from replay.kernels.arrays import MISSING, NEVER, Ints, typed
from replay.kernels.facts import Facts
from replay.kernels.intervals import Removals, ends_of
from replay.kernels.lists import NOTHING, Lists
from replay.kernels.steps import Partitions, Steps

PARTITIONS = typed(
    "topic_id", "topic_name", "partition_id", "begins", "ends", "begins_ms", "ends_ms", "epoch",
    "principal", "leader", "leader_epoch", "partition_epoch", "replicas", "isr", "proposer_id",
    "proposer_epoch", "isr_with_epochs", "type", "leader_recovery_state", "adding_replicas",
    "removing_replicas", "eligible_leader_replicas", "last_known_elr", "batch_last_offset",
)  # fmt: skip
CONFIGS = typed(
    "resource_type", "resource_name", "config_name", "config_value", "begins", "ends", "begins_ms",
    "ends_ms", "epoch", "principal",
)  # fmt: skip
_ENDS, _ENDS_MS = (CONFIGS.get_field_index(name) for name in ("ends", "ends_ms"))
CONFIG_COLUMNS = (
    "resource_type", "resource_name", "config_name", "config_value", "offset", "timestamp_ms",
    "epoch", "principal", "topic_id",
)  # fmt: skip
"""Columns of config records that :func:`configs` needs."""
CONTROLLERS = typed(
    "epoch", "leader_id", "begins", "ends", "begins_ms", "last_ms", "ends_ms", "last_heard_epoch",
    "last_heard_age_ms", "last_heard_by_all",
)  # fmt: skip
_SAID = ("epoch", "principal", "proposer_id", "proposer_epoch", "type", "batch_last_offset")
"""Columns copied from the interval's first record."""
_OPEN = pa.schema([field for field in PARTITIONS if field.name not in {"ends", "ends_ms"}])


def partitions(facts: Facts, slices: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield rows of PARTITIONS, from the records of some partitions in order
    (``steps.COLUMNS``).
    """
    known, removals = Partitions(facts), Removals(facts)
    keys, open_ = np.zeros(0, np.int64), _OPEN.empty_table()
    """Open rows, one per partition."""
    for table in slices:
        if not table.num_rows:
            continue
        steps = known.step(table)
        began = np.flatnonzero(steps.real)
        rows = pa.concat_tables([open_, _rows(known, steps, began)])
        # The index of each step's row.
        place = np.searchsorted(keys, steps.key)
        place[began] = len(keys) + np.arange(len(began))
        last = np.ones(len(steps.key), np.bool_)
        last[:-1] = steps.first[1:]
        ended = np.flatnonzero(~last)
        yield _ended(rows.take(place[ended]), *ends_of(steps, ended, removals))
        waits = ~np.isin(keys, steps.key[steps.first])
        keys = np.concatenate([keys[waits], steps.key[last]])
        place = np.concatenate([np.flatnonzero(waits), place[last]])
        order = np.argsort(keys)
        keys, open_ = keys[order], rows.take(place[order])
    steps = known.ends()
    rows = open_.take(np.searchsorted(keys, steps.key))
    yield _ended(rows, *ends_of(steps, np.arange(len(steps.key)), removals))


def _rows(known: Partitions, steps: Steps, at: Ints) -> pa.Table:
    """Return the steps that resulted from records, as _OPEN."""
    source, lists = steps.source[at], steps.lists
    said = {name: steps.table[name].take(source) for name in _SAID}
    members = steps.table["isr_with_epochs"].take(source)
    named = pc.greater(pc.fill_null(pc.list_value_length(members), 0), 0)
    columns: dict[str, Any] = {
        "topic_id": steps.table["topic_id"].take(source),
        "topic_name": known.names_of(steps.key[at], steps.begins[at]),
        "partition_id": steps.table["partition_id"].take(source),
        "begins": steps.begins[at],
        "begins_ms": steps.begins_ms[at],
        "leader": _or_null(steps.leader[at]),
        "leader_epoch": _or_null(steps.leader_epoch[at]),
        "partition_epoch": _or_null(steps.partition_epoch[at]),
        "leader_recovery_state": _or_null(steps.recovery[at]),
        "replicas": lists.table(steps.replicas[at]),
        "isr": lists.table(steps.isr[at]),
        "adding_replicas": lists.table(steps.adding[at]),
        "removing_replicas": lists.table(steps.removing[at]),
        "eligible_leader_replicas": lists.table(_or_empty(lists, steps.eligible[at])),
        "last_known_elr": lists.table(_or_empty(lists, steps.last_known[at])),
        "isr_with_epochs": pc.if_else(named, members, pa.scalar(None, members.type)),
        **said,
    }
    return pa.table({name: columns[name] for name in _OPEN.names}).cast(_OPEN)


def _or_empty(lists: Lists, numbers: Ints) -> Ints:
    return np.where(numbers == NOTHING, lists.empty, numbers)


def _or_null(values: Ints) -> pa.Array:
    return pa.array(values, pa.int64(), mask=values == MISSING)


def _ended(rows: pa.Table, ends: Ints, ends_ms: Ints) -> pa.Table:
    lasts = ends == NEVER
    known = {
        "ends": pa.array(ends, pa.int64(), mask=lasts),
        "ends_ms": pa.array(ends_ms, pa.int64(), mask=lasts),
    }
    return pa.table(
        {name: known[name] if name in known else rows[name] for name in PARTITIONS.names},
        schema=PARTITIONS,
    )


def configs(facts: Facts, slices: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield rows of CONFIGS, from the config records of some keys in order (CONFIG_COLUMNS).

    In Kafka's logs a topic's configs disappear with the topic, without further records; their
    records name the topic.
    """
    open_: dict[tuple[Any, ...], list[Any]] = {}
    for table in slices:
        ended = []
        for row in zip(*(table[name].to_pylist() for name in CONFIG_COLUMNS), strict=True):
            *key, value, offset, at_ms, epoch, principal, topic_id = row
            before = open_.pop(tuple(key), None)
            if before is not None:
                # Its topic may have been removed before this record.
                if before[_ENDS] is None or offset < before[_ENDS]:
                    before[_ENDS], before[_ENDS_MS] = offset, at_ms
                ended.append(before)
            if value is not None:
                gone = _gone(facts, topic_id, offset)
                open_[tuple(key)] = [*key, value, offset, gone[0], at_ms, gone[1], epoch, principal]
        yield _configs(ended)
    yield _configs(list(open_.values()))


def _gone(facts: Facts, topic_id: str | None, offset: int) -> tuple[int | None, int | None]:
    """Return the offset and time at which a config's topic is removed, or None for both."""
    for life in facts.lives_of.get(topic_id or "", ()):
        if life.begins < offset < life.ends and life.ends != NEVER:
            return life.ends, life.ends_ms
    return None, None


def _configs(rows: list[list[Any]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(CONFIGS)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, CONFIGS, strict=True)],
        schema=CONFIGS,
    )

"""Steps of partitions: each state that resulted from a record, together with the previous one.

A record contains only what it changes; the rest is carried over from the previous state by the
rules of :mod:`raftlog.metadata.fold`, also from one slice of the log to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.kernels.arrays import (
    MISSING,
    NEVER,
    Bools,
    Ints,
    carried,
    codes,
    ints,
    last_of,
    order_of,
    previous,
    typed,
)
from replay.kernels.facts import Facts
from replay.kernels.lists import NOTHING, Lists

PARTITION_TYPES = (RecordType.PARTITION, RecordType.PARTITION_CHANGE)
COLUMNS = (
    "offset",
    "type",
    "epoch",
    "timestamp_ms",
    "batch_last_offset",
    "principal",
    "topic_id",
    "partition_id",
    "leader",
    "leader_epoch",
    "leader_recovery_state",
    "partition_epoch",
    "replicas",
    "adding_replicas",
    "removing_replicas",
    "isr",
    "isr_with_epochs",
    "proposer_id",
    "proposer_epoch",
    "eligible_leader_replicas",
    "last_known_elr",
    "recovery",
    "directories",
)
"""Columns needed of the records of PARTITION_TYPES."""
_LISTS = ("replicas", "adding", "removing", "isr", "eligible", "last_known")
_CARRIED = ("leader", "recovery", *_LISTS)
_STATE = ("key", "begins", "begins_ms", *_CARRIED, "leader_epoch", "partition_epoch")
STATE_SCHEMA = typed(
    "topic_id", "partition_id", "begins", "begins_ms", "leader", "leader_recovery_state",
    "replicas", "adding_replicas", "removing_replicas", "isr", "eligible_leader_replicas",
    "last_known_elr", "leader_epoch", "partition_epoch",
)  # fmt: skip
"""Schema of the partition states that one process hands to another."""
_SAID = {
    "recovery": "leader_recovery_state",
    "adding": "adding_replicas",
    "removing": "removing_replicas",
    "eligible": "eligible_leader_replicas",
    "last_known": "last_known_elr",
}
"""Full column names for names that are shorter here."""
_NAMES = {column: name for name, column in _SAID.items()}


@dataclass
class Steps:
    """Rows sorted by partition and offset; one element per row.

    A partition's first row may be carried over from an earlier slice; there ``real`` is false. List
    columns contain numbers from ``lists``. ``source``: index of the record in ``table``; -1 if
    none. ``removed``: offset at which the row's topic is removed; NEVER if it is not.
    ``next_begins``: NEVER for the last row. ``eligible``: the eligible leader replicas (KIP-966).
    ``last_known``: the last leader, while there are no ISR members and no eligible leader replicas.
    """

    table: pa.Table
    lists: Lists
    key: Ints
    real: Bools
    first: Bools
    source: Ints
    begins: Ints
    begins_ms: Ints
    said: dict[str, Ints]
    leader: Ints
    recovery: Ints
    replicas: Ints
    adding: Ints
    removing: Ints
    isr: Ints
    eligible: Ints
    last_known: Ints
    leader_epoch: Ints
    partition_epoch: Ints
    type: Ints
    last_offset: Ints
    proposer_id: Ints
    proposer_epoch: Ints
    proposed_isr: Ints
    removed: Ints
    next_begins: Ints

    @property
    def ends(self) -> Ints:
        """End of each row, exclusive; NEVER if none so far."""
        return np.minimum(self.next_begins, self.removed)

    @property
    def seen(self) -> int:
        """The highest offset, or 0 without rows."""
        return int(self.begins.max()) if len(self.begins) else 0

    def before(self, name: str) -> Ints:
        """Return a column's value in the previous row; MISSING for a partition's first row."""
        return previous(getattr(self, name), self.first)

    def text(self, name: str, row: int) -> Any:
        """Return a column of a row's record."""
        return self.table[name][int(self.source[row])].as_py()


class Partitions:
    """All partitions that have occurred in records so far, with their states."""

    def __init__(self, facts: Facts, before: pa.Table | None = None) -> None:
        self.lists = Lists()
        self.topics = list(facts.numbers_of)
        self._numbers = dict(facts.numbers_of)
        self._lives = _Lives(facts)
        self._cleared = facts.cleared
        self.state = {name: np.zeros(0, np.int64) for name in _STATE}
        if before is not None and before.num_rows:
            self._begin_with(before)

    def _begin_with(self, before: pa.Table) -> None:
        state: dict[str, Ints] = {"key": self._keys(before)}
        for name in before.schema.names:
            own = _NAMES.get(name, name)
            if own in _LISTS:
                state[own] = self.lists.numbers(before[name])
            elif own in _STATE:
                state[own] = ints(before[name])
        order = np.argsort(state["key"])
        self.state = {name: state[name][order] for name in _STATE}

    def _keys(self, table: pa.Table) -> Ints:
        numbers, ids = codes(table["topic_id"])
        topics = np.array([self._topic(each) for each in ids], np.int64)[numbers]
        return (topics << 32) | (ints(table["partition_id"]) & 0xFFFFFFFF)

    def _topic(self, topic_id: str) -> int:
        number = self._numbers.get(topic_id)
        if number is None:
            number = self._numbers[topic_id] = len(self.topics)
            self.topics.append(topic_id)
            self._lives.add()
        return number

    def topic_of(self, key: int) -> str:
        """Return the id of a partition's topic."""
        return self.topics[key >> 32]

    def name_of(self, key: int, offset: int) -> str | None:
        """Return the name of a partition's topic at an offset, or None if it does not exist
        then.
        """
        return self._lives.name(self.topics[key >> 32], offset)

    def gone(self, keys: Ints, offset: int) -> Bools:
        """Return a mask of the partitions whose topic was removed before an offset and not created
        again.
        """
        return self._lives.gone(keys >> 32, offset)

    def removed(self, keys: Ints, offsets: Ints) -> Ints:
        """Return, for the topic that exists at each offset, the offset of its removal; NEVER if it
        is not removed, or does not exist.
        """
        return self._lives.removed(keys >> 32, offsets)

    def names_of(self, keys: Ints, offsets: Ints) -> list[str | None]:
        """Return the names of many partitions' topics."""
        names = self._lives.name
        pairs = zip((keys >> 32).tolist(), offsets.tolist(), strict=True)
        return [names(self.topics[topic], offset) for topic, offset in pairs]

    def table(self, *, there: bool = False) -> pa.Table:
        """Return the states for a later process, as STATE_SCHEMA. ``there``: only existing
        partitions.
        """
        state = self.state
        if there:
            stays = self._lives.removed(state["key"] >> 32, state["begins"]) == NEVER
            state = {name: values[stays] for name, values in state.items()}
        state = self._with_clears(state)
        columns = {
            "topic_id": [self.topic_of(int(key)) for key in state["key"]],
            "partition_id": state["key"].astype(np.int32),
        }
        for name in STATE_SCHEMA.names[2:]:
            own = _NAMES.get(name, name)
            values = state[own]
            columns[name] = (
                self.lists.table(values)
                if own in _LISTS
                else pa.array(values, pa.int64(), mask=values == MISSING)
            )
        return pa.table(columns).cast(STATE_SCHEMA)

    def _with_clears(self, state: dict[str, Ints]) -> dict[str, Ints]:
        """Return the state after clears that follow a partition's last record, which a later
        process does not see.
        """
        of_all, of_topic = self._cleared
        last = np.full(len(state["key"]), of_all[-1] if len(of_all) else MISSING, np.int64)
        for topic_id, at in of_topic.items():
            number = self._numbers.get(topic_id)
            rows = np.flatnonzero(state["key"] >> 32 == (MISSING if number is None else number))
            last[rows] = np.maximum(last[rows], at[-1])
        cleared = self._had(state) & (last > state["begins"])
        lists = {
            name: np.where(cleared, self.lists.empty, state[name])
            for name in ("eligible", "last_known")
        }
        return state | lists | {"partition_epoch": state["partition_epoch"] + cleared}

    def _had(self, lists: dict[str, Ints]) -> Bools:
        """Return a mask of the rows with a list that can be cleared."""
        either = [lists["eligible"], lists["last_known"]]
        found: Bools = np.any([(each != self.lists.empty) & (each >= 0) for each in either], axis=0)
        return found

    def step(self, table: pa.Table) -> Steps:
        """Process the records of PARTITION_TYPES in a slice with the columns COLUMNS."""
        keys = self._keys(table)
        order = order_of(_packed(keys))
        steps = self._merge(table, keys[order], order)
        self._remember(steps)
        return steps

    def ends(self) -> Steps:
        """Return the states of all partitions as final rows."""
        none = np.zeros(0, np.int64)
        return self._merge(typed(*COLUMNS).empty_table(), none, none, self.state)

    def _merge(
        self, table: pa.Table, keys: Ints, order: Ints, state: dict[str, Ints] | None = None
    ) -> Steps:
        """Return the records in order, preceded by the known states of their partitions."""
        begun = np.ones(len(keys), np.bool_)
        begun[1:] = keys[1:] != keys[:-1]
        starts = np.flatnonzero(begun)
        if state is None:
            at = np.searchsorted(self.state["key"], keys[starts])
            inside = np.minimum(at, max(len(self.state["key"]) - 1, 0))
            known = (
                self.state["key"][inside] == keys[starts]
                if len(self.state["key"])
                else np.zeros(len(starts), np.bool_)
            )
            state = {name: values[inside[known]] for name, values in self.state.items()}
            shift = np.cumsum(known)
            real_at = np.arange(len(keys)) + shift[np.cumsum(begun) - 1] if len(keys) else keys
            known_at = (starts + shift - 1)[known]
        else:
            real_at, known_at = keys, np.arange(len(state["key"]))
        rows = _Rows(len(keys) + len(known_at), real_at, known_at, order)
        return self._steps(table, rows, rows.put_ordered(keys, state["key"]), state)

    def _steps(self, table: pa.Table, rows: _Rows, key: Ints, state: dict[str, Ints]) -> Steps:
        def column(name: str, own: str | None = None) -> Ints:
            known = state[own] if own else MISSING
            said = table[name]
            if said.null_count == len(said):
                return rows.nothing(known)
            return rows.put(ints(said), known)

        first = np.ones(rows.count, np.bool_)
        first[1:] = key[1:] != key[:-1]
        begins, type_ = column("offset", "begins"), column("type")
        said = {name: column(_SAID.get(name, name), name) for name in ("leader", "recovery")}
        for name in _LISTS:
            column_said = table[_SAID.get(name, name)]
            said[name] = (
                rows.nothing(state[name])
                if column_said.null_count == len(column_said)
                else rows.put(self.lists.numbers(column_said), state[name])
            )
        cleared = self._clear(key >> 32, begins, first, said)
        begun = last_of(first, first)
        now = {name: _carried(values, first, begun) for name, values in said.items()}
        cleared &= self._had({name: previous(values, first) for name, values in now.items()})
        created = (type_ == RecordType.PARTITION) & rows.real
        leader_epoch, partition_epoch = self._epochs(
            column("leader_epoch", "leader_epoch"),
            column("partition_epoch", "partition_epoch"),
            (said["leader"] != MISSING, now["replicas"]),
            first,
            created,
            created | ~rows.real,
            cleared,
        )
        next_begins = np.full(rows.count, NEVER, np.int64)
        next_begins[:-1] = np.where(first[1:], NEVER, begins[1:])
        proposed = self.lists.numbers_of_field(table["isr_with_epochs"], 0)
        return Steps(
            table=table,
            lists=self.lists,
            key=key,
            real=rows.real,
            first=first,
            source=rows.source,
            begins=begins,
            begins_ms=column("timestamp_ms", "begins_ms"),
            said=said,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            type=type_,
            last_offset=column("batch_last_offset"),
            proposer_id=column("proposer_id"),
            proposer_epoch=column("proposer_epoch"),
            proposed_isr=rows.put(proposed, NOTHING),
            removed=self._lives.removed(key >> 32, begins),
            next_begins=next_begins,
            **now,
        )

    def _clear(self, topics: Ints, begins: Ints, first: Bools, said: dict[str, Ints]) -> Bools:
        """Return a mask of the rows with a clear between them and the previous row, and apply it to
        ``said`` where the record itself contains no list.
        """
        of_all, of_topic = self._cleared
        found = np.zeros(len(topics), np.bool_)
        if not len(of_all) and not of_topic:
            return found
        before = previous(begins, first)
        found |= np.searchsorted(of_all, begins) > np.searchsorted(of_all, before)
        for number, topic_id in enumerate(self.topics):
            if (at := of_topic.get(topic_id)) is not None:
                rows = np.flatnonzero(topics == number)
                found[rows] |= np.searchsorted(at, begins[rows]) > np.searchsorted(at, before[rows])
        found &= ~first
        for name in ("eligible", "last_known"):
            said[name][found & (said[name] == NOTHING)] = self.lists.empty
        return found

    def _epochs(
        self,
        leader_epoch: Ints,
        partition_epoch: Ints,
        grows: tuple[Bools, Ints],
        first: Bools,
        created: Bools,
        begun: Bools,
        cleared: Bools,
    ) -> tuple[Ints, Ints]:
        """Return both epochs of each row: the last known value, plus one for each later step that
        increments it.

        KRaft's rule: the leader epoch grows when a record names a leader, even the same one, or
        removes a replica. Without columns for epochs, a new partition starts at 0. Clearing the
        eligible leader replicas counts as one more step.
        """
        named, replicas = grows
        before = previous(replicas, first)
        changed = np.flatnonzero((before != replicas) & (before != NOTHING))
        lost = np.zeros(len(first), np.bool_)
        lost[changed] = self.lists.lacks(before[changed], replicas[changed])
        grown = np.cumsum(~begun & (named | lost))
        counted = []
        for said, steps in (
            (leader_epoch, grown),
            (partition_epoch, np.arange(len(first)) + np.cumsum(cleared)),
        ):
            value = np.where(created & (said == MISSING), 0, said)
            if steps is not grown:
                value = np.where(begun, value, MISSING)
            at = last_of(value != MISSING, first)
            base = value[at]
            counted.append(np.where(base == MISSING, MISSING, base + steps - steps[at]))
        return counted[0], counted[1]

    def _remember(self, steps: Steps) -> None:
        """Store the last row of each partition as its known state."""
        last = np.ones(len(steps.key), np.bool_)
        last[:-1] = steps.first[1:]
        newest = {name: getattr(steps, name)[last] for name in _STATE}
        at = np.searchsorted(self.state["key"], newest["key"])
        inside = np.minimum(at, max(len(self.state["key"]) - 1, 0))
        if len(self.state["key"]):
            known = self.state["key"][inside] == newest["key"]
        else:
            known = np.zeros(len(at), np.bool_)
        for name in _STATE:
            values = self.state[name]
            values[inside[known]] = newest[name][known]
            self.state[name] = np.insert(values, at[~known], newest[name][~known])


def _carried(values: Ints, first: Bools, begun: Ints) -> Ints:
    """Return the same as :func:`carried`, faster for the common column that has values only at the
    beginnings of runs; ``begun``: where each row's run begins.
    """
    if ((values != MISSING) & ~first).any():
        return carried(values, first)
    return values[begun]


def _packed(keys: Ints) -> Ints:
    """Return keys in the same order that use as few bits as possible."""
    if not len(keys):
        return keys
    topics, numbers = keys >> 32, keys & 0xFFFFFFFF
    return topics * (int(numbers.max()) + 1) + numbers


class _Rows:
    """The arrangement of a slice's records and the known states as rows."""

    def __init__(self, count: int, real_at: Ints, known_at: Ints, order: Ints) -> None:
        self.count = count
        self._real_at, self._known_at = real_at, known_at
        self._place = np.empty_like(real_at)
        self._place[order] = real_at
        self.real = np.zeros(count, np.bool_)
        self.real[real_at] = True
        self.source = np.full(count, -1, np.int64)
        self.source[real_at] = order

    def put(self, records: Ints, known: Ints | int) -> Ints:
        """Return a column of both."""
        values = np.empty(self.count, np.int64)
        values[self._place] = records
        values[self._known_at] = known
        return values

    def put_ordered(self, records: Ints, known: Ints | int) -> Ints:
        """Return a column of both, given records that are already in order."""
        values = np.empty(self.count, np.int64)
        values[self._real_at] = records
        values[self._known_at] = known
        return values

    def nothing(self, known: Ints | int) -> Ints:
        """Return a column that no record sets."""
        values = np.full(self.count, MISSING, np.int64)
        values[self._known_at] = known
        return values


class _Lives:
    """The lives of topics, by topic number."""

    def __init__(self, facts: Facts) -> None:
        self._of = facts.lives_of
        lives = [each[0] if len(each) == 1 else None for each in self._of.values()]
        self._begins = np.array([NEVER if one is None else one.begins for one in lives], np.int64)
        self._ends = np.array([0 if one is None else one.ends for one in lives], np.int64)
        self._several = {
            number: topic_id
            for topic_id, number in facts.numbers_of.items()
            if lives[number] is None
        }

    def add(self) -> None:
        """Assign a number to a topic that was never created."""
        self._begins, self._ends = np.append(self._begins, NEVER), np.append(self._ends, 0)

    def removed(self, topics: Ints, begins: Ints) -> Ints:
        """Return the offset at which each row's topic is removed; NEVER if it is not, or did not
        exist.
        """
        there = (self._begins[topics] <= begins) & (begins < self._ends[topics])
        removed = np.where(there, self._ends[topics], NEVER)
        for number, topic_id in self._several.items():
            rows = np.flatnonzero(topics == number)
            for life in self._of[topic_id] if len(rows) else ():
                inside = rows[(begins[rows] >= life.begins) & (begins[rows] < life.ends)]
                removed[inside] = life.ends
        return removed

    def gone(self, topics: Ints, offset: int) -> Bools:
        """Return whether each topic had a single life that ended before an offset."""
        return (self._begins[topics] != NEVER) & (self._ends[topics] < offset)

    def name(self, topic_id: str, offset: int) -> str | None:
        """Return the name of a topic at an offset, or None if it did not exist."""
        for life in self._of.get(topic_id, ()):
            if life.begins <= offset < life.ends:
                return life.topic_name
        return None

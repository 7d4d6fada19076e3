"""Intervals of partitions, and spells: adjacent intervals during which a condition holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from replay.kernels.arrays import NEVER, Bools, Ints, joined, some, starts_of, stops_of
from replay.kernels.facts import Facts
from replay.kernels.lists import Lists
from replay.kernels.passes import BY_PARTITION, Pass
from replay.kernels.steps import COLUMNS, PARTITION_TYPES, Partitions, Steps


@dataclass(frozen=True)
class Intervals:
    """States of partitions, by partition and in order; one element per interval.

    ``ends`` is exclusive; ``ends`` and ``ends_ms`` are NEVER if an interval is open at the end of
    the log.
    """

    lists: Lists
    key: Ints
    begins: Ints
    begins_ms: Ints
    ends: Ints
    ends_ms: Ints
    leader: Ints
    isr: Ints
    replicas: Ints

    def __len__(self) -> int:
        return len(self.key)

    @property
    def leaderless(self) -> Bools:
        """True where the partition has no leader."""
        return self.leader < 0

    @property
    def short(self) -> Bools:
        """True where fewer replicas are in sync than assigned."""
        return self.lists.size(self.isr) < self.lists.size(self.replicas)


class Watcher(Protocol):
    """Processes all steps and intervals of some partitions, slice by slice."""

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """Process the steps of a slice, and the intervals that they end."""
        ...

    def last(self, steps: Steps, intervals: Intervals) -> None:
        """Process the final state of each partition, and its last interval."""
        ...

    def found(self) -> Any:
        """Return the result, which must be picklable."""
        ...


class Removals:
    """The times of topic removals, by offset."""

    def __init__(self, facts: Facts) -> None:
        gone = sorted(
            (each.ends, each.ends_ms) for each in facts.topics if each.ends_ms is not None
        )
        self._offsets = np.array([offset for offset, _ in gone], np.int64)
        self._times = np.array([at_ms for _, at_ms in gone], np.int64)

    def times(self, offsets: Ints) -> Ints:
        """Return the time of each of these removals; NEVER for the offset NEVER."""
        if not len(self._offsets):
            return np.full(len(offsets), NEVER, np.int64)
        at = np.minimum(np.searchsorted(self._offsets, offsets), len(self._offsets) - 1)
        return np.where(offsets == NEVER, NEVER, self._times[at])


Maker = Callable[[Facts, Partitions], Watcher]


class _OfPartitions:
    def __init__(self, facts: Facts, makers: Sequence[Maker]) -> None:
        self._partitions = Partitions(facts)
        self._removals = Removals(facts)
        self._watchers = [make(facts, self._partitions) for make in makers]

    def take(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        steps = self._partitions.step(table)
        ended = np.ones(len(steps.key), np.bool_)
        ended[:-1] = ~steps.first[1:]
        ended[-1] = False
        intervals = self._intervals(steps, np.flatnonzero(ended))
        for watcher in self._watchers:
            watcher.take(steps, intervals)

    def end(self) -> list[Any]:
        steps = self._partitions.ends()
        intervals = self._intervals(steps, np.arange(len(steps.key)))
        for watcher in self._watchers:
            watcher.last(steps, intervals)
        return [watcher.found() for watcher in self._watchers]

    def _intervals(self, steps: Steps, rows: Ints) -> Intervals:
        ends, ends_ms = ends_of(steps, rows, self._removals)
        return Intervals(
            steps.lists,
            steps.key[rows],
            steps.begins[rows],
            steps.begins_ms[rows],
            ends,
            ends_ms,
            steps.leader[rows],
            steps.isr[rows],
            steps.replicas[rows],
        )


def ends_of(steps: Steps, rows: Ints, removals: Removals) -> tuple[Ints, Ints]:
    """Return the ends of some steps and their times: the partition's next record or its topic's
    removal; NEVER if there is neither so far.
    """
    after = np.minimum(rows + 1, len(steps.key) - 1)
    removed = steps.removed[rows]
    follows = steps.next_begins[rows] <= removed
    ends = np.where(follows, steps.next_begins[rows], removed)
    next_ms = np.where(
        steps.next_begins[rows] == NEVER, NEVER, steps.begins_ms[after] if len(rows) else rows
    )
    return ends, np.where(follows, next_ms, removals.times(removed))


def of_partitions(facts: Facts, *makers: Maker) -> Pass[list[Any]]:
    """Return a pass over all partitions, whose parts return the results of their watchers."""
    return Pass(partial(_OfPartitions, facts, makers), COLUMNS, PARTITION_TYPES, BY_PARTITION)


class Names:
    """Names of topics and partitions, by partition key."""

    def __init__(self, facts: Facts) -> None:
        self._ids = list(facts.numbers_of)
        self._names = {each.topic_id: each.topic_name for each in reversed(facts.topics)}

    def id_of(self, key: int) -> str:
        """Return the id of a partition's topic, or "" if the topic was never created."""
        number = key >> 32
        return self._ids[number] if number < len(self._ids) else ""

    def topic(self, key: int) -> str:
        """Return the name of a partition's topic, even if deleted, or "" if none."""
        return self._names.get(self.id_of(key)) or ""

    def name(self, key: int) -> str:
        """Return a partition's name."""
        topic, number = self.topic(key), key & 0xFFFFFFFF
        return f"{topic}-{number}" if topic else str(number)


class Spells(NamedTuple):
    """Spells, as one array per field; ``ends`` and ``ends_ms`` are NEVER for a spell that is open
    at the end of the log.
    """

    key: Ints
    begins: Ints
    begins_ms: Ints
    ends: Ints
    ends_ms: Ints


class SpellFinder:
    """Finds spells, carrying open ones from slice to slice."""

    def __init__(self) -> None:
        self._open = joined(Spells, [])

    def take(self, intervals: Intervals, holds: Bools) -> Spells:
        """Return the spells that have ended."""
        if not len(intervals):
            return joined(Spells, [])
        key, begins, ends = intervals.key, intervals.begins, intervals.ends
        first = starts_of(key)
        goes_on = np.zeros(len(key), np.bool_)
        goes_on[1:] = holds[1:] & holds[:-1] & (ends[:-1] == begins[1:]) & ~first[1:]
        starts = np.flatnonzero(holds & ~goes_on)
        stops = np.flatnonzero(holds & np.concatenate([~goes_on[1:], [True]]))
        runs = Spells(
            key[starts],
            begins[starts],
            intervals.begins_ms[starts],
            ends[stops],
            intervals.ends_ms[stops],
        )
        runs, closed = self._joined(runs, first[starts], np.unique(key))
        # A spell that reaches its partition's last interval may continue.
        last = stops_of(first)[stops]
        still = some(runs, last)
        self._open = joined(Spells, [self._open, still])
        self._open = some(self._open, np.argsort(self._open.key, kind="stable"))
        return joined(Spells, [closed, some(runs, ~last)])

    def _joined(self, runs: Spells, first: Bools, keys: Ints) -> tuple[Spells, Spells]:
        """Return the runs, extended by the open spells that they continue, and the open spells that
        end.
        """
        open_ = self._open
        met = np.isin(open_.key, keys, assume_unique=True)
        self._open = some(open_, ~met)
        open_ = some(open_, met)
        if not len(open_.key):
            return runs, joined(Spells, [])
        at = np.minimum(np.searchsorted(open_.key, runs.key), len(open_.key) - 1)
        goes_on = first & (open_.key[at] == runs.key) & (open_.ends[at] == runs.begins)
        longer = runs._replace(
            begins=np.where(goes_on, open_.begins[at], runs.begins),
            begins_ms=np.where(goes_on, open_.begins_ms[at], runs.begins_ms),
        )
        ended = np.ones(len(open_.key), np.bool_)
        ended[at[goes_on]] = False
        return longer, some(open_, ended)

    def end(self) -> Spells:
        """Return the spells that are still open."""
        return self._open

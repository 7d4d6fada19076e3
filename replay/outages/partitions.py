"""Unusable partitions: without a leader, or with fewer replicas in sync than
``min.insync.replicas``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.config_keys import ALL_BROKERS, BROKER_NAME, ResourceType
from raftlog.metadata.records import RecordType
from replay.kernels.arrays import Bools, Ints, joined
from replay.kernels.facts import Facts
from replay.kernels.groups import Grouped
from replay.kernels.intervals import Intervals, Names, Removals, SpellFinder, Spells
from replay.kernels.passes import Pass, Rows
from replay.kernels.steps import Partitions, Steps
from replay.outages.result import PartitionOutage, Stretch, TopicOutage


class Outages:
    """Outages that a part found. ``topics``: their ids, by their numbers in keys.

    ``lost``: of each impaired partition the times leaderless, under min ISR and unwritable in ms,
    the number of outages, and the longest of them in ms. ``of_topics``: partitions, and how long
    they existed in all, in ms. ``without``: times without a leader, clipped. ``periods``: the times
    of life, leaderless and unwritable, by period.
    """

    def __init__(self, topics: list[str], periods: int) -> None:
        self.topics = topics
        self.lost = Grouped(np.add, np.add, np.add, np.add, np.maximum)
        self.of_topics = Grouped(np.add, np.add)
        self.without: list[Spells] = []
        self.periods = np.zeros((3, periods), np.int64)


class _Impaired(NamedTuple):
    key: int
    begins_ms: int
    ends_ms: int
    leaderless: bool
    under: bool


class OutageWatcher:
    """Watcher of partitions' outages; ``found`` gives Outages."""

    def __init__(
        self, stretch: Stretch, asked: MinIsr, facts: Facts, partitions: Partitions
    ) -> None:
        self._stretch, self._asked, self._facts = stretch, asked, facts
        self._partitions, self._removals = partitions, Removals(facts)
        self._leaderless, self._most = SpellFinder(), dict[int, int]()
        self._found = Outages(partitions.topics, len(stretch.periods))

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """A slice."""
        self._begin_lives(steps)
        self._look(intervals)

    def last(self, steps: Steps, intervals: Intervals) -> None:
        """Process the last steps of partitions, which nothing follows."""
        del steps
        self._look(intervals)

    def _begin_lives(self, steps: Steps) -> None:
        again = np.zeros(len(steps.key), np.bool_)
        again[1:] = ~steps.first[1:] & (steps.removed[:-1] <= steps.begins[1:])
        begun = np.flatnonzero(
            steps.real & (steps.type == RecordType.PARTITION) & (steps.first | again)
        )
        lives = {
            "key": steps.key[begun],
            "begins_ms": steps.begins_ms[begun],
            "ends_ms": self._removals.times(steps.removed[begun]),
            "known": self._known(steps, begun, again[begun]),
        }
        lives = _clipped(self._stretch, lives)
        self._found.periods[0] += _by_period(self._stretch, lives)
        lived_ms = lives["ends_ms"] - lives["begins_ms"]
        self._found.of_topics.add(lives["key"] >> 32, 1 - lives["known"], lived_ms)

    def _known(self, steps: Steps, begun: Ints, again: Bools) -> Ints:
        """Return whether a partition that begins a life has been counted before: its former life
        reached into the stretch.
        """
        before_ms = self._removals.times(steps.removed[np.maximum(begun - 1, 0)])
        return (again & (before_ms >= self._stretch.since_ms)).astype(np.int64)

    def _look(self, intervals: Intervals) -> None:
        leaderless = intervals.leaderless
        self._lead(self._leaderless.take(intervals, leaderless))
        size = intervals.lists.size(intervals.isr)
        most = self._most_asked(intervals)
        places = np.flatnonzero(leaderless | (size < most))
        there = intervals.lists.size(intervals.replicas[places])
        there -= np.maximum(intervals.lists.size(intervals.adding[places]), 0)
        cuts = map(
            partial(self._cut, intervals), places.tolist(), size[places].tolist(), there.tolist()
        )
        self._add([cut for some in cuts for cut in some])

    def _add(self, impaired: list[_Impaired]) -> None:
        """Add times at once: a log may have as many of them as records."""
        rows = np.array(impaired, np.int64).reshape(len(impaired), len(_Impaired._fields))
        times = _clipped(self._stretch, dict(zip(_Impaired._fields, rows.T, strict=True)))
        leaderless, length = times["leaderless"], times["ends_ms"] - times["begins_ms"]
        self._found.periods[1] += _by_period(self._stretch, times, leaderless == 1)
        self._found.periods[2] += _by_period(self._stretch, times)
        under = length * times["under"]
        self._found.lost.add(times["key"], length * leaderless, under, length, 0, 0)

    def _lead(self, spells: Spells) -> None:
        """Add times without a leader that have ended."""
        clipped = Spells(**_clipped(self._stretch, spells._asdict()))
        self._found.without.append(clipped)
        self._found.lost.add(clipped.key, 0, 0, 0, 1, clipped.ends_ms - clipped.begins_ms)

    def _most_asked(self, intervals: Intervals) -> Ints:
        topics, where = np.unique(intervals.key >> 32, return_inverse=True)
        for topic in topics.tolist():
            if topic not in self._most:
                self._most[topic] = self._asked.most(self._name(topic << 32))
        return np.array([self._most[topic] for topic in topics.tolist()], np.int64)[where]

    def _name(self, key: int) -> str | None:
        lives = self._facts.lives_of.get(self._partitions.topic_of(key), ())
        return lives[0].topic_name if lives else None

    def _cut(
        self, intervals: Intervals, place: int, in_sync: int, there: int
    ) -> Iterator[_Impaired]:
        """``there``: how many replicas it has, without those that are being added."""
        key, leaderless = int(intervals.key[place]), bool(intervals.leader[place] < 0)
        for cut in self._asked.cut(
            self._name(key),
            int(intervals.begins[place]),
            int(intervals.begins_ms[place]),
            int(intervals.ends[place]),
            int(intervals.ends_ms[place]),
        ):
            under = in_sync < min(cut.asked, max(there, 1))
            if leaderless or under:
                yield _Impaired(key, cut.begins_ms, cut.ends_ms, leaderless, under)

    def found(self) -> Outages:
        """Return the outages of all watched partitions."""
        self._lead(self._leaderless.end())
        return self._found


def _clipped(stretch: Stretch, rows: dict[str, Ints]) -> dict[str, Ints]:
    inside = stretch.has(rows["begins_ms"], rows["ends_ms"])
    rows = {name: values[inside] for name, values in rows.items()}
    begins_ms, ends_ms = stretch.clip(rows["begins_ms"], rows["ends_ms"])
    return rows | {"begins_ms": begins_ms, "ends_ms": ends_ms}


def _by_period(stretch: Stretch, rows: dict[str, Ints], chosen: Bools | None = None) -> Ints:
    begins_ms, ends_ms = rows["begins_ms"], rows["ends_ms"]
    if chosen is not None:
        begins_ms, ends_ms = begins_ms[chosen], ends_ms[chosen]
    return stretch.by_period(begins_ms, ends_ms)


class PartitionTables(NamedTuple):
    """All parts together: every topic, every impaired partition, and times by period."""

    topics: list[TopicOutage]
    partitions: list[PartitionOutage]
    life_ms: Ints
    leaderless_ms: Ints
    unwritable_ms: Ints


def together(parts: list[Outages], names: Names) -> PartitionTables:
    """Merge all parts, by the numbers of ``names``."""
    every = Outages(names.ids, parts[0].periods.shape[1])
    for part in parts:
        keyed = partial(names.keys, topics=part.topics)
        every.lost.merge(part.lost, keyed)
        every.of_topics.merge(part.of_topics, partial(_numbers, keyed))
        every.without += [each._replace(key=keyed(each.key)) for each in part.without]
        every.periods += part.periods
    partitions = [
        PartitionOutage(names.id_of(key), names.topic(key), key & 0xFFFFFFFF, *times)
        for key, *times in every.lost.rows().T.tolist()
    ]
    return PartitionTables(_topics(every, names), partitions, *every.periods)


def _numbers(keyed: Callable[[Ints], Ints], topics: Ints) -> Ints:
    return keyed(topics << 32) >> 32


def _topics(every: Outages, names: Names) -> list[TopicOutage]:
    keys, *times = every.lost.rows()
    sums = Grouped(np.add, np.add, np.add)
    sums.add(keys >> 32, *times[:3])
    lost, offline = sums.by_key(), _offline(joined(Spells, every.without))

    def topic(number: int, partitions: int, life_ms: int) -> TopicOutage:
        times = *lost.get(number, (0, 0, 0)), offline.get(number, 0)
        name = names.topic(number << 32)
        return TopicOutage(names.ids[number], name, partitions, life_ms, *times)

    return [
        topic(number, partitions, life_ms)
        for number, partitions, life_ms in every.of_topics.rows().T.tolist()
        if partitions
    ]


def _offline(without: Spells) -> dict[int, int]:
    """Return for each topic how long at least one of its partitions had no leader."""
    topic = without.key >> 32
    rows = np.stack([topic, without.begins_ms, without.ends_ms])
    found: dict[int, int] = {}
    reached = last = -1
    for each, begins, ends in rows[:, np.lexsort([without.begins_ms, topic])].T.tolist():
        reached = begins if each != last else max(reached, begins)
        found[each] = found.get(each, 0) + max(0, ends - reached)
        reached, last = max(reached, ends), each
    return found


_KEY = "min.insync.replicas"
_OF_BROKERS = BROKER_NAME[_KEY]
_DEFAULT = 1
_COLUMNS = (
    "offset",
    "timestamp_ms",
    "resource_type",
    "resource_name",
    "config_name",
    "config_value",
)


class Change(NamedTuple):
    """Change of a key: its value from an offset on; None: deleted."""

    offset: int
    timestamp_ms: int
    value: int | None


class Cut(NamedTuple):
    """A part of an interval in which one value is in force; offsets and times, exclusive."""

    begins: int
    begins_ms: int
    ends: int
    ends_ms: int
    asked: int


class MinIsr:
    """Values of ``min.insync.replicas``. ``of_topics``: topic name -> changes in order; ``of_all``:
    of all brokers.
    """

    def __init__(self, of_topics: dict[str, list[Change]], of_all: list[Change]) -> None:
        self._of_topics, self._of_all = of_topics, of_all
        self._most_of_all = max(
            (each.value for each in of_all if each.value is not None), default=_DEFAULT
        )

    def most(self, topic: str | None) -> int:
        """Return the highest value that was ever in force for a topic."""
        own = self._of_topics.get(topic or "", ())
        return max([self._most_of_all, *(each.value for each in own if each.value is not None)])

    def cut(
        self, topic: str | None, begins: int, begins_ms: int, ends: int, ends_ms: int
    ) -> Iterator[Cut]:
        """Yield the interval, cut where the value changed."""
        own, shared = self._of_topics.get(topic or "", []), self._of_all
        inside = sorted(each for each in (*own, *shared) if begins < each.offset < ends)
        edges = [*((each.offset, each.timestamp_ms) for each in inside), (ends, ends_ms)]
        for end, end_ms in edges:
            value = _at(own, begins)
            if value is None:
                value = _at(shared, begins)
            yield Cut(begins, begins_ms, end, end_ms, _DEFAULT if value is None else value)
            begins, begins_ms = end, end_ms


def _at(changes: list[Change], offset: int) -> int | None:
    place = bisect_right(changes, offset, key=lambda each: each.offset)
    return changes[place - 1].value if place else None


class _Configs:
    def __init__(self) -> None:
        self._found: list[tuple[int, int, int, str, str | None]] = []

    def take(self, table: pa.Table) -> None:
        names = table["config_name"].cast(pa.string())
        few = table.filter(pc.is_in(names, pa.array([_KEY, _OF_BROKERS])))
        for row in few.to_pylist():
            wanted = _KEY if row["resource_type"] == ResourceType.TOPIC else _OF_BROKERS
            of_brokers = row["resource_type"] == ResourceType.BROKER
            if row["config_name"] != wanted or (of_brokers and row["resource_name"] != ALL_BROKERS):
                continue
            self._found.append(
                (
                    row["offset"],
                    row["timestamp_ms"],
                    row["resource_type"],
                    row["resource_name"],
                    row["config_value"],
                )
            )

    def end(self) -> list[tuple[int, int, int, str, str | None]]:
        return self._found


def min_isr(log: Rows) -> MinIsr:
    """Return ``min.insync.replicas`` as the configs of a log have it."""
    work = Pass(_Configs, _COLUMNS, (RecordType.CONFIG,))
    of_topics: dict[str, list[Change]] = defaultdict(list)
    of_all: list[Change] = []
    for offset, at_ms, kind, resource, text in sorted(
        row for part in log.run(work) for row in part
    ):
        change = Change(offset, at_ms, _number(text))
        if kind == ResourceType.TOPIC:
            of_topics[resource].append(change)
        elif kind == ResourceType.BROKER:
            of_all.append(change)
    return MinIsr(dict(of_topics), of_all)


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None

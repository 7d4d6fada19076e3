"""Unusable partitions: without a leader, or with fewer replicas in sync than
``min.insync.replicas``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.config_keys import ALL_BROKERS, BROKER_NAME, ResourceType
from raftlog.metadata.records import RecordType
from replay.kernels.arrays import Bools, Ints, joined
from replay.kernels.facts import Facts
from replay.kernels.intervals import Intervals, Names, Removals, SpellFinder, Spells
from replay.kernels.passes import Pass, Rows
from replay.kernels.steps import Partitions, Steps
from replay.outages.result import PartitionOutage, Stretch, TopicOutage


class _Lost:
    """Times that a partition lost; see PartitionOutage."""

    __slots__ = ("leaderless_ms", "longest_ms", "outages", "under_min_isr_ms", "unwritable_ms")

    def __init__(self) -> None:
        self.leaderless_ms = self.under_min_isr_ms = self.unwritable_ms = 0
        self.outages = self.longest_ms = 0


@dataclass
class Outages:
    """Outages that a part found. ``topics``: their ids, by their numbers in keys.

    ``partitions`` and ``lived_ms``: of each topic, how many it had, and how long they were there;
    ``without``: key, begins_ms and ends_ms of times without a leader, clipped; ``life_ms``,
    ``leaderless_ms`` and ``unwritable_ms``: by period.
    """

    topics: list[str]
    lost: dict[int, _Lost]
    partitions: Ints
    lived_ms: Ints
    without: dict[str, Ints]
    life_ms: Ints
    leaderless_ms: Ints
    unwritable_ms: Ints


class _Impaired(NamedTuple):
    key: int
    begins_ms: int
    ends_ms: int
    leaderless: bool
    under: bool


@dataclass
class OutageWatcher:
    """Watcher of partitions' outages; ``found`` gives Outages."""

    stretch: Stretch
    asked: MinIsr
    facts: Facts
    partitions: Partitions
    _leaderless: SpellFinder = field(default_factory=SpellFinder)
    _spells: list[Spells] = field(default_factory=list)
    _most: dict[int, int] = field(default_factory=dict)
    _lost: dict[int, _Lost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Prepare the removals once."""
        self._removals = Removals(self.facts)
        count = len(self.stretch.periods)
        self._life_ms, self._leaderless_ms, self._unwritable_ms = (
            np.zeros(count, np.int64) for _ in range(3)
        )
        self._of_topics = np.zeros((2, 64), np.int64)
        """Partitions, and how long they were there."""

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
        lives = _clipped(self.stretch, lives)
        self._life_ms += _by_period(self.stretch, lives)
        while self._of_topics.shape[1] < len(self.partitions.topics):
            self._of_topics = np.concatenate([self._of_topics, 0 * self._of_topics], axis=1)
        topic = lives["key"] >> 32
        np.add.at(self._of_topics[0], topic, 1 - lives["known"])
        np.add.at(self._of_topics[1], topic, lives["ends_ms"] - lives["begins_ms"])

    def _known(self, steps: Steps, begun: Ints, again: Bools) -> Ints:
        """Return whether a partition that begins a life has been counted before: its former life
        reached into the stretch.
        """
        before_ms = self._removals.times(steps.removed[np.maximum(begun - 1, 0)])
        return (again & (before_ms >= self.stretch.since_ms)).astype(np.int64)

    def _look(self, intervals: Intervals) -> None:
        leaderless = intervals.leaderless
        self._spells.append(self._leaderless.take(intervals, leaderless))
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
        """Times are summed up at once: a log may have as many of them as records."""
        rows = np.array(impaired, np.int64).reshape(len(impaired), len(_Impaired._fields))
        times = _clipped(self.stretch, dict(zip(_Impaired._fields, rows.T, strict=True)))
        self._leaderless_ms += _by_period(self.stretch, times, times["leaderless"] == 1)
        self._unwritable_ms += _by_period(self.stretch, times)
        _add_times(self._lost, times)

    def _most_asked(self, intervals: Intervals) -> Ints:
        topics, where = np.unique(intervals.key >> 32, return_inverse=True)
        for topic in topics.tolist():
            if topic not in self._most:
                self._most[topic] = self.asked.most(self._name(topic << 32))
        return np.array([self._most[topic] for topic in topics.tolist()], np.int64)[where]

    def _name(self, key: int) -> str | None:
        lives = self.facts.lives_of.get(self.partitions.topic_of(key), ())
        return lives[0].topic_name if lives else None

    def _cut(
        self, intervals: Intervals, place: int, in_sync: int, there: int
    ) -> Iterator[_Impaired]:
        """``there``: how many replicas it has, without those that are being added."""
        key, leaderless = int(intervals.key[place]), bool(intervals.leader[place] < 0)
        for cut in self.asked.cut(
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
        stretch, spells = self.stretch, [*self._spells, self._leaderless.end()]
        without = _clipped(stretch, joined(Spells, spells)._asdict())
        _add_outages(self._lost, without)
        return Outages(
            self.partitions.topics,
            self._lost,
            self._of_topics[0, : len(self.partitions.topics)],
            self._of_topics[1, : len(self.partitions.topics)],
            without,
            self._life_ms,
            self._leaderless_ms,
            self._unwritable_ms,
        )


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


def _add_times(found: dict[int, _Lost], times: dict[str, Ints]) -> None:
    for key, begins_ms, ends_ms, leaderless, under in zip(
        *(values.tolist() for values in times.values()), strict=True
    ):
        lost, length = found.setdefault(key, _Lost()), ends_ms - begins_ms
        lost.leaderless_ms += length if leaderless else 0
        lost.under_min_isr_ms += length if under else 0
        lost.unwritable_ms += length


def _add_outages(found: dict[int, _Lost], without: dict[str, Ints]) -> None:
    for key, begins_ms, ends_ms in zip(
        *(without[name].tolist() for name in ("key", "begins_ms", "ends_ms")), strict=True
    ):
        lost = found.setdefault(key, _Lost())
        lost.outages += 1
        lost.longest_ms = max(lost.longest_ms, ends_ms - begins_ms)


class PartitionTables(NamedTuple):
    """All parts together: every topic, every impaired partition, and times by period."""

    topics: list[TopicOutage]
    partitions: list[PartitionOutage]
    life_ms: Ints
    leaderless_ms: Ints
    unwritable_ms: Ints


def together(parts: list[Outages], names: Names) -> PartitionTables:
    """Merge all parts, by the numbers of ``names``."""
    lost: dict[int, _Lost] = {}
    for part in parts:
        keys = np.array(list(part.lost), np.int64)
        lost |= dict(zip(names.keys(keys, part.topics).tolist(), part.lost.values(), strict=True))
    without = _without(parts, names)
    partitions = [
        PartitionOutage(
            names.id_of(key),
            names.topic(key),
            key & 0xFFFFFFFF,
            each.leaderless_ms,
            each.under_min_isr_ms,
            each.unwritable_ms,
            each.outages,
            each.longest_ms,
        )
        for key, each in lost.items()
    ]
    return PartitionTables(
        _topics(_of_topics(parts, names), without, lost, names),
        partitions,
        *(
            np.sum([getattr(part, name) for part in parts], axis=0)
            for name in ("life_ms", "leaderless_ms", "unwritable_ms")
        ),
    )


def _without(parts: list[Outages], names: Names) -> dict[str, Ints]:
    """Return the times without a leader of all parts, by the numbers of ``names``."""
    keyed = [
        {**each.without, "key": names.keys(each.without["key"], each.topics)} for each in parts
    ]
    return {
        name: np.concatenate([np.zeros(0, np.int64), *(each[name] for each in keyed)])
        for name in ("key", "begins_ms", "ends_ms")
    }


def _of_topics(parts: list[Outages], names: Names) -> tuple[Ints, Ints]:
    """Return for each topic, by its number, the number of its partitions and their lifetime."""
    numbered = [names.keys(np.arange(len(part.topics)) << 32, part.topics) >> 32 for part in parts]
    partitions, lived_ms = (np.zeros(len(names.ids), np.int64) for _ in range(2))
    for part, numbers in zip(parts, numbered, strict=True):
        partitions[numbers] += part.partitions
        lived_ms[numbers] += part.lived_ms
    return partitions, lived_ms


def _topics(
    lives: tuple[Ints, Ints], without: dict[str, Ints], lost: dict[int, _Lost], names: Names
) -> list[TopicOutage]:
    count = len(names.ids)
    partitions, life_ms = lives
    sums = np.zeros((3, count), np.int64)
    for key, each in lost.items():
        sums[:, key >> 32] += (each.leaderless_ms, each.under_min_isr_ms, each.unwritable_ms)
    leaderless_ms, under_min_isr_ms, unwritable_ms = sums
    offline = _offline(without, count)
    return [
        TopicOutage(
            names.ids[number],
            names.topic(number << 32),
            int(partitions[number]),
            int(life_ms[number]),
            int(leaderless_ms[number]),
            int(under_min_isr_ms[number]),
            int(unwritable_ms[number]),
            int(offline[number]),
        )
        for number in np.flatnonzero(partitions).tolist()
    ]


def _offline(without: dict[str, Ints], count: int) -> Ints:
    """Return for each topic how long at least one of its partitions had no leader."""
    topic = without["key"] >> 32
    order = np.lexsort([without["begins_ms"], topic])
    topic, begins_ms, ends_ms = topic[order], without["begins_ms"][order], without["ends_ms"][order]
    found, reached, last = np.zeros(count, np.int64), 0, -1
    for each, begins, ends in zip(
        topic.tolist(), begins_ms.tolist(), ends_ms.tolist(), strict=True
    ):
        reached = begins if each != last else max(reached, begins)
        found[each] += max(0, ends - reached)
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

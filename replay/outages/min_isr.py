"""Replicas that must be in sync over time: ``min.insync.replicas`` of a topic, else of all brokers,
else Kafka's default.

As for brokers, the number of a partition's replicas is the maximum; those that are only being added
do not count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.config_keys import ResourceType
from raftlog.metadata.config_layers import ALL_BROKERS, BROKER_NAME
from raftlog.metadata.records import RecordType
from replay.kernels.passes import Pass, Rows

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

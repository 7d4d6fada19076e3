"""Brokers that left and joined ISRs, and leaderships that moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from raftlog.metadata.records import RecordType
from replay.churn.result import BrokerChurn, PartitionChurn
from replay.kernels.arrays import MISSING, Bools, Ints, previous, starts_of, stops_of
from replay.kernels.facts import Facts
from replay.kernels.groups import Grouped
from replay.kernels.histogram import Figures, Histogram
from replay.kernels.intervals import Intervals, Names
from replay.kernels.lists import NOTHING, Lists, pairs_of
from replay.kernels.steps import Partitions, Steps


class _Moved(NamedTuple):
    """Moves in order: one place for each broker that left or joined an ISR, in log order for each
    partition.

    ``by_leader``: the partition's leader proposed it: the replica lagged, or has caught up; else
    the controller did it, for a fencing, a shutdown or a reassignment.
    """

    key: Ints
    at_ms: Ints
    broker: Ints
    joined: Bools
    by_leader: Bools


@dataclass
class Moves:
    """Moves that a part found. ``topics``: their ids, by their numbers in keys.

    ``partitions``: leaves, leaves_by_leader, joins, leader_moves and returns of each; ``brokers``:
    the first three of these; ``led``: leaderships that a broker lost and gained; ``out``: how long
    replicas of a broker that returned had been out of the ISR.
    """

    topics: list[str]
    partitions: Grouped = field(default_factory=partial(Grouped, *[np.add] * 5))
    brokers: Grouped = field(default_factory=partial(Grouped, *[np.add] * 3))
    led: Grouped = field(default_factory=partial(Grouped, *[np.add] * 2))
    out: Histogram = field(default_factory=Histogram)


class MoveWatcher:
    """Watcher of partitions; ``found`` gives Moves. Moves before ``since_ms`` count only for the
    time that brokers were out.
    """

    def __init__(self, since_ms: int, facts: Facts, partitions: Partitions) -> None:
        del facts
        self._since_ms, self._moves = since_ms, Moves(partitions.topics)
        self._out: tuple[Ints, Ints, Ints] = (np.zeros(0, np.int64),) * 3
        """Key, broker and time of each replica's last leave; by key and broker."""

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """A slice."""
        del intervals
        moved, moves = isr_moves(steps), self._moves
        out_ms = self._out_ms(moved)
        late = moved.at_ms >= self._since_ms
        back = late & (out_ms != MISSING)
        left, returned = ~moved.joined[late], (out_ms != MISSING)[late]
        counts = left, left & moved.by_leader[late], moved.joined[late]
        moves.brokers.add(moved.broker[late], *counts)
        moves.partitions.add(moved.key[late], *counts, 0, returned)
        moves.out.add(moved.broker[back], out_ms[back])
        self._lead(steps)

    def last(self, steps: Steps, intervals: Intervals) -> None:
        """Ignore the last steps: no replica moves there."""

    def _lead(self, steps: Steps) -> None:
        before, moves = steps.before("leader"), self._moves
        moved = (before != MISSING) & (steps.leader != MISSING) & (before != steps.leader)
        moved &= steps.real & (steps.type == RecordType.PARTITION_CHANGE)
        moved &= steps.begins_ms >= self._since_ms
        moves.partitions.add(steps.key[moved], 0, 0, 0, 1, 0)
        for leader, lost in ((before, 1), (steps.leader, 0)):
            moves.led.add(leader[moved & (leader >= 0)], lost, 1 - lost)

    def _out_ms(self, moved: _Moved) -> Ints:
        """Return how long each joining replica had been out, in ms; MISSING for a leave, and for a
        new member.
        """
        count = len(self._out[0])
        key = np.concatenate([self._out[0], moved.key])
        broker = np.concatenate([self._out[1], moved.broker])
        at_ms = np.concatenate([self._out[2], moved.at_ms])
        joined = np.concatenate([np.zeros(count, np.bool_), moved.joined])
        order = np.lexsort([np.arange(len(key)), broker, key])
        key, broker, at_ms, joined = (each[order] for each in (key, broker, at_ms, joined))
        first = starts_of(key, broker)
        # Only a leave begins a time out: a recreated partition begins with the ISR in its record.
        left_ms = np.where(joined, MISSING, at_ms)
        before = previous(left_ms, first) if len(key) else at_ms
        out = np.where(joined & (before != MISSING), at_ms - before, MISSING)
        # Who is in is not looked up until it leaves.
        still = stops_of(first) & ~joined
        self._out = (key[still], broker[still], at_ms[still])
        found = np.empty(len(key), np.int64)
        found[order] = out
        return found[count:]

    def found(self) -> Moves:
        """Return the moves of all watched partitions."""
        return self._moves


def isr_moves(steps: Steps) -> _Moved:
    """Return the brokers that left and joined ISRs in a slice."""
    isr, before = steps.isr, steps.before("isr")
    # A partition that comes anew, behind a removal, has moved nobody.
    changed = steps.real & (steps.type == RecordType.PARTITION_CHANGE)
    rows = np.flatnonzero(changed & (before != NOTHING) & (isr != NOTHING) & (isr != before))
    left = _lacking(steps.lists, before[rows], isr[rows])
    came = _lacking(steps.lists, isr[rows], before[rows])
    places = np.concatenate([left[0], came[0]])
    bits = np.concatenate([left[1], came[1]])
    joined = np.concatenate([np.zeros(len(left[0]), np.bool_), np.ones(len(came[0]), np.bool_)])
    order = np.argsort(places, kind="stable")
    row = rows[places[order]]
    brokers = np.array(steps.lists.brokers or [0], np.int64)
    return _Moved(
        steps.key[row],
        steps.begins_ms[row],
        brokers[bits[order]],
        joined[order],
        steps.proposer_epoch[row] > 0,
    )


def _lacking(lists: Lists, some: Ints, others: Ints) -> tuple[Ints, Ints]:
    """Place and bit of each member of ``some`` that the list beside it does not have."""
    found = [
        pairs_of(lists.word(some, word) & ~lists.word(others, word), word)
        for word in range(lists.word_count)
    ]
    return (
        np.concatenate([places for places, _ in found]),
        np.concatenate([bits for _, bits in found]),
    )


class Moved(NamedTuple):
    """Moves of all parts together: every broker, unordered, and the worst partitions first, up to a
    limit.
    """

    brokers: list[BrokerChurn]
    partitions: list[PartitionChurn]
    partitions_total: int


def together(parts: list[Moves], names: Names, limit: int) -> Moved:
    """Merge the findings of all parts."""
    every = Moves(names.ids)
    for part in parts:
        every.partitions.merge(part.partitions, partial(names.keys, topics=part.topics))
        every.brokers.merge(part.brokers)
        every.led.merge(part.led)
        every.out.merge(part.out)
    rows = every.partitions.rows()
    worst = rows[:, _worst(rows, names.ids)[:limit]]
    return Moved(_brokers(every), _partitions(worst, names), rows.shape[1])


def _worst(rows: Ints, topics: Sequence[str]) -> Ints:
    """Return the places of partitions, the worst first: by the returns of their replicas."""
    key, leaves, _, _, leader_moves, returns = rows
    numbers, where = np.unique(key >> 32, return_inverse=True)
    ids = np.array([topics[number] for number in numbers.tolist()], np.str_)
    rank = np.argsort(np.argsort(ids))[where] if len(ids) else where
    return np.lexsort([key & 0xFFFFFFFF, rank, -leaves, -leader_moves, -returns])


def _brokers(moves: Moves) -> list[BrokerChurn]:
    moved, led, figures = moves.brokers.by_key(), moves.led.by_key(), moves.out.figures()
    told = []
    for broker in sorted({*moved, *led}):
        returned = figures.get(broker, Figures())
        out = returned.durations, returned.p50_ms, returned.max_ms
        leaves, led_ = moved.get(broker, (0, 0, 0)), led.get(broker, (0, 0))
        told.append(BrokerChurn(*(broker, *leaves, *out, *led_)))
    return told


def _partitions(rows: Ints, names: Names) -> list[PartitionChurn]:
    return [
        PartitionChurn(
            names.id_of(key),
            names.topic(key),
            key & 0xFFFFFFFF,
            leaves,
            by_leader,
            joins,
            returns,
            leader_moves,
        )
        for key, leaves, by_leader, joins, leader_moves, returns in rows.T.tolist()
    ]

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
from replay.kernels.histogram import COARSE_BITS, Figures, Histogram
from replay.kernels.intervals import Intervals, Names
from replay.kernels.lists import NOTHING, Lists, pairs_of
from replay.kernels.steps import Partitions, Steps

_FIRST_LOOK = 1024
"""With more partitions than this the watcher looks for those whose topic is gone."""


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

    ``partitions``: rows of key, leaves, leaves_by_leader, joins, leader_moves, returns;
    ``forgotten``: number of other partitions, which are gone and too quiet to be listed.
    ``brokers``: the same by broker, without the last two; ``led``: rows of broker, leaderships lost
    and gained. ``out_of_…``: how long replicas that returned had been out of the ISR.
    """

    topics: list[str]
    partitions: Ints
    forgotten: int
    brokers: Ints
    led: Ints
    out_of_partitions: Histogram
    out_of_brokers: Histogram


@dataclass
class MoveWatcher:
    """Watcher of partitions; ``found`` gives Moves. Moves before ``since_ms`` count only for the
    time that brokers were out. Of partitions whose topic is deleted only the ``limit`` worst are
    remembered.
    """

    since_ms: int
    limit: int
    facts: Facts
    partitions: Partitions
    _out: tuple[Ints, Ints, Ints] = field(default_factory=lambda: (np.zeros(0, np.int64),) * 3)
    """Key, broker and time of each replica's last leave; by key and broker."""
    _of_partitions: Sums = field(default_factory=lambda: Sums(5))
    _of_brokers: Sums = field(default_factory=lambda: Sums(3))
    _led: Sums = field(default_factory=lambda: Sums(2))
    _out_of_partitions: Histogram = field(default_factory=partial(Histogram, bits=COARSE_BITS))
    _out_of_brokers: Histogram = field(default_factory=Histogram)
    _forgotten: int = 0
    _look_again: int = _FIRST_LOOK
    """Number of partitions at which to look for gone ones again."""

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """A slice."""
        del intervals
        moved = isr_moves(steps)
        out_ms = self._out_ms(moved)
        late = moved.at_ms >= self.since_ms
        left, back = ~moved.joined & late, late & (out_ms != MISSING)
        counts = np.stack(
            [left, left & moved.by_leader, moved.joined & late, np.zeros_like(late), back]
        ).astype(np.int64)[:, late]
        self._of_brokers.add(moved.broker[late], counts[:3])
        self._of_partitions.add(moved.key[late], counts)
        self._out_of_brokers.add(moved.broker[back], out_ms[back])
        self._out_of_partitions.add(moved.key[back], out_ms[back])
        self._lead(steps)
        if self._of_partitions.most > self._look_again and len(steps.begins):
            self._forget(int(steps.begins.max()))

    def _forget(self, offset: int) -> None:
        """Forget the partitions that are gone at an offset and will not be listed."""
        rows = self._of_partitions.rows()
        gone = rows[:, self.partitions.gone(rows[0], offset)]
        quiet = _worst(gone, self.partitions.topics)[self.limit :]
        self._forgotten += len(quiet)
        self._of_partitions.drop(gone[0, quiet])
        self._out_of_partitions.drop(gone[0, quiet])
        still = ~self.partitions.gone(self._out[0], offset)
        key, broker, at_ms = self._out
        self._out = key[still], broker[still], at_ms[still]
        self._look_again = 2 * self._of_partitions.most + _FIRST_LOOK

    def last(self, steps: Steps, intervals: Intervals) -> None:
        """Ignore the last steps: no replica moves there."""

    def _lead(self, steps: Steps) -> None:
        before = steps.before("leader")
        moved = (before != MISSING) & (steps.leader != MISSING) & (before != steps.leader)
        moved &= steps.real & (steps.type == RecordType.PARTITION_CHANGE)
        moved &= steps.begins_ms >= self.since_ms
        key, one = steps.key[moved], np.ones(int(moved.sum()), np.int64)
        self._of_partitions.add(key, np.stack([0 * one, 0 * one, 0 * one, one, 0 * one]))
        self._led.add(before[moved], np.stack([one, 0 * one]))
        self._led.add(steps.leader[moved], np.stack([0 * one, one]))

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
        return Moves(
            self.partitions.topics,
            self._of_partitions.rows(),
            self._forgotten,
            self._of_brokers.rows(),
            self._led.rows(),
            self._out_of_partitions,
            self._out_of_brokers,
        )


class Sums:
    """Sums of counts by a key."""

    def __init__(self, width: int) -> None:
        self._runs = [np.zeros((width + 1, 0), np.int64)]
        """Keys, and below them the counts; each more than twice as long as the next."""

    def add(self, keys: Ints, counts: Ints) -> None:
        """A column of counts beside each key."""
        runs = self._runs
        runs.append(_summed(np.concatenate([keys[None, :], counts])))
        while len(runs) > 1 and runs[-2].shape[1] <= 2 * runs[-1].shape[1]:
            last = runs.pop()
            runs[-1] = _summed(np.concatenate([runs[-1], last], axis=1))

    def rows(self) -> Ints:
        """Keys, and below them the counts."""
        self._runs = [_summed(np.concatenate(self._runs, axis=1))]
        return self._runs[0]

    @property
    def most(self) -> int:
        """Upper bound of the number of keys."""
        return sum(each.shape[1] for each in self._runs)

    def drop(self, keys: Ints) -> None:
        """Forget some keys."""
        rows = self.rows()
        self._runs = [rows[:, ~np.isin(rows[0], keys)]]


def _summed(rows: Ints) -> Ints:
    """Return each key once, in order."""
    rows = rows[:, np.argsort(rows[0], kind="stable")]
    starts = np.flatnonzero(np.diff(rows[0], prepend=MISSING))
    if not len(starts):
        return rows
    sums = np.add.reduceat(rows[1:], starts, axis=1)
    return np.concatenate([rows[:1, starts], sums])


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
    of_partitions, of_brokers, led = Sums(5), Sums(3), Sums(2)
    out_of_partitions, out_of_brokers = Histogram(bits=COARSE_BITS), Histogram()
    for part in parts:
        keys = names.keys(part.partitions[0], part.topics)
        of_partitions.add(keys, part.partitions[1:])
        of_brokers.add(part.brokers[0], part.brokers[1:])
        led.add(part.led[0], part.led[1:])
        out_of_brokers.merge(part.out_of_brokers)
        out_of_partitions.merge(
            part.out_of_partitions.named(partial(names.keys, topics=part.topics))
        )
    rows = of_partitions.rows()
    return Moved(
        _brokers(of_brokers, led, out_of_brokers),
        _partitions(rows[:, _worst(rows, names.ids)[:limit]], out_of_partitions, names),
        rows.shape[1] + sum(part.forgotten for part in parts),
    )


def _worst(rows: Ints, topics: Sequence[str]) -> Ints:
    """Return the places of partitions, the worst first: by the returns of their replicas."""
    key, leaves, _, _, leader_moves, returns = rows
    numbers, where = np.unique(key >> 32, return_inverse=True)
    ids = np.array([topics[number] for number in numbers.tolist()], np.str_)
    rank = np.argsort(np.argsort(ids))[where] if len(ids) else where
    return np.lexsort([key & 0xFFFFFFFF, rank, -leaves, -leader_moves, -returns])


def _brokers(moved: Sums, led: Sums, out: Histogram) -> list[BrokerChurn]:
    moves = {row[0]: row[1:] for row in moved.rows().T.tolist()}
    leads = {row[0]: row[1:] for row in led.rows().T.tolist() if row[0] >= 0}
    figures = out.figures()
    told = []
    for broker in sorted({*moves, *leads}):
        leaves, by_leader, joins = moves.get(broker, (0, 0, 0))
        lost, gained = leads.get(broker, (0, 0))
        returned = figures.get(broker, Figures())
        told.append(
            BrokerChurn(
                broker_id=broker,
                leaves=leaves,
                leaves_by_leader=by_leader,
                joins=joins,
                returns=returned.durations,
                p50_out_ms=returned.p50_ms,
                max_out_ms=returned.max_ms,
                leaderships_lost=lost,
                leaderships_gained=gained,
            )
        )
    return told


def _partitions(rows: Ints, out: Histogram, names: Names) -> list[PartitionChurn]:
    figures = out.of(rows[0])
    told = []
    for key, leaves, by_leader, joins, leader_moves, returns in rows.T.tolist():
        returned = figures.get(key, Figures())
        told.append(
            PartitionChurn(
                topic_id=names.id_of(key),
                topic_name=names.topic(key),
                partition_id=key & 0xFFFFFFFF,
                leaves=leaves,
                leaves_by_leader=by_leader,
                joins=joins,
                returns=returns,
                p50_out_ms=returned.p50_ms,
                max_out_ms=returned.max_ms,
                leader_moves=leader_moves,
            )
        )
    return told

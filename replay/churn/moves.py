"""Brokers that left and joined ISRs, and leaderships that moved."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from raftlog.metadata.records import RecordType
from replay.churn.model import BrokerChurn, PartitionChurn
from replay.kernels.arrays import MISSING, Bools, Ints, previous
from replay.kernels.facts import Facts
from replay.kernels.histogram import Figures, Histogram
from replay.kernels.intervals import Intervals, Names
from replay.kernels.lists import NOTHING, Lists, pairs_of
from replay.kernels.steps import Partitions, Steps


class _Moved(NamedTuple):
    """One place for each broker that left or joined an ISR: in the order of the log for each
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
    """What a part found. ``topics``: their ids, by their numbers in keys.

    ``partitions``: rows of key, leaves, leaves_by_leader, joins, leader_moves; ``brokers``: the
    same by broker, without the last; ``led``: rows of broker, leaderships lost and gained.
    ``out_of_…``: for how long those that returned had been out.
    """

    topics: list[str]
    partitions: Ints
    brokers: Ints
    led: Ints
    out_of_partitions: Histogram
    out_of_brokers: Histogram


@dataclass
class MoveWatcher:
    """Watches partitions; ``found`` gives Moves. Of moves before ``since_ms`` only how long brokers
    are out counts.
    """

    since_ms: int
    facts: Facts
    partitions: Partitions
    _out: tuple[Ints, Ints, Ints] = field(default_factory=lambda: (np.zeros(0, np.int64),) * 3)
    """Key, broker and time of each replica's last leave; by key and broker."""
    _of_partitions: Sums = field(default_factory=lambda: Sums(4))
    _of_brokers: Sums = field(default_factory=lambda: Sums(3))
    _led: Sums = field(default_factory=lambda: Sums(2))
    _out_of_partitions: Histogram = field(default_factory=Histogram)
    _out_of_brokers: Histogram = field(default_factory=Histogram)

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """A slice."""
        del intervals
        moved = isr_moves(steps)
        out_ms = self._out_ms(moved)
        late = moved.at_ms >= self.since_ms
        left, ones = ~moved.joined & late, np.ones(len(late), np.int64)
        counts = np.stack([left, left & moved.by_leader, moved.joined & late]).astype(np.int64)
        some = late.nonzero()[0]
        self._of_brokers.add(moved.broker[some], counts[:, some])
        self._of_partitions.add(moved.key[some], np.concatenate([counts, [0 * ones]])[:, some])
        back = late & (out_ms != MISSING)
        self._out_of_brokers.add(moved.broker[back], out_ms[back])
        self._out_of_partitions.add(moved.key[back], out_ms[back])
        self._lead(steps)

    def last(self, intervals: Intervals) -> None:
        """Nothing happens there."""

    def _lead(self, steps: Steps) -> None:
        before = steps.before("leader")
        moved = (before != MISSING) & (steps.leader != MISSING) & (before != steps.leader)
        moved &= steps.real & (steps.type == RecordType.PARTITION_CHANGE)
        moved &= steps.begins_ms >= self.since_ms
        key, one = steps.key[moved], np.ones(int(moved.sum()), np.int64)
        self._of_partitions.add(key, np.stack([0 * one, 0 * one, 0 * one, one]))
        self._led.add(before[moved], np.stack([one, 0 * one]))
        self._led.add(steps.leader[moved], np.stack([0 * one, one]))

    def _out_ms(self, moved: _Moved) -> Ints:
        """For how long each that joined had been out; MISSING of a leave, and of who had not been
        in before.
        """
        count = len(self._out[0])
        key = np.concatenate([self._out[0], moved.key])
        broker = np.concatenate([self._out[1], moved.broker])
        at_ms = np.concatenate([self._out[2], moved.at_ms])
        joined = np.concatenate([np.zeros(count, np.bool_), moved.joined])
        order = np.lexsort([np.arange(len(key)), broker, key])
        key, broker, at_ms, joined = (each[order] for each in (key, broker, at_ms, joined))
        first = np.ones(len(key), np.bool_)
        first[1:] = (key[1:] != key[:-1]) | (broker[1:] != broker[:-1])
        # Only a leave begins a time out: a partition that comes anew has whom it names.
        left_ms = np.where(joined, MISSING, at_ms)
        before = previous(left_ms, first) if len(key) else at_ms
        out = np.where(joined & (before != MISSING), at_ms - before, MISSING)
        last = np.concatenate([first[1:], [True]]) if len(key) else first
        # Who is in is not looked up until it leaves.
        still = last & ~joined
        self._out = (key[still], broker[still], at_ms[still])
        found = np.empty(len(key), np.int64)
        found[order] = out
        return found[count:]

    def found(self) -> Moves:
        """Of all partitions watched."""
        return Moves(
            self.partitions.topics,
            self._of_partitions.rows(),
            self._of_brokers.rows(),
            self._led.rows(),
            self._out_of_partitions,
            self._out_of_brokers,
        )


class Sums:
    """Counts by a key, added up."""

    def __init__(self, width: int) -> None:
        self._keys = np.zeros(0, np.int64)
        self._counts = np.zeros((width, 0), np.int64)

    def add(self, keys: Ints, counts: Ints) -> None:
        """A column of counts beside each key."""
        every, where = np.unique(np.concatenate([self._keys, keys]), return_inverse=True)
        total = np.zeros((len(self._counts), len(every)), np.int64)
        both = np.concatenate([self._counts, counts], axis=1)
        for row, values in zip(total, both, strict=True):
            np.add.at(row, where, values)
        self._keys, self._counts = every, total

    def rows(self) -> Ints:
        """Keys, and below them the counts."""
        return np.concatenate([self._keys[None, :], self._counts])


def isr_moves(steps: Steps) -> _Moved:
    """The brokers that left and joined ISRs in a slice."""
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


def move_watcher(since_ms: int) -> partial[MoveWatcher]:
    """What makes one; to be pickled."""
    return partial(MoveWatcher, since_ms)


def together(parts: list[Moves], names: Names) -> tuple[list[BrokerChurn], list[PartitionChurn]]:
    """All parts: every broker and partition that moved, unordered."""
    of_partitions, of_brokers, led = Sums(4), Sums(3), Sums(2)
    out_of_partitions, out_of_brokers = Histogram(), Histogram()
    for part in parts:
        keys = names.keys(part.partitions[0], part.topics)
        of_partitions.add(keys, part.partitions[1:])
        of_brokers.add(part.brokers[0], part.brokers[1:])
        led.add(part.led[0], part.led[1:])
        out_of_brokers.merge(part.out_of_brokers)
        out_of_partitions.merge(
            part.out_of_partitions.named(partial(names.keys, topics=part.topics))
        )
    return _brokers(of_brokers, led, out_of_brokers), _partitions(
        of_partitions, out_of_partitions, names
    )


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


def _partitions(moved: Sums, out: Histogram, names: Names) -> list[PartitionChurn]:
    figures = out.figures()
    told = []
    for key, leaves, by_leader, joins, leader_moves in moved.rows().T.tolist():
        returned = figures.get(key, Figures())
        told.append(
            PartitionChurn(
                topic_id=names.id_of(key),
                topic_name=names.topic(key),
                partition_id=key & 0xFFFFFFFF,
                leaves=leaves,
                leaves_by_leader=by_leader,
                joins=joins,
                returns=returned.durations,
                p50_out_ms=returned.p50_ms,
                max_out_ms=returned.max_ms,
                leader_moves=leader_moves,
            )
        )
    return told

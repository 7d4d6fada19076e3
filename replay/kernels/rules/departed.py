"""The rule about departed brokers: a broker that is fenced, shut down, replaced or unregistered
leaves every ISR in the same batch.

It may stay only as an ISR's last member without leading, because no other replica is known to have
every record. A batch of more than FENCING_BATCH_MAX records may leave the rest to later batches;
the broker stays fenced until these are done, so the rule also checks just before the batch that
unfences it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from raftlog.metadata.entities import NO_LEADER
from replay import rules
from replay.kernels.arrays import NEVER, Ints, Known, order_of
from replay.kernels.facts import BrokerSpan, Facts
from replay.kernels.findings import Finding, Judged, offence, partition_place
from replay.kernels.lists import NOTHING, Lists, pairs_of
from replay.kernels.steps import Partitions, Steps

FENCING_BATCH_MAX = 5_000
"""The controller's limit, copied from controller/rules/partition_change.py."""
_START, _STOP = 1, 0


class Look(NamedTuple):
    """A check that a broker is in no ISR: the offset of the image to check, and the record that
    requires it.
    """

    looked_at: int
    offset: int
    epoch: int | None
    timestamp_ms: int | None
    principal: str | None
    now: str


class Departed:
    """Decides, for each stay of a broker in an ISR, whether the broker had to leave by the first
    check after the stay began.

    A stay lasts while the broker is in an ISR with others, or leads.
    """

    def __init__(self, facts: Facts, partitions: Partitions) -> None:
        self._end = facts.end_offset
        self._partitions = partitions
        looks: list[tuple[int, Look]] = []
        for broker, spans in groupby(facts.standings.spans, key=lambda span: span.broker_id):
            of_one = sorted(_looks(list(spans)), key=lambda look: (look.looked_at, look.offset))
            looks += [(broker, look) for look in of_one]
        self._brokers = np.array([broker for broker, _ in looks], np.int64)
        self._known = Known(self._brokers)
        self._looks = [look for _, look in looks]
        self._at = np.array([look.looked_at for look in self._looks], np.int64)
        self._keys = (self._known.find(self._brokers)[0] << 40) + self._at
        self._open = self._standing()
        """Open stays: partition, the broker's bit, and the offset at which the stay began."""

    def _standing(self) -> tuple[Ints, Ints, Ints]:
        """Return the stays in already known partitions, as of their last change."""
        state, lists = self._partitions.state, self._partitions.lists
        members = _members(state["isr"], state["leader"], lists)
        found = [pairs_of(lists.word(members, word), word) for word in range(lists.word_count)]
        rows, bits = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return state["key"][rows], bits, state["begins"][rows]

    @property
    def staying(self) -> Ints:
        """The partitions of the open stays."""
        return self._open[0]

    def check(self, judged: Judged) -> Iterator[Finding]:
        """Judge the stays that end in a slice."""
        yield from self._judge(*self._stays(judged.steps, last=False))
        yield from self._judge(*self._removed(judged.steps))

    def _removed(self, steps: Steps) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the stays that end because their topic is removed, without a record of the
        partition. Keeping these stays would mean looking up, with each slice, all topics that ever
        existed.
        """
        key, bits, since = self._open
        left = self._partitions.removed(key, since)
        over = self._partitions.gone(key, steps.seen) & (left != NEVER)
        self._open = key[~over], bits[~over], since[~over]
        return key[over], bits[over], since[over], left[over]

    def end(self) -> Iterator[Finding]:
        """Judge the remaining stays."""
        yield from self._judge(*self._stays(self._partitions.ends(), last=True))
        key, bits, since = self._open
        yield from self._judge(key, bits, since, np.full(len(key), self._end))

    def _stays(self, steps: Steps, *, last: bool) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the stays that end: partition, the broker's bit, begin and end (exclusive)."""
        rows, bits, at, kinds = self._changes(steps, last=last)
        # Stays in partitions without a record in the slice continue unchanged.
        there = steps.key[steps.first]
        place = np.searchsorted(there, self._open[0])
        about = np.zeros(len(place), np.bool_)
        inside = place < len(there)
        about[inside] = there[place[inside]] == self._open[0][inside]
        waiting = tuple(values[~about] for values in self._open)
        bits = np.concatenate([self._open[1][about], bits])
        since = np.concatenate([self._open[2][about], at])
        kinds = np.concatenate([np.full(len(bits) - len(kinds), _START), kinds])
        partition = np.concatenate([place[about], (np.cumsum(steps.first) - 1)[rows]])
        # Stays that were already open sort before all changes in the slice.
        changed = np.maximum(at - (int(steps.begins.min()) if len(rows) else 0), 0) + 1
        moment = np.concatenate([np.zeros(len(bits) - len(changed), np.int64), changed])
        stay = partition * len(self._partitions.lists.brokers) + bits
        order = _in_order(stay, 2 * moment + kinds)
        stay, bits, since, kinds = stay[order], bits[order], since[order], kinds[order]
        keys = there[partition[order]]
        follows = np.zeros(len(stay), np.bool_)
        follows[:-1] = stay[1:] == stay[:-1]
        begun = np.flatnonzero(kinds == _START)
        ended, still = begun[follows[begun]], begun[~follows[begun]]
        self._open = (
            np.concatenate([waiting[0], keys[still]]),
            np.concatenate([waiting[1], bits[still]]),
            np.concatenate([waiting[2], since[still]]),
        )
        return keys[ended], bits[ended], since[ended], since[ended + 1]

    def _changes(self, steps: Steps, *, last: bool) -> tuple[Ints, Ints, Ints, Ints]:
        """Return when brokers joined and left ISRs: row, bit, offset, and which of both."""
        lists = steps.lists
        members = _members(steps.isr, steps.leader, lists)
        follows = ~steps.first
        follows[1:] &= steps.ends[:-1] == steps.begins[1:]
        were = np.full(len(members), NOTHING, np.int64)
        were[1:] = members[:-1]
        were[~follows] = NOTHING
        changed = np.flatnonzero((members != were) & steps.real)
        # The end of an unchanged state is known only from the row after it.
        known = np.ones(len(members), np.bool_)
        known[:-1] = ~steps.first[1:]
        known[-1:] = False
        gone = np.flatnonzero(
            (known | last) & (steps.removed < steps.next_begins) & (members != NOTHING)
        )
        found = []
        for word in range(lists.word_count):
            now, then = lists.word(members[changed], word), lists.word(were[changed], word)
            for kind, rows, words, offsets in (
                (_START, changed, now & ~then, steps.begins),
                (_STOP, changed, then & ~now, steps.begins),
                (_STOP, gone, lists.word(members[gone], word), steps.removed),
            ):
                places, bits = pairs_of(words, word)
                found.append(
                    (rows[places], bits, offsets[rows[places]], np.full(len(places), kind))
                )
        rows, bits, at, kinds = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return rows, bits, at, kinds

    def _judge(self, keys: Ints, bits: Ints, since: Ints, left: Ints) -> Iterator[Finding]:
        if not len(keys) or not len(self._looks):
            return
        brokers = np.array(self._partitions.lists.brokers, np.int64)[bits]
        code, known = self._known.find(brokers)
        at = np.searchsorted(self._keys, (code << 40) + since)
        at = np.minimum(at, len(self._looks) - 1)
        looked = (self._brokers[at] == brokers) & (self._at[at] >= since)
        for index in np.flatnonzero(known & looked & (self._at[at] < left)).tolist():
            look = self._looks[int(at[index])]
            record = look.epoch, look.timestamp_ms, look.principal
            broker, entered = int(brokers[index]), int(since[index])
            place = partition_place(
                self._partitions, int(keys[index]), look.offset, record, name_at=entered
            )
            yield offence(
                rules.INACTIVE_IN_ISR,
                place,
                broker_id=broker,
                also=entered,
                found=f"broker {broker}, {look.now}, in the ISR",
                expected="not in the ISR, or its last member without leading",
            )


def _in_order(stays: Ints, moments: Ints) -> Ints:
    """Return the sort order by stay, then by moment."""
    if not len(stays):
        return np.zeros(0, np.int64)
    span = int(moments.max()) + 1
    if int(stays.max()) < (1 << 62) // span:
        return order_of(stays * span + moments)
    return np.lexsort((moments, stays))


def _members(isr: Ints, leader: Ints, lists: Lists) -> Ints:
    """Return the ISRs to check, which have several members or a leader; NOTHING for the others."""
    counts = (isr != NOTHING) & ((lists.size(isr) > 1) | (leader != NO_LEADER))
    return np.where(counts, isr, NOTHING)


def _looks(spans: list[BrokerSpan]) -> Iterator[Look]:
    """Yield the checks of one broker."""
    before: BrokerSpan | None = None
    for index, span in enumerate(spans):
        same = (
            before is not None
            and before.ends == span.begins
            and before.broker_epoch == span.broker_epoch
        )
        was_active = before is not None and _active(before)
        active = _active(span)
        whole = span.batch_last_offset - span.batch_base_offset < FENCING_BATCH_MAX
        here = span.begins, span.epoch, span.begins_ms, span.principal
        if not active and (not same or was_active) and whole:
            why = "replaced" if span.registration else span.reason or ""
            yield Look(span.batch_last_offset, *here, f"inactive: {why}")
        if active and same and not was_active:
            yield Look(span.batch_base_offset - 1, *here, "about to be unfenced")
        follower = spans[index + 1].begins if index + 1 < len(spans) else None
        # The record follows the removals in its batch.
        if span.ends not in {NEVER, follower}:
            yield Look(span.ends, span.ends, None, span.ends_ms, None, "unregistered")
        before = span


def _active(span: BrokerSpan) -> bool:
    return not (span.fenced or span.in_controlled_shutdown)

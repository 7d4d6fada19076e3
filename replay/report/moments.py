"""Events of partitions, grouped by the moment at which they began: so the fencing of a broker with
a hundred thousand partitions is a few rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from replay.kernels.arrays import NEVER, Bools, Ints, joined, some, starts_of, stops_of
from replay.kernels.facts import Facts
from replay.kernels.intervals import Intervals, Names, SpellFinder, Spells
from replay.kernels.steps import Partitions, Steps

FLAP_GAP_MS = 300_000
FLAPS = 4
"""Number of times out of the ISR, each within the gap of the last, that count as flapping."""
_AT_ONCE = 1 << 14
"""Number of new rows that are kept before they are merged."""


class Moments(NamedTuple):
    """Moments, one place each, in order: the number of spells that began at it, the end of the last
    of them (NEVER: one lasts), and the first of them: its offset, and its partition.

    ``lasted_ms``: the sum of the lengths of the spells that have ended; ``lasting``: the number of
    the others.
    """

    begins_ms: Ints
    ends_ms: Ints
    begins: Ints
    spells: Ints
    key: Ints
    lasted_ms: Ints
    lasting: Ints

    def within(self, since_ms: int, until_ms: int) -> Moments:
        """Return the moments between two times, both inclusive."""
        first = np.searchsorted(self.begins_ms, since_ms)
        last = np.searchsorted(self.begins_ms, until_ms, side="right")
        return some(self, np.arange(first, last))

    def partition_ms(self, end_ms: int) -> int:
        """Return the length of all spells up to the end of the log, summed over partitions."""
        return int((self.lasted_ms + self.lasting * (end_ms - self.begins_ms)).sum())

    def together(self) -> Moments:
        """Return each moment once."""
        order = np.lexsort([self.begins, self.begins_ms])
        rows = some(self, order)
        starts = np.flatnonzero(np.diff(rows.begins_ms, prepend=-1))
        if not len(starts):
            return rows
        return Moments(
            rows.begins_ms[starts],
            np.maximum.reduceat(rows.ends_ms, starts),
            rows.begins[starts],
            np.add.reduceat(rows.spells, starts),
            rows.key[starts],
            np.add.reduceat(rows.lasted_ms, starts),
            np.add.reduceat(rows.lasting, starts),
        )


def _moments(spells: Spells) -> Moments:
    """Return a moment for each spell."""
    lasting = (spells.ends_ms == NEVER).astype(np.int64)
    return Moments(
        spells.begins_ms,
        spells.ends_ms,
        spells.begins,
        np.ones(len(lasting), np.int64),
        spells.key,
        np.where(lasting, 0, spells.ends_ms - spells.begins_ms),
        lasting,
    )


Part = TypeVar("Part", bound=tuple[Ints, ...])


class _Collected(Generic[Part]):
    """Parts of a table, merged whenever they are more than twice what the last merge left."""

    def __init__(self, merge: Callable[[list[Part]], Part]) -> None:
        self._merge = merge
        self._parts: list[Part] = []
        self._rows = self._kept = 0

    def add(self, part: Part) -> None:
        self._parts.append(part)
        self._rows += len(part[0])
        if self._rows > 2 * self._kept + _AT_ONCE:
            self._parts = [self.merged()]
            self._rows = self._kept = len(self._parts[0][0])

    def merged(self) -> Part:
        return self._merge(self._parts)


def merged(parts: list[Moments]) -> Moments:
    """Moments of several, each once."""
    return joined(Moments, parts).together()


class Changes(NamedTuple):
    """Changes of the number of spells, each with its moment."""

    at_ms: Ints
    by: Ints


class Rise:
    """Rise of the number of spells within some time."""

    def __init__(self, changes: Changes) -> None:
        self._at_ms, self._level = changes.at_ms, np.concatenate([[0], np.cumsum(changes.by)])

    def within(self, since_ms: int, until_ms: int) -> int:
        """Return the highest number between two times, both inclusive, less that before."""
        first = int(np.searchsorted(self._at_ms, since_ms))
        last = int(np.searchsorted(self._at_ms, until_ms, side="right"))
        return int(self._level[first : last + 1].max() - self._level[first])


def added(parts: list[Changes]) -> Changes:
    """Changes put together; those that come to nothing are left out."""
    at_ms = np.concatenate([np.zeros(0, np.int64), *(part.at_ms for part in parts)])
    by = np.concatenate([np.zeros(0, np.int64), *(part.by for part in parts)])
    moments, where = np.unique(at_ms, return_inverse=True)
    total = np.zeros(len(moments), np.int64)
    np.add.at(total, where, by)
    return Changes(moments[total != 0], total[total != 0])


class Flaps(NamedTuple):
    """Flaps: one place for each time that a partition's ISR flapped."""

    key: Ints
    begins: Ints
    begins_ms: Ints
    last_ms: Ints
    ends_ms: Ints
    times: Ints


class Flapping:
    """Sessions of short ISRs: each begins within the gap of the last."""

    def __init__(self) -> None:
        self._open = joined(Flaps, [])
        self._found: list[Flaps] = []
        self._parked: list[Flaps] = []
        """Flaps of deleted partitions: they are merged at the end of the log."""

    @property
    def keys(self) -> Ints:
        """The partitions that may go on to flap."""
        return self._open.key

    def park(self, gone: Bools) -> None:
        """Exclude some of ``keys`` from further slices."""
        if gone.any():
            self._parked.append(some(self._open, gone))
            self._open = some(self._open, ~gone)

    def unpark(self) -> None:
        """Include all of them again."""
        self._open, self._parked = joined(Flaps, [self._open, *self._parked]), []

    def add(self, spells: Spells) -> None:
        """Add spells of short ISRs that have ended, or are the last."""
        if not len(spells.key):
            return
        ends_ms = np.where(spells.ends_ms == NEVER, spells.begins_ms, spells.ends_ms)
        new = Flaps(
            spells.key,
            spells.begins,
            spells.begins_ms,
            spells.begins_ms,
            ends_ms,
            np.ones(len(ends_ms), np.int64),
        )
        both = joined(Flaps, [self._open, new])
        both = some(both, np.lexsort([both.begins, both.key]))
        starts = np.ones(len(both.key), np.bool_)
        starts[1:] = (both.key[1:] != both.key[:-1]) | (
            both.begins_ms[1:] - both.last_ms[:-1] >= FLAP_GAP_MS
        )
        at = np.flatnonzero(starts)
        sessions = Flaps(
            both.key[at],
            both.begins[at],
            both.begins_ms[at],
            np.maximum.reduceat(both.last_ms, at),
            np.maximum.reduceat(both.ends_ms, at),
            np.add.reduceat(both.times, at),
        )
        last = stops_of(starts_of(sessions.key))
        self._open = some(sessions, last)
        self._found.append(some(sessions, ~last & (sessions.times >= FLAPS)))

    def found(self) -> Flaps:
        """Return the sessions with enough spells."""
        return joined(Flaps, [*self._found, some(self._open, self._open.times >= FLAPS)])


class Troubled(NamedTuple):
    """Troubles of partitions that a part found. ``topics``: their ids, by their numbers in keys."""

    topics: list[str]
    leaderless: Moments
    short: Moments
    flaps: Flaps
    leaderless_by: Changes
    short_by: Changes

    def named(self, names: Names) -> Troubled:
        """Return the same with the numbers of ``names``."""

        def keyed(key: Ints) -> Ints:
            return names.keys(key, self.topics)

        return self._replace(
            leaderless=self.leaderless._replace(key=keyed(self.leaderless.key)),
            short=self.short._replace(key=keyed(self.short.key)),
            flaps=self.flaps._replace(key=keyed(self.flaps.key)),
        )


class _Kind:
    """Spells of one condition."""

    def __init__(self) -> None:
        self.finder = SpellFinder()
        self.moments = _Collected(merged)
        self.changes = _Collected(added)

    def add(self, spells: Spells) -> Spells:
        self.moments.add(_moments(spells))
        over = spells.ends_ms != NEVER
        at_ms = np.concatenate([spells.begins_ms, spells.ends_ms[over]])
        by = np.ones(len(at_ms), np.int64)
        by[len(over) :] = -1
        self.changes.add(Changes(at_ms, by))
        return spells


@dataclass
class TroubleWatcher:
    """Watcher of partitions' troubles; ``found`` gives Troubled."""

    facts: Facts
    partitions: Partitions
    _leaderless: _Kind = field(default_factory=_Kind)
    _short: _Kind = field(default_factory=_Kind)
    flapping: Flapping = field(default_factory=Flapping)

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """A slice."""
        self._look(intervals)
        self.flapping.park(self.partitions.gone(self.flapping.keys, steps.seen))

    def _look(self, intervals: Intervals) -> None:
        self._leaderless.add(self._leaderless.finder.take(intervals, intervals.leaderless))
        self.flapping.add(self._short.add(self._short.finder.take(intervals, intervals.short)))

    def last(self, steps: Steps, intervals: Intervals) -> None:
        """Process the last steps of partitions, which nothing follows."""
        del steps
        self.flapping.unpark()
        self._look(intervals)

    def found(self) -> Troubled:
        """Return the troubles of all watched partitions."""
        self._leaderless.add(self._leaderless.finder.end())
        self.flapping.add(self._short.add(self._short.finder.end()))
        return Troubled(
            self.partitions.topics,
            self._leaderless.moments.merged(),
            self._short.moments.merged(),
            self.flapping.found(),
            self._leaderless.changes.merged(),
            self._short.changes.merged(),
        )


def together(parts: list[Troubled], names: Names) -> Troubled:
    """Merge the findings of all parts."""
    parts = [part.named(names) for part in parts]
    return Troubled(
        names.ids,
        merged([part.leaderless for part in parts]),
        merged([part.short for part in parts]),
        joined(Flaps, [part.flaps for part in parts]),
        added([part.leaderless_by for part in parts]),
        added([part.short_by for part in parts]),
    )

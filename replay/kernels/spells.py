"""Spells: runs of a partition's intervals without a gap, in which a condition holds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.kernels.arrays import NEVER, Bools, Ints
from replay.kernels.intervals import Intervals


class Spells(NamedTuple):
    """Spells, one place each; ``ends`` and ``ends_ms`` are NEVER: it lasts at the log end."""

    key: Ints
    begins: Ints
    begins_ms: Ints
    ends: Ints
    ends_ms: Ints

    def of(self, chosen: Bools | Ints) -> Spells:
        """Return some of them."""
        return Spells(*(values[chosen] for values in self))


def no_spells() -> Spells:
    """Return no spells."""
    return Spells(*(np.zeros(0, np.int64) for _ in Spells._fields))


def together(*some: Spells) -> Spells:
    """Return all spells as one."""
    return Spells(*(np.concatenate(columns) for columns in zip(*some, strict=True)))


class SpellFinder:
    """Finder of spells, which carries open ones from slice to slice."""

    def __init__(self) -> None:
        self._open = no_spells()
        """Open spells, by key."""

    def take(self, intervals: Intervals, holds: Bools) -> Spells:
        """Return the spells that have ended."""
        if not len(intervals):
            return no_spells()
        key, begins, ends = intervals.key, intervals.begins, intervals.ends
        first = np.ones(len(key), np.bool_)
        first[1:] = key[1:] != key[:-1]
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
        # What reaches the last interval of its partition may go on.
        last = np.concatenate([first[1:], [True]])[stops]
        still = runs.of(last)
        self._open = together(self._open, still)
        self._open = self._open.of(np.argsort(self._open.key, kind="stable"))
        return together(closed, runs.of(~last))

    def _joined(self, runs: Spells, first: Bools, keys: Ints) -> tuple[Spells, Spells]:
        """Runs with what they go on from; and those that were open and do not go on."""
        open_ = self._open
        met = np.isin(open_.key, keys, assume_unique=True)
        self._open = open_.of(~met)
        open_ = open_.of(met)
        if not len(open_.key):
            return runs, no_spells()
        at = np.minimum(np.searchsorted(open_.key, runs.key), len(open_.key) - 1)
        goes_on = first & (open_.key[at] == runs.key) & (open_.ends[at] == runs.begins)
        joined = runs._replace(
            begins=np.where(goes_on, open_.begins[at], runs.begins),
            begins_ms=np.where(goes_on, open_.begins_ms[at], runs.begins_ms),
        )
        ended = np.ones(len(open_.key), np.bool_)
        ended[at[goes_on]] = False
        return joined, open_.of(ended)

    def end(self) -> Spells:
        """Return the spells that are still open."""
        return self._open


def lasting(spells: Spells) -> Bools:
    """Return whether each spell lasts at the end of the log."""
    return spells.ends_ms == NEVER

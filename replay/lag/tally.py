"""Counts of numbers by group, exactly: their size is that of the different numbers."""

from __future__ import annotations

import math

import numpy as np

from replay.kernels.arrays import Ints

_AT_ONCE = 1 << 16
"""Number of rows that are kept before they are merged."""


class Tally:
    """Frequency of each number, by group."""

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, Ints, Ints]] = []
        """Group, number, count."""
        self._rows = 0

    def add(self, groups: Ints, numbers: Ints) -> None:
        """One number beside each group."""
        self._append(groups, numbers, np.ones(len(numbers), np.int64))

    def merge(self, other: Tally) -> None:
        """Add the counts of another part."""
        for part in other._parts:
            self._append(*part)

    def _append(self, groups: Ints, numbers: Ints, counts: Ints) -> None:
        self._parts.append((groups, numbers, counts))
        self._rows += len(groups)
        if self._rows >= _AT_ONCE:
            self._together()

    def _together(self) -> tuple[Ints, Ints, Ints]:
        """Return each number of a group once, in order."""
        nothing = np.zeros(0, np.int64)
        parts = [(nothing, nothing, nothing), *self._parts]
        groups, numbers, counts = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.lexsort([numbers, groups])
        groups, numbers, counts = groups[order], numbers[order], counts[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (groups[1:] != groups[:-1]) | (numbers[1:] != numbers[:-1])
        starts = np.flatnonzero(new)
        total = np.add.reduceat(counts, starts) if len(starts) else counts
        self._parts = [(groups[starts], numbers[starts], total)]
        self._rows = len(starts)
        return self._parts[0]

    def totals(self) -> dict[int, int]:
        """Return how many numbers each group has."""
        groups, _, counts = self._together()
        named, where = np.unique(groups, return_inverse=True)
        total = np.zeros(len(named), np.int64)
        np.add.at(total, where, counts)
        return dict(zip(named.tolist(), total.tolist(), strict=True))

    def percentiles(self, share: int) -> dict[int, int]:
        """Return for each group the number that ``share`` percent of its numbers do not exceed."""
        groups, numbers, counts = self._together()
        named, starts = np.unique(groups, return_index=True)
        found = {}
        for group, start, stop in zip(
            named.tolist(),
            starts.tolist(),
            np.append(starts, len(groups))[1:].tolist(),
            strict=True,
        ):
            running = np.cumsum(counts[start:stop])
            wanted = max(1, math.ceil(int(running[-1]) * share / 100))
            found[group] = int(numbers[start + int(np.searchsorted(running, wanted))])
        return found

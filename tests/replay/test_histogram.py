"""Durations counted by group say the same however they come, and of old groups only the whole."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.kernels.histogram import COARSE_BITS, EXACT_BITS, Figures, Histogram

ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 200_000)), max_size=120)


def counted(
    pieces: list[list[tuple[int, int]]], newest: int | None = None, bits: int = EXACT_BITS
) -> Histogram:
    histogram = Histogram(newest, bits)
    for piece in pieces:
        rows = np.array(piece, np.int64).reshape(len(piece), 2)
        histogram.add(rows[:, 0], rows[:, 1])
    return histogram


def exact(values: list[int], share: int) -> int:
    return sorted(values)[math.ceil(len(values) * share / 100) - 1]


@given(ROWS, st.integers(1, 9), st.sampled_from([EXACT_BITS, COARSE_BITS]))
def test_figures_are_those_of_all_durations(
    rows: list[tuple[int, int]], size: int, bits: int
) -> None:
    pieces = [rows[at : at + size] for at in range(0, len(rows), size)]
    figures = counted(pieces, bits=bits).figures()
    assert set(figures) == {group for group, _ in rows}
    for group, each in figures.items():
        values = [value for its, value in rows if its == group]
        assert (each.durations, each.max_ms) == (len(values), max(values))
        for share, said in ((50, each.p50_ms), (90, each.p90_ms), (99, each.p99_ms)):
            true = exact(values, share)
            assert said is not None
            assert true <= said <= true * (1 + 2 ** (1 - bits))


@given(ROWS, ROWS, st.integers(1, 9), st.integers(1, 8))
def test_only_the_newest_groups_keep_their_buckets(
    rows: list[tuple[int, int]], more: list[tuple[int, int]], size: int, newest: int
) -> None:
    every = [rows[at : at + size] for at in range(0, len(rows), size)]
    cut, other = counted(every, newest), counted([more], newest)
    cut.merge(other)
    whole = counted([*every, more])
    last = sorted(whole.figures())[-newest:]
    assert cut.whole() == whole.whole()
    assert cut.groups == whole.groups == {group for group, _ in rows + more}
    assert cut.figures() == {group: whole.figures()[group] for group in last}


@given(ROWS, st.sets(st.integers(0, 6)))
def test_groups_can_be_forgotten_and_asked_for(rows: list[tuple[int, int]], some: set[int]) -> None:
    chosen = np.array(sorted(some), np.int64)
    histogram = counted([rows[:50], rows[50:]])
    before = histogram.figures()
    assert histogram.of(chosen) == {each: before[each] for each in before if each in some}
    histogram.drop(chosen)
    assert histogram.figures() == {each: before[each] for each in before if each not in some}


def test_groups_can_be_renumbered() -> None:
    histogram = counted([[(1, 5), (2, 7), (2, 8)]])
    named = histogram.named(lambda groups: 10 - groups)
    assert named.figures() == {9: Figures(1, 5, 5, 5, 5), 8: Figures(2, 7, 8, 8, 8)}


@pytest.mark.parametrize("bits", [EXACT_BITS, COARSE_BITS])
def test_many_slices_are_not_moved_with_each(bits: int) -> None:
    histogram = Histogram(bits=bits)
    for slice_ in range(200):
        groups = np.arange(50) + 50 * slice_
        histogram.add(groups, groups)
    assert len(histogram._runs) < 12
    assert histogram.whole().durations == 200 * 50

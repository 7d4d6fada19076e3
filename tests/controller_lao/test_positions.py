"""Positions of brokers, beside a sorted list of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.visibility.lao import NOWHERE, Positions

WHO = st.tuples(st.integers(0, 3), st.integers(0, 2))
STEPS = st.lists(st.tuples(WHO, st.integers(-1, 6)), max_size=40)


@given(STEPS, st.integers(-2, 8))
def test_positions_agree_with_a_sorted_list(
    steps: list[tuple[tuple[int, int], int]], until: int
) -> None:
    positions, at = Positions(), dict[tuple[int, int], int]()
    for who, offset in steps:
        if who in at and offset == 0:
            positions.move((at[who], *who), 3)
            at[who] = 3
        elif who in at:
            positions.remove((at.pop(who), *who))
        # Above 5: it goes.
        if offset <= 5 and who not in at:
            positions.add((offset, *who))
            at[who] = offset
        expected = sorted((offset, *who) for who, offset in at.items())
        assert list(positions) == expected
        assert len(positions) == len(expected)
        assert bool(positions) == bool(expected)
        assert list(positions.until(until)) == [one for one in expected if one[0] <= until]
        if expected:
            assert positions.lowest == expected[0][0]


def test_absent_position_cannot_be_removed_or_moved() -> None:
    positions = Positions()
    positions.add((5, 1, 7))
    for absent in [(4, 1, 7), (5, 1, 8)]:
        with pytest.raises(KeyError):
            positions.remove(absent)
    assert list(positions) == [(5, 1, 7)]
    with pytest.raises(KeyError):
        positions.move((4, 1, 7), 5)
    assert Positions().lowest == NOWHERE

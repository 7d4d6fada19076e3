"""What kernels do with columns of numbers, beside what NumPy makes of the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.kernels.arrays import MISSING, distinct

NUMBERS = st.one_of(
    st.integers(-40, 40), st.integers(10**6, 10**6 + 5), st.integers(-(2**40), 2**40)
)


@given(st.lists(NUMBERS, max_size=60))
def test_different_values_and_which_each_is(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    different, which = distinct(values)
    assert different.tolist() == sorted(set(numbers))
    assert different[which].tolist() == numbers


@pytest.mark.parametrize("far", [2**60, MISSING])
def test_no_table_is_made_for_values_that_lie_far_apart(far: int) -> None:
    different, which = distinct(np.array([7, far, 7], np.int64))
    assert different[which].tolist() == [7, far, 7]

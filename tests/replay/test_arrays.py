import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replay.kernels.arrays import MISSING, Known, distinct

NUMBERS = st.one_of(
    st.integers(-40, 40), st.integers(10**6, 10**6 + 5), st.integers(-(2**40), 2**40)
)


@settings(deadline=None)  # The first look of pyarrow may import pandas.
@given(st.lists(NUMBERS, max_size=60))
def test_distinct_returns_the_values_and_the_index_of_each(numbers: list[int]) -> None:
    values = np.array(numbers, np.int64)
    different, which = distinct(values)
    assert different.tolist() == sorted(set(numbers))
    assert different[which].tolist() == numbers


@pytest.mark.parametrize("far", [2**60, MISSING])
def test_no_table_is_made_for_sparse_values(far: int) -> None:
    different, which = distinct(np.array([7, far, 7], np.int64))
    assert different[which].tolist() == [7, far, 7]


SMALL = st.integers(0, 60)


@settings(deadline=None)
@given(
    st.lists(NUMBERS, max_size=20),
    st.one_of(st.lists(NUMBERS, max_size=20), st.lists(SMALL, max_size=20)),
)
@example([-5, 3, 9], [9, 3, 4])
def test_positions_of_numbers_among_a_few_are_found(few: list[int], wanted: list[int]) -> None:
    known = Known(np.array(few, np.int64))
    assert known.values.tolist() == sorted(set(few))
    for some in (wanted, [*few, *wanted]):
        place, there = known.find(np.array(some, np.int64))
        assert there.tolist() == [each in few for each in some]
        assert [int(known.values[at]) for at in place[there]] == [e for e in some if e in few]
        assert not len(few) or place.max(initial=0) < len(known.values)

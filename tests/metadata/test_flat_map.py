"""The map of who folds forward, against plain dicts: no version changes, whatever happens to the
others.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.metadata import flat_map
from raftlog.metadata.flat_map import FlatMap, FlatMutation

_KEYS = st.integers(0, 5)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), _KEYS, st.integers(1, 9)),
        st.tuples(st.just("delete"), _KEYS, st.just(0)),
        st.tuples(st.just("finish"), st.booleans(), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("mutate"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("abandon"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


def written(values: dict[int, int]) -> FlatMap[int, int]:
    mutation = flat_map.empty().mutate()
    for key, value in values.items():
        mutation[key] = value
    return mutation.finish()


def table(version: FlatMap[Any, Any] | FlatMutation[Any, Any]) -> Any:
    return version._table


@given(_STEPS)
def test_each_version_is_what_it_was(steps: list[tuple[str, Any, Any]]) -> None:
    held: list[tuple[FlatMap[int, int], dict[int, int]]] = [(flat_map.empty(), {})]
    others: list[Any] = []
    mutation, naive = held[0][0].mutate(), dict[int, int]()
    for what, first, second in steps:
        if what == "set":
            mutation[first], naive[first] = second, second
        elif what == "delete":
            if first in naive:
                del mutation[first], naive[first]
            else:
                with pytest.raises(KeyError):
                    del mutation[first]
        elif what == "finish":
            done, naive = mutation.finish(), dict(naive)
            mutation = done.mutate()
            if first:
                held.append((done, dict(naive)))
        elif what == "drop":
            if len(held) > 1:
                del held[first % len(held)]
        elif what == "mutate":
            if second:
                others.append(mutation)
            base, naive = held[first % len(held)]
            mutation, naive = base.mutate(), dict(naive)
        else:
            mutation.abandon()
            mutation, naive = held[0][0].mutate(), dict(held[0][1])
        assert len(mutation) == len(naive)
        assert [mutation.get(key) for key in range(6)] == [naive.get(key) for key in range(6)]
        for version, expected in held:
            assert dict(version.items()) == expected
            assert sorted(version) == sorted(expected)
            assert sorted(version.values()) == sorted(expected.values())
            assert len(version) == len(expected)
            assert [version.get(key) for key in range(6)] == [expected.get(key) for key in range(6)]
            assert all((key in version) == (key in expected) for key in range(6))


def test_a_version_that_nobody_holds_leaves_nothing_behind() -> None:
    oldest = version = written(dict.fromkeys(range(50), 1))
    for number in range(100):
        mutation = version.mutate()
        mutation[number % 10] = number + 2
        version = mutation.finish()
    mutation = version.mutate()
    mutation[0] = 1
    line: list[int] = []
    state: Any = oldest._state
    while state is not None:
        line.append(len(state.undo))
        state = state.newer
    assert line == [10, 1, 0]
    assert [oldest[key] for key in range(10)] == [1] * 10


def test_a_version_whose_successors_are_gone_goes_on_in_place() -> None:
    base = written({1: 1, 2: 2})
    pending = base.mutate()
    pending[1], pending[3] = 7, 7
    proposed = pending.finish()
    pending = proposed.mutate()
    del pending[2]
    pending.abandon()
    del proposed
    again = base.mutate()
    again[4] = 4
    assert table(again) is table(base)
    assert dict(again.finish().items()) == {1: 1, 2: 2, 4: 4}


def test_a_version_with_a_successor_goes_on_by_itself() -> None:
    base = written({1: 1})
    one, other = base.mutate(), base.mutate()
    one[1], other[1] = 2, 3
    assert table(other) is not table(base)
    assert (base[1], one.finish()[1], other.finish()[1]) == (1, 2, 3)


def test_an_iterator_goes_on_while_the_next_version_is_made() -> None:
    base = written(dict.fromkeys(range(10), 1))
    items, mutation = iter(base.items()), base.mutate()
    first = next(items)
    for key in range(5):
        del mutation[key]
    mutation[77] = 1
    assert dict([first, *items]) == dict.fromkeys(range(10), 1)


def test_nothing_happens_without_a_write() -> None:
    base = written({1: 1})
    assert base.mutate().finish() is base
    with pytest.raises(KeyError):
        base[2]

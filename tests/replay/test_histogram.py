"""Grouped tables, and durations by group."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replay.kernels.groups import Grouped
from replay.kernels.histogram import Histogram

ROWS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 200_000)), max_size=120)
Rows = list[tuple[int, int]]


def pieces_of(rows: Rows, size: int) -> list[np.ndarray]:
    return [
        np.array(rows[at : at + size], np.int64).reshape(-1, 2) for at in range(0, len(rows), size)
    ]


@given(ROWS, ROWS, st.integers(1, 9))
def test_grouped_columns_are_merged_as_declared(rows: Rows, more: Rows, size: int) -> None:
    tables = [Grouped(np.add, np.minimum, np.maximum, np.add) for _ in range(2)]
    for table, some in zip(tables, (rows, more), strict=True):
        for piece in pieces_of(some, size):
            table.add(piece[:, 0], piece[:, 1], piece[:, 1], piece[:, 1], 1)
    tables[0].merge(tables[1])
    expected: dict[int, list[int]] = {}
    for key, value in [*rows, *more]:
        expected.setdefault(key, []).append(value)
    assert tables[0].by_key() == {
        key: [sum(values), min(values), max(values), len(values)]
        for key, values in expected.items()
    }
    assert list(tables[0].by_key()) == sorted(expected)


def test_grouped_rows_are_not_moved_for_each_slice() -> None:
    table = Grouped(np.add)
    for slice_ in range(200):
        table.add(np.arange(50) + 50 * slice_, 1)
    assert len(table._runs) < 12
    assert table.rows().tolist() == [list(range(200 * 50)), [1] * (200 * 50)]


@given(ROWS, ROWS, st.integers(1, 9))
def test_histogram_percentiles_approximate_all_durations(rows: Rows, more: Rows, size: int) -> None:
    parts = Histogram(), Histogram()
    for part, some in zip(parts, (rows, more), strict=True):
        for piece in pieces_of(some, size):
            part.add(piece[:, 0], piece[:, 1])
    parts[0].merge(parts[1])
    found, every = parts[0].figures(), rows + more
    assert set(found) == {group for group, _ in every}
    groups = [
        (each, [value for its, value in every if its == group]) for group, each in found.items()
    ]
    if every:
        groups.append((parts[0].whole(), [value for _, value in every]))
    for each, values in groups:
        assert (each.durations, each.max_ms) == (len(values), max(values))
        for share, said in ((50, each.p50_ms), (99, each.p99_ms)):
            true = sorted(values)[math.ceil(len(values) * share / 100) - 1]
            assert said is not None
            assert true <= said <= true * 1.002

"""Tables of numbers by key whose columns are merged as declared; used to accumulate figures."""

from __future__ import annotations

import numpy as np

from replay.kernels.arrays import Bools, Ints, order_of, starts_of


class Grouped:
    """Rows of numbers, one per non-negative key. Rows with equal keys are merged, each column with
    its own function: ``np.add``, ``np.minimum`` or ``np.maximum``.
    """

    def __init__(self, *merges: np.ufunc) -> None:
        self._merges = merges
        self._runs: list[Ints] = []
        """Arrays of keys and, below them, columns. Each is more than twice as long as the next, so
        that a number is moved only a few times, not with each slice of the log.
        """

    def add(self, keys: Ints, *columns: Ints | Bools | int) -> None:
        """Add a row for each key; a number stands for a constant column."""
        if len(keys):
            self._push(np.stack([keys, *(np.broadcast_to(each, keys.shape) for each in columns)]))

    def merge(self, other: Grouped) -> None:
        """Add the rows of another table."""
        rows = other.rows()
        if rows.shape[1]:
            self._push(rows)

    def rows(self) -> Ints:
        """Return the sorted keys and, below them, the columns."""
        nothing = np.zeros((len(self._merges) + 1, 0), np.int64)
        if len(self._runs) != 1:
            self._runs = [self._together(np.concatenate([nothing, *self._runs], axis=1))]
        return self._runs[0]

    def by_key(self) -> dict[int, list[int]]:
        """Return key -> columns."""
        return {key: values for key, *values in self.rows().T.tolist()}

    def _push(self, rows: Ints) -> None:
        runs = self._runs
        runs.append(self._together(rows))
        while len(runs) > 1 and runs[-2].shape[1] <= 2 * runs[-1].shape[1]:
            last = runs.pop()
            runs[-1] = self._together(np.concatenate([runs[-1], last], axis=1))

    def _together(self, rows: Ints) -> Ints:
        """Return rows with each key once, in order."""
        order = order_of(rows[0])
        keys = rows[0][order]
        starts = np.flatnonzero(starts_of(keys))
        if not len(starts):
            return rows
        merged = [
            merge.reduceat(column[order], starts)
            for merge, column in zip(self._merges, rows[1:], strict=True)
        ]
        return np.stack([keys[starts], *merged])

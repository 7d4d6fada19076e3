"""Rules about numbered writes (exactly once): each number of a client is executed at most once, and
never after the client was closed.

A batch header names the client and the number; a client's id is the offset of the record that
opened it. Ids that no record opened are not judged, as nodes keep no state for them and promise
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay import rules
from replay.kernels.arrays import Bools, Ints, ints
from replay.kernels.facts import Facts
from replay.kernels.findings import Finding, Place, offence, place_in

COLUMNS = (
    "offset",
    "batch_base_offset",
    "batch_last_offset",
    "epoch",
    "timestamp_ms",
    "principal",
    "client_id",
    "sequence",
)
"""Columns needed of the records of batches that name a client."""
_NUMBER_BITS = 38


class Clients:
    """Judges each batch that names a client, by its last record."""

    def __init__(self, facts: Facts) -> None:
        rows = facts.of(
            RecordType.OPEN_CLIENT,
            RecordType.CLOSE_CLIENT,
            columns=("type", "group_id", "offset"),
        )
        opened = {int(row["group_id"]) for row in rows if row["type"] == RecordType.OPEN_CLIENT}
        self._closed: dict[int, int] = {}
        for row in rows:
            if row["type"] == RecordType.CLOSE_CLIENT:
                self._closed.setdefault(int(row["group_id"]), row["offset"])
        self._opened = np.array(sorted(opened), np.int64)
        self._closers = np.array(sorted(self._closed), np.int64)
        self._close_at = np.array([self._closed[each] for each in sorted(self._closed)], np.int64)
        self._executed = _Executed()

    def check(self, table: pa.Table) -> Iterator[Finding]:
        """Yield the findings in a slice."""
        numbered = (
            (ints(table["client_id"]) != 0)
            & (ints(table["sequence"]) != 0)
            & (ints(table["offset"]) == ints(table["batch_last_offset"]))
        )
        if not numbered.any():
            return
        rows = table.filter(pa.array(numbered))
        client, number, offset = (ints(rows[name]) for name in ("client_id", "sequence", "offset"))
        for row, earlier in self._twice(client, number, offset):
            if earlier > client[row]:
                yield offence(
                    rules.NUMBER_EXECUTED_TWICE,
                    self._place(rows, row),
                    also=earlier,
                    found="executed again",
                    expected=f"only once, at {earlier}",
                )
        base = ints(rows["batch_base_offset"])
        at, known = _find(self._closers, client)
        # A client may close itself with a numbered write.
        late = known & (base > self._close_at[at]) if len(self._closers) else known
        for row in np.flatnonzero(late).tolist():
            closed = int(self._close_at[at[row]])
            yield offence(
                rules.CLOSED_CLIENT_WROTE,
                self._place(rows, row),
                also=closed,
                found="executed",
                expected=f"refused, as the client was closed at {closed}",
            )

    def _place(self, rows: pa.Table, row: int) -> Place:
        client, number = (rows[name][row].as_py() for name in ("client_id", "sequence"))
        return place_in(rows, row, f"client {client}, number {number}")

    def _twice(self, client: Ints, number: Ints, offset: Ints) -> Iterator[tuple[int, int]]:
        """Yield the rows with numbers that were executed before, and the earlier offsets."""
        code, opened = _find(self._opened, client)
        rows = np.flatnonzero(opened)
        keys = (code[rows] << _NUMBER_BITS) + number[rows]
        fits = (number[rows] >= 0) & (number[rows] < 1 << _NUMBER_BITS)
        for row, earlier in self._executed.add(keys[fits], offset[rows[fits]]):
            yield int(rows[fits][row]), earlier
        for row in rows[~fits].tolist():
            key = int(client[row]), int(number[row])
            before = self._executed.huge.get(key)
            self._executed.huge[key] = int(offset[row])
            if before is not None:
                yield row, before


class _Executed:
    """The numbers executed so far with the last offset of each, as sorted runs, each at least twice
    as long as the next.
    """

    def __init__(self) -> None:
        self.huge: dict[tuple[int, int], int] = {}
        """Numbers too large for the runs, which no real client reaches."""
        self._runs: list[tuple[Ints, Ints]] = []

    def add(self, keys: Ints, offsets: Ints) -> Iterator[tuple[int, int]]:
        """Add numbers in log order, and yield the index and last earlier offset of those already
        present.
        """
        order = np.argsort(keys, kind="stable")
        run = keys[order], offsets[order]
        earlier = np.full(len(keys), -1, np.int64)
        for known, at in self._runs:
            place, found = _find(known, run[0])
            # Among equal numbers in a run, the last one counts.
            earlier[found] = np.maximum(earlier[found], at[place[found]])
        again = np.zeros(len(keys), np.bool_)
        again[1:] = run[0][1:] == run[0][:-1]
        earlier[1:][again[1:]] = run[1][:-1][again[1:]]
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            self._runs[-2:] = [_merged(*self._runs[-2:])]
        for index in np.flatnonzero(earlier >= 0).tolist():
            yield int(order[index]), int(earlier[index])


def _merged(old: tuple[Ints, Ints], new: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    keys = np.concatenate([old[0], new[0]])
    order = np.argsort(keys, kind="stable")
    return keys[order], np.concatenate([old[1], new[1]])[order]


def _find(known: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """Return the last index of each wanted value in a sorted array, and whether it is there."""
    if not len(known):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    at = np.maximum(np.searchsorted(known, wanted, side="right") - 1, 0)
    return at, known[at] == wanted

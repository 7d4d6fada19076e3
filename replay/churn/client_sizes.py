"""Sizes of exactly-once clients and of the results of their writes, without a fold: each batch that
names a client changes the client, adds a result, and drops those that the client no longer needs.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raftlog.metadata.clients import FIRST_SEQUENCE
from raftlog.metadata.entities import Client, entity_bytes
from raftlog.metadata.records import RecordType
from replay.churn.packed import packed_ints
from replay.churn.state_size import CLIENT_TYPES, Grown, grow_many, in_snapshots
from replay.kernels.arrays import NEVER, Bools, Ints, ints, order_of
from replay.kernels.passes import BY_CLIENT, Pass, Rows

_COLUMNS = (
    "client_id",
    "sequence",
    "all_below_done",
    "offset",
    "batch_last_offset",
    "epoch",
    "timestamp_ms",
)
_SAID = ("type", "group_id", "offset", "timestamp_ms", "client_name", "client_principal")
_NUMBERS = entity_bytes(0) * 2
"""Size of a client's time and number while both are 0, in bytes."""
_HEADS = 1 + 1
"""Size of the heads of the entity and of its value: arrays of fewer than 16 elements."""


class _Clients(NamedTuple):
    """All clients by their ids, which are where they were opened. ``fixed``: bytes of what stays as
    it is as long as a client is open. ``closes``: NEVER if it is open at the end.
    """

    ids: Ints
    opened_ms: Ints
    fixed: Ints
    closes: Ints
    closed_ms: Ints

    def size(self, which: Ints, last_write_ms: Ints, done: Ints) -> Ints:
        """Return the sizes of some clients in a snapshot."""
        return in_snapshots(self.fixed[which] + packed_ints(last_write_ms) + packed_ints(done))

    def opened_size(self) -> Ints:
        """Return the size of each client when it was opened."""
        done = np.full(len(self.ids), FIRST_SEQUENCE, np.int64)
        return self.size(np.arange(len(self.ids)), self.opened_ms, done)


class _Results(NamedTuple):
    """Results that are kept: whose, of which number, and how large. By client and number."""

    client: Ints
    sequence: Ints
    size: Ints

    def of(self, chosen: Bools | Ints) -> _Results:
        return _Results(*(values[chosen] for values in self))


class _Writes:
    """A part of the pass over the writes of some clients: their growth since they were opened, and
    the results.
    """

    def __init__(self, clients: _Clients, period_ms: int) -> None:
        self._clients, self._period_ms = clients, period_ms
        self._done = np.full(len(clients.ids), FIRST_SEQUENCE, np.int64)
        self._opened = clients.opened_size()
        self._size = self._opened.copy()
        self._kept = _Results(*(np.zeros(0, np.int64) for _ in _Results._fields))
        self._grown: Grown = {}

    def take(self, table: pa.Table) -> None:
        """Add up what the writes of a slice bring, and what clients that close in it take away."""
        id_, sequence, done, offset, last, epoch, at_ms = (ints(table[name]) for name in _COLUMNS)
        if not len(offset):
            return
        end = int(offset[-1])
        rows = np.flatnonzero((id_ != 0) & (sequence != 0) & (offset == last))
        client = np.searchsorted(self._clients.ids, id_[rows], side="right") - 1
        # A header may name whom nobody has opened, or who has closed itself in its batch.
        there = self._clients.ids[client] == id_[rows]
        there &= (client >= 0) & (id_[rows] <= offset[rows])
        there &= offset[rows] < self._clients.closes[client]
        rows, client = rows[there], client[there]
        order = order_of(client)
        rows, client = rows[order], client[order]
        if len(rows):
            length = np.full(len(rows), _HEADS, np.int64)
            for numbers in (id_, sequence, offset, epoch):
                length += packed_ints(numbers[rows])
            results = _Results(client, sequence[rows], in_snapshots(length))
            self._write(results, done[rows], at_ms[rows])
        self._close(end)

    def _write(self, results: _Results, said: Ints, at_ms: Ints) -> None:
        """Writes, by client and then in order. ``said``: the numbers below are done with."""
        client = results.client
        first = np.ones(len(client), np.bool_)
        first[1:] = client[1:] != client[:-1]
        starts = np.flatnonzero(first)
        said[starts] = np.maximum(said[starts], self._done[client[starts]])
        # The highest so far of each client: the rank of a client goes before that of the number.
        known, rank = np.unique(said, return_inverse=True)
        run = np.cumsum(first) - 1
        place = np.maximum.accumulate(run * len(known) + rank)
        done = known[place - run * len(known)]
        size = self._clients.size(client, at_ms, done)
        before = np.concatenate([[0], size[:-1]])
        before[starts] = self._size[client[starts]]
        self._grow(at_ms, np.zeros(len(size), np.int64), size - before)
        self._grow(at_ms, np.ones(len(size), np.int64), results.size)
        last = np.append(starts[1:], len(client)) - 1
        self._done[client[last]], self._size[client[last]] = done[last], size[last]
        # A result goes with the first write behind it whose client has done with its number.
        kept = _Results(*(np.concatenate(each) for each in zip(self._kept, results, strict=True)))
        behind = np.concatenate(
            [np.zeros(len(self._kept.client), np.int64), np.arange(len(client)) + 1]
        )
        of_run = np.minimum(np.searchsorted(client[starts], kept.client), len(starts) - 1)
        wrote = client[starts[of_run]] == kept.client
        wanted = of_run * len(known) + np.searchsorted(known, kept.sequence, side="right")
        at = np.maximum(np.searchsorted(place, wanted), behind)
        goes = wrote & (at <= last[of_run])
        self._drop(kept.of(goes), at_ms[at[goes]])
        self._kept = kept.of(~goes)

    def _close(self, end: int) -> None:
        """Results of clients that are closed up to an offset."""
        gone = self._clients.closes[self._kept.client] <= end
        if gone.any():
            self._drop(self._kept.of(gone), self._clients.closed_ms[self._kept.client[gone]])
            self._kept = self._kept.of(~gone)

    def _drop(self, results: _Results, at_ms: Ints) -> None:
        self._grow(at_ms, np.full(len(at_ms), -1, np.int64), -results.size)

    def _grow(self, at_ms: Ints, entities: Ints, sizes: Ints) -> None:
        grow_many(self._grown, at_ms - at_ms % self._period_ms, entities, sizes)

    def end(self) -> Grown:
        """Return the growth in each period."""
        self._close(NEVER - 1)
        closed = self._clients.closes != NEVER
        more = (self._opened - self._size)[closed]
        self._grow(self._clients.closed_ms[closed], np.zeros(len(more), np.int64), more)
        return self._grown


def client_sizes(log: Rows, period_ms: int) -> list[Grown]:
    """Return the growth by clients in each period."""
    clients = _opened(log.table(_SAID, CLIENT_TYPES))
    if not len(clients.ids):
        return []
    written = log.run(Pass(partial(_Writes, clients, period_ms), _COLUMNS, by=BY_CLIENT))
    opened: Grown = {}
    size, closed = clients.opened_size(), clients.closes != NEVER
    for sign, at_ms, sizes in (
        (1, clients.opened_ms, size),
        (-1, clients.closed_ms[closed], size[closed]),
    ):
        entities = np.full(len(sizes), sign, np.int64)
        grow_many(opened, at_ms - at_ms % period_ms, entities, sign * sizes)
    return [opened, *written]


def _opened(said: pa.Table) -> _Clients:
    """Return the clients of records of CLIENT_TYPES."""
    opened: dict[int, tuple[int, int]] = {}
    closed: dict[int, tuple[int, int]] = {}
    for row in said.to_pylist():
        id_ = int(row["group_id"])
        if row["type"] == RecordType.CLOSE_CLIENT:
            closed.setdefault(id_, (row["offset"], row["timestamp_ms"]))
            continue
        new = Client(id_, row["client_name"] or "", 0, 0, row["client_principal"] or "")
        opened[id_] = row["timestamp_ms"], len(entity_bytes((new,))) - len(_NUMBERS)
    ids = sorted(opened)
    columns = [(id_, *opened[id_], *closed.get(id_, (NEVER, NEVER))) for id_ in ids]
    return _Clients(*np.array(columns, np.int64).reshape(-1, len(_Clients._fields)).T.copy())

"""Growth of the log, and of the state.

The log: records and bytes by type, records by period and by step of an axis; and lines through such
points. The state, and so a snapshot of it: the bytes that each record adds and removes. Columns
tell the sizes of partitions, configs, progress and clients, which most records are about; the other
records are folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.entities import FIRST_SEQUENCE, Client, entity_bytes
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType
from raftlog.metadata.snapshot import BATCH_BYTES
from replay.kernels.arrays import NEVER, Ints, ints, joined, order_of, some, starts_of
from replay.kernels.facts import Facts
from replay.kernels.folding import COLUMNS, Groups, apply_row, rows
from replay.kernels.intervals import Intervals, Removals
from replay.kernels.lists import Lists
from replay.kernels.passes import BY_CLIENT, Log, Pass, Rows
from replay.kernels.steps import PARTITION_TYPES, Partitions, Steps
from replay.lag.samples import entries
from replay.lag.waits import TimeSteps

_TYPED_COLUMNS = ("type", "type_name", "timestamp_ms", "body")


@dataclass
class Growth:
    """Growth of a log. ``records`` and ``bytes``: type name -> sums from a time on; ``periods``:
    beginning -> records; ``steps``: (number of the step, type name) -> records.
    """

    records: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    periods: dict[int, int] = field(default_factory=dict)
    steps: dict[tuple[int, str], int] = field(default_factory=dict)

    def merge(self, other: Growth) -> None:
        """Add the counts of another part."""
        for name in ("records", "bytes", "periods", "steps"):
            mine = getattr(self, name)
            for key, count in getattr(other, name).items():
                mine[key] = mine.get(key, 0) + count


class _Growing:
    def __init__(self, since_ms: int, period_ms: int, steps: TimeSteps | None) -> None:
        self._since_ms, self._period_ms, self._steps = since_ms, period_ms, steps
        self._found = Growth()

    def take(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        type_, at_ms = ints(table["type"]), ints(table["timestamp_ms"])
        which, first, where = np.unique(type_, return_index=True, return_inverse=True)
        names = [table["type_name"][int(at)].as_py() for at in first]
        length = ints(pc.binary_length(table["body"]))
        recent = at_ms >= self._since_ms
        count = len(which)
        found = Growth(
            _named(names, np.bincount(where[recent], minlength=count)),
            _named(names, np.bincount(where[recent], length[recent], count).astype(np.int64)),
        )
        periods, counts = np.unique(at_ms - at_ms % self._period_ms, return_counts=True)
        found.periods = dict(zip(periods.tolist(), counts.tolist(), strict=True))
        if self._steps is not None:
            step = (at_ms - self._steps.begins_ms) // self._steps.length_ms
            pairs, counts = np.unique(step * count + where, return_counts=True)
            found.steps = {
                (pair // count, names[pair % count]): times
                for pair, times in zip(pairs.tolist(), counts.tolist(), strict=True)
            }
        self._found.merge(found)

    def end(self) -> Growth:
        return self._found


def _named(names: list[str], counts: Ints) -> dict[str, int]:
    return {name: each for name, each in zip(names, counts.tolist(), strict=True) if each}


def growth(log: Rows, since_ms: int, period_ms: int, steps: TimeSteps | None = None) -> Growth:
    """Return the growth of a log; the types are counted from ``since_ms`` on."""
    found = Growth()
    for part in log.run(Pass(partial(_Growing, since_ms, period_ms, steps), _TYPED_COLUMNS)):
        found.merge(part)
    return found


DAY_MS = 86_400_000


class Trend(NamedTuple):
    """A linear trend: ``per_day`` more each day, ``now`` at the time of the last point."""

    now: float
    per_day: float

    def after(self, days: float) -> int:
        """Return the value ``days`` after the last point.

        A falling line is not extrapolated: a value that shrinks for a while does not vanish.
        """
        return round(self.now + max(0.0, self.per_day) * days)


def trend(points: Sequence[tuple[int, float]]) -> Trend | None:
    """Return the line of least squares through (time in ms, value), moved so that it goes through
    the last one. None for fewer than two.
    """
    if len(points) < 2:
        return None
    days = [(at - points[-1][0]) / DAY_MS for at, _ in points]
    values = [value for _, value in points]
    middle, mean = sum(days) / len(days), sum(values) / len(values)
    spread = sum((day - middle) ** 2 for day in days)
    slope = (
        sum((day - middle) * (value - mean) for day, value in zip(days, values, strict=True))
        / spread
    )
    return Trend(values[-1], slope)


CLIENT_TYPES = (RecordType.OPEN_CLIENT, RecordType.CLOSE_CLIENT)
BY_COLUMNS = (*PARTITION_TYPES, RecordType.CONFIG, RecordType.PROGRESS, *CLIENT_TYPES)
"""Records of which columns say how large the state is."""
_OTHERS = tuple(each for each in RecordType if each not in BY_COLUMNS)
_FEW_RECORDS = 300_000
"""Largest number of records that all tasks read and one task folds: were each task to fold its
share, each would read the bodies of all records.
"""
_TIMESTAMP = 5
"""Position of the timestamp in a row."""
_BATCH_OVERHEAD = 100
"""Approximate overhead of each batch of a snapshot, in bytes."""


Grown = dict[int, list[int]]
"""Beginning of a period -> entities and bytes added in it; negative if removed."""


def grow(grown: Grown, period: int, entities: int, size: int) -> None:
    """Add to what a period brought."""
    total = grown.setdefault(period, [0, 0])
    total[0] += entities
    total[1] += size


def grow_many(grown: Grown, periods: Ints, entities: Ints, sizes: Ints) -> None:
    """The same of many."""
    different, place = np.unique(periods, return_inverse=True)
    sums = np.zeros((2, len(different)), np.int64)
    np.add.at(sums[0], place, entities)
    np.add.at(sums[1], place, sizes)
    for period, more, size in zip(different.tolist(), *sums.tolist(), strict=True):
        grow(grown, period, more, size)


class _Changed(NamedTuple):
    """An entity at the beginning of the period (None: it did not exist), and as it is now."""

    key: tuple[object, ...]
    before: object | None
    now: object | None


class ChangedOnly(ImageBuilder):
    """A draft that notes the changed entities. An entity without a key is identified by itself: its
    next change names it as the value before.
    """

    __slots__ = ("changed", "gone")

    def __init__(self, base: Image) -> None:
        super().__init__(base)
        self.changed: dict[object, _Changed] = {}
        self.gone: list[_Changed] = []

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Note a change: the hash is not asked for."""
        if key:
            known = self.changed.pop((kind, key), None)
        else:
            known = None if old is None else self.changed.pop(id(old), None)
        change = _Changed(key, old if known is None else known.before, new)
        if new is not None:
            self.changed[(kind, key) if key else id(new)] = change
        elif change.before is not None:
            self.gone.append(change)


def in_snapshot(length: int) -> int:
    """Return an entity as a repeated field of SnapshotEntitiesRecord: its tag and length go before
    it.
    """
    return length + 2 + (length >= 1 << 7) + (length >= 1 << 14)


def in_snapshots(length: Ints) -> Ints:
    """Return the same of many."""
    return length + 2 + (length >= 1 << 7) + (length >= 1 << 14)


class Size(NamedTuple):
    """The state at the end of a period: entities, and about the bytes of a snapshot."""

    entities: int
    snapshot_bytes: int


class _Sizes:
    """Sums by period of added entities and bytes; negative if they shrink. An entity is measured
    once a period, however often it changed.
    """

    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._draft = ChangedOnly(Image())
        self._period = 0
        self._grown: Grown = {}

    def row(self, kind: str, id_: str, record: tuple[Any, ...]) -> None:
        period = record[_TIMESTAMP] - record[_TIMESTAMP] % self._period_ms
        if period != self._period:
            self._account()
            self._period = period
        apply_row(self._draft, id_, *record)

    def _account(self) -> None:
        draft = self._draft
        if not (draft.changed or draft.gone):
            return
        entities = size = 0
        for key, *states in (*draft.changed.values(), *draft.gone):
            for value, sign in zip(states, (-1, 1), strict=True):
                if value is not None:
                    entities += sign
                    size += sign * in_snapshot(len(entity_bytes((*key, value))))
        grow(self._grown, self._period, entities, size)
        draft.changed.clear()
        draft.gone.clear()

    def end(self) -> Grown:
        self._account()
        return self._grown


def state_sizes(
    log: Log,
    period_ms: int,
    by_columns: Iterable[Grown] | None = None,
    *,
    types: Mapping[int, int] | None = None,
    tasks: int | None = None,
) -> dict[int, Size]:
    """Return the size at the end of each period in which it changed, by the period's beginning.

    ``by_columns``: what records of BY_COLUMNS brought, and the headers of batches, as this module
    and :mod:`replay.churn.configs` find it; None: they are folded, too. ``types``: how many records
    there are of each.
    """
    begin = partial(_Sizes, period_ms)
    if by_columns is None:
        return added_up(log.fold(begin, tasks))
    if types is not None and sum(types.get(int(each), 0) for each in _OTHERS) <= _FEW_RECORDS:
        fold = begin()
        for row in rows(log.table(COLUMNS, _OTHERS), Groups()):
            fold.row(row.kind, row.id, row.record)
        return added_up([fold.end(), *by_columns])
    return added_up([*log.fold(begin, tasks, types=_OTHERS), *by_columns])


def added_up(parts: Iterable[Grown]) -> dict[int, Size]:
    """Return the sum of what several parts found, one period after the other."""
    grown: Grown = {}
    for part in parts:
        for period, (entities, size) in part.items():
            grow(grown, period, entities, size)
    found, entities, size = {}, 0, 0
    for period, (more, bytes_more) in sorted(grown.items()):
        entities, size = entities + more, size + bytes_more
        found[period] = Size(entities, size + (size // BATCH_BYTES + 2) * _BATCH_OVERHEAD)
    return found


_INT_EDGES = np.array([-(1 << 31), -(1 << 15), -(1 << 7), -32, 1 << 7, 1 << 8, 1 << 16, 1 << 32])
_INT_BYTES = np.array([9, 5, 3, 2, 1, 2, 3, 5, 9])
_TEXT_EDGES = np.array([1 << 5, 1 << 8, 1 << 16])
_TEXT_HEADS = np.array([1, 2, 3, 5])
_SHORT_LIST, _LONG_LIST = 16, 1 << 16


def packed_ints(values: Ints) -> Ints:
    """Return the packed size of each number, in bytes."""
    return _INT_BYTES[np.searchsorted(_INT_EDGES, values, side="right")]


def packed_texts(column: pa.ChunkedArray) -> Ints:
    """Return the packed size of each text, in bytes; null counts as an empty one."""
    size = ints(pc.fill_null(pc.binary_length(column.cast(pa.string())), 0))
    return size + _TEXT_HEADS[np.searchsorted(_TEXT_EDGES, size, side="right")]


def packed_list(members: Sequence[int]) -> int:
    """Return the packed size of one list of numbers, in bytes."""
    count = len(members)
    head = 1 if count < _SHORT_LIST else 3 if count < _LONG_LIST else 5
    return head + int(packed_ints(np.array(members, np.int64)).sum())


_PROGRESS_COLUMNS = (
    "timestamp_ms",
    "offset",
    "lowest_acknowledged_offset",
    "high_watermark",
    "applied",
)
_HEADS = 1 + 1
"""Size of the heads of the entity and of its value: arrays of fewer than 16 elements."""
_PROGRESS = -1
"""Key of the progress entity, which is no broker's, in the place of a broker id."""
Last = tuple[int, int]
"""Offset of the record, and size from there on."""


@dataclass
class _Said:
    """Last sizes: beginning of a period and broker -> the last one in it."""

    period_ms: int
    found: dict[tuple[int, int], Last] = field(default_factory=dict)

    def take(self, table: pa.Table) -> None:
        at_ms, offset, lao, end = (ints(table[name]) for name in _PROGRESS_COLUMNS[:4])
        period = at_ms - at_ms % self.period_ms
        own = np.full(len(offset), _PROGRESS, np.int64)
        self._keep(period, own, offset, packed_ints(lao) + packed_ints(end))
        where, broker, epoch, applied = entries(table["applied"])
        size = packed_ints(broker) + packed_ints(epoch) + packed_ints(applied)
        self._keep(period[where], broker, offset[where], size)

    def _keep(self, period: Ints, broker: Ints, offset: Ints, size: Ints) -> None:
        if not len(period):
            return
        order = np.lexsort([np.arange(len(period)), broker, period])
        last = np.ones(len(order), np.bool_)
        last[:-1] = (np.diff(period[order]) != 0) | (np.diff(broker[order]) != 0)
        rows = order[last]
        for at, one, place, bytes_ in zip(
            period[rows].tolist(),
            broker[rows].tolist(),
            offset[rows].tolist(),
            in_snapshots(_HEADS + size[rows]).tolist(),
            strict=True,
        ):
            self._said((at, one), (place, bytes_))

    def _said(self, key: tuple[int, int], last: Last) -> None:
        if last >= self.found.get(key, (-1, 0)):
            self.found[key] = last

    def merge(self, other: _Said) -> None:
        """Add the findings of another part."""
        for key, last in other.found.items():
            self._said(key, last)

    def end(self) -> _Said:
        return self


def progress_sizes(log: Rows, period_ms: int) -> Grown:
    """Return the growth by progress records in each period."""
    said = _Said(period_ms)
    for part in log.run(Pass(partial(_Said, period_ms), _PROGRESS_COLUMNS, (RecordType.PROGRESS,))):
        said.merge(part)
    periods, brokers, sizes = (
        np.array(each, np.int64).reshape(-1)
        for each in (
            [period for period, _ in said.found],
            [broker for _, broker in said.found],
            [size for _, size in said.found.values()],
        )
    )
    order = np.lexsort([periods, brokers])
    period, broker, size = periods[order], brokers[order], sizes[order]
    first = np.diff(broker, prepend=_PROGRESS - 1) != 0
    before = np.where(first, 0, np.concatenate([[0], size[:-1]])[: len(size)])
    grown: Grown = {}
    grow_many(grown, period, first.astype(np.int64), size - before)
    return grown


_ID = 2 + 16
"""The topic's."""


class _ListSizes:
    """Sizes of the different lists; each is computed once."""

    def __init__(self, lists: Lists) -> None:
        self._lists = lists
        self._sizes = np.array([packed_list(())], np.int64)
        """Sizes by list number; the first is that of no list, which a state has as an empty one."""

    def of(self, numbers: Ints) -> Ints:
        """Return the sizes of lists by their numbers; NOTHING: no list."""
        new = self._lists.members[len(self._sizes) - 1 :]
        if new:
            more = np.array([packed_list(each) for each in new], np.int64)
            self._sizes = np.concatenate([self._sizes, more])
        return self._sizes[np.maximum(numbers, -1) + 1]


@dataclass
class SizeWatcher:
    """Watcher of partitions; ``found`` gives the growth in each period: for each step the
    difference to the state before, so that only the last one of a period counts.
    """

    period_ms: int
    facts: Facts
    partitions: Partitions
    _grown: Grown = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Prepare the removals once."""
        self._removals = Removals(self.facts)
        self._lists = _ListSizes(self.partitions.lists)

    def take(self, steps: Steps, intervals: Intervals) -> None:
        """A slice."""
        del intervals
        if not len(steps.key):
            return
        gone = np.zeros(len(steps.key), np.bool_)
        gone[1:] = ~steps.first[1:] & (steps.removed[:-1] <= steps.begins[1:])
        size = self._sizes(steps)
        before = np.concatenate([[0], size[:-1]])
        before[steps.first | gone] = 0
        came = (before == 0).astype(np.int64)
        real = steps.real
        self._grow(steps.begins_ms[real], came[real], (size - before)[real])
        self._remove(steps, size, np.flatnonzero(gone) - 1)

    def _sizes(self, steps: Steps) -> Ints:
        """Return the size of each state as an entity in a snapshot, in bytes."""
        length = np.full(len(steps.key), _HEADS + _ID, np.int64)
        for numbers in (steps.key & 0xFFFFFFFF, steps.leader):
            length += packed_ints(numbers)
        for numbers in (steps.recovery, steps.leader_epoch, steps.partition_epoch):
            length += packed_ints(np.maximum(numbers, 0))
        for lists in (
            *(steps.replicas, steps.isr, steps.removing, steps.adding),
            *(steps.eligible, steps.last_known),
        ):
            length += self._lists.of(lists)
        return in_snapshots(length)

    def _remove(self, steps: Steps, size: Ints, rows: Ints) -> None:
        gone = np.full(len(rows), -1, np.int64)
        self._grow(self._removals.times(steps.removed[rows]), gone, -size[rows])

    def _grow(self, at_ms: Ints, entities: Ints, sizes: Ints) -> None:
        grow_many(self._grown, at_ms - at_ms % self.period_ms, entities, sizes)

    def last(self, steps: Steps, intervals: Intervals) -> None:
        """Process the last states of partitions: one that ended was deleted with its topic."""
        self._remove(steps, self._sizes(steps), np.flatnonzero(intervals.ends != NEVER))

    def found(self) -> Grown:
        """Return the growth by all watched partitions."""
        return self._grown


_CLIENT_COLUMNS = (
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


class _Writes:
    """A part of the pass over the writes of some clients: their growth since they were opened, and
    the results.
    """

    def __init__(self, clients: _Clients, period_ms: int) -> None:
        self._clients, self._period_ms = clients, period_ms
        self._done = np.full(len(clients.ids), FIRST_SEQUENCE, np.int64)
        self._opened = clients.opened_size()
        self._size = self._opened.copy()
        self._kept = joined(_Results, [])
        self._grown: Grown = {}

    def take(self, table: pa.Table) -> None:
        """Add up what the writes of a slice bring, and what clients that close in it take away."""
        id_, sequence, done, offset, last, epoch, at_ms = (
            ints(table[name]) for name in _CLIENT_COLUMNS
        )
        if not len(offset):
            return
        end = int(offset[-1])
        rows = np.flatnonzero((id_ != 0) & (sequence != 0) & (offset == last))
        client = np.searchsorted(self._clients.ids, id_[rows], side="right") - 1
        # A header may name a client that was never opened, or one closed in the same batch.
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

    def _write(self, results: _Results, done_below: Ints, at_ms: Ints) -> None:
        """Add writes, by client and then in order. ``done_below``: the client has done with the
        numbers below.
        """
        client = results.client
        first = starts_of(client)
        starts = np.flatnonzero(first)
        done_below[starts] = np.maximum(done_below[starts], self._done[client[starts]])
        # The highest so far of each client: the rank of a client goes before that of the number.
        known, rank = np.unique(done_below, return_inverse=True)
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
        # The first later write whose client has done with a result's number removes the result.
        kept = joined(_Results, [self._kept, results])
        behind = np.concatenate(
            [np.zeros(len(self._kept.client), np.int64), np.arange(len(client)) + 1]
        )
        of_run = np.minimum(np.searchsorted(client[starts], kept.client), len(starts) - 1)
        wrote = client[starts[of_run]] == kept.client
        wanted = of_run * len(known) + np.searchsorted(known, kept.sequence, side="right")
        at = np.maximum(np.searchsorted(place, wanted), behind)
        goes = wrote & (at <= last[of_run])
        self._drop(some(kept, goes), at_ms[at[goes]])
        self._kept = some(kept, ~goes)

    def _close(self, end: int) -> None:
        """Results of clients that are closed up to an offset."""
        gone = self._clients.closes[self._kept.client] <= end
        if gone.any():
            self._drop(some(self._kept, gone), self._clients.closed_ms[self._kept.client[gone]])
            self._kept = some(self._kept, ~gone)

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
    written = log.run(Pass(partial(_Writes, clients, period_ms), _CLIENT_COLUMNS, by=BY_CLIENT))
    opened: Grown = {}
    size, closed = clients.opened_size(), clients.closes != NEVER
    for sign, at_ms, sizes in (
        (1, clients.opened_ms, size),
        (-1, clients.closed_ms[closed], size[closed]),
    ):
        entities = np.full(len(sizes), sign, np.int64)
        grow_many(opened, at_ms - at_ms % period_ms, entities, sign * sizes)
    return [opened, *written]


def _opened(table: pa.Table) -> _Clients:
    """Return the clients of records of CLIENT_TYPES."""
    opened: dict[int, tuple[int, int]] = {}
    closed: dict[int, tuple[int, int]] = {}
    for row in table.to_pylist():
        id_ = int(row["group_id"])
        if row["type"] == RecordType.CLOSE_CLIENT:
            closed.setdefault(id_, (row["offset"], row["timestamp_ms"]))
            continue
        new = Client(id_, row["client_name"] or "", 0, 0, row["client_principal"] or "")
        opened[id_] = row["timestamp_ms"], len(entity_bytes((new,))) - len(_NUMBERS)
    ids = sorted(opened)
    columns = [(id_, *opened[id_], *closed.get(id_, (NEVER, NEVER))) for id_ in ids]
    return _Clients(*np.array(columns, np.int64).reshape(-1, len(_Clients._fields)).T.copy())

"""Size of the state, and so of a snapshot of it, from the fold itself: the bytes that each record
adds and removes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from raftlog.metadata.entities import entity_bytes
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType
from raftlog.metadata.snapshot import BATCH_BYTES
from replay.kernels.arrays import Ints
from replay.kernels.folding import COLUMNS, Groups, apply_row, rows
from replay.kernels.passes import Log
from replay.kernels.steps import PARTITION_TYPES

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
"""Beginning of a period -> how many entities and bytes came in it; negative if less."""


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

    ``by_columns``: what records of BY_COLUMNS brought, and the headers of batches, as
    :mod:`replay.churn.partition_sizes`, :mod:`replay.churn.configs`,
    :mod:`replay.churn.progress_sizes` and :mod:`replay.churn.client_sizes` find it; None: they are
    folded, too. ``types``: how many records there are of each.
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

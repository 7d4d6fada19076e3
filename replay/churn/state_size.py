"""How large the state was, and so a snapshot of it, from the fold itself: what each record adds to
it and takes away.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from raftlog.metadata.entities import entity_bytes
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import RecordType
from raftlog.metadata.snapshot import BATCH_BYTES
from replay.kernels.arrays import Ints
from replay.kernels.folding import CLIENT, apply_row
from replay.kernels.passes import Log
from replay.kernels.steps import PARTITION_TYPES

BY_COLUMNS = (*PARTITION_TYPES, RecordType.CONFIG, RecordType.PROGRESS)
"""Records of which columns say how large the state is."""
_TIMESTAMP = 5
"""Where a row has it."""
_BATCH_OVERHEAD = 100
"""Bytes about the entities of each batch of a snapshot, more or less."""


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
    """An entity as it was when the period began (None: it was not there), and as it is now."""

    key: tuple[object, ...]
    before: object | None
    now: object | None


class ChangedOnly(ImageBuilder):
    """A draft that notes which entities have changed. One that has no key is known by itself: what
    comes next names it as what was before.
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


class ClientsOnly(ImageBuilder):
    """A draft of clients, and of what became of their writes: it adds up what comes and goes.

    Its maps are dicts, as nobody takes an image of them; three of them change with each write.
    """

    __slots__ = ("entities", "size")

    def __init__(self) -> None:
        super().__init__(Image())
        self.clients, self.client_results = cast(Any, {}), cast(Any, {})
        self.entities = self.size = 0

    def replace(
        self, kind: str, key: tuple[object, ...], old: object | None, new: object | None
    ) -> None:
        """Add up a change."""
        if new is not None:
            self.entities += 1
            self.size += in_snapshot(len(entity_bytes((*key, new))))
        if old is not None:
            self.entities -= 1
            self.size -= in_snapshot(len(entity_bytes((*key, old))))


def in_snapshot(length: int) -> int:
    """An entity as a repeated field of SnapshotEntitiesRecord: its tag and length go before it."""
    return length + 2 + (length >= 1 << 7) + (length >= 1 << 14)


def in_snapshots(length: Ints) -> Ints:
    """The same of many."""
    return length + 2 + (length >= 1 << 7) + (length >= 1 << 14)


class Size(NamedTuple):
    """The state at the end of a period: entities, and about the bytes of a snapshot."""

    entities: int
    snapshot_bytes: int


class _Sizes:
    """Adds up by period how many entities and bytes came; negative if less. An entity is looked at
    once a period, however often it changed.
    """

    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._draft, self._clients = ChangedOnly(Image()), ClientsOnly()
        self._period = 0
        self._grown: Grown = {}

    def row(self, kind: str, id_: str, record: tuple[Any, ...]) -> None:
        period = record[_TIMESTAMP] - record[_TIMESTAMP] % self._period_ms
        if period != self._period:
            self._account()
            self._period = period
        apply_row(self._clients if kind == CLIENT else self._draft, id_, *record)

    def _account(self) -> None:
        draft, clients = self._draft, self._clients
        entities, size = clients.entities, clients.size
        clients.entities = clients.size = 0
        if not (draft.changed or draft.gone or entities or size):
            return
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
    tasks: int | None = None,
) -> dict[int, Size]:
    """The size at the end of each period in which it changed, by the period's beginning.

    ``by_columns``: what partitions, configs and progress brought, as
    :mod:`replay.churn.partition_sizes`, :mod:`replay.churn.configs` and
    :mod:`replay.churn.progress_sizes` find it; None: they are folded, too.
    """
    without = () if by_columns is None else BY_COLUMNS
    rest = log.fold(partial(_Sizes, period_ms), tasks, without=without)
    return added_up([*rest, *(by_columns or ())])


def added_up(parts: Iterable[Grown]) -> dict[int, Size]:
    """What several parts found, one period after the other."""
    grown: Grown = {}
    for part in parts:
        for period, (entities, size) in part.items():
            grow(grown, period, entities, size)
    found, entities, size = {}, 0, 0
    for period, (more, bytes_more) in sorted(grown.items()):
        entities, size = entities + more, size + bytes_more
        found[period] = Size(entities, size + (size // BATCH_BYTES + 2) * _BATCH_OVERHEAD)
    return found

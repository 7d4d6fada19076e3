"""Configs that are changed over and over, and how large all of them were."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.metadata.records import RecordType
from replay.churn.model import ConfigChurn
from replay.churn.packed import packed_ints, packed_texts
from replay.churn.state_size import Grown, grow_many, in_snapshots
from replay.kernels.arrays import Ints, codes, ints, order_of
from replay.kernels.passes import BY_CONFIG, Pass, Rows

_COLUMNS = (
    "offset",
    "timestamp_ms",
    "principal",
    "resource_type",
    "resource_name",
    "config_name",
    "config_value",
)
Key = tuple[int, str, str]


class _Write(NamedTuple):
    offset: int
    timestamp_ms: int
    principal: str
    value: str | None


class _Config:
    """One key of a resource."""

    __slots__ = ("before", "changes", "last", "principals", "reversals", "size", "value")

    def __init__(self) -> None:
        # Before the first write there is no value, as behind a deletion.
        self.value: str | None = None
        self.before: tuple[str | None, ...] = ()
        """The value before the last change; empty: there was none."""
        self.size = 0
        """Of its entity in a snapshot."""
        self.changes = self.reversals = 0
        self.principals: set[str] = set()
        self.last: _Write | None = None

    def write(self, write: _Write, *, counts: bool) -> None:
        """A write of the value that is there, or of none where none is, changes nothing."""
        if write.value == self.value:
            return
        back = self.before == (write.value,)
        self.before = () if self.last is None else (self.value,)
        self.value, self.last = write.value, write
        if counts:
            self.changes += 1
            self.reversals += back
            self.principals.add(write.principal)


class _Configs:
    """Carries each key's value."""

    def __init__(self, since_ms: int, period_ms: int) -> None:
        self._since_ms, self._period_ms = since_ms, period_ms
        self._of: dict[Key, _Config] = {}
        self._grown: Grown = {}

    def take(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        resources, resource_names = codes(table["resource_name"])
        names, config_names = codes(table["config_name"])
        kinds = ints(table["resource_type"])
        packed = (kinds * len(resource_names) + resources) * len(config_names) + names
        _, first, where = np.unique(packed, return_index=True, return_inverse=True)
        states = [
            self._of.setdefault(
                (int(kinds[at]), resource_names[resources[at]], config_names[names[at]]), _Config()
            )
            for at in first.tolist()
        ]
        self._grow(table, states, where)
        principals, who = codes(table["principal"])
        for place, offset, at_ms, principal, value in zip(
            where.tolist(),
            ints(table["offset"]).tolist(),
            ints(table["timestamp_ms"]).tolist(),
            principals.tolist(),
            table["config_value"].to_pylist(),
            strict=True,
        ):
            state = states[place]
            if value != state.value:
                write = _Write(offset, at_ms, who[principal], value)
                state.write(write, counts=at_ms >= self._since_ms)

    def _grow(self, table: pa.Table, states: list[_Config], where: Ints) -> None:
        """Add up what each record brings, beside what was there before it."""
        size = sizes_of(table)
        order = order_of(where)
        key, size = where[order], size[order]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        before = np.concatenate([[0], size[:-1]])
        before[first] = [state.size for state in states]
        at_ms = ints(table["timestamp_ms"])[order]
        came = (size > 0).astype(np.int64) - (before > 0)
        grow_many(self._grown, at_ms - at_ms % self._period_ms, came, size - before)
        for state, last in zip(
            states, size[np.append(first[1:], len(size)) - 1].tolist(), strict=True
        ):
            state.size = last

    def end(self) -> tuple[list[ConfigChurn], Grown]:
        return self._told(), self._grown

    def _told(self) -> list[ConfigChurn]:
        return [
            ConfigChurn(
                *key,
                each.changes,
                each.reversals,
                len(each.principals),
                each.last.offset,
                each.last.timestamp_ms,
                each.last.principal,
                each.last.value,
            )
            for key, each in self._of.items()
            if each.changes and each.last is not None
        ]


def sizes_of(table: pa.Table) -> Ints:
    """Of the entity that each config record leaves, in a snapshot; 0: it leaves none.

    As ``entity_bytes`` packs them: an array of the resource's type and name, key and value.
    """
    length = 1 + packed_ints(ints(table["resource_type"]))
    for name in ("resource_name", "config_name", "config_value"):
        length = length + packed_texts(table[name])
    there = pc.is_valid(table["config_value"]).to_numpy(zero_copy_only=False)
    return np.where(there, in_snapshots(length), 0)


def config_churn(log: Rows, since_ms: int, period_ms: int) -> tuple[list[ConfigChurn], list[Grown]]:
    """One row a key of a resource that was set or deleted from ``since_ms`` on; and what each
    period brought to the size of all configs.
    """
    begin = partial(_Configs, since_ms, period_ms)
    parts = log.run(Pass(begin, _COLUMNS, (RecordType.CONFIG,), BY_CONFIG))
    return [each for changed, _ in parts for each in changed], [grown for _, grown in parts]

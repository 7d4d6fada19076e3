"""Config keys that changed, and how often they changed back."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.churn.result import ConfigChurn
from replay.kernels.arrays import MISSING, Bools, Ints, codes, ints, order_of
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
    config_value: str | None


class _Config:
    """One key of a resource."""

    __slots__ = ("before", "changes", "last", "principals", "reversals")

    def __init__(self) -> None:
        self.before: tuple[str | None, ...] = ()
        """The value before the last change; empty: there was none."""
        self.changes = self.reversals = 0
        self.principals: set[str] = set()
        self.last: _Write | None = None
        """The last write that changed something; None: none has yet."""

    @property
    def value(self) -> str | None:
        """Present value; None before the first write and after a deletion."""
        return self.last.config_value if self.last is not None else None


class _Configs:
    """Carrier of each key's value through the slices."""

    def __init__(self, since_ms: int) -> None:
        self._since_ms = since_ms
        self._of: dict[Key, _Config] = {}

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
        self._write(table, states, where)

    def _write(self, table: pa.Table, states: list[_Config], where: Ints) -> None:
        """Each key's writes behind two rows of what is known of it. A write of the value that is
        there, or of none where none is, changes nothing.
        """
        values, texts = codes(table["config_value"])
        number = {text: place for place, text in enumerate(texts)}
        known = [
            MISSING if text is None else number.setdefault(text, len(number))
            for state in states
            for text in (*(state.before or (None,)), state.value)
        ]
        told = [each for state in states for each in (bool(state.before), state.last is not None)]
        key = np.concatenate([np.repeat(np.arange(len(states)), 2), where])
        order = order_of(key)
        value, real = np.concatenate([known, values])[order], order >= len(known)
        kept = ~real
        kept[1:] |= value[1:] != value[:-1]
        order, value, real = order[kept], value[kept], real[kept]
        key, row = key[order], np.maximum(order - len(known), 0)
        was = np.append(told, np.ones(len(values), np.bool_))[order]
        back = np.zeros(len(key), np.bool_)
        back[2:] = was[:-2] & (value[2:] == value[:-2])
        counts = real & (ints(table["timestamp_ms"])[row] >= self._since_ms)
        _count(table, states, key[counts], row[counts], back[counts])
        last = np.flatnonzero(real & (np.diff(key, append=-1) != 0))
        written = table.select(_Write._fields).take(pa.array(row[last])).to_pylist()
        text_of = dict(enumerate(number))
        for place, write, there, before in zip(
            key[last].tolist(),
            written,
            was[last - 1].tolist(),
            value[last - 1].tolist(),
            strict=True,
        ):
            state = states[place]
            state.before = (text_of.get(before),) if there else ()
            state.last = _Write(**write)

    def end(self) -> list[ConfigChurn]:
        return [
            ConfigChurn(
                *key,
                each.changes,
                each.reversals,
                len(each.principals),
                each.last.offset,
                each.last.timestamp_ms,
                each.last.principal,
                each.last.config_value,
            )
            for key, each in self._of.items()
            if each.changes and each.last is not None
        ]


def _count(table: pa.Table, states: list[_Config], key: Ints, row: Ints, back: Bools) -> None:
    """Changes of keys, by which records, and whether to the value before the last change."""
    for state, changes, reversals in zip(
        states,
        np.bincount(key, minlength=len(states)).tolist(),
        np.bincount(key[back], minlength=len(states)).tolist(),
        strict=True,
    ):
        state.changes += changes
        state.reversals += reversals
    principals, who = codes(table["principal"])
    for pair in np.unique(key * len(who) + principals[row]).tolist():
        states[pair // len(who)].principals.add(who[pair % len(who)])


def config_churn(log: Rows, since_ms: int) -> list[ConfigChurn]:
    """Return one row a key of a resource that was set or deleted from ``since_ms`` on."""
    work = Pass(partial(_Configs, since_ms), _COLUMNS, (RecordType.CONFIG,), BY_CONFIG)
    return [each for part in log.run(work) for each in part]

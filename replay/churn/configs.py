"""Configs that are changed over and over."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raftlog.metadata.records import RecordType
from replay.churn.model import ConfigChurn
from replay.kernels.arrays import codes, ints
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

    __slots__ = ("before", "changes", "last", "principals", "reversals", "value")

    def __init__(self) -> None:
        # Before the first write there is no value, as behind a deletion.
        self.value: str | None = None
        self.before: tuple[str | None, ...] = ()
        """The value before the last change; empty: there was none."""
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
                each.last.value,
            )
            for key, each in self._of.items()
            if each.changes and each.last is not None
        ]


def config_churn(log: Rows, since_ms: int) -> list[ConfigChurn]:
    """One row a key of a resource that was set or deleted from ``since_ms`` on."""
    work = Pass(partial(_Configs, since_ms), _COLUMNS, (RecordType.CONFIG,), BY_CONFIG)
    return [each for part in log.run(work) for each in part]

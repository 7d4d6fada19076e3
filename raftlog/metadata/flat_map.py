"""A map for folding one log forward: a dict updated in place, with an undo log per older version.

``FlatMap`` is a ``pmap.Map``. The newest version is the dict itself. Each older version that is
still referenced keeps the old values of the keys changed by the next referenced version; its
look-ups check those first. Other versions cost nothing. A write adds one entry to a small dict,
whereas in a persistent map it copies a path of nodes and updates the reference counts of all their
neighbours. Values are never None.

Mutating any version but the newest copies the whole map, unless all newer ones have been released:
code that often goes back to old versions, such as a broker that folds an older image forward for
reads at LAO, uses a persistent map (``pmap``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_SAME: Any = object()


class _State(Generic[K, V]):
    """A referenced version, between the next older and the next newer one."""

    __slots__ = ("length", "newer", "older", "undo")

    def __init__(self, older: _State[K, V] | None) -> None:
        self.older, self.newer = older, None
        self.undo: dict[K, V | None] = {}
        """This version's values of the keys that ``newer`` has changed, or None for an
        absent key.
        """
        self.length = 0
        """Number of keys in this version, once there is a newer one."""

    newer: _State[K, V] | None


class _Table(Generic[K, V]):
    """All versions of a map, in order."""

    __slots__ = ("released", "values")

    def __init__(self, values: dict[K, V]) -> None:
        self.values = values
        """The newest version's values."""
        self.released: list[_State[K, V]] = []
        """Versions that are no longer referenced. They stay in the chain until the next write,
        since the garbage collector may free the last reference in another thread.
        """

    def settle(self) -> None:
        """Remove the released versions from the chain."""
        while self.released:
            self._take_out(self.released.pop())

    def _take_out(self, state: _State[K, V]) -> None:
        older, newer = state.older, state.newer
        state.older = state.newer = None
        if newer is not None:
            newer.older = older
            if older is not None:
                # The older version keeps the values from before this version's changes.
                older.newer = newer
                for key, value in state.undo.items():
                    older.undo.setdefault(key, value)
        elif older is not None:
            older.newer = None
            self._take_back(older.undo)
            older.undo = {}

    def _take_back(self, undo: dict[K, V | None]) -> None:
        values = self.values
        for key, value in undo.items():
            if value is not None:
                values[key] = value
            else:
                values.pop(key, None)


class FlatMap(Generic[K, V]):
    """One version of a map; see the module."""

    __slots__ = ("_state", "_table")

    def __init__(self, table: _Table[K, V], state: _State[K, V]) -> None:
        self._table, self._state = table, state

    def __del__(self) -> None:
        self._table.released.append(self._state)

    def get(self, key: K, default: Any = None) -> V | Any:
        """Return the value, or ``default``."""
        state = self._state
        while state.newer is not None:
            value = state.undo.get(key, _SAME)
            if value is not _SAME:
                return default if value is None else value
            state = state.newer
        return self._table.values.get(key, default)

    def __getitem__(self, key: K) -> V:
        value = self.get(key, _SAME)
        if value is _SAME:
            raise KeyError(key)
        found: V = value
        return found

    def __contains__(self, key: object) -> bool:
        return self.get(key, _SAME) is not _SAME  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._table.values) if self._state.newer is None else self._state.length

    def __iter__(self) -> Iterator[K]:
        """Iterate over a copy of the keys, since the dict may change during iteration."""
        values, changed = self._table.values, self._changed()
        if not changed:
            return iter(list(values))
        keys = [key for key in values if changed.get(key, _SAME) is not None]
        keys += [key for key, old in changed.items() if old is not None and key not in values]
        return iter(keys)

    def items(self) -> Iterable[tuple[K, V]]:
        """Yield keys and values, in no meaningful order."""
        for key in self:
            yield key, self[key]

    def values(self) -> Iterable[V]:
        """Yield values, in no meaningful order."""
        for key in self:
            yield self[key]

    def mutate(self) -> FlatMutation[K, V]:
        """Return a mutation that creates the next version."""
        return FlatMutation(self)

    def _changed(self) -> dict[K, V | None]:
        """Return the values of this version that differ from the newest version's, or None for an
        absent key.
        """
        changed: dict[K, V | None] = {}
        state = self._state
        while state.newer is not None:
            for key, value in state.undo.items():
                changed.setdefault(key, value)
            state = state.newer
        return changed

    def begin(self) -> tuple[_Table[K, V], _State[K, V], dict[K, V | None]]:
        """Return the table and state for the next version, and this version's undo log, for
        ``FlatMutation``.
        """
        table, state = self._table, self._state
        table.settle()
        if state.newer is not None:
            # A newer version is referenced, so this one gets a separate table.
            table, state = _Table(dict(self.items())), _State(None)
            return table, state, {}
        newer: _State[K, V] = _State(state)
        state.newer, state.length = newer, len(table.values)
        return table, newer, state.undo


class FlatMutation(Generic[K, V]):
    """The next version under construction. Has no effect before its first write."""

    __slots__ = ("_base", "_state", "_table", "_undo")

    def __init__(self, base: FlatMap[K, V]) -> None:
        self._base: FlatMap[K, V] | None = base
        self._table: _Table[K, V] | None = None

    def __del__(self) -> None:
        if self._table is not None:
            self.abandon()

    def abandon(self) -> None:
        """Undo the writes. The mutation must not be used afterwards."""
        table, self._table = self._table, None
        if table is not None:
            table.released.append(self._state)
        self._base = None

    def written(self) -> tuple[dict[K, V], dict[K, V | None]]:
        """Return the dict to change, and the dict in which to store each key's value before its
        first change (None if absent). For many writes.
        """
        if self._table is None:
            assert self._base is not None
            self._table, self._state, self._undo = self._base.begin()
        return self._table.values, self._undo

    def get(self, key: K, default: Any = None) -> V | Any:
        """Return the value, or ``default``."""
        if self._table is None:
            assert self._base is not None
            return self._base.get(key, default)
        return self._table.values.get(key, default)

    def __getitem__(self, key: K) -> V:
        if self._table is None:
            assert self._base is not None
            return self._base[key]
        return self._table.values[key]

    def __contains__(self, key: object) -> bool:
        return self.get(key, _SAME) is not _SAME  # type: ignore[arg-type]

    def __len__(self) -> int:
        if self._table is None:
            assert self._base is not None
            return len(self._base)
        return len(self._table.values)

    def __setitem__(self, key: K, value: V) -> None:
        values, undo = self.written()
        if key not in undo:
            undo[key] = values.get(key)
        values[key] = value

    def __delitem__(self, key: K) -> None:
        values, undo = self.written()
        old = values.pop(key)
        undo.setdefault(key, old)

    def finish(self) -> FlatMap[K, V]:
        """Return the new version. The mutation must not be used afterwards."""
        base, table = self._base, self._table
        self._base = self._table = None
        assert base is not None
        if table is None:
            return base
        return FlatMap(table, self._state)


def empty() -> FlatMap[Any, Any]:
    """Return an empty map."""
    return FlatMap(_Table({}), _State(None))

"""The persistent map used by the image: an immutable map, each version of which shares almost
everything with the previous one.

``Map`` is a mapping with get, ``in``, len and iteration; ``mutate()`` returns a mutable copy in
O(1), whose ``finish()`` is the next version. The order of iteration has no meaning and may differ
between processes: sort by key before showing anything. ``flat_map`` is another implementation, for
code that only folds the newest version forward.

Two libraries do the work. immutables writes three times faster but has no wheel for Python after
3.13; rpds-py is slower but built for every Python. raftlog must install without a compiler, hence
both; the tests run both.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar, overload

# Either may be missing: see the module's docstring.
immutables: Any
rpds: Any
try:
    import immutables
except ImportError:
    immutables = None
try:
    import rpds
except ImportError:
    rpds = None

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


D = TypeVar("D")
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)
V_co = TypeVar("V_co", covariant=True)


class Lookup(Protocol[K_contra, V_co]):
    """The look-ups on single keys that a map and a mutation share."""

    @overload
    def get(self, key: K_contra, /) -> V_co | None: ...

    @overload
    def get(self, key: K_contra, default: D, /) -> V_co | D: ...

    def __getitem__(self, key: K_contra, /) -> V_co:
        """Return the value, or raise KeyError."""

    def __contains__(self, key: object, /) -> bool:
        """Return whether the key exists."""

    def __len__(self) -> int:
        """Return the number of keys."""


class Mutation(Lookup[K, V], Protocol[K, V]):
    """A version of a map under construction. Cannot be iterated."""

    def __setitem__(self, key: K, value: V) -> None:
        """Map ``key`` to ``value`` in this version, but not in earlier ones."""

    def __delitem__(self, key: K) -> None:
        """Remove one key, or raise KeyError."""

    def finish(self) -> Map[K, V]:
        """Return the immutable version. The mutation must not be used afterwards."""


class Map(Lookup[K, V], Protocol[K, V]):
    """One immutable version of a map."""

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, in no meaningful order."""

    def items(self) -> Iterable[tuple[K, V]]:
        """Return keys and values, in no meaningful order."""

    def values(self) -> Iterable[V]:
        """Return values, in no meaningful order."""

    def mutate(self) -> Mutation[K, V]:
        """Return a mutable copy; O(1)."""


class RpdsMap(Generic[K, V]):
    """``Map`` over rpds.HashTrieMap."""

    __slots__ = ("_trie",)

    def __init__(self, trie: Any = None) -> None:
        self._trie = rpds.HashTrieMap() if trie is None else trie

    def get(self, key: K, default: Any = None) -> V | Any:
        return self._trie.get(key, default)

    def __getitem__(self, key: K) -> V:
        return self._trie[key]

    def __contains__(self, key: object) -> bool:
        return key in self._trie

    def __len__(self) -> int:
        return len(self._trie)

    def __iter__(self) -> Iterator[K]:
        return iter(self._trie)

    def items(self) -> Iterable[tuple[K, V]]:
        return self._trie.items()

    def values(self) -> Iterable[V]:
        return self._trie.values()

    def mutate(self) -> RpdsMutation[K, V]:
        return RpdsMutation(self._trie)


class RpdsMutation(Generic[K, V]):
    """``Mutation`` for rpds, which has no mutations: it holds the next trie, of which each write
    creates a new version.
    """

    __slots__ = ("_trie",)

    def __init__(self, trie: Any) -> None:
        self._trie = trie

    def get(self, key: K, default: Any = None) -> V | Any:
        return self._trie.get(key, default)

    def __getitem__(self, key: K) -> V:
        return self._trie[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._trie = self._trie.insert(key, value)

    def __delitem__(self, key: K) -> None:
        self._trie = self._trie.remove(key)

    def __contains__(self, key: object) -> bool:
        return key in self._trie

    def __len__(self) -> int:
        return len(self._trie)

    def finish(self) -> RpdsMap[K, V]:
        return RpdsMap(self._trie)


def empty() -> Map[Any, Any]:
    """Return an empty map of the fastest kind available."""
    if immutables is not None:
        return immutables.Map()
    return RpdsMap()

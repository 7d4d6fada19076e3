"""An index of the watchers that a change concerns, by its path. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.watch.hub import Group


class SelectorIndex:
    """Groups of watchers by their selectors. A look-up costs one step for each length that a prefix
    has, and one for each group found.
    """

    def __init__(self) -> None:
        # Dicts for their order: nothing here may depend on hashes.
        self._exact: dict[str, dict[Group, None]] = {}
        self._prefixes: dict[str, dict[Group, None]] = {}
        self._lengths: dict[int, int] = {}
        """Number of prefixes by their length."""

    def add(self, group: Group) -> None:
        """Add a group."""
        selection = group.selection
        for path in selection.exact:
            self._exact.setdefault(path, {})[group] = None
        for prefix in selection.prefixes:
            groups = self._prefixes.get(prefix)
            if groups is None:
                groups = self._prefixes[prefix] = {}
                self._lengths[len(prefix)] = self._lengths.get(len(prefix), 0) + 1
            groups[group] = None

    def remove(self, group: Group) -> None:
        """Remove a group."""
        selection = group.selection
        for path in selection.exact:
            groups = self._exact[path]
            del groups[group]
            if not groups:
                del self._exact[path]
        for prefix in selection.prefixes:
            groups = self._prefixes[prefix]
            del groups[group]
            if groups:
                continue
            del self._prefixes[prefix]
            self._lengths[len(prefix)] -= 1
            if not self._lengths[len(prefix)]:
                del self._lengths[len(prefix)]

    def groups(self, path: str) -> dict[Group, None]:
        """Return the groups that select the entity at a path, each once."""
        found = dict(self._exact.get(path, _NONE))
        size = len(path)
        for length in self._lengths:
            if length <= size and (groups := self._prefixes.get(path[:length])):
                found.update(groups)
        return found


_NONE: dict[Group, None] = {}

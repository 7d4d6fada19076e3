"""Comparison of images by their contents, entity by entity, and not by their hashes.

Counter-example: the hash leaves out a field, or an index that is no part of it, and who loads a
snapshot loses just that: all hashes agree, and the node decides by another state than the others.
"""

from __future__ import annotations

from typing import Any

from raftlog.metadata.image import Image, Replicas

_FIELDS = Image.__struct_fields__
_ABSENT = object()


def difference(found: Image, expected: Image) -> str:
    """Return the first thing in which two images differ, in words; empty if nothing.

    An index of an entity may be empty or missing.
    """
    for name in _FIELDS:
        mine, right = getattr(found, name), getattr(expected, name)
        if mine is right:
            continue
        if hasattr(right, "items"):
            if why := _in_map(_plain(mine), _plain(right)):
                return f"{name}{why}"
        elif mine != right:
            return f"{name} is {mine!r}, not {right!r}"
    return ""


def _plain(held: Any) -> dict[Any, Any]:
    """Return a map as a dict, and the maps and sets in it; without those that are empty."""
    plain = {key: _inner(value) for key, value in held.items()}
    return {key: value for key, value in plain.items() if value not in ({}, frozenset())}


def _inner(value: Any) -> Any:
    if hasattr(value, "items"):
        return dict(value.items())
    return frozenset(value) if isinstance(value, Replicas) else value


def _in_map(mine: dict[Any, Any], right: dict[Any, Any]) -> str:
    if mine == right:
        return ""
    keys = [*right, *(key for key in mine if key not in right)]
    for key in keys:
        one, other = mine.get(key, _ABSENT), right.get(key, _ABSENT)
        if one is not other and one != other:
            return f"[{key!r}] is {_shown(one)}, not {_shown(other)}"
    return ""


def _shown(value: Any) -> str:
    return "missing" if value is _ABSENT else repr(value)[:300]

"""Settings from values that already have the right types, as in most configuration files.

This avoids pydantic, whose import takes much of a node's startup time. pydantic (``checked``)
converts or reports any other value, such as a number written as text or a mistake.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from raftlog.node.config.fields import Read, Within
from raftlog.node.config.settings import FIELD_OF_KEY, Settings


class NotPlainError(ValueError):
    """A value needs a conversion, or is invalid."""


def plain_settings(values: Mapping[str, object]) -> Settings:
    """Return the settings for a mapping of keys to values. Raises NotPlainError unless every value
    has the type of its key.
    """
    hints = _hints()
    read: dict[str, Any] = {}
    for key, value in values.items():
        field = FIELD_OF_KEY.get(key)
        if field is None:
            raise NotPlainError(key)
        try:
            read[field] = _plain(hints[field], value)
        except ValueError as error:
            raise NotPlainError(key) from error
    return Settings(**read)


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Settings, include_extras=True)


def _plain(declared: Any, value: Any) -> Any:
    """Return a value of a declared type. Raises ValueError."""
    origin, parts = get_origin(declared), get_args(declared)
    if origin is Annotated:
        return _annotated(parts[0], parts[1:], value)
    if origin in (Union, types.UnionType):
        return None if value is None else _plain(parts[0], value)
    if origin is Literal:
        right = isinstance(value, str) and value in parts
    elif origin is tuple:
        if isinstance(value, list | tuple) and parts[1:] == (...,):
            return tuple(_plain(parts[0], one) for one in value)
        right = False
    else:
        # The exact type: True does not count as an int.
        right = type(value) is declared
    if not right:
        raise NotPlainError(repr(value))
    return value


def _annotated(declared: Any, marks: tuple[Any, ...], value: Any) -> Any:
    for mark in reversed(marks):
        if isinstance(mark, Read):
            value = mark.parse(value)
    value = _plain(declared, value)
    for mark in marks:
        if isinstance(mark, Within) and not mark.least <= value <= mark.most:
            raise NotPlainError(repr(value))
    return value

"""Whose log a result is about: it says so, as other systems' logs lack what ours has."""

from __future__ import annotations

from typing import Any

import msgspec


def with_origin(result: Any, origin: str) -> Any:
    """The result of a job, and what it holds, with ``origin`` where there is a field for it."""
    if not origin or not isinstance(result, msgspec.Struct):
        return result
    said: dict[str, Any] = {}
    for name in result.__struct_fields__:
        value = getattr(result, name)
        if name == "origin":
            said[name] = origin
        elif isinstance(value, msgspec.Struct) and "origin" in value.__struct_fields__:
            said[name] = with_origin(value, origin)
    return msgspec.structs.replace(result, **said)

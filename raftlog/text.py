"""Readable text: counts, lists, times and durations, and foreign text made printable. Also plain
containers for JSON.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any


def counted(count: int, what: str, plural: str = "") -> str:
    """Return a number with its noun, such as 1 record, 2 records, 0 entities."""
    return f"{count} {what if count == 1 else plural or what + 's'}"


_LAST_MS = 253_402_300_799_000


def nodes(ids: Collection[int]) -> str:
    """Return ids as text, such as ``node 1``, ``nodes 1 and 2``, ``nodes 1, 2 and 3``."""
    return ("node " if len(ids) == 1 else "nodes ") + listed(ids)


def brokers(ids: Collection[int]) -> str:
    """Return ids as text, such as ``broker 1``, ``brokers 1 and 2``."""
    return ("broker " if len(ids) == 1 else "brokers ") + listed(ids)


def named(names: Sequence[str], most: int = 8) -> str:
    """Join names, such as ``node 1``, ``node 1 and broker 4``; beyond ``most``, append the number
    of omitted names.
    """
    shown = list(names)
    if len(shown) > most:
        shown = [*shown[: most - 1], f"{len(shown) - most + 1} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def listed(ids: Collection[int], most: int = 8) -> str:
    """Join ids in ascending order, such as ``1``, ``1 and 2``, ``1, 2 and 3``."""
    return named([str(one) for one in sorted(ids)], most)


def moment(at_ms: int) -> datetime:
    """Return a foreign timestamp as UTC, clamped to the years 1970 to 9999."""
    return datetime.fromtimestamp(min(max(at_ms, 0), _LAST_MS) / 1000, UTC)


def clock(at_ms: int) -> str:
    """Return the time of day in UTC."""
    return moment(at_ms).strftime("%H:%M:%SZ")


def size(size_bytes: float) -> str:
    """Return a size as text, in the largest decimal unit of which it contains at least one."""
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= length:
            return f"{size_bytes / length:.1f} {unit}"
    return f"{size_bytes:.0f} bytes"


def span(ms: int) -> str:
    """Return a duration as text, in the largest unit of which it contains at least two."""
    for unit, size in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= 2 * size:
            return f"{ms // size} {unit}"
    return f"{ms} ms"


def printable(text: str, keep: str = "") -> str:
    """Escape each character that is neither printable nor in ``keep``, as Python does.

    Names are checked on arrival (``raftlog.limits``), but an old log, another build's answer or an
    error message may contain terminal escapes, line breaks that forge a log line, or marks that
    reverse the direction of writing. All code that shows such text calls this function.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else _escape(char) for char in text)


def printable_json(document: str) -> str:
    """Escape each unprintable character of a JSON document, except line breaks."""
    if document.isprintable():
        return document
    return "".join(
        char if char.isprintable() or char == "\n" else _json_escape(char) for char in document
    )


def ascii_json(document: str) -> str:
    """Escape each non-ASCII character of a JSON document."""
    return "".join(char if char.isascii() else _json_escape(char) for char in document)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def to_json(value: Any) -> Any:
    """Return a value as plain containers, for JSON.

    Fields of classes and attributes of listings become keys; an enum member becomes its name as
    spelled on the command line; bytes become hex.
    """
    if isinstance(value, Enum):
        return value.value if isinstance(value, str) else value.name.lower().replace("_", "-")
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {name: to_json(one) for name, one in value.items()}
    if isinstance(value, Exception):  # An ApiError.
        error: Any = value
        return {"code": error.code.name, "message": error.message, "field": error.field}
    if names := getattr(value, "__struct_fields__", ()) or getattr(value, "_fields", ()):
        return {name: to_json(getattr(value, name)) for name in names}
    if is_dataclass(value):
        return {one.name: to_json(getattr(value, one.name)) for one in fields(value)}
    found = [to_json(one) for one in value]
    # A listing has attributes, a list has none.
    return {**to_json(vars(value)), "items": found} if hasattr(value, "__dict__") else found


def columns_of(text: str) -> int:
    """Return the number of terminal columns that a text occupies."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )

"""Differences between two values of an entity, field by field."""

from __future__ import annotations

from typing import Any

import msgspec

from raftlog.metadata.values_in_words import IN_WORDS


class FieldChange(msgspec.Struct, frozen=True):
    """A field that has changed.

    ``before`` and ``after`` are JSON; ``field`` is "value" for an entity that is a plain value.
    """

    field: str
    before: msgspec.Raw
    after: msgspec.Raw


def raw(text: str | None) -> msgspec.Raw:
    """Return JSON text unchanged; null for none."""
    return msgspec.Raw((text or "null").encode())


def field_changes(before: str | None, after: str | None) -> list[FieldChange]:
    """Return the differences between two values in JSON; none where the entity was created or
    deleted, which needs no details.
    """
    if before is None or after is None or before == after:
        return []
    old, new = msgspec.json.decode(before), msgspec.json.decode(after)
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [FieldChange("value", raw(before), raw(after))]
    names = [*new, *(name for name in old if name not in new)]
    return [
        FieldChange(name, _encoded(old.get(name)), _encoded(new.get(name)))
        for name in names
        if old.get(name) != new.get(name)
    ]


def words(
    before: msgspec.Raw, after: msgspec.Raw, fields: list[FieldChange], kind: str = ""
) -> str:
    """Return a change in words: created, deleted, or one line a field. ``kind``: of the entity."""
    old, new = msgspec.json.decode(before), msgspec.json.decode(after)
    say = IN_WORDS.get(kind, brief)
    if old is None:
        return f"created: {say(new)}"
    if new is None:
        return f"deleted: {say(old)}"
    if len(fields) == 1 and fields[0].field == "value":
        return f"{brief(old)} → {brief(new)}"
    return "\n".join(f"{one.field}: {_shown(one.before)} → {_shown(one.after)}" for one in fields)


def brief(value: Any) -> str:
    """Return a value in one line: text as it is, all else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _shown(value: msgspec.Raw) -> str:
    return brief(msgspec.json.decode(value))


def _encoded(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))

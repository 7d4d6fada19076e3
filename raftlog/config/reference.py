"""The reference of all keys, for ``raftlog config keys`` and the documentation."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.config.settings import KEYS, Settings, key_of
from raftlog.config.sources import ENV_OF_KEY


@dataclass(frozen=True, slots=True)
class KeyReference:
    """One key. ``default`` and ``unit`` are empty if there is none; ``roles``: who reads it."""

    key: str
    environment: str
    default: str
    unit: str
    roles: tuple[str, ...]
    doc: str


def reference() -> list[KeyReference]:
    """All keys, in the order of :mod:`raftlog.config.settings`."""
    rows = []
    for name, field in Settings.model_fields.items():
        key, info = key_of(name), KEYS[name]
        default = str(field.default) if field.default not in (None, ()) else ""
        rows.append(KeyReference(key, ENV_OF_KEY[key], default, info.unit, info.roles, field.description or ""))
    return rows

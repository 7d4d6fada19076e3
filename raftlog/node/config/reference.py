"""The reference of all keys, for ``raftlog config keys`` and the documentation."""

from __future__ import annotations

from dataclasses import dataclass, fields

from raftlog.node.config.settings import KEYS, Settings, key_of
from raftlog.node.config.sources import ENV_OF_KEY


@dataclass(frozen=True, slots=True)
class KeyReference:
    """One key. ``default`` and ``unit`` are empty if none; ``roles``: the roles that read it."""

    key: str
    environment: str
    default: str
    unit: str
    roles: tuple[str, ...]
    doc: str


def reference() -> list[KeyReference]:
    """Return all keys, in the order of :mod:`raftlog.node.config.settings`."""
    rows = []
    for field in fields(Settings):
        key, info = key_of(field.name), KEYS[field.name]
        default = str(field.default) if field.default not in (None, ()) else ""
        rows.append(KeyReference(key, ENV_OF_KEY[key], default, info.unit, info.roles, info.doc))
    return rows

"""Access control entries in words: ``allow User:alice read on topic orders``."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from raftlog.metadata.acls import (
    ALL_RESOURCES,
    ANY_HOST,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)


def lower(name: IntEnum) -> str:
    """Return the name in lower case, with spaces: ``client session`` of CLIENT_SESSION."""
    return name.name.lower().replace("_", " ")


PERMISSIONS = {int(each): lower(each) for each in AclPermission}
OPERATIONS = {int(each): lower(each) for each in AclOperation} | {
    int(AclOperation.ALL): "all operations"
}
RESOURCES = {int(each): lower(each) for each in AclResourceType}


def in_words(entry: dict[str, Any]) -> str:
    """Return an entry in words, from its JSON object in changes."""
    permission, operation, resource = (
        names.get(entry[field], str(entry[field]))
        for names, field in (
            (PERMISSIONS, "permission_type"),
            (OPERATIONS, "operation"),
            (RESOURCES, "resource_type"),
        )
    )
    name = entry["resource_name"]
    if entry["pattern_type"] == PatternType.PREFIXED:
        on = f"every {resource} {name}…"
    elif entry["resource_type"] == AclResourceType.CLUSTER:
        on = "the cluster"
    else:
        on = f"every {resource}" if name == ALL_RESOURCES else f"{resource} {name}"
    host = "" if entry["host"] == ANY_HOST else f" from host {entry['host']}"
    return f"{permission} {entry['principal']} {operation} on {on}{host}"

"""Access control entries in words: ``allow User:alice read on topic orders``."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as sf

from raftlog.metadata.acls import (
    ALL_RESOURCES,
    ANY_HOST,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)


def lower(name: IntEnum) -> str:
    """``client session`` of CLIENT_SESSION."""
    return name.name.lower().replace("_", " ")


PERMISSIONS = {int(each): lower(each) for each in AclPermission}
OPERATIONS = {int(each): lower(each) for each in AclOperation} | {
    int(AclOperation.ALL): "all operations"
}
RESOURCES = {int(each): lower(each) for each in AclResourceType}


def in_words(entry: dict[str, Any]) -> str:
    """Of the JSON object that an entry is in changes."""
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


def words(
    resource_type: Column, resource_name: Column, pattern_type: Column | None = None
) -> Column:
    """``topic orders``, of columns; ``pattern_type`` None: of a resource itself."""
    named = sf.concat(named_in(RESOURCES, resource_type), sf.lit(" "), resource_name)
    every = sf.concat(sf.lit("every "), named_in(RESOURCES, resource_type))
    of_cluster = resource_type == int(AclResourceType.CLUSTER)
    if pattern_type is None:
        return sf.when(of_cluster, sf.lit("the cluster")).otherwise(named)
    return (
        sf.when(
            pattern_type == int(PatternType.PREFIXED),
            sf.concat(every, sf.lit(" "), resource_name, sf.lit("…")),
        )
        .when(of_cluster, sf.lit("the cluster"))
        .when(resource_name == ALL_RESOURCES, every)
        .otherwise(named)
    )


def record_in_words() -> Column:
    """As ``in_words``, of the columns of an ACCESS_CONTROL_ENTRY."""
    on = words(sf.col("acl_resource_type"), sf.col("resource_name"), sf.col("pattern_type"))
    host = sf.when(sf.col("host") != ANY_HOST, sf.concat(sf.lit(" from host "), "host"))
    return sf.concat(
        named_in(PERMISSIONS, sf.col("permission_type")),
        sf.lit(" "),
        "acl_principal",
        sf.lit(" "),
        named_in(OPERATIONS, sf.col("operation")),
        sf.lit(" on "),
        on,
        sf.coalesce(host, sf.lit("")),
    )


def named_in(names: dict[int, str], number: Column) -> Column:
    """The name of a number; the number itself, if it has none."""
    (first, name), *others = names.items()
    chosen = sf.when(number == first, sf.lit(name))
    for each, name in others:
        chosen = chosen.when(number == each, sf.lit(name))
    return chosen.otherwise(number.cast("string"))

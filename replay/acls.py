"""Access control entries in words, of Spark's columns: as ``raftlog.metadata.acl_words``."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as sf

from raftlog.metadata.acl_words import OPERATIONS, PERMISSIONS, RESOURCES, in_words, lower
from raftlog.metadata.acls import ALL_RESOURCES, ANY_HOST, AclResourceType, PatternType

__all__ = [
    "OPERATIONS",
    "PERMISSIONS",
    "RESOURCES",
    "in_words",
    "lower",
    "named_in",
    "record_in_words",
    "words",
]


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

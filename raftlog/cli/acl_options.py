"""How commands name access control entries: the resources, operations and patterns."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, NamedTuple

import typer

from raftlog.errors import ConfigError
from raftlog.metadata.acls import (
    CLUSTER_NAME,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    Resource,
)


class Operation(StrEnum):
    """As the command line spells an operation."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster-action"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"


class PatternChoice(StrEnum):
    """How the resource name of an entry is meant."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class FilterPattern(StrEnum):
    """Which entries a resource name chooses."""

    LITERAL = "literal"
    PREFIXED = "prefixed"
    MATCH = "match"
    ANY = "any"


class Permission(StrEnum):
    """Whether an entry allows or denies."""

    ALLOW = "allow"
    DENY = "deny"


_PANEL = "Resources"


def _resource(flag: str, metavar: str, what: str) -> object:
    return typer.Option(flag, metavar=metavar, help=what, rich_help_panel=_PANEL)


Topics = Annotated[
    list[str] | None, _resource("--topic", "NAME", "A topic; '*': all. Can be repeated.")
]
Groups = Annotated[
    list[str] | None, _resource("--group", "NAME", "A group, for its configs; '*': all.")
]
Cluster = Annotated[
    bool, typer.Option("--cluster", help="The cluster as a whole.", rich_help_panel=_PANEL)
]
Sessions = Annotated[
    list[str] | None,
    _resource("--client-session", "NAME", "The name of an exactly-once client; '*': all."),
]
Hostnames = Annotated[
    list[str] | None, _resource("--hostname", "HOST", "A hostname mapping; '*': all.")
]
Cursors = Annotated[
    list[str] | None, _resource("--export-cursor", "NAME", "An export cursor; '*': all.")
]
Keys = Annotated[
    list[str] | None, _resource("--kv", "KEY", "A key of the key-value store; '*': all.")
]
Operations = Annotated[
    list[Operation] | None,
    typer.Option("--operation", metavar="OPERATION", help="Which operation. Can be repeated."),
]


class Chosen(NamedTuple):
    """The resources that a command line names."""

    resources: list[Resource]

    @classmethod
    def of(
        cls,
        topics: list[str] | None,
        groups: list[str] | None,
        cluster: bool,
        sessions: list[str] | None,
        hostnames: list[str] | None,
        cursors: list[str] | None,
        keys: list[str] | None,
    ) -> Chosen:
        """In the order of the options."""
        named = (
            (AclResourceType.TOPIC, topics),
            (AclResourceType.GROUP, groups),
            (AclResourceType.CLUSTER, [CLUSTER_NAME] if cluster else None),
            (AclResourceType.CLIENT_SESSION, sessions),
            (AclResourceType.HOSTNAME, hostnames),
            (AclResourceType.EXPORT_CURSOR, cursors),
            (AclResourceType.KEY_VALUE, keys),
        )
        return cls([Resource(type_, name) for type_, names in named for name in names or []])

    def some(self) -> list[Resource]:
        """At least one. Raises ConfigError."""
        if not self.resources:
            raise ConfigError(
                "name a resource: --topic, --group, --cluster, --client-session, --hostname,"
                " --export-cursor or --kv"
            )
        return self.resources


def operation_of(choice: Operation) -> AclOperation:
    """The operation that the command line names."""
    return AclOperation[choice.name]


def spelled(operation: int) -> str:
    """As the command line spells it."""
    return AclOperation(operation).name.lower().replace("_", "-")


def type_text(resource_type: int) -> str:
    """As tables show it."""
    return AclResourceType(resource_type).name.lower().replace("_", " ")


def permission_text(permission_type: int) -> str:
    """As tables show it."""
    return AclPermission(permission_type).name.lower()


def pattern_text(pattern_type: int) -> str:
    """As tables show it."""
    return PatternType(pattern_type).name.lower()

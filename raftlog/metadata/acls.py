"""Access control entries: the operations that a principal may or may not do (KIP-11, KIP-290).

The numbers are Kafka's; from 100 on they are resource types that Kafka does not have.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

ANYBODY = "User:*"
"""The principal of an entry that applies to every principal."""
ANY_HOST = "*"
ALL_RESOURCES = "*"
"""The literal name that stands for every resource of its type."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the one cluster resource, as in Kafka."""


class AclResourceType(IntEnum):
    """The type of the resource that an entry is about."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    CLIENT_SESSION = 100
    HOSTNAME = 101
    EXPORT_CURSOR = 102
    KEY_VALUE = 103


class PatternType(IntEnum):
    """The meaning of an entry's resource name."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """An operation on a resource."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11


class AclPermission(IntEnum):
    """The verdict of an entry: deny or allow."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_TOPIC_OPERATIONS = frozenset(
    {
        AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE,
        AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    }
)  # fmt: skip
OPERATIONS_OF: dict[AclResourceType, frozenset[AclOperation]] = {
    AclResourceType.TOPIC: _TOPIC_OPERATIONS,
    AclResourceType.GROUP: frozenset(
        {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS},
    ),
    AclResourceType.CLUSTER: frozenset(
        {
            AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE,
            AclOperation.CLUSTER_ACTION, AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        }
    ),
    AclResourceType.CLIENT_SESSION: frozenset({AclOperation.CREATE}),
    AclResourceType.HOSTNAME: frozenset({AclOperation.DESCRIBE, AclOperation.ALTER}),
    AclResourceType.EXPORT_CURSOR: frozenset({AclOperation.DESCRIBE, AclOperation.ALTER}),
    AclResourceType.KEY_VALUE: frozenset({AclOperation.DESCRIBE, AclOperation.ALTER}),
}  # fmt: skip
"""The operations on each type of resource; ALL stands for all of them."""

IMPLIED_BY: dict[AclOperation, frozenset[AclOperation]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
"""An operation -> the operations whose ALLOW includes it. A DENY denies its own operation only."""


class Resource(NamedTuple):
    """A resource that a request works on."""

    type: AclResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name} {self.name}"


CLUSTER = Resource(AclResourceType.CLUSTER, CLUSTER_NAME)


class AccessControlEntry(msgspec.Struct, frozen=True, array_like=True):
    """An access control entry. ``id``: 16 bytes, random; it names the entry in the log."""

    id: bytes
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    @property
    def binding(self) -> Binding:
        """The entry without its id: no two entries have the same."""
        return Binding.of(self)

    def __str__(self) -> str:
        return str(self.binding)


class Binding(NamedTuple):
    """The content of an entry, without an id."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    @classmethod
    def of(cls, entry: Any) -> Binding:
        """Return the binding of an entry of the image, of a record or of a message."""
        return cls(
            entry.resource_type,
            entry.resource_name,
            entry.pattern_type,
            entry.principal,
            entry.host,
            entry.operation,
            entry.permission_type,
        )

    def __str__(self) -> str:
        host = "any host" if self.host == ANY_HOST else f"host {self.host}"
        return (
            f"{AclPermission(self.permission_type).name} {self.principal} from {host}:"
            f" {AclOperation(self.operation).name} on {AclResourceType(self.resource_type).name}"
            f" {PatternType(self.pattern_type).name} {self.resource_name}"
        )

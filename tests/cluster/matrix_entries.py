"""How entries decide, in the plainest way: what Kafka's authorizer says, written down once more."""

from __future__ import annotations

from collections.abc import Sequence

from matrix_callers import HOST, SUPER_USERS

from raftlog.errors import ErrorCode
from raftlog.metadata.acls import (
    ALL_RESOURCES,
    ANY_HOST,
    ANYBODY,
    IMPLIED_BY,
    AclOperation,
    AclPermission,
    AclResourceType,
    Binding,
    PatternType,
    Resource,
)


def allows(
    entries: Sequence[Binding], principal: str, operation: AclOperation, resource: Resource
) -> bool:
    """Kafka's rules."""
    if principal in SUPER_USERS:
        return True
    about = [
        one
        for one in entries
        if one.resource_type == resource.type
        and one.principal in (principal, ANYBODY)
        and one.host in (ANY_HOST, HOST)
        and (
            resource.name.startswith(one.resource_name)
            if one.pattern_type == PatternType.PREFIXED
            else one.resource_name in (resource.name, ALL_RESOURCES)
        )
    ]
    denying = {operation, AclOperation.ALL}
    if any(one.permission_type == AclPermission.DENY and one.operation in denying for one in about):
        return False
    allowing = denying | IMPLIED_BY.get(operation, frozenset())
    return any(one.operation in allowing for one in about)


def code_of(resource: Resource) -> ErrorCode:
    """What a refusal says."""
    return {
        AclResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        AclResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    }.get(resource.type, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

"""Kafka's StandardAuthorizer, applied to the access control entries of an image.

Pure: the same image, settings and query give the same verdict on every node.

1. A super user may do everything.
2. A matching DENY entry denies, whatever else matches.
3. Otherwise a matching ALLOW entry allows. ALLOW of READ, WRITE, DELETE or ALTER implies DESCRIBE,
   ALLOW of ALTER_CONFIGS implies DESCRIBE_CONFIGS.
4. Otherwise the operation is denied, unless no entry at all is about the resource; then
   ``allow.everyone.if.no.acl.found`` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from raftlog.metadata.acls import (
    ANY_HOST,
    ANYBODY,
    IMPLIED_BY,
    AccessControlEntry,
    AclIndex,
    AclOperation,
    AclPermission,
    Bucket,
    Resource,
    bit_of,
)


def _mask(operations: Iterable[AclOperation]) -> int:
    return sum(1 << operation for operation in operations)


_DENYING: dict[int, int] = {
    operation: _mask({operation, AclOperation.ALL}) for operation in AclOperation
}
_ALLOWING: dict[int, int] = {
    operation: _mask({operation, AclOperation.ALL} | IMPLIED_BY.get(operation, frozenset()))
    for operation in AclOperation
}
"""Operations of the ALLOW entries that permit an operation, as a bit set."""


class Caller(NamedTuple):
    """A principal, and the IP address of its connection."""

    principal: str
    host: str


class Why(Enum):
    """The reason for a verdict."""

    SUPER_USER = "it is a super user (super.users)"
    ENTRY = "an entry says so"
    NO_ENTRY = "no entry allows it"
    NO_ACL_FOUND = "no entry is about the resource (allow.everyone.if.no.acl.found)"


class Verdict(NamedTuple):
    """A decision; ``entry`` is the deciding access control entry, or None if no entry decides."""

    allowed: bool
    why: Why
    entry: AccessControlEntry | None = None

    def __str__(self) -> str:
        reason = self.why.value if self.entry is None else str(self.entry)
        return f"{'allowed' if self.allowed else 'denied'}: {reason}"


_SUPER_USER = Verdict(True, Why.SUPER_USER)
_NO_ENTRY = Verdict(False, Why.NO_ENTRY)
_NO_ACL_FOUND = Verdict(True, Why.NO_ACL_FOUND)


@dataclass(frozen=True, slots=True)
class Authorizer:
    """The authorizer with its configuration."""

    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = False

    def allows(
        self, index: AclIndex, caller: Caller, operation: AclOperation, resource: Resource
    ) -> bool:
        """Return whether ``caller`` has the permission."""
        if caller[0] in self.super_users:
            return True
        question = caller, operation, resource
        allowed = index.verdicts.get(question, _UNASKED)
        if allowed is _UNASKED:
            allowed = index.remember(question, _allowed_by(index, caller, operation, resource))
        return self.allow_everyone_if_no_acl_found if allowed is None else allowed

    def verdict(
        self, index: AclIndex, caller: Caller, operation: AclOperation, resource: Resource
    ) -> Verdict:
        """Return whether ``caller`` has the permission, and why."""
        if caller.principal in self.super_users:
            return _SUPER_USER
        question = "why", caller, operation, resource
        found: Verdict | None = index.verdicts.get(question)
        if found is None:
            found = index.remember(question, _verdict_by(index, *question[1:]))
        if found is _NO_ACL_FOUND and not self.allow_everyone_if_no_acl_found:
            return _NO_ENTRY
        return found


_UNASKED: Any = object()


def _allowed_by(
    index: AclIndex, caller: Caller, operation: AclOperation, resource: Resource
) -> bool | None:
    """Return what the entries decide, or None if no entry is about the resource."""
    principal, host = caller
    buckets = index.matching(*resource)
    if not buckets:
        return None
    denying, allowing = _DENYING[operation], _ALLOWING[operation]
    allowed = 0
    for bucket in buckets:
        for who in (principal, ANYBODY):
            if (rules := bucket.get(who)) is not None:
                _, any_host, by_host = rules
                if any_host.denied & denying:
                    return False
                allowed |= any_host.allowed
                if by_host and (of_host := by_host.get(host)) is not None:
                    if of_host.denied & denying:
                        return False
                    allowed |= of_host.allowed
    return bool(allowed & allowing)


def _verdict_by(
    index: AclIndex, caller: Caller, operation: AclOperation, resource: Resource
) -> Verdict:
    """Return what the entries decide, and why; decides as ``_allowed_by``, but is slower."""
    buckets = index.matching(*resource)
    if not buckets:
        return _NO_ACL_FOUND
    for permission, bits in (
        (AclPermission.DENY, _DENYING[operation]), (AclPermission.ALLOW, _ALLOWING[operation])
    ):  # fmt: skip
        for entry in _about(buckets, caller):
            if entry.permission_type == permission and bits & bit_of(entry.operation):
                return Verdict(permission is AclPermission.ALLOW, Why.ENTRY, entry)
    return _NO_ENTRY


def _about(buckets: Iterable[Bucket], caller: Caller) -> Iterator[AccessControlEntry]:
    for bucket in buckets:
        for who in (caller.principal, ANYBODY):
            if (rules := bucket.get(who)) is not None:
                yield from (one for one in rules.entries if one.host in (ANY_HOST, caller.host))

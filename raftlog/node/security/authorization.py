"""Checks of requests by the table of permissions: refusals, and the parts left out of an answer.

Pure. A node without an authorizer has no ``Authorization``, and checks nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from raftlog.config_writes.writes import ConfigWrites
from raftlog.errors import ApiError, ErrorCode
from raftlog.identity import parse_super_users
from raftlog.metadata.acls import CLUSTER, AclIndex, AclOperation, AclResourceType, Resource
from raftlog.metadata.config_keys import ResourceType as ConfigResourceType
from raftlog.node.config.settings import Settings
from raftlog.node.security.authorizer import Authorizer, Caller
from raftlog.node.security.permissions import All, Each, Listed, Row, Whole, config_resource_of
from raftlog.wire.common.v1 import common_pb2

Refused = Mapping[int, ApiError]
"""Refusals by the index of the item."""
NONE_REFUSED: Refused = {}

_CODES = {
    AclResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
}

NAMED_CONFIGS = frozenset({ConfigResourceType.TOPIC, ConfigResourceType.GROUP})
"""Types of resources whose configs do not belong to the cluster."""
_ALTER_CONFIGS = AclOperation.ALTER_CONFIGS
_OF_NODES = frozenset({AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION})


class HasAcls(Protocol):
    """An image, or a draft of one."""

    @property
    def acl_index(self) -> AclIndex:
        """Index of the access control entries."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The sender of a request. ``node_id``: the node that asks in its own name, None if it is no
    node.
    """

    caller: Caller
    node_id: int | None = None

    @classmethod
    def of(cls, client: common_pb2.ClientIdentity) -> Asker:
        """Return the sender that the client's node has recorded."""
        node_id = client.node_id if client.HasField("node_id") else None
        return cls(Caller(client.principal, client.host), node_id)


@dataclass(frozen=True, slots=True)
class Authorization:
    """The authorizer of a node, over its newest image."""

    authorizer: Authorizer

    def check(self, row: Row | None, body: Any, asker: Asker, image: HasAcls) -> Refused:
        """Return the refused items. Raises ApiError if the whole request is refused.

        ``row`` None: the request has no row, and is refused to all.
        """
        # Compared by type: this is on the way of every write.
        if type(row) is Each:
            return self._check_each(row, body, asker, image)
        if type(row) is Whole:
            self._check_whole(row, body, asker, image)
        elif type(row) is All:
            for index, item in enumerate(getattr(body, row.items)):
                if not self.allows(asker, row.operation, row.resource(item), image):
                    field = f"{row.items}[{index}]"
                    raise refusal(asker.caller, row.operation, row.resource(item), field)
            if row.also is not None and body.HasField(row.also[0]):
                self._check_whole(row.also[1], getattr(body, row.also[0]), asker, image)
        elif row is None:
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no rule says who may ask this")
        # Of nodes: the guard has checked that. Listed: what is shown is checked.
        return NONE_REFUSED

    def leave_out(self, row: Listed, response: Any, asker: Asker, image: HasAcls) -> None:
        """Remove from an answer the items that its receiver may not read."""
        items = getattr(response, row.items)
        shown = [
            item
            for item in items
            if self.allows(asker, AclOperation.DESCRIBE, row.resource(item), image)
        ]
        if len(shown) < len(items):
            # Copies: what is deleted is gone.
            kept = [type(item).FromString(item.SerializeToString()) for item in shown]
            del items[:]
            items.extend(kept)
        if row.of_cluster and not self.allows(asker, AclOperation.DESCRIBE, CLUSTER, image):
            for field in row.of_cluster:
                response.ClearField(field)

    def allows(
        self, asker: Asker, operation: AclOperation, resource: Resource, image: HasAcls
    ) -> bool:
        """Return whether an operation is permitted. A node may read the log and describe everything
        in its own name.
        """
        if asker.node_id is not None and operation in _OF_NODES:
            return True
        return self.authorizer.allows(image.acl_index, asker.caller, operation, resource)

    def check_one(
        self, asker: Asker, operation: AclOperation, resource: Resource, image: HasAcls
    ) -> None:
        """Raise the refusal of an operation without permission."""
        if not self.allows(asker, operation, resource, image):
            raise refusal(asker.caller, operation, resource)

    def permitted(
        self, writes: ConfigWrites, begin: int, end: int, asker: Asker, image: HasAcls
    ) -> int:
        """Return how many requests of a group, from ``begin`` on and before ``end``, have every
        permission. One look for each resource: all are of one principal.
        """
        changes, position = writes.changes, sum(writes.counts[:begin])
        known: dict[tuple[int, str], bool] = {}
        for index in range(begin, end):
            for type_, name, _, _ in changes[position : position + writes.counts[index]]:
                # The configs of all other types are the cluster's.
                key = (type_, name if type_ in NAMED_CONFIGS else "")
                allowed = known.get(key)
                if allowed is None:
                    resource = config_resource_of(*key)
                    allowed = known[key] = self.allows(asker, _ALTER_CONFIGS, resource, image)
                if not allowed:
                    return index - begin
            position += writes.counts[index]
        return end - begin

    def _check_whole(self, row: Whole, body: Any, asker: Asker, image: HasAcls) -> None:
        if row.own_field and asker.node_id == getattr(body, row.own_field):
            return
        self.check_one(asker, row.operation, row.resource(body), image)

    def _check_each(self, row: Each, body: Any, asker: Asker, image: HasAcls) -> Refused:
        if row.instead is not None and self.allows(
            asker, row.instead.operation, row.instead.resource(body), image
        ):
            return NONE_REFUSED
        caller, operation = asker.caller, row.operation
        if asker.node_id is not None and operation in _OF_NODES:
            return NONE_REFUSED
        errors: dict[int, ApiError] = {}
        allows, entries = self.authorizer.allows, image.acl_index
        for index, item in enumerate(getattr(body, row.items)):
            resource = row.resource(item)
            if resource is not None and not allows(entries, caller, operation, resource):
                errors[index] = refusal(caller, operation, resource, f"{row.items}[{index}]")
        return errors


def refusal(
    caller: Caller, operation: AclOperation, resource: Resource, field: str = ""
) -> ApiError:
    """Return the refusal of an operation: the same whether the resource exists or not."""
    code = _CODES.get(resource.type, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return ApiError(
        code,
        f"{caller.principal or 'nobody'} from {caller.host or 'an unknown host'} may not"
        f" {operation.name} {resource.type.name} {resource.name[:249]!r}",
        field=field,
    )


def authorization_of(settings: Settings) -> Authorization | None:
    """Return the authorization; None: every peer has all permissions."""
    if not settings.authorizer_class_name:
        return None
    return Authorization(
        Authorizer(parse_super_users(settings.super_users), settings.allow_everyone_if_no_acl_found)
    )

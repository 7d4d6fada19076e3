"""Check requests by the table of permissions, and filter answers.

Pure. A node without an authorizer has no ``Authorization`` and checks nothing.
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
"""Refusals by item index."""
NONE_REFUSED: Refused = {}

_CODES = {
    AclResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    AclResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
}

NAMED_CONFIGS = frozenset({ConfigResourceType.TOPIC, ConfigResourceType.GROUP})
"""Resource types whose configs do not belong to the cluster."""
_ALTER_CONFIGS = AclOperation.ALTER_CONFIGS
_OF_NODES = frozenset({AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION})


class HasAcls(Protocol):
    """An image, or a draft of one."""

    @property
    def acl_index(self) -> AclIndex:
        """Index of the access control entries."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The sender of a request; ``node_id`` is the node that sends it in its own name, or None if
    the sender is not a node.
    """

    caller: Caller
    node_id: int | None = None

    @classmethod
    def of(cls, client: common_pb2.ClientIdentity) -> Asker:
        """Return the sender that the client's node has recorded in the request."""
        node_id = client.node_id if client.HasField("node_id") else None
        return cls(Caller(client.principal, client.host), node_id)


@dataclass(frozen=True, slots=True)
class Authorization:
    """Checks requests with a node's authorizer, against the node's newest image."""

    authorizer: Authorizer

    def check(self, row: Row | None, body: Any, asker: Asker, image: HasAcls) -> Refused:
        """Return the refused items, by index.

        Raises ApiError if the whole request is refused; always, if ``row`` is None.
        """
        # Exact types instead of isinstance: every write passes here.
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
            raise ApiError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                "this kind of request has no permission rule, so it is refused",
            )
        # The guard has checked OfNode; leave_out checks the answer to a Listed request.
        return NONE_REFUSED

    def leave_out(self, row: Listed, response: Any, asker: Asker, image: HasAcls) -> None:
        """Remove the items that the receiver may not read from an answer."""
        items = getattr(response, row.items)
        shown = [
            item
            for item in items
            if self.allows(asker, AclOperation.DESCRIBE, row.resource(item), image)
        ]
        if len(shown) < len(items):
            # Copies, as deleting clears the items.
            kept = [type(item).FromString(item.SerializeToString()) for item in shown]
            del items[:]
            items.extend(kept)
        if row.of_cluster and not self.allows(asker, AclOperation.DESCRIBE, CLUSTER, image):
            for field in row.of_cluster:
                response.ClearField(field)

    def allows(
        self, asker: Asker, operation: AclOperation, resource: Resource, image: HasAcls
    ) -> bool:
        """Return whether an operation is permitted.

        A node may read the log and describe everything in its own name.
        """
        if asker.node_id is not None and operation in _OF_NODES:
            return True
        return self.authorizer.allows(image.acl_index, asker.caller, operation, resource)

    def check_one(
        self, asker: Asker, operation: AclOperation, resource: Resource, image: HasAcls
    ) -> None:
        """Raise ApiError if an operation is not permitted."""
        if not self.allows(asker, operation, resource, image):
            raise refusal(asker.caller, operation, resource)

    def permitted(
        self, writes: ConfigWrites, begin: int, end: int, asker: Asker, image: HasAcls
    ) -> int:
        """Return how many requests of a group, from index ``begin`` (inclusive) to ``end``
        (exclusive), precede the first one that is not permitted.

        Each resource is checked once, as all requests of a group have the same principal.
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
    """Return the refusal of an operation, which is the same whether or not the resource exists."""
    code = _CODES.get(resource.type, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return ApiError(
        code,
        f"{caller.principal or 'an unknown principal'} from {caller.host or 'an unknown host'} may"
        " not"
        f" {operation.name} {resource.type.name} {resource.name[:249]!r}",
        field=field,
    )


def authorization_of(settings: Settings) -> Authorization | None:
    """Return the authorization of a node, or None if every peer has all permissions."""
    if not settings.authorizer_class_name:
        return None
    return Authorization(
        Authorizer(parse_super_users(settings.super_users), settings.allow_everyone_if_no_acl_found)
    )

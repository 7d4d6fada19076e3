"""Cells of the permission matrix: the expected verdict of each caller, listener and request."""

from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from matrix_callers import (
    BY_NAME,
    HOST,
    LISTENERS,
    MINE,
    NOBODYS,
    OWN,
    SUFFIX,
    SUPER_USERS,
    THEIRS,
    Caller,
    Certificate,
    Listener,
    Rpc,
    Token,
)
from matrix_requests import Facts, request_of

from raftlog.errors import ErrorCode
from raftlog.metadata import acls
from raftlog.node.security import permissions
from raftlog.node.security.client_listeners import OF_CLIENTS, OF_NODES
from raftlog.transport.admission import OPEN_METHOD
from raftlog.transport.api import WATCHES, Conversation


def allows(
    entries: Sequence[acls.Binding],
    principal: str,
    operation: acls.AclOperation,
    resource: acls.Resource,
) -> bool:
    """Kafka's rules."""
    if principal in SUPER_USERS:
        return True
    about = [
        one
        for one in entries
        if one.resource_type == resource.type
        and one.principal in (principal, acls.ANYBODY)
        and one.host in (acls.ANY_HOST, HOST)
        and (
            resource.name.startswith(one.resource_name)
            if one.pattern_type == acls.PatternType.PREFIXED
            else one.resource_name in (resource.name, acls.ALL_RESOURCES)
        )
    ]
    denying = {operation, acls.AclOperation.ALL}
    if any(
        one.permission_type == acls.AclPermission.DENY and one.operation in denying for one in about
    ):
        return False
    allowing = denying | acls.IMPLIED_BY.get(operation, frozenset())
    return any(one.operation in allowing for one in about)


def code_of(resource: acls.Resource) -> ErrorCode:
    """Return the error code of a refusal."""
    return {
        acls.AclResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        acls.AclResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    }.get(resource.type, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


NONE = ErrorCode.NONE


class Kind(Enum):
    """The outcome of a request."""

    NO_CONNECTION = "no connection"
    UNAUTHENTICATED = "unauthenticated"
    ABSENT = "not there"
    REFUSED = "refused"
    PARTLY = "in part"
    ALLOWED = "allowed"
    UNDECIDED = "undecided"
    """The answer does not tell whether it was let in: no table says this."""


class Verdict(NamedTuple):
    """``codes``: of the whole request, or of each item; NONE: it is not refused.

    ``shown``: of a listing, the names that are in it.
    """

    kind: Kind
    codes: tuple[ErrorCode, ...] = ()
    shown: frozenset[str] | None = None

    def __str__(self) -> str:
        shown = "" if self.shown is None else f" showing {', '.join(sorted(self.shown))}"
        return f"{self.kind.value}{shown} {' '.join(one.name for one in self.codes)}".rstrip()


NO_CONNECTION, UNAUTHENTICATED, ABSENT, ALLOWED = (
    Verdict(kind) for kind in (Kind.NO_CONNECTION, Kind.UNAUTHENTICATED, Kind.ABSENT, Kind.ALLOWED)
)


class Case(NamedTuple):
    """One cell of the matrix."""

    caller: Caller
    listener: Listener
    rpc: Rpc
    verdict: Verdict

    def __str__(self) -> str:
        return f"{self.caller.name} on {self.listener.name}: {self.rpc}"


def of_whole(code: ErrorCode) -> Verdict:
    """Return the expected outcome of a request that is refused as a whole or not at all."""
    return ALLOWED if code is NONE else Verdict(Kind.REFUSED, (code,))


def of_items(codes: Collection[ErrorCode]) -> Verdict:
    """Return the expected outcome of a request whose items are refused one by one."""
    if not any(codes):
        return Verdict(Kind.ALLOWED, tuple(codes))
    return Verdict(Kind.REFUSED if all(codes) else Kind.PARTLY, tuple(codes))


def of_names(shown: Collection[str], there: int) -> Verdict:
    """Return the expected outcome of a listing that shows a part of what exists."""
    kind = Kind.ALLOWED if len(shown) == there else Kind.PARTLY if shown else Kind.REFUSED
    return Verdict(kind, (), frozenset(shown))


OF_NODES_IN_THEIR_NAME = {acls.AclOperation.DESCRIBE, acls.AclOperation.CLUSTER_ACTION}


class Asker(NamedTuple):
    """The principal that the node derives for a caller."""

    principal: str
    node_id: int | None


def verdict_of(caller: Caller, listener: Listener, rpc: Rpc, facts: Facts) -> Verdict:
    """Return the verdict of the tables."""
    if listener.certificates and caller.certificate is not Certificate.GOOD:
        return NO_CONNECTION
    if not _is_served(rpc, listener):
        return ABSENT
    if rpc.path == OPEN_METHOD:
        return ALLOWED
    if caller.token not in (Token.GOOD, Token.NONE) or (
        caller.token is Token.NONE and not listener.certificates
    ):
        return UNAUTHENTICATED
    if rpc.of_grpc:
        return ALLOWED
    return _of_asker(_asker(caller, listener, rpc), listener, rpc, caller, facts)


def node_of(caller: Caller, listener: Listener) -> int | None:
    """Return the node that a caller is on a listener."""
    shown = listener.of_nodes and caller.certificate is Certificate.GOOD
    return named_node(caller) if shown else None


def named_node(caller: Caller) -> int | None:
    """Return the node that a caller's certificate names, whoever signed it."""
    before, _, number = caller.common_name.partition("-")
    return int(number) if before == "node" else None


def row_of(rpc: Rpc) -> permissions.Row:
    """Raises KeyError for a request without one."""
    if rpc.carried or (rpc.method.service.endswith(".Controller") and rpc.body):
        return permissions.CONTROLLER[rpc.kind]
    if rpc.conversation in WATCHES:
        # Of brokers, see matrix_requests.py: without the right to see them it is refused.
        return permissions.Whole(permissions.WATCH["broker"].operation)
    if rpc.method.service.endswith(".Broker"):
        return permissions.BROKER[rpc.kind]
    return permissions.QUORUM[rpc.kind] if rpc.body else permissions.LOG[rpc.kind]


def _is_served(rpc: Rpc, listener: Listener) -> bool:
    if listener.of_nodes or rpc.of_grpc:
        return True
    if rpc.conversation is not None:
        return rpc.conversation in OF_CLIENTS
    return rpc.role != "controller" or rpc.body not in OF_NODES


def _asker(caller: Caller, listener: Listener, rpc: Rpc) -> Asker:
    name = caller.subject if caller.token is Token.GOOD else caller.common_name
    node_id = node_of(caller, listener) if rpc.role == "controller" else None
    if node_id is not None and caller.states and rpc.conversation is Conversation.CONTROLLER:
        # It forwards.
        return Asker(caller.states, None)
    return Asker(f"User:{name}", node_id)


def _of_asker(asker: Asker, listener: Listener, rpc: Rpc, caller: Caller, facts: Facts) -> Verdict:
    row = row_of(rpc)
    claims_node = isinstance(row, permissions.OfNode) or (
        rpc.conversation in (Conversation.REPLICATION, Conversation.SNAPSHOT, Conversation.OBSERVER)
        and rpc.variant != NOBODYS
    )
    if claims_node:
        # Through a broker nobody is a node.
        node_id = node_of(caller, listener)
        is_itself = not rpc.carried and rpc.variant == OWN and node_id is not None
        if row is permissions.QUORUM.get(rpc.kind) and rpc.conversation is Conversation.QUORUM:
            # Brokers neither vote nor lead.
            is_itself &= node_id in facts.directories or node_id not in facts.broker_epochs
        return ALLOWED if is_itself else of_whole(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    body = request_of(rpc, named_node(caller), facts)

    def may(operation: acls.AclOperation, resource: acls.Resource) -> bool:
        if asker.node_id is not None and operation in OF_NODES_IN_THEIR_NAME:
            return True
        return allows(facts.entries, asker.principal, operation, resource)

    def item(operation: acls.AclOperation, resource: acls.Resource | None) -> ErrorCode:
        return NONE if resource is None or may(operation, resource) else code_of(resource)

    match row:
        case permissions.OfAnybody():
            return ALLOWED
        case permissions.Whole():
            own = row.own_field and asker.node_id == getattr(body, row.own_field)
            return ALLOWED if own else of_whole(item(row.operation, row.resource(body)))
        case permissions.Each():
            if row.instead is not None and may(row.instead.operation, row.instead.resource(body)):
                return of_items([NONE for _ in getattr(body, row.items)])
            return of_items(
                [item(row.operation, row.resource(one)) for one in getattr(body, row.items)]
            )
        case permissions.All():
            codes = [item(row.operation, row.resource(one)) for one in getattr(body, row.items)]
            return of_whole(next((code for code in codes if code is not NONE), NONE))
        case permissions.EachPartition():
            names = [facts.topics.get(one.topic_id) for one in body.partitions]
            return of_items(
                [
                    item(row.operation, None if one is None else permissions.topic(one))
                    for one in names
                ]
            )
        case permissions.Listed() if rpc.variant == BY_NAME:
            return of_items(
                [item(acls.AclOperation.DESCRIBE, permissions.topic(one)) for one in body.topics]
            )
        case permissions.Listed():
            return _listed(row, may)
        case permissions.OfNode() | permissions.Forwarded():
            raise AssertionError(row)


def _listed(row: permissions.Listed, may: Any) -> Verdict:
    resources = [row.resource(_Named(begin)) for begin in (MINE, THEIRS)]
    names = [
        acls.Resource(one.type, begin + SUFFIX[one.type])
        for one, begin in zip(resources, (MINE, THEIRS), strict=True)
    ]
    shown = [one.name for one in names if may(acls.AclOperation.DESCRIBE, one)]
    return of_names(shown, len(names))


class _Named:
    """Any item of a listing, by name alone."""

    def __init__(self, name: str) -> None:
        self.name = self.hostname = self.key = name


def cases_of(everybody: Iterable[Caller], rpcs: Sequence[Rpc], facts: Facts) -> list[Case]:
    """Yield every request by every caller everywhere; under its own id if it has one."""
    return [
        Case(caller, listener, rpc, verdict_of(caller, listener, rpc, facts))
        for caller in everybody
        for listener in LISTENERS
        for rpc in rpcs
        if rpc.variant != OWN or named_node(caller) is not None
    ]

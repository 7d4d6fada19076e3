"""What the tables of permissions say of each case: rows in, verdict out. Pure.

``permissions.py`` says what a request needs, ``node_claims.py`` under which node's id it is sent,
``client_listeners.py`` what a listener of clients has. Nothing here names the verdict of a request.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from matrix_callers import (
    MINE,
    SUFFIX,
    THEIRS,
    Caller,
    Certificate,
    Listener,
    Token,
)
from matrix_cases import (
    ABSENT,
    ALLOWED,
    NO_CONNECTION,
    NONE,
    UNAUTHENTICATED,
    Verdict,
    of_items,
    of_names,
    of_whole,
)
from matrix_entries import allows, code_of
from matrix_facts import Facts
from matrix_requests import request_of
from matrix_rpcs import BY_NAME, NOBODYS, OWN, Rpc

from raftlog.errors import ErrorCode
from raftlog.metadata.acls import (
    AclOperation,
    Resource,
)
from raftlog.node.security.client_listeners import OF_CLIENTS, OF_NODES
from raftlog.node.security.permissions import (
    BROKER,
    CONTROLLER,
    LOG,
    QUORUM,
    WATCH,
    All,
    Each,
    EachPartition,
    Forwarded,
    Listed,
    OfAnybody,
    OfNode,
    Row,
    Whole,
    topic,
)
from raftlog.transport.admission import OPEN_METHOD
from raftlog.transport.api import WATCHES, Conversation

OF_NODES_IN_THEIR_NAME = {AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION}


class Asker(NamedTuple):
    """Whom the node takes the caller for."""

    principal: str
    node_id: int | None


def verdict_of(caller: Caller, listener: Listener, rpc: Rpc, facts: Facts) -> Verdict:
    """What the tables say."""
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
    """The node that a caller is on a listener."""
    shown = listener.of_nodes and caller.certificate is Certificate.GOOD
    return named_node(caller) if shown else None


def named_node(caller: Caller) -> int | None:
    """The node that a caller's certificate names, whoever has signed it."""
    before, _, number = caller.common_name.partition("-")
    return int(number) if before == "node" else None


def row_of(rpc: Rpc) -> Row:
    """Raises KeyError for a request without one."""
    if rpc.carried or (rpc.method.service.endswith(".Controller") and rpc.body):
        return CONTROLLER[rpc.kind]
    if rpc.conversation in WATCHES:
        # Of brokers, see matrix_requests.py: without the right to see them it is refused.
        return Whole(WATCH["broker"].operation)
    if rpc.method.service.endswith(".Broker"):
        return BROKER[rpc.kind]
    return QUORUM[rpc.kind] if rpc.body else LOG[rpc.kind]


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
    claims_node = isinstance(row, OfNode) or (
        rpc.conversation in (Conversation.REPLICATION, Conversation.SNAPSHOT, Conversation.OBSERVER)
        and rpc.variant != NOBODYS
    )
    if claims_node:
        # Through a broker nobody is a node.
        node_id = node_of(caller, listener)
        is_itself = not rpc.carried and rpc.variant == OWN and node_id is not None
        if row is QUORUM.get(rpc.kind) and rpc.conversation is Conversation.QUORUM:
            # Brokers neither vote nor lead.
            is_itself &= node_id in facts.directories or node_id not in facts.broker_epochs
        return ALLOWED if is_itself else of_whole(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    body = request_of(rpc, named_node(caller), facts)

    def may(operation: AclOperation, resource: Resource) -> bool:
        if asker.node_id is not None and operation in OF_NODES_IN_THEIR_NAME:
            return True
        return allows(facts.entries, asker.principal, operation, resource)

    def item(operation: AclOperation, resource: Resource | None) -> ErrorCode:
        return NONE if resource is None or may(operation, resource) else code_of(resource)

    match row:
        case OfAnybody():
            return ALLOWED
        case Whole():
            own = row.own_field and asker.node_id == getattr(body, row.own_field)
            return ALLOWED if own else of_whole(item(row.operation, row.resource(body)))
        case Each():
            if row.instead is not None and may(row.instead.operation, row.instead.resource(body)):
                return of_items([NONE for _ in getattr(body, row.items)])
            return of_items(
                [item(row.operation, row.resource(one)) for one in getattr(body, row.items)]
            )
        case All():
            codes = [item(row.operation, row.resource(one)) for one in getattr(body, row.items)]
            return of_whole(next((code for code in codes if code is not NONE), NONE))
        case EachPartition():
            names = [facts.topics.get(one.topic_id) for one in body.partitions]
            return of_items(
                [item(row.operation, None if one is None else topic(one)) for one in names]
            )
        case Listed() if rpc.variant == BY_NAME:
            return of_items([item(AclOperation.DESCRIBE, topic(one)) for one in body.topics])
        case Listed():
            return _listed(row, may)
        case OfNode() | Forwarded():
            raise AssertionError(row)


def _listed(row: Listed, may: Any) -> Verdict:
    resources = [row.resource(_Named(begin)) for begin in (MINE, THEIRS)]
    names = [
        Resource(one.type, begin + SUFFIX[one.type])
        for one, begin in zip(resources, (MINE, THEIRS), strict=True)
    ]
    shown = [one.name for one in names if may(AclOperation.DESCRIBE, one)]
    return of_names(shown, len(names))


class _Named:
    """Any item of a listing, by name alone."""

    def __init__(self, name: str) -> None:
        self.name = self.hostname = self.key = name

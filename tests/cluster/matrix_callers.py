"""Who calls, in the matrix of permissions: what each shows on a listener, and what entries say."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from raftlog.metadata.acls import (
    ALL_RESOURCES,
    ANY_HOST,
    CLUSTER_NAME,
    OPERATIONS_OF,
    AclOperation,
    AclPermission,
    AclResourceType,
    Binding,
    PatternType,
)

HOST, ELSEWHERE = "127.0.0.1", "10.9.9.9"
ADMIN, WITHOUT, LITERAL, PREFIXED = "admin", "without", "literal", "prefixed"
DENIED, DENIED_PART = "denied", "denied-part"
SUPER_USERS = frozenset({f"User:{ADMIN}"})
MINE, THEIRS = "mine-", "theirs-"
"""What the names of resources begin with: some callers have rights on the first, and nobody but
those with rights on everything has any on the second.
"""
SUFFIX = {
    AclResourceType.TOPIC: "topic",
    AclResourceType.GROUP: "group",
    AclResourceType.CLIENT_SESSION: "session",
    AclResourceType.HOSTNAME: "host",
    AclResourceType.EXPORT_CURSOR: "cursor",
    AclResourceType.KEY_VALUE: "key",
}
GONE = "gone"
"""Of a topic that is not there."""
Op, Perm, Pattern = AclOperation, AclPermission, PatternType
ALONE = tuple(one for one in Op if one > Op.ALL)
"""Operations that a caller of their own may do, on everything, and nothing else."""


class Listener(NamedTuple):
    """One of each node's three."""

    name: str
    of_nodes: bool
    certificates: bool
    """Whether TLS fails without one (ssl.client.auth = required)."""


INTERNAL = Listener("INTERNAL", of_nodes=True, certificates=True)
CLIENTS = Listener("CLIENTS", of_nodes=False, certificates=True)
TOKENS = Listener("TOKENS", of_nodes=False, certificates=False)
LISTENERS = (INTERNAL, CLIENTS, TOKENS)


class Certificate(Enum):
    """Whose certificate a caller shows, if any."""

    NONE = "none"
    GOOD = "of the listener's authority"
    FOREIGN = "of the authority of another listener"
    EXPIRED = "of the listener's authority, expired"


class Token(Enum):
    """Which token a caller shows, if any."""

    NONE = "none"
    GOOD = "valid"
    EXPIRED = "expired"
    FORGED = "signed with another key"
    ELSEWHERE = "for another audience"


class Caller(NamedTuple):
    """``common_name``: of the certificate; ``subject``: of the token.

    ``states``: the principal that it writes into its requests itself: only a node is believed.
    """

    name: str
    certificate: Certificate
    common_name: str = ""
    token: Token = Token.NONE
    subject: str = ""
    states: str = f"User:{ADMIN}"


class Nodes(NamedTuple):
    """The nodes whose certificates callers have. ``victim_…``: in whose name others speak."""

    broker: int
    victim_broker: int
    controller: int
    victim_controller: int
    removed: int


def callers(nodes: Nodes) -> list[Caller]:
    """All of them."""
    good, admin = Certificate.GOOD, ADMIN
    broker, controller, removed = (
        f"node-{one}" for one in (nodes.broker, nodes.controller, nodes.removed)
    )
    plain = (WITHOUT, LITERAL, PREFIXED, DENIED, DENIED_PART, admin, *map(alone, ALONE))
    return [
        Caller("no certificate", Certificate.NONE),
        Caller("another CA's admin", Certificate.FOREIGN, admin),
        Caller("another CA's node", Certificate.FOREIGN, controller),
        Caller("expired admin", Certificate.EXPIRED, admin),
        Caller("expired node", Certificate.EXPIRED, controller),
        *(Caller(one, good, one) for one in plain),
        Caller("broker", good, broker, states=""),
        Caller("broker for without", good, broker, states=f"User:{WITHOUT}"),
        Caller("broker for admin", good, broker, states=f"User:{admin}"),
        Caller("controller", good, controller, states=""),
        Caller("removed voter", good, removed, states=""),
        Caller("token of admin alone", Certificate.NONE, "", Token.GOOD, admin),
        Caller("token of without", good, admin, Token.GOOD, WITHOUT),
        Caller("token of literal", good, WITHOUT, Token.GOOD, LITERAL),
        Caller("token of prefixed", good, admin, Token.GOOD, PREFIXED),
        Caller("token named as a node", good, WITHOUT, Token.GOOD, broker),
        Caller("token with a broker's cert", good, broker, Token.GOOD, WITHOUT, states=""),
        *(
            Caller(f"token {one.value}", good, admin, one, admin)
            for one in (Token.EXPIRED, Token.FORGED, Token.ELSEWHERE)
        ),
    ]


def alone(operation: AclOperation) -> str:
    """The name of the caller that has this operation only."""
    return f"only-{operation.name.lower().replace('_', '-')}"


def entries() -> list[Binding]:
    """What the cluster's entries say."""
    return [
        *_on_everything(WITHOUT, Op.ALL, Perm.ALLOW, host=ELSEWHERE),
        *_named(LITERAL, MINE, Pattern.LITERAL, Perm.ALLOW, host=HOST),
        *_named(PREFIXED, MINE, Pattern.PREFIXED, Perm.ALLOW),
        *_on_everything(DENIED, Op.ALL, Perm.ALLOW),
        *_on_everything(DENIED, Op.ALL, Perm.DENY, host=HOST),
        *_on_everything(DENIED_PART, Op.ALL, Perm.ALLOW),
        *_on_everything(DENIED_PART, Op.ALL, Perm.DENY, host=ELSEWHERE),
        *_named(DENIED_PART, THEIRS, Pattern.PREFIXED, Perm.DENY),
        _entry(AclResourceType.CLUSTER, CLUSTER_NAME, DENIED_PART, Op.ALTER, Perm.DENY),
        _entry(AclResourceType.CLUSTER, CLUSTER_NAME, DENIED_PART, Op.CREATE, Perm.DENY),
        *(one for op in ALONE for one in _on_everything(alone(op), op, Perm.ALLOW)),
    ]


def _entry(
    type_: AclResourceType, name: str, who: str, operation: AclOperation, permission: AclPermission,
    pattern: PatternType = Pattern.LITERAL, host: str = ANY_HOST,
) -> Binding:  # fmt: skip
    return Binding(type_, name, pattern, f"User:{who}", host, operation, permission)


def _on_everything(
    who: str, operation: AclOperation, permission: AclPermission, host: str = ANY_HOST
) -> list[Binding]:
    return [
        _entry(
            type_, CLUSTER_NAME if type_ is AclResourceType.CLUSTER else ALL_RESOURCES, who,
            operation, permission, host=host,
        )
        for type_, possible in OPERATIONS_OF.items()
        if operation is Op.ALL or operation in possible
    ]  # fmt: skip


def _named(
    who: str, begin: str, pattern: PatternType, permission: AclPermission, host: str = ANY_HOST
) -> list[Binding]:
    """On the resources whose names begin so; by literals on the cluster, too."""
    literal = pattern is Pattern.LITERAL
    found = [
        _entry(type_, begin + (suffix if literal else ""), who, Op.ALL, permission, pattern, host)
        for type_, suffix in SUFFIX.items()
    ]
    if literal:
        found += (
            _entry(AclResourceType.TOPIC, begin + GONE, who, Op.ALL, permission, host=host),
            _entry(AclResourceType.CLUSTER, CLUSTER_NAME, who, Op.ALL, permission, host=host),
        )
    return found

"""Callers and requests of the permission matrix."""

from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass

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
from raftlog.node.security.node_claims import CONTROLLER_CLAIMS, QUORUM_CLAIMS
from raftlog.node.security.permissions import CONTROLLER, LOG, Whole
from raftlog.transport.api import WATCHES, Conversation
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.node.v1 import node_pb2 as node
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

HOST, ELSEWHERE = "127.0.0.1", "10.9.9.9"
ADMIN, WITHOUT, LITERAL, PREFIXED = "admin", "without", "literal", "prefixed"
DENIED, DENIED_PART = "denied", "denied-part"
SUPER_USERS = frozenset({f"User:{ADMIN}"})
MINE, THEIRS = "mine-", "theirs-"
"""Name prefixes of resources: some callers have rights on the first; only those with rights on
everything have any on the second.
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
"""Name of a topic that does not exist."""
Op, Perm, Pattern = AclOperation, AclPermission, PatternType
ALONE = tuple(one for one in Op if one > Op.ALL)
"""Operations that a caller of their own may do, on everything, and nothing else."""


class Listener(NamedTuple):
    """One of each node's three."""

    name: str
    of_nodes: bool
    certificates: bool
    """True if TLS fails without one (ssl.client.auth = required)."""


INTERNAL = Listener("INTERNAL", of_nodes=True, certificates=True)
CLIENTS = Listener("CLIENTS", of_nodes=False, certificates=True)
TOKENS = Listener("TOKENS", of_nodes=False, certificates=False)
LISTENERS = (INTERNAL, CLIENTS, TOKENS)


class Certificate(Enum):
    """The certificate that a caller presents, if any."""

    NONE = "none"
    GOOD = "of the listener's authority"
    FOREIGN = "of the authority of another listener"
    EXPIRED = "of the listener's authority, expired"


class Token(Enum):
    """The token that a caller presents, if any."""

    NONE = "none"
    GOOD = "valid"
    EXPIRED = "expired"
    FORGED = "signed with another key"
    ELSEWHERE = "for another audience"


class Caller(NamedTuple):
    """``common_name``: of the certificate; ``subject``: of the token. ``states``: the principal
    that it writes into its requests itself, which is believed of nodes only.
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
    """Return the name of the caller that has only this operation."""
    return f"only-{operation.name.lower().replace('_', '-')}"


def entries() -> list[Binding]:
    """Return the access control entries of the cluster."""
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
    """Entries for resources with this name prefix; by literals on the cluster, too."""
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


OWN, OTHERS, NOBODYS = "own id", "another's id", "no id"
"""Under which node's id a request is sent."""
MY_NAME, THEIR_NAME, BY_NAME = "mine", "theirs", "by name"
CONVERSATIONS = {one.value: one for one in Conversation}
_ITEMS: dict[Conversation, Any] = {
    Conversation.QUORUM: quorum.QuorumMessage,
    Conversation.CONTROLLER: controller.ControllerRequest,
    Conversation.BROKER: broker.BrokerRequest,
}
"""Message types of the conversations whose messages have bodies of many kinds."""
_UNARY_ITEMS = {"Controller": controller.ControllerRequest, "Broker": broker.BrokerRequest}


class Method(NamedTuple):
    """A method as server reflection describes it."""

    service: str
    name: str
    streams: bool


class Rpc(NamedTuple):
    """One request. ``role``: of the node that serves it, ``body``: the field it is in.

    ``carried``: the body of the write that a broker carries; ``variant``: under which id or name.
    """

    role: str
    method: Method
    body: str = ""
    carried: str = ""
    variant: str = ""

    @property
    def path(self) -> str:
        return f"/{self.method.service}/{self.method.name}"

    @property
    def conversation(self) -> Conversation | None:
        return CONVERSATIONS.get(self.path)

    @property
    def of_grpc(self) -> bool:
        """Health and reflection."""
        return self.method.service.startswith("grpc.")

    @property
    def kind(self) -> str:
        """Its row in the tables."""
        return self.carried or self.body or self.method.name

    def __str__(self) -> str:
        service = self.method.service.rpartition(".")[2]
        parts = (service, self.method.name, self.body, self.carried, self.variant)
        return "/".join(filter(None, parts))


def rpcs_of(role: str, methods: list[Method]) -> list[Rpc]:
    """Return all requests to one role. Raises LookupError for an unknown method."""
    return [one for method in methods for one in _of_method(role, method)]


def _of_method(role: str, method: Method) -> Iterator[Rpc]:
    plain = Rpc(role, method)
    if plain.of_grpc:
        yield plain
    elif plain.conversation in _ITEMS:
        for body in _bodies(_ITEMS[plain.conversation]):
            yield from _of_body(plain._replace(body=body))
    elif plain.conversation in WATCHES:
        yield plain
    elif plain.conversation is not None:
        yield from (plain._replace(variant=one) for one in (NOBODYS, OWN, OTHERS))
    elif method.streams:
        raise LookupError(f"{plain.path} is a stream of no known conversation")
    elif method.name in LOG and method.service.endswith((".Quorum", ".Node")):
        yield plain
    else:
        yield from _of_body(plain._replace(body=_body_of(method)))


def _bodies(item: Any) -> list[str]:
    """Skip responses, which are in some of these oneofs, too."""
    names = [field.name for field in item.DESCRIPTOR.oneofs_by_name["body"].fields]
    return [one for one in names if not one.endswith("_response")]


def _body_of(method: Method) -> str:
    item: Any = _UNARY_ITEMS[method.service.rpartition(".")[2]]
    fields = item.DESCRIPTOR.oneofs_by_name["body"].fields
    return next(one.name for one in fields if one.message_type == types_of(method)[0].DESCRIPTOR)


def _of_body(plain: Rpc) -> Iterator[Rpc]:
    if plain.body == "write":
        for carried in _bodies(controller.ControllerRequest):
            yield from _variants(plain._replace(carried=carried))
    else:
        yield from _variants(plain)


def _variants(plain: Rpc) -> Iterator[Rpc]:
    row = CONTROLLER.get(plain.kind)
    if {**QUORUM_CLAIMS, **CONTROLLER_CLAIMS}.get(plain.kind) or (
        isinstance(row, Whole) and row.own_field
    ):
        variants: tuple[str, ...] = (OWN, OTHERS)
    elif plain.kind in ("open_client", "grant_lease"):
        variants = (MY_NAME, THEIR_NAME)
    elif plain.kind == "metadata":
        variants = ("", BY_NAME)
    else:
        variants = ("",)
    return (plain._replace(variant=one) for one in variants)


def types_of(method: Method) -> tuple[Any, Any]:
    """The messages of a method, those of this build: request and response."""
    pool: Any = descriptor_pool.Default()
    found = pool.FindServiceByName(method.service).methods_by_name[method.name]
    return GetMessageClass(found.input_type), GetMessageClass(found.output_type)


def methods_of_build() -> set[Method]:
    """Return the methods of this build's contracts."""
    return {
        Method(service.full_name, one.name, bool(one.client_streaming))
        for service in SERVICES
        for one in service.methods
    }


SERVICES: list[Any] = [
    *(
        descriptor_pool.Default().FindServiceByName(path[1:].rpartition("/")[0])
        for path in sorted({one.rpartition("/")[0] + "/" for one in CONVERSATIONS})
    ),
    node.DESCRIPTOR.services_by_name["Node"],
]
"""Each but the last has a conversation."""

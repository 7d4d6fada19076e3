"""Every way to ask a node for something, in the matrix of permissions: the methods that reflection
names, and the bodies of their streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf import descriptor_pool
from google.protobuf.message_factory import GetMessageClass

from raftlog.node.security.node_claims import CONTROLLER_CLAIMS, QUORUM_CLAIMS
from raftlog.node.security.permissions import CONTROLLER, LOG, Whole
from raftlog.transport.api import WATCHES, Conversation
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.node.v1 import node_pb2 as node
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum

OWN, OTHERS, NOBODYS = "own id", "another's id", "no id"
"""Under which node's id a request is sent."""
MY_NAME, THEIR_NAME, BY_NAME = "mine", "theirs", "by name"
CONVERSATIONS = {one.value: one for one in Conversation}
_ITEMS: dict[Conversation, Any] = {
    Conversation.QUORUM: quorum.QuorumMessage,
    Conversation.CONTROLLER: controller.ControllerRequest,
    Conversation.BROKER: broker.BrokerRequest,
}
"""What the conversations carry whose messages have bodies of many kinds."""
_UNARY_ITEMS = {"Controller": controller.ControllerRequest, "Broker": broker.BrokerRequest}


class Method(NamedTuple):
    """As reflection tells it."""

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
    """All requests to one role. Raises LookupError for a method that nobody knows."""
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
    """Responses travel in some of these oneofs, too: they ask for nothing."""
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
    """What the contracts of this build have."""
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

"""Requests from their bodies: each body message is one field of its conversation's oneof
``body``.
"""

from __future__ import annotations

from google.protobuf.message import Message

from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2


def _fields_by_body(request: type[Message]) -> dict[type[Message], str]:
    bodies = request.DESCRIPTOR.oneofs_by_name["body"].fields
    return {type(getattr(request(), field.name)): field.name for field in bodies}


_CONTROLLER = _fields_by_body(controller_pb2.ControllerRequest)
_BROKER = _fields_by_body(broker_pb2.BrokerRequest)


def controller_request(
    body: Message,
    *,
    acks: common_pb2.Acks = common_pb2.ACKS_COMMITTED,
    client: common_pb2.ClientIdentity | None = None,
    cluster_id: str = "",
) -> controller_pb2.ControllerRequest:
    """A request to the active controller. Raises TypeError if ``body`` is none of its bodies."""
    request = controller_pb2.ControllerRequest(cluster_id=cluster_id, acks=acks, client=client)
    getattr(request, _field(_CONTROLLER, body)).CopyFrom(body)
    return request


def broker_request(body: Message, *, cluster_id: str = "") -> broker_pb2.BrokerRequest:
    """A request to a broker. Raises TypeError if ``body`` is none of its bodies."""
    request = broker_pb2.BrokerRequest(cluster_id=cluster_id)
    getattr(request, _field(_BROKER, body)).CopyFrom(body)
    return request


def _field(fields: dict[type[Message], str], body: Message) -> str:
    name = fields.get(type(body))
    if name is None:
        raise TypeError(f"{type(body).__name__} is no request of this conversation")
    return name


def joined(
    first: controller_pb2.ControllerResponse, last: controller_pb2.ControllerResponse
) -> controller_pb2.ControllerResponse:
    """Return the first response to a write, with the level that it has reached by the last one."""
    if not last.HasField("write"):
        return first
    if (body := first.WhichOneof("body")) is not None:
        getattr(last, body).CopyFrom(getattr(first, body))
    last.write.duplicate = first.write.duplicate
    last.write.reached = max(first.write.reached, last.write.reached)
    return last

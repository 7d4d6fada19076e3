"""Requests built from their bodies, and the errors, refused items and retry delays in responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

from raftlog.descriptors import is_repeated
from raftlog.errors import ApiError, ClientClosedError, ErrorCode, ItemsRefusedError
from raftlog.transport.links import Backoff
from raftlog.transport.statuses import error_from_wire
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
    principal: str = "",
    cluster_id: str = "",
) -> controller_pb2.ControllerRequest:
    """Return a request with this body; a whole request is returned unchanged. Raises TypeError."""
    if isinstance(body, controller_pb2.ControllerRequest):
        return body
    request = controller_pb2.ControllerRequest(cluster_id=cluster_id, acks=acks, client=client)
    if principal:
        request.client.principal = principal
    getattr(request, _field(_CONTROLLER, body)).CopyFrom(body)
    return request


def timeout_ms(timeout_s: float) -> int:
    """Return a timeout in whole milliseconds, at least one."""
    return max(1, int(timeout_s * 1000))


def broker_request(body: Message, *, cluster_id: str = "") -> broker_pb2.BrokerRequest:
    """Return a request to a broker. Raises TypeError if ``body`` is not one of its bodies."""
    request = broker_pb2.BrokerRequest(cluster_id=cluster_id)
    getattr(request, _field(_BROKER, body)).CopyFrom(body)
    return request


def _field(fields: dict[type[Message], str], body: Message) -> str:
    name = fields.get(type(body))
    if name is None:
        raise TypeError(f"{type(body).__name__} is not a request in this conversation")
    return name


def joined(
    first: controller_pb2.ControllerResponse, last: controller_pb2.ControllerResponse
) -> controller_pb2.ControllerResponse:
    """Return the first response to a write, with the level that the last one reached."""
    if not last.HasField("write"):
        return first
    if (body := first.WhichOneof("body")) is not None:
        getattr(last, body).CopyFrom(getattr(first, body))
    last.write.duplicate = first.write.duplicate
    last.write.reached = max(first.write.reached, last.write.reached)
    return last


_ERROR = common_pb2.Error.DESCRIPTOR
_NO_REFUSAL = frozenset({ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED})
"""Codes of items that are already in the requested state."""


class RefusedItemsError(ItemsRefusedError):
    """At least one item of a write was refused. The others were written: see ``response.write``."""

    def __init__(self, errors: list[ApiError], response: controller_pb2.ControllerResponse) -> None:
        super().__init__(errors, leader_id=response.leader_id)
        self.response = response


def check_items(response: controller_pb2.ControllerResponse) -> controller_pb2.ControllerResponse:
    """Return the response if no item was refused. Raises RefusedItemsError."""
    kind = response.WhichOneof("body")
    if kind is not None:
        errors = list(_refused(getattr(response, kind)))
        if errors:
            raise RefusedItemsError(errors, response)
    return response


def _refused(message: Message) -> Iterator[ApiError]:
    for name in _lists(message.DESCRIPTOR):
        for item in getattr(message, name):
            error = item_error(item)
            if error is not None and error.code not in _NO_REFUSAL:
                yield error
            yield from _refused(item)


def item_error(item: Any, message: str = "", *, field: str = "") -> ApiError | None:
    """Return the error of an item, or None. ``message`` and ``field``: for an error that has only a
    code.
    """
    fields = item.DESCRIPTOR.fields_by_name
    if "error" in fields and fields["error"].message_type is _ERROR:
        return error_from_wire(item.error) if item.error.error_code else None
    if "error_code" not in fields or not item.error_code:
        return None
    return error_from_wire(
        common_pb2.Error(
            error_code=item.error_code,
            error_message=getattr(item, "error_message", "") or message,
            field=field,
            outcome_unknown=getattr(item, "outcome_unknown", False),
        )
    )


@cache
def _lists(descriptor: Descriptor) -> tuple[str, ...]:
    """Return the names of a message's fields that are lists of messages."""
    return tuple(
        field.name
        for field in descriptor.fields
        if is_repeated(field) and field.type == FieldDescriptor.TYPE_MESSAGE
    )


THROTTLE_MAX_S = 30.0
"""Longest wait in seconds that a server can impose: a call's deadline may be distant, or
missing.
"""


def pause_after(error: ApiError, backoff_s: float) -> float:
    """Return the pause in seconds: at least the back-off and the server's ``throttle_time_ms``."""
    return max(backoff_s, min(error.throttle_time_ms / 1000, THROTTLE_MAX_S))


async def happens(event: asyncio.Event, within_s: float) -> bool:
    """Wait for an event. Return False if the timeout passes first."""
    try:
        async with asyncio.timeout(within_s):
            return await event.wait()
    except TimeoutError:
        return False


def retrying(deadline: float, pauses: Backoff, closed: asyncio.Event) -> AsyncRetrying:
    """Return a retrier that repeats a call after each retriable ApiError, with the pauses that the
    server demands, until the deadline on the loop's clock; it then raises the last error. Raises
    ClientClosedError in a pause when ``closed`` is set.
    """
    loop = asyncio.get_running_loop()

    def pause_s(state: RetryCallState) -> float:
        error = state.outcome and state.outcome.exception()
        assert isinstance(error, ApiError)
        return pause_after(error, pauses.next_s())

    async def pause(for_s: float) -> None:
        if await happens(closed, for_s):
            raise ClientClosedError()

    return AsyncRetrying(
        sleep=pause,
        retry=retry_if_exception(lambda error: isinstance(error, ApiError) and error.retriable),
        wait=pause_s,
        stop=lambda state: loop.time() + state.upcoming_sleep >= deadline,
        reraise=True,
    )


Response = TypeVar("Response", broker_pb2.BrokerResponse, controller_pb2.ControllerResponse)


def require_success(response: Response) -> Response:
    """Return the response if it has no error; otherwise raise that as ApiError."""
    if response.HasField("error"):
        raise error_from_wire(
            response.error,
            leader_id=getattr(response, "leader_id", -1),
            leader_endpoint=getattr(response, "leader_endpoint", ""),
        )
    return response

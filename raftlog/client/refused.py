"""Items of a write that were refused: many requests have a result for each item, and each is its
own success or failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from raftlog.descriptors import is_repeated
from raftlog.errors import ApiError, ErrorCode, ItemsRefusedError
from raftlog.transport.wire_errors import error_from_wire
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2

_ERROR = common_pb2.Error.DESCRIPTOR
_NO_REFUSAL = frozenset({ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED})
"""Codes of items that are as the request wants them."""
_NAMED_MAX = 10


class RefusedItemsError(ItemsRefusedError):
    """At least one item of a write was refused.

    The items that were not are written: ``response.write`` says where.

    ``code``, ``message`` and ``field`` are those of the item if it is the only one that was
    refused, else the first one's with the others in the message. ``errors`` has the error of each
    refused item, in the order of the request.
    """

    def __init__(self, errors: list[ApiError], response: controller_pb2.ControllerResponse) -> None:
        first = errors[0]
        super().__init__(
            first.code, _summary(errors), field=first.field, leader_id=response.leader_id
        )
        self.errors = errors
        self.response = response


def check_items(response: controller_pb2.ControllerResponse) -> controller_pb2.ControllerResponse:
    """The response, unless it says that an item was refused: then that is raised as
    RefusedItemsError.
    """
    kind = response.WhichOneof("body")
    if kind is not None:
        errors = list(_refused(getattr(response, kind)))
        if errors:
            raise RefusedItemsError(errors, response)
    return response


def _summary(errors: list[ApiError]) -> str:
    if len(errors) == 1:
        return errors[0].message
    named = "; ".join(f"{error.code.name}: {error.message}" for error in errors[:_NAMED_MAX])
    more = f"; and {len(errors) - _NAMED_MAX} more" if len(errors) > _NAMED_MAX else ""
    return f"{len(errors)} items were refused: {named}{more}"


def _refused(message: Message) -> Iterator[ApiError]:
    for name in _lists(message.DESCRIPTOR):
        for item in getattr(message, name):
            error = _error_of(item)
            if error is not None and error.code not in _NO_REFUSAL:
                yield error
            yield from _refused(item)


def _error_of(item: Any) -> ApiError | None:
    fields = item.DESCRIPTOR.fields_by_name
    if "error" in fields and fields["error"].message_type is _ERROR:
        return error_from_wire(item.error) if item.HasField("error") else None
    if "error_code" in fields:
        return error_from_wire(
            common_pb2.Error(error_code=item.error_code, error_message=item.error_message)
        )
    return None


@cache
def _lists(descriptor: Descriptor) -> tuple[str, ...]:
    """The fields of a message that are lists of messages."""
    return tuple(
        field.name
        for field in descriptor.fields
        if is_repeated(field) and field.type == FieldDescriptor.TYPE_MESSAGE
    )

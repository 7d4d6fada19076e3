"""Unary calls: one request decided like those of a stream."""

from __future__ import annotations

from raftlog.transport import unary_link
from raftlog.transport.api import LinkHandler
from raftlog.transport.unary_link import Caller
from raftlog.wire.controller.v1 import controller_pb2 as pb


async def answer(
    handler: LinkHandler, request: pb.ControllerRequest, caller: Caller
) -> pb.ControllerResponse:
    """Have one request decided. Ends by the request's timeout."""
    response: pb.ControllerResponse = await unary_link.answer(handler, request, caller)
    return response

"""Unary calls: one request decided like those of a stream."""

from __future__ import annotations

from controller.service.service import ControllerService
from raftlog.transport import unary_link
from raftlog.wire.controller.v1 import controller_pb2 as pb


async def answer(
    service: ControllerService, request: pb.ControllerRequest, peer: str
) -> pb.ControllerResponse:
    """Have one request decided. Ends by the request's timeout."""
    response: pb.ControllerResponse = await unary_link.answer(service, request, peer)
    return response

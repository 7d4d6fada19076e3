"""Unary calls: one request decided like those of a stream."""

from __future__ import annotations

from controller.service import ControllerService
from raftlog.transport.unary_link import UnaryLink
from raftlog.wire.controller.v1 import controller_pb2 as pb


async def answer(service: ControllerService, request: pb.ControllerRequest) -> pb.ControllerResponse:
    """Have one request decided. Ends by the request's timeout."""
    link = UnaryLink()
    service.received(link, [request])
    response: pb.ControllerResponse = await link.response
    return response

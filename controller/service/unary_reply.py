"""Unary calls: one request decided like those of a stream."""

from __future__ import annotations

from controller.service.service import ControllerService
from raftlog.transport.unary_link import UnaryLink
from raftlog.wire.controller.v1 import controller_pb2 as pb


async def answer(service: ControllerService, request: pb.ControllerRequest, peer: str) -> pb.ControllerResponse:
    """Have one request decided. Ends by the request's timeout."""
    link = UnaryLink(peer)
    service.received(link, [request])
    try:
        response: pb.ControllerResponse = await link.response
    finally:
        # The caller may have hung up: what waits goes with it.
        service.closed(link, "the call is over")
    return response

"""Unary calls: a request without a link, whose answer goes into a future."""

from __future__ import annotations

from raftlog.transport import unary
from raftlog.transport.api import LinkHandler
from raftlog.transport.unary import Caller
from raftlog.wire.broker.v1 import broker_pb2


async def answer(
    handler: LinkHandler, request: broker_pb2.BrokerRequest, caller: Caller
) -> broker_pb2.BrokerResponse:
    """Answer one request like those of a stream; the error of a forwarded write becomes the
    response's own error.
    """
    response: broker_pb2.BrokerResponse = await unary.answer(handler, request, caller)
    if response.write.HasField("error"):
        return broker_pb2.BrokerResponse(error=response.write.error)
    return response

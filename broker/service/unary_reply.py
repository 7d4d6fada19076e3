"""Unary calls: a request from nowhere, whose answer goes into a future."""

from __future__ import annotations

from raftlog.transport import unary
from raftlog.transport.api import LinkHandler
from raftlog.transport.unary import Caller
from raftlog.wire.broker.v1 import broker_pb2


async def answer(
    handler: LinkHandler, request: broker_pb2.BrokerRequest, caller: Caller
) -> broker_pb2.BrokerResponse:
    """Have one request answered like those of a stream; what a forwarded write failed with becomes
    the response's own error.
    """
    response: broker_pb2.BrokerResponse = await unary.answer(handler, request, caller)
    if response.write.HasField("error"):
        return broker_pb2.BrokerResponse(error=response.write.error)
    return response

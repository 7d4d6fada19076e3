"""Unary calls: a request from nowhere, whose answer goes into a future."""

from __future__ import annotations

from broker.service.requests import RequestServer
from raftlog.transport.unary_link import UnaryLink
from raftlog.wire.broker.v1 import broker_pb2


async def answer(requests: RequestServer, request: broker_pb2.BrokerRequest, peer: str) -> broker_pb2.BrokerResponse:
    """Have one request answered like those of a stream; what a forwarded write failed with becomes the response's own error."""
    link = UnaryLink(peer)
    requests.received(link, [request])
    try:
        response: broker_pb2.BrokerResponse = await link.response
    finally:
        # The caller may have hung up: what waits goes with it.
        requests.closed(link, "the call is over")
    if response.write.HasField("error"):
        return broker_pb2.BrokerResponse(error=response.write.error)
    return response

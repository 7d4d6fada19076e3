"""Unary calls: a request from nowhere, whose answer goes into a future."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.requests import RequestServer
from raftlog.wire.broker.v1 import broker_pb2


class UnaryReply:
    """Takes the one answer."""

    def __init__(self) -> None:
        self.response: asyncio.Future[broker_pb2.BrokerResponse] = asyncio.get_running_loop().create_future()

    def send(self, message: Any) -> None:
        """The answer. The caller may have gone."""
        if not self.response.done():
            self.response.set_result(message)


async def answer(requests: RequestServer, request: broker_pb2.BrokerRequest) -> broker_pb2.BrokerResponse:
    """Have one request answered like those of a stream; what a forwarded write failed with becomes the response's own error."""
    reply = UnaryReply()
    requests.received(reply, [request])
    response = await reply.response
    if response.write.HasField("error"):
        return broker_pb2.BrokerResponse(error=response.write.error)
    return response

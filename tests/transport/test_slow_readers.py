"""What has piled up for a peer that did not read leaves in pieces: no turn of the loop joins all of
it.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from raftlog.resource_limits import ENVELOPE_MAX_ITEMS
from raftlog.transport.api import Conversation, TransportLimits
from raftlog.transport.bounds import Bounds
from raftlog.transport.grpc_link import UNBUDGETED_BYTES, GrpcLink
from raftlog.wire.controller.v1 import controller_pb2


class SlowStream:
    """Takes nothing before it is told to."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.written: list[bytes] = []

    async def read(self) -> Any:
        await asyncio.Event().wait()

    async def write(self, message: bytes) -> None:
        self.written.append(message)
        await self.reads.wait()
        await asyncio.sleep(0)


async def test_what_has_piled_up_leaves_in_pieces_and_in_order() -> None:
    """[twenty peers read again, and each one's 65,000 answers were joined in the same turn: the
    loop was away for a second]
    """
    bounds = Bounds(asyncio.get_running_loop(), TransportLimits())
    stream = SlowStream()
    link = GrpcLink(stream, "a:1", Conversation.CONTROLLER, bounds, serves=True)
    joined: list[int] = []
    envelopes_of = link._outgoing.envelopes

    def join(items: list[bytes]) -> list[bytes]:
        joined.append(len(items))
        return envelopes_of(items)

    link._outgoing = SimpleNamespace(envelopes=join)  # type: ignore[assignment]
    running = asyncio.ensure_future(link.run())
    count = 10 * ENVELOPE_MAX_ITEMS + 7
    for number in range(count):
        link.send(controller_pb2.ControllerResponse(correlation_id=number))
        if number == 0:
            await asyncio.sleep(0.01)
    assert bounds.send_budget.total_bytes > 0
    stream.reads.set()
    async with asyncio.timeout(10):
        while bounds.send_budget.total_bytes:
            await asyncio.sleep(0)
    envelopes = [
        controller_pb2.ControllerResponses.FromString(one).responses for one in stream.written
    ]
    assert [one.correlation_id for envelope in envelopes for one in envelope] == list(range(count))
    assert max(joined) <= ENVELOPE_MAX_ITEMS
    link.close("the test is over")
    await running
    assert bounds.send_budget.total_bytes == 0


async def test_of_short_messages_that_wait_nearly_all_are_counted() -> None:
    """Of each link a kilobyte may be missing from what all of them keep unsent, however small its
    messages are.
    """
    bounds = Bounds(asyncio.get_running_loop(), TransportLimits())
    stream = SlowStream()
    link = GrpcLink(stream, "a:1", Conversation.CONTROLLER, bounds, serves=True)
    running = asyncio.ensure_future(link.run())
    for number in range(500):
        link.send(
            controller_pb2.ControllerResponse(correlation_id=number, leader_endpoint="x" * 90)
        )
        counted = bounds.send_budget.total_bytes
        assert link.unsent_bytes - UNBUDGETED_BYTES <= counted <= link.unsent_bytes
    link.close("the test is over")
    await running
    assert bounds.send_budget.total_bytes == 0

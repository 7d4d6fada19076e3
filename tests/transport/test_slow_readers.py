"""What has piled up for a peer that did not read leaves in pieces: no turn of the loop joins all of
it.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from raftlog.bounds import ENVELOPE_MAX_ITEMS
from raftlog.transport.api import Conversation, TransportLimits
from raftlog.transport.bounds import Bounds
from raftlog.transport.grpc_link import FEW_BYTES, UNBUDGETED_BYTES, GrpcLink
from raftlog.transport.lane_link import ServedLanedLink
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


class OneMessage(SlowStream):
    """Has one message to read."""

    def __init__(self, message: bytes) -> None:
        super().__init__()
        self._left = [message]

    async def read(self) -> Any:
        return self._left.pop() if self._left else await super().read()


@pytest.mark.parametrize("length", [10, 2 * FEW_BYTES], ids=["small", "large"])
async def test_message_waits_while_the_turn_is_used_up(length: int) -> None:
    bounds = Bounds(asyncio.get_running_loop(), TransportLimits())
    request = controller_pb2.ControllerRequest(cluster_id="c" * length)
    envelope = controller_pb2.ControllerRequests(requests=[request]).SerializeToString()
    stream = OneMessage(envelope)
    link = ServedLanedLink(stream, "a:1", Conversation.CONTROLLER, bounds)
    got: list[Any] = []
    link.attach(lambda _, messages: got.extend(messages), lambda *_: None)
    turns, given = bounds.turns[Conversation.CONTROLLER.name], asyncio.Event()
    busy = Mock(wraps=turns, busy=True, over=False, next=lambda peer: given.wait())
    link._turns = busy
    running = asyncio.ensure_future(link.run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert got == []
    assert not link._take(envelope), "nor on a lane"
    given.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(got) == 1
    busy.busy = False
    assert link._take(envelope) is (length <= FEW_BYTES)
    link.close("the test is over")
    await running

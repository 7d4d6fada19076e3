"""gRPC's thread never waits until the loop has taken a byte: what is there is taken in one turn."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any

import uvloop

from raftlog.transport.grpc_server_transport import GrpcServerTransport
from raftlog.transport.wakeups import FEW_BYTES, SKIPPED, _TakesAll, take_all_wakeups

import grpc  # isort: skip
import grpc.aio  # isort: skip


class Queue:
    """As gRPC's: one byte taken in each call."""

    def __init__(self, source: socket.socket) -> None:
        self.source = source
        self.calls = 0

    def _handle_events(self, loop: Any) -> None:
        assert len(self.source.recv(1)) == 1
        self.calls += 1


async def _all_bytes_are_taken() -> None:
    loop = asyncio.get_running_loop()
    take_all_wakeups(loop)
    take_all_wakeups(loop)
    source, sink = socket.socketpair()
    sink.setblocking(False)
    queue = Queue(source)
    loop.add_reader(source, partial(queue._handle_events, loop))
    for _ in range(3):
        count, before = 0, queue.calls
        # A look is due.
        for _ in range(SKIPPED + 1):
            sink.send(b"1")
            await asyncio.sleep(0.001)
            before = queue.calls
        try:
            while True:
                sink.send(b"1")
                count += 1
        except BlockingIOError:
            pass
        assert count > 100, "there is room again"
        await asyncio.sleep(0.01)
        assert queue.calls == before + 1
        # Those that come one by one are met at once, and leave nothing over for long.
        for _ in range(2):
            sink.send(b"1")
            await asyncio.sleep(0.001)
        assert queue.calls == before + 3
        sink.send(b"1" * (FEW_BYTES + 2 * SKIPPED))
        await asyncio.sleep(0.01)
        assert before + 4 <= queue.calls <= before + 4 + SKIPPED
    loop.remove_reader(source)
    source.close()
    sink.close()


def test_all_bytes_are_taken_at_once() -> None:
    asyncio.run(_all_bytes_are_taken())
    uvloop.run(_all_bytes_are_taken())


async def _registered() -> list[Any]:
    loop = asyncio.get_running_loop()
    registered: list[Any] = []
    before = loop.add_reader

    def add_reader(source: Any, callback: Any, *args: Any) -> Any:
        registered.append(callback)
        return before(source, callback, *args)

    loop.add_reader = add_reader  # type: ignore[method-assign, assignment]
    transport = GrpcServerTransport()
    listener = await transport.listen("127.0.0.1:0", {})
    async with grpc.aio.insecure_channel(listener.address) as channel:
        await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    await listener.close()
    await transport.close()
    return registered


def test_this_is_how_grpc_is_woken() -> None:
    """Should another release of gRPC do it in another way, this says so."""
    registered = asyncio.run(_registered())
    assert [type(callback).__name__ for callback in registered] == ["_TakesAll"]


def test_a_byte_that_another_loop_has_taken_is_no_error() -> None:
    """One process, two loops: both wake by the same socket, and one of them finds it empty."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    called: list[object] = []

    def _handle_events() -> None:
        called.append(ours.recv(1))

    handler = _TakesAll(ours, _handle_events)
    handler()
    assert called == []
    theirs.send(b"1")
    handler()
    assert called == [b"1"]
    ours.close()
    theirs.close()

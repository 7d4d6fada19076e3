"""gRPC's wake-up bytes are taken in one turn of the loop."""

import asyncio
import socket
import sys
from functools import partial
from typing import Any

import pytest
import uvloop
from command_runs import run_text

from raftlog.transport.grpc_runtime import FEW_BYTES, SKIPPED, _WakeUpReader, take_all_wakeups
from raftlog.transport.grpc_server import GrpcServerTransport

import grpc  # isort: skip
import grpc.aio  # isort: skip


class Queue:
    """A queue like gRPC's: each call takes one byte."""

    def __init__(self, source: socket.socket) -> None:
        self.source = source
        self.calls = 0

    def _handle_events(self, loop: Any) -> None:
        assert len(self.source.recv(1)) == 1
        self.calls += 1


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_event_after_the_end_of_its_loop_is_dropped(new_loop: Any) -> None:
    ran: list[int] = []

    def _handle_callback_wrapper(number: int) -> None:
        ran.append(number)

    loop = new_loop()
    take_all_wakeups(loop)
    loop.call_soon_threadsafe(_handle_callback_wrapper, 1)
    loop.run_until_complete(asyncio.sleep(0))
    assert ran == [1]
    loop.close()
    assert loop.call_soon_threadsafe(_handle_callback_wrapper, 2) is None
    # What anybody else does with a closed loop is an error as ever.
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon_threadsafe(ran.append, 3)
    assert ran == [1]


LEFT_OPEN = """
import asyncio, logging, socket, sys
logging.basicConfig(level=logging.ERROR)
from raftlog.client.quorum_queries import ask_node
from raftlog.transport.api import Conversation
from raftlog.transport.grpc_transport import GrpcTransport
hangs = socket.create_server(("127.0.0.1", 0), backlog=100)
address = f"127.0.0.1:{hangs.getsockname()[1]}"
class Handler:
    opened = received = closed = print
async def dial(count, seconds):
    transport = GrpcTransport()
    for _ in range(count):
        transport.dial(address, Conversation.BROKER, Handler())
    await asyncio.sleep(seconds)
async def ask(count, seconds):
    asked = [asyncio.create_task(ask_node(address, 0.4)) for _ in range(count)]
    await asyncio.sleep(seconds)
begin = {"dial": dial, "ask": ask}[sys.argv[1]]
loop = asyncio.new_event_loop()
loop.run_until_complete(begin(20, 0.2))
if begin is dial:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
loop.close()
asyncio.run(begin(1, 1))
print("done")
"""
"""Calls that wait for a node that hangs when their loop is closed, and another loop after it."""


@pytest.mark.parametrize("calls", ["dial", "ask"])
def test_next_loop_of_process_does_not_receive_events_of_closed_loop(calls: str) -> None:
    done = run_text([sys.executable, "-c", LEFT_OPEN, calls], timeout=60)
    assert (done.stdout, done.returncode) == ("done\n", 0)
    assert "Event loop is closed" not in done.stderr


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


def test_all_wakeup_bytes_are_taken_at_once() -> None:
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


def test_grpc_wakes_the_loop_in_the_expected_way() -> None:
    """Fails if another release of gRPC does it differently."""
    registered = asyncio.run(_registered())
    assert [type(callback).__name__ for callback in registered] == ["_WakeUpReader"]


def test_byte_taken_by_another_loop_is_not_an_error() -> None:
    """One process, two loops: both wake by the same socket, and one of them finds it empty."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    called: list[object] = []

    def _handle_events() -> None:
        called.append(ours.recv(1))

    handler = _WakeUpReader(ours, _handle_events)
    handler()
    assert called == []
    theirs.send(b"1")
    handler()
    assert called == [b"1"]
    ours.close()
    theirs.close()

"""The benchmark's watchers."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import peers
from benchmarks.page.figures import ENTRIES, dig
from benchmarks.watching import deliveries as measured
from benchmarks.watching import peer
from benchmarks.watching.deliveries import Case, Served, deliveries
from benchmarks.watching.streams import Streams
from benchmarks.watching.watchers import NUMBER, Seen, mark
from raftlog.config_writes.writes import varint
from raftlog.transport import grpc_runtime  # noqa: F401  (before grpc)
from raftlog.wire.broker.v1 import broker_pb2 as pb

import grpc  # isort: skip
import grpc.aio  # isort: skip

Handler = Callable[[Any, Any], Any]


class _Server(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server with one method on bytes."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def service(self, details: Any) -> Any:
        assert details.method == "/Service/Method"
        return grpc.stream_stream_rpc_method_handler(self._handler)

    async def __aenter__(self) -> str:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def __aexit__(self, *_: Any) -> None:
        await self._server.stop(0)


async def opened(address: str, streams: Streams) -> None:
    host, _, port = address.rpartition(":")
    await asyncio.get_running_loop().create_connection(lambda: streams, host, int(port))


async def test_each_message_of_each_stream_arrives_once_however_it_is_split() -> None:
    sizes = [0, 1, 16_383, 16_384, 100_000, 3]

    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            assert request == b"what"
        for size in sizes:
            await context.write(b"m" * size)
        await asyncio.Event().wait()

    got: dict[int, list[int]] = {}
    done = asyncio.Event()

    def received(stream: int, message: bytes) -> None:
        got.setdefault(stream, []).append(len(message))
        if sum(map(len, got.values())) == 3 * len(sizes):
            done.set()

    async with _Server(handler) as address:
        streams = Streams("/Service/Method", address, [b"what"] * 3, received, asked_once=True)
        await opened(address, streams)
        await asyncio.wait_for(done.wait(), 10)
        assert not streams.ended.done()
        streams.close()
    assert got == dict.fromkeys(range(3), sizes)


async def test_ended_stream_is_detected() -> None:
    async def handler(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no room")

    async with _Server(handler) as address:
        streams = Streams("/Service/Method", address, [b""], lambda *_: None, asked_once=True)
        await opened(address, streams)
        assert "has ended" in await asyncio.wait_for(streams.ended, 10)


def test_duplicate_or_late_change_is_a_failure() -> None:
    seen = Seen()
    seen.watcher(0, 0, b"begins")
    seen.watcher(0, 0, b"of " + mark(3) + b" and " + mark(4))
    seen.watcher(0, 1, mark(3))
    assert [row[0] for row in seen.changes.values()] == [2, 1]
    failures = [seen.failure]
    seen.watcher(0, 1, mark(3))
    failures.append(seen.failure)
    assert failures == ["", "a watcher had change 3 after 3"]


class _Hub:
    """Sends each write to all streams except those that it drops."""

    def __init__(self, forgets: int) -> None:
        self._queues: list[asyncio.Queue[bytes]] = []
        self._forgets = forgets

    async def serve(self, requests: AsyncIterator[bytes], context: Any) -> None:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._queues.append(queue)
        await context.write(b"begins")
        while True:
            await context.write(await queue.get())

    async def write(self, number: int, value: bytes) -> None:
        for queue in self._queues[self._forgets :]:
            queue.put_nowait(value)


@pytest.mark.parametrize("forgets", [0, 1])
async def test_missed_change_fails_the_run(forgets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IDLE_S", "SETTLE_S", "PERIOD_MIN_S"):
        monkeypatch.setattr(measured, name, 0.01)
    monkeypatch.setattr(measured, "PROCESSES", 1)
    monkeypatch.setattr(measured, "AFTER_S", 0.5)
    hub = _Hub(forgets)
    async with _Server(hub.serve) as address:
        served = Served([address], "/Service/Method", b"", asked_once=True, pids=[], all_pids=[])
        if forgets:
            with pytest.raises(RuntimeError, match="4 of 5 watchers had change"):
                await deliveries(served, Case(5), hub.write, seconds=0.1)
            return
        found = await deliveries(served, Case(5), hub.write, seconds=0.1)
    assert found["watchers"] == 5
    assert found["writes"] == 10
    assert 0 < found["first_from_send_ms"]["p50"] <= found["last_from_send_ms"]["p50"]


async def test_watchers_of_separate_keys_receive_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IDLE_S", "SETTLE_S"):
        monkeypatch.setattr(measured, name, 0.01)
    monkeypatch.setattr(measured, "AFTER_S", 0.5)
    asked: dict[bytes, asyncio.Queue[bytes]] = {}

    async def serve(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            queue = asked[request] = asyncio.Queue()
        await context.write(b"begins")
        while True:
            await context.write(await queue.get())

    async def write(number: int, value: bytes) -> None:
        # What is written before anybody watches concerns nobody.
        if asked:
            asked[b"key %08d" % number].put_nowait(value)

    async with _Server(serve) as address:
        request = b"key " + NUMBER
        served = Served([address], "/Service/Method", request, True, pids=[], all_pids=[])
        found = await deliveries(served, Case(30, own_keys=True), write, seconds=0.1)
    assert sorted(asked) == [b"key %08d" % number for number in range(30)]
    assert found["writes"] == 10
    assert found["first_from_send_ms"] == found["last_from_send_ms"]


class _Many:
    """Sends each write to the watches on a stream as each side does: ours to all at once, etcd one
    after the other.
    """

    def __init__(self, way: str) -> None:
        self._ours = way == "raftlog"
        self._told: list[asyncio.Queue[bytes]] = []
        self.streams = 0

    async def serve(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.streams += 1
        queue = asyncio.Queue[bytes]()
        self._told.append(queue)
        self._ids: list[int] = []
        self._reading = asyncio.ensure_future(self._read(requests, context))
        while True:
            value = await queue.get()
            for message in self._messages(self._ids, value):
                await context.write(message)

    async def _read(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            if self._ours:
                begun = [one.watch_id for one in pb.WatchManyRequests.FromString(request).requests]
            else:
                begun = [len(self._ids)]
            self._ids += begun
            for message in self._messages(begun, b"begins"):
                await context.write(message)

    def _messages(self, ids: list[int], value: bytes) -> list[bytes]:
        if self._ours:
            told = pb.WatchResponse(changes=[pb.WatchChange(after=value.decode())])
            one = pb.WatchManyResponse(watch_ids=ids, response=told)
            return [pb.WatchManyResponses(responses=[one]).SerializeToString()]
        header = b"\x0a\x02\x08\x01"
        return [header + (b"\x10" + varint(one) if one else b"") + value for one in ids]

    async def write(self, number: int, value: bytes) -> None:
        for queue in self._told:
            queue.put_nowait(value)


@pytest.mark.parametrize("way", ["raftlog", "etcd"])
async def test_watchers_get_only_their_changes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IDLE_S", "SETTLE_S"):
        monkeypatch.setattr(measured, name, 0.01)
    monkeypatch.setattr(measured, "PERIOD_MIN_S", 0.05)
    monkeypatch.setattr(measured, "PROCESSES", 1)
    monkeypatch.setattr(measured, "AFTER_S", 0.5)
    many = _Many(way)
    async with _Server(many.serve) as address:
        served = Served([address], "/Service/Method", b"", False, [], [], shared=way)
        # More than are begun at once.
        found = await deliveries(served, Case(110, shared=True), many.write, seconds=0.1)
    assert (found["watchers"], found["shared"], many.streams) == (110, True, 1)


def test_every_figure_of_the_peer_exists() -> None:
    row = {
        "watchers": 10,
        "first_from_send_ms": {"p50": 1.0, "p99": 2.0},
        "last_from_send_ms": {"p50": 2.0, "p99": 3.0},
        "cpu_us_per_delivery": 10.0,
        "memory_kb_per_watcher": 30.0,
        "idle_cpu_percent": 1.0,
    }
    rows: list[dict[str, Any]] = [
        row
        | {"watchers": case.watchers}
        | ({"own_keys": True} if case.own_keys else {})
        | ({"shared": True} if case.shared else {})
        | ({"laned": True} if case.laned else {})
        for case in measured.CASES
    ]
    theirs = {peers._named(one): one for one in rows if "laned" not in one}
    assert len(theirs) == sum(not case.laned for case in measured.CASES)
    figures = ENTRIES["watch"].figures
    assert len(figures) == 7 * (len(rows) - 1) + 3
    for figure in figures:
        assert dig(rows, figure.ours) is not None, figure.label
        assert dig(theirs, figure.theirs) == dig(rows, figure.ours), figure.label
    assert peers.ratios("watch", rows, theirs)["last of 10 p50"] == 1.0


def test_bytes_field_is_encoded_as_by_protobuf() -> None:
    assert peer._field(1, b"abc") == b"\x0a\x03abc"
    assert peer._field(2, b"x" * 300) == b"\x12\xac\x02" + b"x" * 300

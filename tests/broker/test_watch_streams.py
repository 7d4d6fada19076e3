"""Several watches on one stream, at the broker and in the client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any, cast

import pytest
from fake_quorum import CLUSTER, FENCED_SOON, Cluster, config, on_cluster
from scenarios import scenario

from broker.service.service import BrokerService
from broker.settings import WatchSettings
from raftlog.client import watch as watch_module
from raftlog.client.watch import Watch, WatchStreams
from raftlog.errors import ErrorCode, RaftlogError
from raftlog.transport.api import Conversation, Link
from raftlog.wire.broker.v1 import broker_pb2 as pb
from simulation.twins.loop import run


class Stream:
    """A client that sends raw requests, the first of them on each new link, and records the
    responses.
    """

    def __init__(
        self,
        cluster: Cluster,
        broker: BrokerService,
        *first: pb.WatchRequest,
        of: Conversation = Conversation.WATCH_MANY,
    ) -> None:
        self.first = first
        self.responses: list[Any] = []
        self.link: Link | None = None
        self.gone = 0
        transport = cluster.network.transport_for(f"raw{cluster.loop.time()}")
        self.dialer = transport.dial(broker.address, of, self)

    def opened(self, link: Link) -> None:
        self.link = link
        for request in self.first:
            link.send(request)

    def received(self, link: Link, messages: Any) -> None:
        self.responses += messages

    def closed(self, link: Link, reason: str) -> None:
        self.gone += 1

    def begin(self, watch_id: int, *selectors: str, **options: Any) -> None:
        request = pb.WatchRequest(selectors=selectors, **options)
        self.send(watch_id=watch_id, begin=request)

    def send(self, **request: Any) -> None:
        assert self.link is not None
        self.link.send(pb.WatchManyRequest(**request))

    def errors_of(self, watch_id: int) -> list[tuple[int, str]]:
        return [
            (one.response.error.error_code, one.response.error.field)
            for one in self.responses
            if watch_id in one.watch_ids and one.response.HasField("error")
        ]

    def told(self) -> Iterator[tuple[list[int], list[str]]]:
        """Return the watches and values of each response."""
        for one in self.responses:
            if one.response.changes:
                values = [change.after for change in one.response.changes]
                yield list(one.watch_ids), values


async def stream(cluster: Cluster, broker: BrokerService) -> Stream:
    made = Stream(cluster, broker)
    await cluster.until(lambda: made.link is not None)
    return made


@scenario(on_cluster)
async def test_equal_responses_of_several_watches_are_sent_once(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    client = await stream(cluster, broker)
    for watch_id in (7, 1, 5):
        client.begin(watch_id, "configs/topic/orders")
    client.begin(9, "configs/topic/other")
    client.begin(10, "configs/topic")
    await asyncio.sleep(0.5)
    # Each is told first where it begins.
    assert {one for told in client.responses for one in told.watch_ids} == {1, 5, 7, 9, 10}
    config(cluster, "a")
    config(cluster, "b", "other")
    await asyncio.sleep(0.5)
    by_watch: dict[int, list[str]] = {}
    for watches, values in client.told():
        assert watches in ([7, 1, 5], [9], [10])
        for watch_id in watches:
            by_watch.setdefault(watch_id, []).extend(values)
    a, b = '"a"', '"b"'
    assert by_watch == {1: [a], 5: [a], 7: [a], 9: [b], 10: [a, b]}


@scenario(on_cluster)
async def test_equal_responses_name_the_watches_of_their_own_stream(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    clients = [await stream(cluster, broker) for _ in range(3)]
    for watch_id, client in zip((4, 8, 8), clients, strict=True):
        client.begin(watch_id, "configs")
    await asyncio.sleep(0.5)
    config(cluster, "a")
    await asyncio.sleep(0.5)
    assert [list(client.told()) for client in clients] == [
        [([4], ['"a"'])], [([8], ['"a"'])], [([8], ['"a"'])],
    ]  # fmt: skip


@scenario(on_cluster)
async def test_ended_watch_frees_its_slot_and_the_others_continue(cluster: Cluster) -> None:
    broker = await cluster.broker(1, watch=WatchSettings(watch_max_watchers=8))
    await cluster.until(lambda: not broker.why_fenced())
    client = await stream(cluster, broker)
    for watch_id in range(1, 6):
        client.begin(watch_id, "configs")
    await asyncio.sleep(0.2)
    # One connection never takes the last places.
    assert [client.errors_of(one) for one in (1, 2, 3, 4)] == [[], [], [], []]
    assert client.errors_of(5) == [(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "")]
    client.send(watch_id=2, end=pb.EndWatch())
    client.send(watch_id=77, end=pb.EndWatch())
    # An id that is open ends what it names: who sends it twice has lost count.
    client.begin(3, "configs")
    client.begin(6, "tpics")
    client.begin(8, "configs", mode=pb.STRICT)
    client.send(watch_id=9)
    await asyncio.sleep(0.2)
    assert client.errors_of(3) == [(ErrorCode.INVALID_REQUEST, "watch_id")]
    assert client.errors_of(6) == [(ErrorCode.INVALID_REQUEST, "selectors[0]")]
    assert client.errors_of(8) == [(ErrorCode.INVALID_REQUEST, "mode")]
    assert (client.errors_of(9), client.gone) == ([], 0)
    assert len(broker.watches.hub) == 2
    client.begin(10, "configs")
    client.begin(11, "configs")
    await asyncio.sleep(0.2)
    assert [client.errors_of(one) for one in (10, 11)] == [[], []]
    client.responses.clear()
    config(cluster, "a")
    await asyncio.sleep(0.2)
    assert [watches for watches, _ in client.told()] == [[1, 4, 10, 11]]
    client.dialer.close()
    await asyncio.sleep(0.2)
    assert len(broker.watches.hub) == 0
    again = await stream(cluster, broker)
    for watch_id in range(4):
        again.begin(watch_id, "configs")
    await asyncio.sleep(0.2)
    assert not any(again.errors_of(one) for one in range(4))


class Program:
    def __init__(self, cluster: Cluster, *brokers: BrokerService) -> None:
        self._addresses = [one.address for one in brokers]
        self.transport = cluster.network.transport_for("program")
        self._streams, self._rng = WatchStreams(self.transport), random.Random(5)
        self.dialled = 0
        dial = self.transport.dial

        def counted(*arguments: Any) -> Any:
            self.dialled += 1
            return dial(*arguments)

        self.transport.dial = counted  # type: ignore[assignment,method-assign]

    async def watch(self, *selectors: str, **options: Any) -> Watch:
        made = Watch(
            self.transport,
            self._addresses,
            selectors,
            rng=self._rng,
            calls=self._streams,
            **options,
        )
        await made.started()
        return made


async def values(watch: Watch, count: int) -> list[str | None]:
    async with asyncio.timeout(60):
        return [(await anext(watch)).after for _ in range(count)]


@scenario(on_cluster)
async def test_all_watches_of_a_stream_are_notified_of_a_fenced_broker(cluster: Cluster) -> None:
    broker = await cluster.broker(1, lifecycle=FENCED_SOON)
    await cluster.until(lambda: not broker.why_fenced())
    made = await stream(cluster, broker)
    made.begin(1, "topics/a")
    made.begin(2, "topics/b")
    await cluster.until(lambda: len(broker.watches.hub) == 2)
    cluster.isolate("b1")
    fenced = [(ErrorCode.BROKER_FENCED, "")]
    await cluster.until(lambda: made.errors_of(1) == made.errors_of(2) == fenced)
    assert made.gone == 0


@scenario(on_cluster)
async def test_watches_of_a_client_share_one_stream_and_end_separately(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    program = Program(cluster, broker)
    watches = [await program.watch("configs") for _ in range(20)]
    assert program.dialled == 1
    watches[3].close()
    config(cluster, "a")
    assert await values(watches[0], 1) == ["a"]
    assert len(broker.watches.hub) == 19
    for watch in watches:
        watch.close()
    await asyncio.sleep(0.2)
    assert len(broker.watches.hub) == 0
    # The last one has ended the stream: another watch makes another one.
    late = await program.watch("configs")
    assert program.dialled == 2
    config(cluster, "b")
    assert await values(late, 1) == ["b"]
    late.close()


@pytest.mark.parametrize("how", ["crash", "silence"])
@scenario(on_cluster)
async def test_watches_of_a_lost_stream_resume_without_gaps(cluster: Cluster, *, how: str) -> None:
    brokers = await cluster.active(1, 2)
    program = Program(cluster, *brokers)
    watches = [await program.watch("configs", progress_ms=200) for _ in range(10)]
    config(cluster, "a")
    for watch in watches:
        assert await values(watch, 1) == ["a"]
    lost = watches[0].endpoint.split(":")[0]
    if how == "crash":
        cluster.network.crash(lost)
    else:
        cluster.network.partition("program", lost)
    quorum, broker_id = cluster.quorum, int(lost[1:])
    quorum.log.fence(broker_id, quorum.registration(broker_id).epoch)
    quorum.move_lao()
    config(cluster, "b")
    config(cluster, "c")
    for watch in watches:
        assert await values(watch, 2) == ["b", "c"]
        assert watch.endpoint.split(":")[0] != lost
        watch.close()


@scenario(on_cluster)
async def test_unread_watch_does_not_block_the_others(
    cluster: Cluster, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "BUFFERED_MAX", 50)
    (broker,) = await cluster.active(1)
    program = Program(cluster, broker)
    idle, read = [await program.watch("configs") for _ in range(2)]
    reading = asyncio.ensure_future(values(read, 300))
    for number in range(300):
        config(cluster, str(number))
        if not number % 10:
            await asyncio.sleep(0.02)
    assert await reading == [str(number) for number in range(300)]
    assert len(idle._ready) < 150
    assert await values(idle, 300) == [str(number) for number in range(300)]
    assert program.dialled == 1
    idle.close()
    read.close()


class SilentBroker:
    """Transport, dialer and link in one, which never answers."""

    def __init__(self) -> None:
        self.link = self
        self.is_closed = False

    def dial(self, address: str, conversation: Conversation, handler: Any) -> SilentBroker:
        asyncio.get_running_loop().call_soon(handler.opened, self)
        return self

    def send(self, message: Any) -> None:
        pass

    def close(self, reason: str = "") -> None:
        self.is_closed = True


class Waiting:
    def __init__(self) -> None:
        self.lost_at: list[float] = []

    def told(self, call: Any, response: Any) -> None:
        pass

    def lost(self, call: Any, reason: str, error: Any = None) -> None:
        self.lost_at.append(asyncio.get_running_loop().time())


@pytest.mark.parametrize("silence_s", [0.1, 0.3, 0.7, 1.1])
def test_silent_broker_is_abandoned_whatever_the_rounding_of_time(silence_s: float) -> None:
    # From some points in time on, what is left at the end is less than moves the clock.
    begins = [number / 10 for number in range(1, 80)]
    assert any((begin + silence_s) - begin < silence_s for begin in begins)

    async def main() -> None:
        began = asyncio.get_running_loop().time()
        broker, waiting = SilentBroker(), Waiting()
        streams = WatchStreams(broker)  # type: ignore[arg-type]
        streams.begin(cast("Watch", waiting), "b1:1", pb.WatchRequest(), silence_s)
        await asyncio.sleep(2 * silence_s)
        assert waiting.lost_at == [began + silence_s]
        assert broker.is_closed

    for begin in begins:
        run(main(), start_time=begin, max_steps=1000)


@scenario(on_cluster)
async def test_closing_a_watch_ends_its_waiting_reads_and_keeps_its_token(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    program = Program(cluster, broker)
    watch = await program.watch("configs")
    config(cluster, "a")
    config(cluster, "b")
    await asyncio.sleep(1.0)
    assert await values(watch, 1) == ["a"]
    read = watch.token
    watch.close()
    assert watch.token == read, "what was not read is not passed over"
    with pytest.raises(StopAsyncIteration):
        await anext(watch)
    unborn = Watch(cluster.network.transport_for("p"), ["nobody:1"], rng=random.Random(1))
    starting = asyncio.ensure_future(unborn.started())
    await asyncio.sleep(0.1)
    unborn.close()
    with pytest.raises(RaftlogError, match="closed before any broker answered"):
        await asyncio.wait_for(starting, 1.0)


# --- What a broker answers to clients of Watch that say what they like ---------------------------


@scenario(on_cluster)
async def test_invalid_requests_end_their_call(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    begin, at = pb.WatchRequest(cluster_id=CLUSTER), pb.WatchToken
    for requests, field in (
        ((pb.WatchRequest(mode=pb.STRICT),), "mode"),
        ((pb.WatchRequest(mode=77),), "mode"),  # type: ignore[arg-type]
        ((pb.WatchRequest(initial=True, since=at(offset=1)),), "initial"),
        ((pb.WatchRequest(since=at(offset=-2)),), "since"),
        ((pb.WatchRequest(since=at(offset=1, part=-1)),), "since"),
        ((pb.WatchRequest(progress_interval_ms=-1),), "progress_interval_ms"),
        ((begin, begin), ""),
    ):
        client = Stream(cluster, broker, *requests, of=Conversation.WATCH)
        await asyncio.sleep(1)
        error = client.responses[-1].error
        assert (error.error_code, error.field) == (ErrorCode.INVALID_REQUEST, field)
        client.first = ()
        await asyncio.sleep(10)
        assert client.gone >= 1
        assert len(broker.watches.hub) == 0

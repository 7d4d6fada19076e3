import asyncio
import random
from typing import Any
from unittest.mock import Mock

import pytest
from fake_quorum import FENCED_SOON, Cluster, config, on_cluster
from scenarios import scenario

from broker.service.service import BrokerService
from broker.settings import WatchSettings
from raftlog.client.watch import Change, CompactedError, Watch
from raftlog.errors import ApiError, ErrorCode
from raftlog.outcome import Token
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2
from simulation.watchers import OwnCalls

shares = False
"""True if watches ask on streams that may be shared."""


@pytest.fixture(autouse=True, params=[False, True], ids=["a call each", "on streams"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.shares", request.param)


def watcher(cluster: Cluster, *brokers: BrokerService, **options: Any) -> Watch:
    transport = cluster.network.transport_for(f"watcher{cluster.loop.time()}")
    return Watch(
        transport,
        [broker.address for broker in brokers],
        options.pop("selectors", ()),
        rng=random.Random(5),
        calls=None if shares else OwnCalls(transport),
        **options,
    )


async def take(watch: Watch, count: int, within_s: float = 60.0) -> list[Change]:
    async with asyncio.timeout(within_s):
        return [await anext(watch) for _ in range(count)]


async def failure(watch: Watch) -> ApiError:
    with pytest.raises(ApiError) as raised:
        await take(watch, 1)
    return raised.value


def die(cluster: Cluster, endpoint: str) -> None:
    """Crash a broker's host; the controller fences it."""
    host = endpoint.split(":", maxsplit=1)[0]
    cluster.network.crash(host)
    quorum, broker_id = cluster.quorum, int(host[1:])
    quorum.log.fence(broker_id, quorum.registration(broker_id).epoch)
    quorum.move_lao()
    quorum.release()


@scenario(on_cluster)
async def test_watch_reports_changes_from_now_on(cluster: Cluster) -> None:
    brokers = await cluster.active(1, 2)
    config(cluster, "before")
    await cluster.until(lambda: brokers[0].view.known_lao == cluster.quorum.log.last)
    watch = watcher(cluster, brokers[0], selectors=["configs/topic/orders"])
    await watch.started()
    offset = config(cluster, "1")
    config(cluster, "2")
    one, two = await take(watch, 2)
    assert (one.path, one.before, one.after) == (
        "configs/topic/orders/retention.ms", "before", "1"
    )  # fmt: skip
    assert (one.offset, one.token) == (offset, Token(1, cluster.quorum.log.epoch, offset))
    assert (two.before, two.after, watch.token) == ("1", "2", two.token)
    watch.close()
    with pytest.raises(StopAsyncIteration):
        await anext(watch)


@scenario(on_cluster)
async def test_watch_loses_no_change_when_its_reads_are_cancelled(cluster: Cluster) -> None:
    async def write() -> None:
        for number in range(50):
            config(cluster, str(number))
            await asyncio.sleep(0.003)

    brokers = await cluster.active(1, 2)
    watch = watcher(cluster, brokers[0], selectors=["configs/topic/orders"])
    await watch.started()
    writing, found, cancelled = asyncio.create_task(write()), list[str](), 0
    while len(found) < 50:
        reading = asyncio.ensure_future(anext(watch))
        await asyncio.wait({reading}, timeout=0.002)
        cancelled += reading.cancel()
        await asyncio.wait({reading})
        if not reading.cancelled():
            found.append(reading.result().after)
    await writing
    assert found == [str(number) for number in range(50)]
    assert cancelled > 20
    watch.close()


@scenario(on_cluster)
async def test_change_is_sent_once_every_broker_is_known_to_have_it(cluster: Cluster) -> None:
    broker, _ = await cluster.active(1, 2)
    watch = watcher(cluster, broker, selectors=["configs"])
    await watch.started()
    for number in range(5):
        # Nothing else happens meanwhile: no other change, no heartbeat.
        begun = cluster.loop.time()
        offset = config(cluster, str(number))
        (change,) = await take(watch, 1)
        assert change.offset == offset
        assert cluster.quorum.lao >= offset
        assert cluster.loop.time() - begun < 0.05, "not paced by any timer"
    watch.close()


@scenario(on_cluster)
async def test_watch_resumes_at_another_broker_without_duplicates(cluster: Cluster) -> None:
    brokers = await cluster.active(1, 2, 3)
    watch = watcher(cluster, *brokers, selectors=["configs"])
    await watch.started()
    offsets: list[int] = []
    for number in range(60):
        offsets.append(config(cluster, str(number)))
        await asyncio.sleep(0.01)
        if number in (20, 40):
            # Its host dies: nobody says good-bye.
            die(cluster, watch.endpoint)
    changes = await take(watch, 60)
    assert [one.offset for one in changes] == offsets
    assert watch.failovers >= 2
    watch.close()


@scenario(on_cluster)
async def test_initial_list_restarts_at_another_broker_and_is_seen_once(cluster: Cluster) -> None:
    # A little of the list at a time.
    settings = WatchSettings(watch_max_unsent_bytes=20_000)
    brokers = [await cluster.broker(number, watch=settings) for number in (1, 2)]
    await cluster.until(lambda: not any(one.why_fenced() for one in brokers))
    cluster.quorum.log.topic("big", *(([1], 1) for _ in range(3000)))
    cluster.quorum.release()
    await cluster.until(
        lambda: all(one.view.known_lao == cluster.quorum.log.last for one in brokers)
    )
    watch = watcher(cluster, *brokers, selectors=["partitions"], initial=True)
    first = watch.endpoint
    await asyncio.sleep(0.3)
    assert 0 < len(watch._list) < 3000
    die(cluster, first)
    changes = await take(watch, 3000)
    assert len({one.path for one in changes}) == 3000
    assert all(one.initial for one in changes)
    assert watch.endpoint != first
    assert watch.token == changes[-1].token
    watch.close()


@scenario(on_cluster)
async def test_incomplete_list_has_no_token_to_resume_from(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    config(cluster, "1", "a")
    config(cluster, "1", "b")
    await cluster.until(lambda: broker.view.known_lao == cluster.quorum.log.last)
    watch = watcher(cluster, broker, selectors=["configs"], initial=True)
    await take(watch, 1)
    half = watch.token
    assert half is None
    (last,) = await take(watch, 1)
    assert watch.token == last.token
    watch.close()


@scenario(on_cluster)
async def test_compacted_is_raised_once_no_broker_has_the_changes(cluster: Cluster) -> None:
    settings = WatchSettings(watch_history_max_bytes=8_000)
    kept = await cluster.broker(1)
    poor = await cluster.broker(2, watch=settings)
    await cluster.until(lambda: not kept.why_fenced() and not poor.why_fenced())
    since = Token(1, cluster.quorum.log.epoch, cluster.quorum.log.last)
    offsets = []
    for number in range(200):
        offsets.append(config(cluster, str(number)))
        if not number % 20:
            await asyncio.sleep(0.05)
    await cluster.until(lambda: poor.watches.hub.history.start > since.offset)
    options = {"since": since, "selectors": ["configs"]}
    alone = watcher(cluster, poor, **options)
    error = await failure(alone)
    assert isinstance(error, CompactedError)
    assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert error.oldest.offset == poor.watches.hub.history.start
    both = watcher(cluster, poor, kept, **options)
    assert [one.offset for one in await take(both, 200)] == offsets
    both.close()


@scenario(on_cluster)
async def test_broker_lost_before_its_response_is_asked_again(cluster: Cluster) -> None:
    """A watch is reported as compacted only when no broker keeps its changes."""
    began = Mock(side_effect=lambda *_: Mock())
    watch = Watch(
        Mock(), ["a:1", "b:1"], (), rng=random.Random(5), calls=Mock(begin=began),
        since=Token(1, 1, 3),
    )  # fmt: skip
    compacted = pb.WatchResponse(
        error=common_pb2.Error(error_code=ErrorCode.OFFSET_OUT_OF_RANGE),
        oldest=pb.WatchToken(generation=1, epoch=1, offset=9),
    )

    async def asked() -> Any:
        count = began.call_count
        await cluster.until(lambda: began.call_count > count)
        return watch._call

    assert watch._call is not None
    watch.lost(watch._call, "a test")
    watch.told(await asked(), pb.WatchResponse(token=pb.WatchToken(generation=1, offset=3)))
    assert watch._call is not None
    watch.told(watch._call, compacted)
    watch.told(await asked(), compacted)
    with pytest.raises(CompactedError):
        await anext(watch)
    assert began.call_count == 3, "the first one is there again, perhaps"


@scenario(on_cluster)
async def test_fenced_broker_ends_its_watches_and_accepts_none(cluster: Cluster) -> None:
    first = await cluster.broker(1, lifecycle=FENCED_SOON)
    second = await cluster.broker(2)
    await cluster.until(lambda: not first.why_fenced() and not second.why_fenced())
    watch = watcher(cluster, first, start_timeout_s=5.0)
    await watch.started()
    watch._endpoints._endpoints.learn([second.address])
    assert len(first.watches.hub) == 1
    cluster.isolate("b1")
    await cluster.until(lambda: bool(first.why_fenced()))
    await cluster.until(lambda: len(second.watches.hub) == 1)
    assert len(first.watches.hub) == 0
    watch.close()
    alone = watcher(cluster, first, start_timeout_s=2.0)
    assert (await failure(alone)).code is ErrorCode.BROKER_FENCED


@scenario(on_cluster)
async def test_restored_log_ends_every_watch(cluster: Cluster) -> None:
    brokers = await cluster.active(1, 2)
    watch = watcher(cluster, *brokers)
    await watch.started()
    cluster.quorum.restore()
    with pytest.raises(ApiError, match="INCONSISTENT_GENERATION"):
        async for _ in watch:
            pass
    await cluster.until(lambda: not brokers[0].why_fenced())
    old = watcher(cluster, *brokers, since=Token(1, 1, 3))
    assert (await failure(old)).code is ErrorCode.INCONSISTENT_GENERATION


WRONG: tuple[tuple[dict[str, Any], ErrorCode, str], ...] = (
    ({"selectors": ["topic/orders"]}, ErrorCode.INVALID_REQUEST, "selectors[0]"),
    ({"selectors": ["topics", "configs/tpic/x"]}, ErrorCode.INVALID_REQUEST, "selectors[1]"),
    ({"selectors": ["topics/orders/"]}, ErrorCode.INVALID_REQUEST, "selectors[0]"),
    ({"selectors": ["brokers/5/x*"]}, ErrorCode.INVALID_REQUEST, "selectors[0]"),
    ({"selectors": ["leader/1"]}, ErrorCode.INVALID_REQUEST, "selectors[0]"),
    ({"selectors": ["kv/locks/", "kv//locks"]}, ErrorCode.INVALID_REQUEST, "selectors[1]"),
    ({"selectors": ["kv/a/b*", "kv/a*b"]}, ErrorCode.INVALID_REQUEST, "selectors[1]"),
    ({"selectors": ["topics/" + "x" * 3000]}, ErrorCode.INVALID_REQUEST, "selectors[0]"),
    ({"selectors": ["topics"] * 101}, ErrorCode.INVALID_REQUEST, "selectors"),
    ({"since": Token(1, 2, 2), "initial": True}, ErrorCode.NONE, ""),
    ({"progress_ms": 5}, ErrorCode.INVALID_REQUEST, "progress_interval_ms"),
    ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID, "cluster_id"),
)


@scenario(on_cluster)
async def test_invalid_watch_request_names_the_wrong_field(cluster: Cluster) -> None:
    (broker,) = await cluster.active(1)
    for options, code, field in WRONG:
        watch = watcher(cluster, broker, **options)
        if code is ErrorCode.NONE:
            await watch.started()
            watch.close()
            continue
        error = await failure(watch)
        assert (error.code, error.field) == (code, field)
    meant = await failure(watcher(cluster, broker, selectors=["topic/orders"]))
    assert "did you mean 'topics/orders'?" in meant.message
    assert len(broker.watches.hub) == 0

"""A broker that starts from a snapshot."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from broker_log import LogMaker
from scenarios import scenario

from broker.metadata.follower import FollowerEvents, MetadataFollower
from broker.metadata.view import View
from broker.settings import FollowerSettings
from raftlog.client import log_reader
from raftlog.errors import ErrorCode, FatalError
from raftlog.metadata.snapshot import SnapshotLoader, header_of, pieces
from raftlog.transport.api import Conversation, Link
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.quorum.v1 import quorum_pb2
from simulation.twins.loop import host_context, run
from simulation.twins.network import SimNetwork

ME = 7
CLUSTER = "c-1"
HOSTS = ("a", "b", "c")


class Controllers:
    """A log that begins at a snapshot's end, and controllers. ``leader`` answers the fetches."""

    def __init__(self) -> None:
        self.network = SimNetwork(random.Random(3))
        self.log = LogMaker()
        self.log.leader()
        for n in range(400):
            self.log.config(str(n), resource=f"r{n}" + "x" * 200)
        self.start = self.log.end
        image = self.log.image(self.log.last)
        self.header = header_of(image, cluster_id=CLUSTER, generations=())
        self.content = b"".join(pieces(image, self.header))
        self.leader = "a"
        self.asked: list[tuple[str, quorum_pb2.FetchSnapshotRequest]] = []
        self.fetches: list[pb.MetadataFetchRequest] = []
        self.spoil: Callable[
            [str, quorum_pb2.FetchSnapshotResponse], quorum_pb2.FetchSnapshotResponse | None
        ] = lambda host, response: response

    async def up(self) -> None:
        for host in HOSTS:
            acceptors: dict[Conversation, Any] = {
                Conversation.OBSERVER: lambda link, host=host: Handler(
                    lambda link, m: self.fetch(host, link, m)
                ),
                Conversation.SNAPSHOT: lambda link, host=host: Handler(
                    lambda link, m: self.snapshot(host, link, m)
                ),
            }
            await self.network.transport_for(host).listen(f"{host}:1", acceptors)

    def fetch(self, host: str, link: Link, request: pb.MetadataFetchRequest) -> None:
        response = pb.MetadataFetchResponse(
            cluster_id=CLUSTER,
            leader_id=1,
            controller_epoch=1,
            generation=1,
            high_watermark=self.log.end,
            lowest_acknowledged_offset=-1,
        )
        if host != self.leader:
            response.error.CopyFrom(common_pb2.Error(error_code=ErrorCode.NOT_CONTROLLER))
            response.leader_endpoint = f"{self.leader}:1"
        elif request.fetch_offset < self.start:
            self.fetches.append(request)
            response.snapshot_id.end_offset, response.snapshot_id.epoch = (
                self.header.end_offset,
                self.header.epoch,
            )
        else:
            self.fetches.append(request)
            response.records = self.log.since(request.fetch_offset)
            if not response.records:
                return
        link.send(response)

    def snapshot(self, host: str, link: Link, request: quorum_pb2.FetchSnapshotRequest) -> None:
        self.asked.append((host, request))
        response = quorum_pb2.FetchSnapshotResponse(
            snapshot_id=request.snapshot_id,
            correlation_id=request.correlation_id,
            size=len(self.content),
            position=request.position,
            bytes=self.content[request.position : request.position + request.max_bytes],
        )
        spoiled = self.spoil(host, response)
        if spoiled is not None:
            link.send(spoiled)


class Handler:
    def __init__(self, on_message: Callable[[Link, Any], None]) -> None:
        self.on_message = on_message

    def received(self, link: Link, messages: Any) -> None:
        for message in messages:
            self.on_message(link, message)

    def closed(self, link: Link, reason: str) -> None:
        pass


class Stage:
    def __init__(self) -> None:
        self.controllers = Controllers()
        self.view = View(ME, max_bytes=1 << 30)
        self.failures: list[FatalError] = []
        self.moved: list[int] = []
        self.follower = MetadataFollower(
            self.controllers.network.transport_for("me"),
            [f"{host}:1" for host in HOSTS],
            self.view,
            FollowerEvents(
                lambda: self.moved.append(self.view.applied),
                lambda: None,
                lambda: None,
                lambda: None,
                self.failures.append,
                lambda address: None,
            ),
            cluster_id=CLUSTER,
            broker_id=ME,
            broker_epoch=lambda: -1,
            settings=FollowerSettings(),
            rng=random.Random(1),
        )

    async def until(self, condition: Callable[[], bool], within_s: float = 30.0) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not condition():
            assert loop.time() < deadline, "it never happened"
            await asyncio.sleep(0.001)

    async def arrives(self) -> None:
        controllers = self.controllers
        await self.until(lambda: self.view.applied == controllers.log.last)
        assert self.view.tip.state_hash == controllers.log.image(controllers.log.last).state_hash
        assert self.failures == []


def staged(test: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        stage = Stage()
        await stage.controllers.up()
        await test(stage)
        stage.follower.close()
        assert stage.controllers.network.handler_failures == []

    run(main())


@scenario(staged)
async def test_follower_fetches_snapshot_in_order_then_the_log_after_it(stage: Stage) -> None:
    controllers = stage.controllers
    controllers.log.config("after")
    stage.follower.start()
    await stage.arrives()
    assert stage.follower.snapshots_installed == 1
    positions = [request.position for _, request in controllers.asked]
    assert positions == list(range(0, len(controllers.content), log_reader.PIECE_BYTES))
    assert len(positions) > 2
    assert {request.current_leader_epoch for _, request in controllers.asked} == {-1}
    assert {request.cluster_id for _, request in controllers.asked} == {CLUSTER}
    # The fetch after it tells what is applied, and none is out while the snapshot comes.
    assert [request.applied_offset for request in controllers.fetches[:2]] == [
        -1,
        controllers.start - 1,
    ]
    assert sorted(stage.moved) == stage.moved
    assert controllers.start - 1 in stage.moved


@scenario(staged)
async def test_snapshot_is_fetched_elsewhere_when_its_controller_dies(stage: Stage) -> None:
    controllers = stage.controllers
    network = controllers.network

    def die(
        host: str, response: quorum_pb2.FetchSnapshotResponse
    ) -> quorum_pb2.FetchSnapshotResponse | None:
        if host == "a" and response.position > 0:
            controllers.leader = "b"
            asyncio.get_running_loop().call_soon(network.crash, "a", context=host_context(""))
            return None
        return response

    controllers.spoil = die
    stage.follower.start()
    await stage.arrives()
    hosts = [host for host, _ in controllers.asked]
    assert (hosts[0], hosts[-1]) == ("a", "b")


@pytest.mark.parametrize("how", ["flipped", "cut", "gone", "other piece", "empty", "newer"])
@scenario(staged)
async def test_failed_snapshot_transfer_starts_over(stage: Stage, *, how: str) -> None:
    controllers = stage.controllers
    spoiled: list[str] = []

    def spoil(
        _: str, response: quorum_pb2.FetchSnapshotResponse
    ) -> quorum_pb2.FetchSnapshotResponse | None:
        if response.position == 0 or spoiled:
            return response
        spoiled.append(how)
        if how == "flipped":
            data = bytearray(response.bytes)
            data[len(data) // 2] ^= 1
            response.bytes = bytes(data)
        elif how == "cut":
            response.size = response.position + len(response.bytes) - 1
            response.bytes = response.bytes[:-1]
        elif how == "gone":
            response.error_code = ErrorCode.SNAPSHOT_NOT_FOUND
        elif how == "other piece":
            response.position += 1
        elif how == "empty":
            response.bytes = b""
        else:  # An error that only newer builds have.
            response.error_code = 9_999
        return response

    controllers.spoil = spoil
    stage.follower.start()
    await stage.arrives()
    assert spoiled == [how]
    assert [request.position for _, request in controllers.asked].count(0) == 2
    assert stage.follower.snapshots_installed == 1


@pytest.mark.parametrize("silent_from", [0, 1])
@scenario(staged)
async def test_follower_leaves_a_node_that_fails_to_send_a_chunk_twice(
    stage: Stage, *, silent_from: int
) -> None:
    controllers = stage.controllers

    def fall_silent(
        host: str, response: quorum_pb2.FetchSnapshotResponse
    ) -> quorum_pb2.FetchSnapshotResponse | None:
        if host != "a" or response.position < silent_from:
            return response
        controllers.leader = "b"
        return None

    controllers.spoil = fall_silent
    stage.follower.start()
    await stage.arrives()
    positions = [request.position for host, request in controllers.asked if host == "a"]
    # The first piece costs nothing to begin anew: nobody waits for it twice.
    expected = [0, log_reader.PIECE_BYTES, log_reader.PIECE_BYTES]
    assert positions == (expected if silent_from else [0])
    assert stage.follower.snapshots_installed == 1


@scenario(staged)
async def test_snapshot_below_the_applied_offset_is_not_requested(stage: Stage) -> None:
    controllers = stage.controllers
    stage.follower.start()
    await stage.arrives()
    applied = stage.view.applied
    controllers.asked.clear()
    # A node that lies about its log start: it offers an old snapshot to a broker that is beyond
    # it.
    controllers.start = applied + 100
    controllers.log.config("more")
    controllers.network.crash("a")
    controllers.leader = "b"
    await asyncio.sleep(5)
    assert controllers.asked == []
    assert stage.view.applied == applied


@pytest.mark.parametrize("where", ["feed", "finish"])
@scenario(staged)
async def test_defect_in_applying_a_snapshot_stops_the_broker(
    stage: Stage, *, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: object) -> None:
        raise ZeroDivisionError("no snapshot is expected to do this")

    monkeypatch.setattr(SnapshotLoader, where, defect)
    stage.follower.start()
    await stage.until(lambda: bool(stage.failures))
    (failure,) = stage.failures
    assert (
        str(failure) == "defect in raftlog: ZeroDivisionError: no snapshot is expected to do this"
    )
    assert stage.view.applied == -1

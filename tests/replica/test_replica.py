"""Three replicas on simulated disks and network."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from scenarios import simulated

from raftlog import batch
from raftlog.errors import FatalError, InvariantError
from raftlog.metadata.records import record
from raftlog.node.replica.replica import Replica
from raftlog.node.storage.api import NodeIdentity, SnapshotId
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.quorum.leader import Leader
from raftlog.wire.records.v1 import records_pb2
from simulation.twins.disk import SimDisk
from simulation.twins.loop import host_context, run
from simulation.twins.network import SimNetwork

VOTERS = tuple(Voter(i, f"c{i}:9093") for i in (1, 2, 3))

T = TypeVar("T")


class Recorder:
    def __init__(self) -> None:
        self.leads = 0
        self.high_watermark = -1
        self.rounds: list[int] = []
        self.lost: list[int] = []
        self.failure: FatalError | None = None

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        pass

    def became_leader(self, epoch: int, epoch_start_offset: int) -> None:
        self.leads = epoch

    def writes_wait(self) -> bool:
        return False

    def lost_leadership(self, epoch: int, reason: str) -> None:
        self.leads = 0
        self.lost.append(epoch)

    def committed(self, high_watermark: int) -> None:
        assert high_watermark > self.high_watermark
        self.high_watermark = high_watermark

    def voters_changed(self, offset: int, voters: tuple[Voter, ...]) -> None:
        self.voters = (offset, voters)

    def snapshot_loaded(self, snapshot_id: SnapshotId) -> None:
        self.loaded = snapshot_id

    def read_index_confirmed(self, number: int) -> None:
        self.rounds.append(number)

    def failed(self, error: FatalError) -> None:
        self.failure = error


class Node:
    """One node of the quorum, whose disk outlives its process. ``disk``: a copy of another node's;
    ``name``: of its machine.
    """

    def __init__(
        self, world: "World", node_id: int, *, disk: SimDisk | None = None, name: str = ""
    ) -> None:
        self.world, self.id, self.name = world, node_id, name or f"c{node_id}"
        identity = NodeIdentity("c", node_id, f"dir-{node_id}")
        self.disk = disk or SimDisk(identity, random.Random(node_id))
        self.start()

    def start(self) -> None:
        self.recorder = Recorder()
        self.transport = self.world.network.transport_for(self.name)
        self.store = self.disk.open()
        self.replica = Replica(
            QuorumConfig("c", self.id, f"dir-{self.id}", self.world.voters),
            self.store,
            self.transport,
            self.recorder,
            rng=random.Random(100 + self.id),
            wall_clock_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
        )
        self.up = asyncio.get_running_loop().create_task(
            self._up(), context=host_context(self.name)
        )

    async def _up(self) -> None:
        self.replica.start()
        self.replica.core.validate_each_step = True
        await self.transport.listen(f"{self.name}:9093", self.replica.acceptors())

    def kill(self) -> None:
        self.replica.close()
        self.world.network.crash(self.name)
        self.disk.crash(random.Random(7))

    def propose(self, count: int = 1) -> int:
        base = self.replica.log_end_offset
        data = [
            record(
                records_pb2.ConfigRecord(
                    resource_type=32, resource_name="g", name="k", value=str(base)
                )
            ).data
        ]
        chunk = b"".join(
            batch.encode(data, base_offset=base + i, epoch=self.recorder.leads, timestamp_ms=1)
            for i in range(count)
        )
        self.replica.propose(chunk, base, base + count, self.recorder.leads, 1)
        return base + count


class World:
    def __init__(self, voters: tuple[Voter, ...] = VOTERS) -> None:
        self.network, self.voters = SimNetwork(random.Random(5)), voters
        self.nodes = [Node(self, i) for i in (1, 2, 3)]

    async def until(self, condition: Callable[[], T | None], within_s: float = 20.0) -> T:
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            found = condition()
            if found:
                return found
            assert asyncio.get_running_loop().time() < deadline, "it did not happen in time"
            await asyncio.sleep(0.005)

    async def leader(self, among: list[Node] | None = None) -> Node:
        return await self.until(
            lambda: next(
                (
                    n
                    for n in among or self.nodes
                    if n.recorder.leads and n.recorder.high_watermark > 0
                ),
                None,
            )
        )


@simulated
async def test_replica_describes_its_backlog_and_its_contact_with_the_leader() -> None:
    world = World()
    leader = await world.leader()
    end = leader.propose(3)
    await world.until(lambda: all(n.recorder.high_watermark == end for n in world.nodes))
    backlog = leader.replica.backlog()
    assert (backlog.events, backlog.held_effects) == (0, 0)
    assert backlog.tail_cache_bytes == len(leader.replica.read(0, end, 1 << 30))
    now = asyncio.get_running_loop().time()
    hear = [node.replica.describe(now).hears_leader for node in world.nodes]
    assert hear == [node is not leader for node in world.nodes]


@simulated
async def test_failed_flush_stops_the_node_before_it_acknowledges() -> None:
    world = World()
    leader = await world.leader()
    follower = next(n for n in world.nodes if n is not leader)
    await world.until(lambda: follower.recorder.high_watermark == leader.recorder.high_watermark)
    follower.disk.fail_next("flush")
    end = leader.propose()
    await world.until(lambda: follower.recorder.failure)
    await world.until(lambda: leader.recorder.high_watermark >= end)
    described = {
        v.node_id: v.log_end_offset
        for v in leader.replica.core.describe(asyncio.get_running_loop().time()).voters
    }
    assert described[follower.id] < end


@simulated
async def test_inconsistent_node_stops_before_it_sends_anything() -> None:
    world = World()
    leader = await world.leader()
    leader.replica.core.validate_each_step = False
    leader.replica.core._node.log.flushed_end = leader.replica.log_end_offset + 100
    end = leader.replica.log_end_offset
    leader.propose()
    failure = leader.recorder.failure
    assert isinstance(failure, InvariantError)
    assert "flushed end" in str(failure)
    assert leader.replica.log_end_offset == end, (
        "what was proposed is nowhere, not even in its own log"
    )
    # The others elect one of themselves, whose log goes on with its own epoch.
    successor = await world.until(
        lambda: next((n for n in world.nodes if n is not leader and n.recorder.leads), None)
    )
    first = next(
        batch.headers(successor.replica.read(end, successor.replica.log_end_offset, 1 << 20))
    )
    assert first.epoch == successor.recorder.leads > leader.recorder.leads


def test_proposal_costs_each_follower_exactly_one_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    fetches: list[int] = []
    on_fetch = Leader.on_fetch

    def counted(self: Leader, request: Any, reply_to: Any) -> None:
        fetches.append(request.fetch_offset)
        on_fetch(self, request, reply_to)

    monkeypatch.setattr(Leader, "on_fetch", counted)

    async def main() -> None:
        world = World()
        leader = await world.leader()
        await asyncio.sleep(1)
        fetches.clear()
        end = 0
        for _ in range(50):
            end = leader.propose()
            await world.until(lambda: leader.recorder.high_watermark >= end)  # noqa: B023
        assert leader.recorder.high_watermark == end
        assert len(fetches) <= 110

    run(main())


@pytest.mark.parametrize("disk_hangs", [True, False])
@simulated
async def test_leader_resigns_for_a_hanging_disk_and_not_for_a_late_report(
    disk_hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush's report is late, either from a hung disk or from one that finished long ago."""
    world = World()
    leader = await world.leader()
    epoch = leader.recorder.leads
    if not disk_hangs:
        monkeypatch.setattr(type(leader.store), "busy_s", 0.0)
    leader.disk.hang()
    leader.propose()
    await asyncio.sleep(4.0)
    assert (leader.replica.core.role != "leader") is disk_hangs
    leader.disk.resume()
    await world.leader()
    assert leader.recorder.failure is None
    assert (max(node.replica.core.epoch for node in world.nodes) > epoch) is disk_hangs

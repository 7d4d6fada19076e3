"""Snapshots in a living cluster: nodes and brokers that come back below the log start, transfers
that break, crashes in the middle.
"""

import asyncio
import random
from typing import Any

import pytest
from scenarios import simulated
from snapshot_world import Node, World

from controller.service.catch_up import CatchUp
from raftlog.metadata.snapshot import SnapshotLoader
from raftlog.node.replica import replica as replica_module
from raftlog.node.replica import snapshots as replica_snapshots
from raftlog.node.replica.replica import Replica
from raftlog.quorum import events
from simulation.twins.loop import run


async def compacted(world: World) -> None:
    """The leader's log begins after what it began with."""
    leader = await world.active()
    await world.write_until(lambda: leader.log_start > 20, "the leader's log start moves")


@simulated
async def test_every_node_takes_snapshots_by_itself_and_drops_what_they_cover() -> None:
    world = World()
    await world.active()
    await world.write_until(
        lambda: all(node.log_start > 20 for node in world.nodes), "all log starts move"
    )
    await world.converged()
    for node in world.nodes:
        replica = node.service.replica
        assert replica.snapshots.ids
        assert node.service.snapshots.generated >= 2
        assert replica.snapshots.ids[0].end_offset == node.log_start
        assert replica.used_bytes() < 4 * world.settings["metadata_max_retention_bytes"]


@simulated
async def test_node_begins_with_its_snapshot_and_the_tail_as_if_it_had_never_died() -> None:
    world = World()
    await compacted(world)
    await world.converged()
    for node in world.nodes:
        node.kill()
    for node in world.nodes:
        node.start()
    await world.active()
    await world.write(3)
    await world.converged()
    for node in world.nodes:
        assert node.service.snapshots.loaded == 1
        assert node.log_start > 0


def test_node_elected_while_it_loads_claims_only_when_it_has_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = CatchUp._load_slice

    def slow(self: Any, load: Any) -> Any:
        loop = asyncio.get_running_loop()
        if loop.time() < loading_until[0]:
            loop.call_later(0.05, self._wake)
        else:
            honest(self, load)

    loading_until = [0.0]
    monkeypatch.setattr(CatchUp, "_load_slice", slow)

    async def main() -> None:
        world = World()
        await compacted(world)
        await world.converged()
        for node in world.nodes:
            node.kill()
        loading_until[0] = asyncio.get_running_loop().time() + 10
        for node in world.nodes:
            node.start()
        leader = await world.until(
            lambda: next(
                (node for node in world.nodes if node.service.node.leadership is not None), None
            )
        )
        await asyncio.sleep(1)
        assert leader.service.node.leadership is not None
        assert leader.service.node.loading
        assert leader.service.node.decider is None
        await world.write(3)
        assert asyncio.get_running_loop().time() > loading_until[0]
        await world.converged()

    run(main())


@simulated
async def test_node_that_was_down_while_the_leader_compacted_comes_back_by_snapshot() -> None:
    world = World()
    leader = await world.active()
    await world.write(5)
    down = next(node for node in world.nodes if node is not leader)
    down.kill()
    end = down.disk.live.bases[-1] if down.disk.live.bases else 0
    await world.write_until(
        lambda: leader.log_start > end + 20, "the leader's log start moves beyond it"
    )
    down.start()
    await world.until(lambda: down.log_start > 0, what="an installed snapshot")
    assert down.service.snapshots.loaded == 1
    await world.write(5)
    await world.converged()
    # And it can lead from what it got.
    for node in world.nodes:
        if node is not down:
            node.kill()
    await asyncio.sleep(0.5)
    for node in world.nodes:
        if node is not down:
            node.start()
    await world.write(5)
    await world.converged()


@simulated
async def test_fresh_disk_begins_with_a_snapshot() -> None:
    world = World()
    await compacted(world)
    follower = next(node for node in world.nodes if not node.active)
    follower.kill()
    fresh = world.nodes[world.nodes.index(follower)] = Node(world, follower.id)
    fresh.start()
    await world.until(lambda: fresh.service.snapshots.loaded == 1, what="an installed snapshot")
    await world.write(3)
    await world.converged()


@pytest.mark.parametrize("seed", range(6))
def test_leader_dies_during_the_transfer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Small pieces: the transfer takes its time.
    monkeypatch.setattr(replica_snapshots, "PIECE_MAX_BYTES", 2000)

    async def main() -> None:
        world = World(seed)
        rng = random.Random(seed)
        leader = await world.active()
        down = next(node for node in world.nodes if node is not leader)
        down.kill()
        await world.write_until(lambda: leader.log_start > 20, "the leader's log start moves")
        parts: list[int] = []
        wanted, enough = rng.randint(1, 10), asyncio.Event()
        honest = Replica._store_snapshot

        def counted(self: Any, effect: Any) -> Any:
            parts.append(effect.position)
            honest(self, effect)
            if len(parts) == wanted:
                enough.set()

        monkeypatch.setitem(replica_module._EFFECTS, events.StoreSnapshot, counted)
        down.start()
        await asyncio.wait_for(enough.wait(), 60)
        assert down.service.snapshots.loaded == 0
        leader.kill(rng)
        await asyncio.sleep(rng.uniform(0.1, 2))
        leader.start()
        # The next leader may have a snapshot of its own to give, or still all of the log.
        await world.until(lambda: down.service.image.offset > 20, what="a state")
        await world.write(3)
        await world.converged()

    run(main())


@pytest.mark.parametrize("seed", range(12))
def test_crash_in_the_middle_of_fetching_or_installing(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_snapshots, "PIECE_MAX_BYTES", 4000)

    async def main() -> None:
        world = World(seed)
        rng = random.Random(seed)
        leader = await world.active()
        await world.write(5)
        down = next(node for node in world.nodes if node is not leader)
        down.kill(rng)
        await world.write_until(lambda: leader.log_start > 20, "the leader's log start moves")
        for _ in range(8):
            down.start()
            await asyncio.sleep(rng.uniform(0.005, 0.3))
            down.kill(rng)
        down.start()
        await world.until(lambda: down.log_start > 0, what="an installed snapshot")
        await world.write(3)
        await world.converged()

    run(main())


@pytest.mark.parametrize("seed", range(12))
@simulated
async def test_crashes_while_snapshots_are_written_and_the_log_start_moves(seed: int) -> None:
    world = World(
        seed,
        metadata_log_max_record_bytes_between_snapshots=5_000,
        metadata_max_retention_bytes=10_000,
    )
    rng = random.Random(seed)
    await world.active()
    for _ in range(12):
        await world.write(rng.randint(5, 15))
        node = rng.choice(world.nodes)
        await asyncio.sleep(rng.uniform(0, 0.2))
        node.kill(rng)
        await asyncio.sleep(rng.choice((0.0, 0.1, 12.0)))
        node.start()
    await world.write(3)
    await world.converged()
    assert any(
        node.service.snapshots.generated or node.service.snapshots.loaded for node in world.nodes
    )


@simulated
async def test_broker_that_begins_late_begins_with_a_snapshot() -> None:
    world = World()
    early = world.broker(11)
    await compacted(world)
    late = world.broker(12)
    await world.until(lambda: not late.service.why_fenced(), what="the late broker is unfenced")
    await world.write(3)
    await world.converged()
    assert (
        early.service._follower.snapshots_installed,
        late.service._follower.snapshots_installed,
    ) == (0, 1)
    leader = await world.active()
    await world.until(
        lambda: leader.service.node.lowest_acknowledged_offset >= leader.service.image.offset
    )


@simulated
async def test_broker_cut_off_while_the_log_is_compacted_comes_back_by_snapshot_and_lao_never_goes_back() -> (
    None
):
    world = World()
    broker, other = world.broker(11), world.broker(12)
    leader = await world.active()
    await world.until(lambda: not broker.service.why_fenced() and not other.service.why_fenced())
    told: dict[str, int] = {}
    applied: dict[str, int] = {}

    async def watch() -> None:
        while True:
            for one in (broker, other):
                about = one.service.report.describe()
                assert about.lowest_acknowledged_offset >= told.get(one.name, -1)
                assert about.applied_offset >= applied.get(one.name, -1)
                told[one.name], applied[one.name] = (
                    about.lowest_acknowledged_offset,
                    about.applied_offset,
                )
            await asyncio.sleep(0.002)

    watching = asyncio.ensure_future(watch())
    for node in world.nodes:
        world.network.partition(broker.name, node.name)
    at = broker.service.image.offset
    await world.write_until(
        lambda: all(node.log_start > at + 1 for node in world.nodes), "all log starts move beyond"
    )
    assert broker.service.image.offset == at
    world.network.heal_all()
    await world.until(lambda: not broker.service.why_fenced(), what="it is back")
    await world.write(3)
    await world.converged()
    assert broker.service._follower.snapshots_installed == 1
    await world.until(
        lambda: leader.service.node.lowest_acknowledged_offset >= leader.service.image.offset
    )
    await world.until(
        lambda: broker.service.view.repeatable is not None, what="repeatable reads are back"
    )
    assert not watching.done(), watching.exception()
    watching.cancel()


@pytest.mark.parametrize("seed", range(4))
def test_controller_dies_while_a_broker_fetches_its_snapshot(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_snapshots, "PIECE_MAX_BYTES", 1000)
    feed, fed = SnapshotLoader.feed, 0

    def counted(loader: SnapshotLoader, data: bytes) -> None:
        nonlocal fed
        fed += len(data)
        feed(loader, data)

    async def main() -> None:
        nonlocal fed
        world = World(seed)
        await world.active()
        await world.write_until(
            lambda: all(node.log_start > 20 for node in world.nodes), "all log starts move"
        )
        leader = await world.active()
        monkeypatch.setattr(SnapshotLoader, "feed", counted)
        fed, late = 0, world.broker(12)
        position = random.Random(seed).randrange(0, 20_000)
        await world.until(lambda: fed > position, what="the broker has a part of a snapshot")
        assert late.service.image.offset == -1
        leader.kill()
        await world.until(lambda: not late.service.why_fenced(), what="the broker is unfenced")
        leader.start()
        await world.write(3)
        await world.converged()

    run(main())


def test_snapshot_is_fetched_even_if_newer_ones_replace_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While writes go on: a broker that begins, and a controller that comes back."""
    monkeypatch.setattr(replica_snapshots, "PIECE_MAX_BYTES", 16)

    async def main() -> None:
        world = World()
        leader = await world.active()
        down = next(node for node in world.nodes if node is not leader)
        down.kill()
        await world.write_until(lambda: leader.log_start > 20, "the leader's log start moves")

        async def write_on() -> None:
            while not caught_up:
                await world.write()

        caught_up, before = False, leader.service.snapshots.generated
        writing = asyncio.ensure_future(write_on())
        late = world.broker(12)
        down.start()
        await world.until(lambda: not late.service.why_fenced(), 20, "the broker is unfenced")
        await world.until(lambda: down.service.snapshots.loaded, 20, "the controller is there")
        assert leader.service.snapshots.generated > before + 5, "it would have been in time"
        caught_up = True
        await writing
        await world.converged()
        await asyncio.sleep(replica_snapshots.FETCHED_WITHIN_S)
        await world.write(120)
        assert len(leader.service.replica.snapshots.ids) < 4, "what was kept for them is gone"

    run(main())


def test_the_same_seed_is_the_same_life() -> None:
    def life() -> list[tuple[int, int]]:
        states: list[tuple[int, int]] = []

        async def main() -> None:
            world = World(3)
            await compacted(world)
            world.broker(11)
            await world.write(5)
            await world.converged()
            for node in world.nodes:
                states.append(node.state)
                states.extend(
                    (one.end_offset, one.epoch) for one in node.service.replica.snapshots.ids
                )
                states.append((node.log_start, len(node.service.replica.snapshots.ids)))

        run(main())
        return states

    assert life() == life()

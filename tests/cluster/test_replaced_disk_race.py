"""KIP-903's race, with processes: a follower catches up, its disk is replaced, and only then the
proposal to take it in arrives.

With the check of broker epochs the follower stays out, and nothing is lost. With a controller that
does not look at them it becomes a member with an empty disk, then the leader, and what was
acknowledged is gone: that is what the check is for, and this test can tell.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, running, until, until_true
from data_kit import SETTINGS, TOPIC, DataWorld, Reader, clients_of, replace_disk

from raftlog.local.cluster import LocalCluster

NODE = Path(__file__).with_name("race_node.py")
RECORDS = 50
LEADER, FOLLOWER = 2, 3


class RaceCluster(LocalCluster):
    """One controller, two brokers; ``checks``: whether the controller looks at broker epochs."""

    checks = True

    def program(self, name: str) -> list[str]:
        """The launcher, told what it may be held by."""
        environment = [
            f"HOLD_ALTER_FILE={self.hold_file('alter')}",
            f"HOLD_FETCH_FILE={self.hold_file('fetch')}",
            f"NO_EPOCH_CHECK={'' if self.checks else 'yes'}",
        ]
        return ["/usr/bin/env", *environment, sys.executable, str(NODE)]

    def hold_file(self, what: str) -> Path:
        """While it exists, this is held: alter, fetch."""
        return self.directory / f"{what}.held"


async def state_of(world: DataWorld) -> Any:
    """The partition, as the controller's log has it."""
    return await world.committed()


async def wait_for(world: DataWorld, found: Callable[[Any], bool], what: str) -> None:
    async def holds() -> bool:
        return found(await state_of(world))

    await until_true(holds, what)


def said(cluster: LocalCluster, broker_id: int, *words: str) -> bool:
    lines = cluster.log_path(f"broker-{broker_id}").read_text().splitlines()
    return any(all(word in line for word in words) for line in lines)


async def killed(cluster: LocalCluster, broker_id: int) -> str:
    """Kill a broker, and wait until it has ended; its name."""
    name = f"broker-{broker_id}"
    cluster.kill(name, signal.SIGKILL)
    assert await asyncio.to_thread(cluster.wait_gone, name)
    return name


async def race(cluster: RaceCluster, world: DataWorld) -> tuple[int, int]:
    """Up to the arrival of the proposal; who leads, and who was empty when it was proposed."""
    producer = world.producer()
    for number in range(RECORDS):
        await producer.send(TOPIC, b"%d" % number)
    leader = await world.leader()
    follower = LEADER + FOLLOWER - leader
    name = await killed(cluster, follower)
    await wait_for(world, lambda one: one.isr == (leader,), "the leader is alone in the ISR")
    # It comes back with its disk and catches up; the leader wants it in the ISR.
    cluster.hold_file("alter").touch()
    await asyncio.to_thread(cluster.start, name)
    await asyncio.to_thread(
        until, lambda: said(cluster, leader, "isr change proposed", "expand"), "it is proposed"
    )
    # Its disk is replaced, and nothing is fetched to it; it is registered anew, and unfenced.
    await killed(cluster, follower)
    await asyncio.to_thread(replace_disk, cluster, name)
    cluster.hold_file("fetch").touch()
    await asyncio.to_thread(cluster.start, name)
    await asyncio.to_thread(cluster.wait_ready, [name], PATIENCE_S)
    cluster.hold_file("alter").unlink()
    return leader, follower


async def has_all(world: DataWorld) -> None:
    """Every record that was acknowledged before the race can be read."""
    assert await read(world, RECORDS) == [b"%d" % number for number in range(RECORDS)]


async def read(world: DataWorld, count: int) -> list[bytes]:
    """The first records of the partition."""
    reader = Reader(world.consumer())
    await reader.until({0: count})
    await reader.stop()
    return reader.seen[0]


@pytest.fixture(params=[True])
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[DataWorld]:
    """A topic on both brokers; the parameter: whether the controller looks at broker epochs."""
    made = RaceCluster(tmp_path / "c", controllers=1, brokers=2, settings=SETTINGS)
    made.checks = request.param
    create = f"topics create {TOPIC} -p 1 -r 2 --acks visible"
    with running(made, create):
        async with clients_of(made) as clients:
            yield clients


@pytest.mark.nightly
async def test_replica_with_an_empty_disk_stays_out_of_the_isr(world: DataWorld) -> None:
    cluster: Any = world.cluster
    leader, follower = await race(cluster, world)
    refused = ("isr change refused", "is registered under epoch")
    await asyncio.to_thread(until, lambda: said(cluster, leader, *refused), "it is refused")
    name = await killed(cluster, leader)
    await wait_for(world, lambda one: one.leader == -1, "nobody leads")
    assert (await state_of(world)).elr == (leader,)
    # The leader comes back, and with it everything; the empty replica is filled, and then it is in
    # sync.
    await asyncio.to_thread(cluster.start, name)
    cluster.hold_file("fetch").unlink()
    await wait_for(world, lambda one: {*one.isr} == {leader, follower}, "both are in sync")
    await has_all(world)


@pytest.mark.nightly
@pytest.mark.parametrize("world", [False], indirect=True)
async def test_acknowledged_records_are_lost_without_the_epoch_check(world: DataWorld) -> None:
    cluster: Any = world.cluster
    leader, follower = await race(cluster, world)
    await wait_for(world, lambda one: follower in one.isr, "the empty replica is taken in")
    await killed(cluster, leader)
    await wait_for(world, lambda one: one.leader == follower, "the empty replica leads")
    # It takes records, from offset 0 on: those that were acknowledged there are gone.
    done = await world.producer(retry_unknown=True).send(TOPIC, b"new")
    assert done.offset < RECORDS
    assert await read(world, 1) == [b"new"]


@pytest.mark.nightly
async def test_last_member_with_an_empty_disk_waits_for_the_replica_that_has_records(
    world: DataWorld,
) -> None:
    """KIP-903's exception, closed by KIP-966's unclean recovery."""
    cluster = world.cluster
    producer = world.producer()
    for number in range(RECORDS):
        await producer.send(TOPIC, b"%d" % number)
    leader = await world.leader()
    other = await killed(cluster, LEADER + FOLLOWER - leader)
    await wait_for(world, lambda one: one.isr == (leader,), "the leader is alone")
    await producer.send(TOPIC, b"only on the leader")
    last = await killed(cluster, leader)
    await wait_for(world, lambda one: one.elr == (leader,), "nobody leads")
    await asyncio.to_thread(replace_disk, cluster, last)
    await asyncio.to_thread(cluster.start, last)
    await asyncio.to_thread(cluster.wait_ready, [last], PATIENCE_S)
    # It is live and has reported its empty log with several heartbeats.
    await asyncio.sleep(1.0)
    waiting = await state_of(world)
    assert (waiting.leader, waiting.isr, waiting.elr) == (-1, (), ())
    assert waiting.last_known_elr == (), "its disk is known to be lost"
    await asyncio.to_thread(cluster.start, other)
    await world.led_by(LEADER + FOLLOWER - leader)
    await has_all(world)


async def test_last_member_that_was_stopped_in_order_leads_again_at_once(world: DataWorld) -> None:
    cluster = world.cluster
    await world.producer().send(TOPIC, b"one")
    leader = await world.leader()
    names = [f"broker-{LEADER + FOLLOWER - leader}", f"broker-{leader}"]
    for name in names:
        await asyncio.to_thread(cluster.stop, [name])
    await wait_for(world, lambda one: one.elr == (leader,), "nobody leads")
    await asyncio.to_thread(cluster.start, names[1])
    await world.led_by(leader)
    assert (await state_of(world)).leader_recovery_state == 0, "a clean election"

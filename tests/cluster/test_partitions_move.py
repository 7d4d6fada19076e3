"""Partitions that move between brokers under writes."""

import asyncio
import signal

import pytest
from cluster_kit import PATIENCE_S, cluster_of, raftlog, until
from data_kit import SETTINGS, TOPIC, Load, Reader, clients_of, nothing_is_lost

from raftlog.local.cluster import LocalCluster

cluster = cluster_of(
    1, 4, f"topics create {TOPIC} --replica-assignment 2:3 --acks visible", settings=SETTINGS
)
"""A partition on brokers 2 and 3 of 2 to 5."""


def told(cluster: LocalCluster, *command: object, code: int = 0) -> str:
    """Return the output of a command that asks the controller."""
    ran = raftlog(*command, "--bootstrap-controller", cluster.bootstrap_controllers)
    assert ran.code == code, ran
    return str(ran.out)


def moved(cluster: LocalCluster) -> bool:
    ran = raftlog("partitions reassignments --check", controllers=cluster)
    return bool(ran.code == 0)


@pytest.mark.nightly
async def test_partition_moves_under_writes_and_loses_nothing(cluster: LocalCluster) -> None:
    async with clients_of(cluster) as world:
        load, reader = Load(world.producer()), Reader(world.consumer())
        await load.more(200)
        await asyncio.to_thread(told, cluster, f"partitions reassign {TOPIC}:0=4,5")
        await load.more(100)
        await asyncio.to_thread(until, lambda: moved(cluster), "the move is complete")
        await world.led_by(4)
        await load.more(200)
        await load.stop()
        # Those that had it may go: the others have everything.
        for name in ("broker-2", "broker-3"):
            cluster.kill(name, signal.SIGKILL)
        await nothing_is_lost(world, load, reader)
        for name in ("broker-2", "broker-3"):
            assert await asyncio.to_thread(cluster.wait_gone, name)
            await asyncio.to_thread(cluster.start, name)
        await asyncio.to_thread(cluster.wait_ready, ["broker-2", "broker-3"], PATIENCE_S)


@pytest.mark.nightly
async def test_move_to_a_sleeping_broker_waits_and_is_cancelled(cluster: LocalCluster) -> None:
    async with clients_of(cluster) as world:
        load = Load(world.producer())
        await load.more(50)
        cluster.kill("broker-2", signal.SIGSTOP)
        await asyncio.to_thread(told, cluster, f"partitions reassign {TOPIC}:0=2,4")
        await load.more(100)
        shown = await asyncio.to_thread(told, cluster, "partitions reassignments --json")
        assert '"waiting_for": [\n        2\n      ]' in shown
        await asyncio.to_thread(told, cluster, f"partitions cancel {TOPIC}:0")
        assert await asyncio.to_thread(moved, cluster)
        await load.more(50)
        cluster.kill("broker-2", signal.SIGCONT)
        await load.stop()
        await nothing_is_lost(world, load)


@pytest.mark.nightly
async def test_preferred_leader_regains_its_partition_under_writes(cluster: LocalCluster) -> None:
    async with clients_of(cluster) as world:
        load = Load(world.producer())
        await load.more(50)
        # Whoever has led so far: first it is broker 4, whom a new order of the same replicas
        # leaves in place.
        await asyncio.to_thread(told, cluster, f"partitions reassign {TOPIC}:0=4,5")
        await asyncio.to_thread(until, lambda: moved(cluster), "the move is complete")
        await asyncio.to_thread(told, cluster, f"partitions elect {TOPIC}:0")
        await world.led_by(4)
        await asyncio.to_thread(told, cluster, f"partitions reassign {TOPIC}:0=5,4")
        assert "led by 5" in await asyncio.to_thread(told, cluster, f"partitions elect {TOPIC}:0")
        await world.led_by(5)
        await load.more(100)
        await load.stop()
        await nothing_is_lost(world, load)

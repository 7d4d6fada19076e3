"""Partitions on three processes: acks=all records survive kills, sleep and a lost disk."""

import asyncio
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cluster_kit import PATIENCE_S, cluster_of, crash, raftlog, restart, says, succeed, until
from data_kit import (
    SETTINGS,
    TOPIC,
    DataWorld,
    Load,
    Reader,
    clients_of,
    in_sync,
    nothing_is_lost,
    replace_disk,
)

from raftlog.errors import ApiError
from raftlog.local.cluster import LocalCluster

three = cluster_of(
    3,
    3,
    f"topics create {TOPIC} -p 2 -r 3 --topic-config min.insync.replicas=2 --acks visible",
    settings=SETTINGS,
)


@pytest.fixture(scope="module")
def cluster(three: LocalCluster) -> Iterator[LocalCluster]:
    """A topic with three replicas and min.insync.replicas 2."""
    yield three
    for node in three.brokers:
        # A handler that fails costs a link, and the client an unknown outcome: nothing else would
        # tell.
        told = three.log_path(node.name).read_text()
        assert "a link handler failed" not in told
        assert "Traceback" not in told


async def test_killed_leaders_return_without_losing_records(cluster: LocalCluster) -> None:
    async with clients_of(cluster) as world:
        load, reader = Load(world.producer()), Reader(world.consumer())
        for _ in range(2):
            await load.more(200)
            victim = await world.leader()
            cluster.kill(f"broker-{victim}", signal.SIGKILL)
            await world.led_by(victim, other=True)
            await load.more(200)
            await asyncio.to_thread(restart, cluster, f"broker-{victim}")
            await in_sync(world)
        await load.stop()
        await nothing_is_lost(world, load, reader)


@pytest.mark.nightly
async def test_sleeping_leader_is_replaced_and_wakes_as_a_follower(cluster: LocalCluster) -> None:
    async with clients_of(cluster) as world:
        load, reader = Load(world.producer(request_timeout_ms=3000)), Reader(world.consumer())
        await load.more(200)
        sleeper = await world.leader()
        cluster.kill(f"broker-{sleeper}", signal.SIGSTOP)
        await world.led_by(sleeper, other=True)
        await load.more(200)
        cluster.kill(f"broker-{sleeper}", signal.SIGCONT)
        await in_sync(world)
        await load.more(50)
        await load.stop()
        await nothing_is_lost(world, load, reader)


@pytest.mark.nightly
async def test_replaced_disk_is_filled_and_then_holds_everything(cluster: LocalCluster) -> None:
    async with clients_of(cluster) as world:
        load = Load(world.producer())
        await load.more(200)
        leader = await world.leader()
        victim = next(node for node in cluster.brokers if node.node_id != leader)
        await asyncio.to_thread(crash, cluster, victim.name)
        await asyncio.to_thread(replace_disk, cluster, victim.name)
        await asyncio.to_thread(restart, cluster, victim.name)
        await load.more(100)
        await in_sync(world)
        await load.stop()
        others = [node for node in cluster.brokers if node.name != victim.name]
        for node in others:
            cluster.kill(node.name, signal.SIGKILL)
        await world.led_by(victim.node_id)
        for node in others:
            await asyncio.to_thread(restart, cluster, node.name)
        # Alone, the victim was below min.insync.replicas: its high watermark stood still (KIP-966).
        # The others have truncated their logs to its log.
        await in_sync(world)
        await nothing_is_lost(world, load)


async def ask_alone(world: DataWorld, endpoint: str, count: int) -> list[object]:
    """Send records to one broker only; return each outcome."""
    producer = world.producer(endpoint, request_timeout_ms=1500, delivery_timeout_ms=1500)
    return list(
        await asyncio.gather(
            *(producer.send(TOPIC, b"alone-%d" % n, partition=0) for n in range(count)),
            return_exceptions=True,
        )
    )


@pytest.mark.nightly
async def test_isolated_leader_acknowledges_nothing(cluster: LocalCluster) -> None:
    async with clients_of(cluster) as world:
        load = Load(world.producer())
        await load.more(100)
        await load.stop()
        leader = await world.leader()
        # To the leader this is a partition: it lives, its clients reach it, and nobody else
        # answers.
        silent = [node.name for node in cluster.nodes if node.node_id != leader]
        for name in silent:
            cluster.kill(name, signal.SIGSTOP)
        outcomes = await ask_alone(world, cluster.node(f"broker-{leader}").endpoint, 5)
        assert all(isinstance(one, ApiError) for one in outcomes), outcomes
        # In time it takes itself for fenced, and says so before anything is done.
        fenced = f"broker-{leader}"
        await asyncio.to_thread(
            until, lambda: not cluster.ready(fenced)[0], "it takes itself for fenced"
        )
        refused = await ask_alone(world, cluster.node(fenced).endpoint, 1)
        assert isinstance(refused[0], ApiError)
        assert not refused[0].outcome_unknown
        for name in silent:
            cluster.kill(name, signal.SIGCONT)
        await asyncio.to_thread(
            cluster.wait_ready, [node.name for node in cluster.brokers], PATIENCE_S
        )
        await in_sync(world)
        await nothing_is_lost(world, load)


@pytest.mark.nightly
def test_produce_and_consume_commands_round_trip(cluster: LocalCluster) -> None:
    at = ("--bootstrap-server", cluster.bootstrap_servers)
    succeed("topics create letters -p 1 -r 3 --acks visible", brokers=cluster)
    ran = raftlog("produce letters --value 1 --value 2", brokers=cluster)
    assert (ran.code, ran.out) == (0, "letters-0 at offset 0\nletters-0 at offset 1\n")
    ran = raftlog("consume letters --partition 0 --offset 1 --max-messages 1", brokers=cluster)
    assert (ran.code, ran.out) == (0, "2\n")
    ran = raftlog("consume nothing --from-beginning --timeout 10", brokers=cluster).refused(1)
    says(ran.err, "UNKNOWN_TOPIC_OR_PARTITION")
    asked = subprocess.Popen(
        [sys.executable, "-m", "raftlog", "consume", "nothing", *at],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        # Without --timeout it waits, and says for what.
        assert asked.stderr is not None
        told = iter(asked.stderr.readline, "")
        assert any("waiting" in line and "there is no topic nothing" in line for line in told)
        asked.send_signal(signal.SIGINT)
        assert asked.wait(PATIENCE_S) == -signal.SIGINT
    finally:
        asked.kill()
        asked.communicate()
    ran = raftlog("produce letters --value x --partition 7", brokers=cluster).refused(1)
    says(ran.err, "UNKNOWN_TOPIC_OR_PARTITION", "0 records written, 1 not written")


@pytest.mark.nightly
async def test_leader_with_a_failing_disk_stops_and_nothing_is_lost(cluster: LocalCluster) -> None:
    async with clients_of(cluster) as world:
        load = Load(world.producer(), writers=16)
        await load.more(100)
        leader = await world.leader()
        name = f"broker-{leader}"
        pid = cluster.pid(name)
        assert pid is not None
        # Files may not grow much beyond the write-ahead log's present size: then writes fail,
        # as on a disk that is full.
        largest = max(one.stat().st_size for one in cluster.data_path(name).rglob("*.log"))
        limit = max(largest, cluster.log_path(name).stat().st_size) + 20_000
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, limit))
        await world.led_by(leader, other=True)
        assert await asyncio.to_thread(cluster.wait_gone, name)
        says(cluster.log_path(name), "the data plane stops", "stopped by an error")
        await load.more(100)
        await asyncio.to_thread(restart, cluster, name)
        await in_sync(world)
        await load.stop()
        await nothing_is_lost(world, load)

"""Draining a broker and balancing replicas under writes."""

import asyncio
import json
import signal
import subprocess
import sys
import time

import pytest
from cluster_kit import cluster_of, raftlog, restart, succeed
from data_kit import SETTINGS, TOPIC, Load, Reader, clients_of, nothing_is_lost

from raftlog.client.async_client import AsyncClient
from raftlog.local.cluster import LocalCluster
from raftlog.metadata.config_keys import THROTTLES
from raftlog.ops.moves import UNTHROTTLED

cluster = cluster_of(
    1,
    4,
    f"topics create {TOPIC} --replica-assignment 2:3 --acks visible",
    f"topics create others --replica-assignment {','.join(['2:3'] * 12)} --acks visible",
    settings=SETTINGS,
)
"""Twelve partitions on brokers 2 and 3 of 2 to 5, and one of clients."""


def told(cluster: LocalCluster, *command: object) -> str:
    return succeed(*command, controllers=cluster).out


def replicas(cluster: LocalCluster) -> dict[int, int]:
    """Return broker id -> number of replicas."""
    seen = json.loads(told(cluster, "brokers list --json"))
    return {one["id"]: one["replica_count"] for one in seen["brokers"]}


@pytest.mark.nightly
async def test_killed_drain_resumes_and_loses_nothing(cluster: LocalCluster) -> None:
    async with clients_of(cluster) as world:
        load, reader = Load(world.producer()), Reader(world.consumer())
        await load.more(100)
        shown = await asyncio.to_thread(told, cluster, "brokers drain 2 --dry-run")
        assert "13 partitions would move" in shown
        assert replicas(cluster)[2] == 13
        first = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "raftlog", "brokers", "drain", "2", "--at-once", "2",
            "--bootstrap-controller", cluster.bootstrap_controllers,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert first.stderr is not None
        assert b"in progress" in await first.stderr.readline()
        first.kill()
        await first.wait()
        await load.more(100)
        done = await asyncio.to_thread(told, cluster, "brokers drain 2")
        assert "broker 2 holds no replica" in done
        assert "active, cordoned" in await asyncio.to_thread(told, cluster, "brokers list")
        assert replicas(cluster)[2] == 0
        await load.more(100)
        await load.stop()
        cluster.kill("broker-2", signal.SIGKILL)
        await nothing_is_lost(world, load, reader)
        await asyncio.to_thread(restart, cluster, "broker-2")
    told(cluster, "brokers uncordon 2")
    assert "would move" in told(cluster, "partitions balance")
    assert replicas(cluster)[2] == 0
    assert "replicas are balanced" in told(cluster, "partitions balance --execute")
    counts = replicas(cluster).values()
    assert max(counts) - min(counts) <= 1


RATE, BATCHES, BATCH_BYTES = 1_000_000, 60, 100_000


@pytest.mark.nightly
async def test_throttled_drain_respects_and_removes_its_throttle(cluster: LocalCluster) -> None:
    for broker_id in (2, 3, 4, 5):
        told(cluster, f"brokers uncordon {broker_id}")
    told(cluster, "topics create large --replica-assignment 5 --acks visible")
    async with AsyncClient(bootstrap=cluster.bootstrap_servers) as client:
        sent = [client.produce("large", b"x" * BATCH_BYTES) for _ in range(BATCHES)]
        await asyncio.gather(*sent)
    command = f"brokers drain 5 --at-once 30 --throttle {RATE}"
    begun = time.monotonic()
    first = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "raftlog", *command.split(),
        "--bootstrap-controller", cluster.bootstrap_controllers,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert first.stderr is not None
    while b"1 in progress" not in (line := await first.stderr.readline()):
        assert line, "it ended before the move began"
    first.send_signal(signal.SIGINT)
    assert f"the throttle stays. {UNTHROTTLED.way_back()}".encode() in await first.stderr.read()
    await first.wait()
    assert "broker 5 holds no replica" in await asyncio.to_thread(told, cluster, command)
    # All but what an idle throttle has saved up.
    assert time.monotonic() - begun >= BATCHES * BATCH_BYTES / RATE - 1.5
    ran = raftlog("configs", "describe", "broker", "", "--json", brokers=cluster.bootstrap_servers)
    shown = json.loads(ran.out)
    set_ = [one for one in shown["items"] if one["name"] in THROTTLES and not one["is_default"]]
    assert set_ == []


@pytest.mark.nightly
def test_drain_that_no_broker_can_take_over_reports_what_is_left(cluster: LocalCluster) -> None:
    for broker_id in (3, 4, 5):
        told(cluster, f"brokers cordon {broker_id}")
    raftlog("brokers drain 2 --dry-run", controllers=cluster).refused(3, "brokers can take one")
    for broker_id in (3, 4, 5):
        told(cluster, f"brokers uncordon {broker_id}")

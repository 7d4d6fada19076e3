"""Retention on real brokers, over restarts and with a follower that was down for long."""

import asyncio
import json
from pathlib import Path

import pytest
from cluster_kit import PATIENCE_S, crash, raftlog, running, succeed, until
from data_kit import SETTINGS, TOPIC, clients_of, in_sync

from raftlog.client.producer import Producer
from raftlog.local.cluster import LocalCluster
from raftlog.node.storage.opening import open_partition_store

KEPT_BYTES = 3_000
EVERY = {**SETTINGS, "log.retention.check.interval.ms": 100}


def offsets(cluster: LocalCluster, *options: object) -> list[int]:
    """Return the offsets that a consumer receives from the log start on."""
    at = ("--bootstrap-server", cluster.bootstrap_servers, "--json", *options)
    ran = succeed(f"consume {TOPIC} --from-beginning", *at)
    return [json.loads(line)["offset"] for line in ran.out.splitlines()]


def earliest(cluster: LocalCluster) -> int:
    return offsets(cluster, "--max-messages", 1)[0]


def offsets_until(cluster: LocalCluster, last: int) -> list[int]:
    """Return the offsets from the log start up to this one. The start may move meanwhile: a new
    leader applies retention after its election.
    """
    found: list[int] = []

    def is_whole() -> bool:
        found[:] = offsets(cluster, "--timeout", 1)
        return found[-1:] == [last]

    until(is_whole, f"offset {last} can be read")
    return found


def on_disk(cluster: LocalCluster, name: str) -> tuple[int, int]:
    """Return the start and end of the partition's log at a stopped broker."""
    store = open_partition_store(cluster.data_path(name), asyncio.get_running_loop())
    try:
        (replica,) = store.recover()
        return replica.start_offset, replica.end_offset
    finally:
        store.close()


async def produce(producer: Producer, count: int) -> int:
    """Produce batches of one record; return the last offset."""
    return max([(await producer.send(TOPIC, b"x" * 50)).offset for _ in range(count)])


@pytest.mark.nightly
def test_retention_deletes_records_on_every_broker(tmp_path: Path) -> None:
    async def test(cluster: LocalCluster) -> None:
        async with clients_of(cluster) as world:
            producer = world.producer()
            await produce(producer, 100)
            until(lambda: earliest(cluster) > 0, "the log begins further on")
            leader = await world.leader()
            away = next(node for node in cluster.brokers if node.node_id != leader)
            crash(cluster, away.name)
            last = await produce(producer, 100)
            until(lambda: earliest(cluster) > 100, "the log begins where one was not any more")
            cluster.start(away.name)
            cluster.wait_ready([away.name], PATIENCE_S)
            await in_sync(world)
            # The leader goes, and all come back with what they have on disk.
            crash(cluster, *(node.name for node in cluster.brokers))
            start, end = on_disk(cluster, away.name)
            assert start > 100, "it has begun anew: nothing of what it had is there"
            assert end == last + 1
            for node in cluster.brokers:
                cluster.start(node.name)
            cluster.wait_ready([node.name for node in cluster.brokers], PATIENCE_S)
            await in_sync(world)
            found = offsets_until(cluster, last)
            assert found == list(range(found[0], last + 1))
            raftlog(
                *("consume", TOPIC, "--partition", 0, "--offset", 0, "--timeout", 5),
                *("--bootstrap-server", cluster.bootstrap_servers),
            ).refused(1, "OFFSET_OUT_OF_RANGE: offset 0 is not in ")

    with running(LocalCluster(tmp_path / "c", controllers=1, brokers=3, settings=EVERY)) as cluster:
        succeed(
            f"topics create {TOPIC} -r 3 --acks visible --topic-config retention.bytes={KEPT_BYTES} --topic-config min.insync.replicas=2",
            brokers=cluster,
        )
        asyncio.run(test(cluster))
        for node in cluster.brokers:
            assert "Traceback" not in cluster.log_path(node.name).read_text()

"""BrokerMetadata on a whole data plane (KIP-24)."""

import asyncio
import random
from collections.abc import Iterable
from typing import Any

import pytest
from data_cluster import TOPIC, DataCluster, Load, on_cluster
from scenarios import failure, scenario

from raftlog.client.leaders import LeaderAnswer, ask_leader, ask_leaders
from raftlog.client.log_reader import CommittedImage, LogReader
from raftlog.errors import ErrorCode
from raftlog.metadata.image import Image
from raftlog.ops.isr_compare import Compared, Why, compare
from raftlog.wire.data.v1 import data_pb2 as pb


class Looker:
    """Asks all brokers, then reads the committed log."""

    def __init__(self, cluster: DataCluster) -> None:
        self.cluster = cluster
        self._image = CommittedImage(
            LogReader(
                cluster.transport,
                [host.endpoint for host in cluster.controllers],
                rng=random.Random(1),
            )
        )

    async def ask(self) -> dict[int, LeaderAnswer]:
        endpoints = {id_: host.endpoint for id_, host in self.cluster.brokers.items()}
        return await ask_leaders(self.cluster.transport, endpoints, timeout_s=0.2)

    async def led(self, broker_id: int) -> pb.LedPartition:
        (led,) = (await self.ask())[broker_id].led
        return led

    async def committed(self) -> Image:
        return await self._image.read()

    async def compare(self) -> list[Compared]:
        answers = await self.ask()
        return compare(await self.committed(), answers)

    async def until(self, *wanted: Why) -> Compared:
        """Look until the topic's only partition differs in just these ways."""
        for _ in range(600):
            (row,) = await self.compare()
            if tuple(one.why for one in row.differences) == wanted:
                return row
            await asyncio.sleep(0.05)
        pytest.fail(f"never {wanted}, but {row}")


def ids(states: Iterable[Any]) -> list[int]:
    return sorted(one.broker_id for one in states)


def follower_of(cluster: DataCluster) -> int:
    return next(id_ for id_ in cluster.brokers if id_ != cluster.leader())


@scenario(on_cluster)
async def test_leader_alone_describes_the_isr_and_its_epochs(cluster: DataCluster) -> None:
    await cluster.create()
    load = Load(cluster, cluster.producer(), writers=1)
    await load.more(5)
    await load.stop()
    looker = Looker(cluster)
    row = await looker.until()
    image, leader, led = await looker.committed(), cluster.leader(), row.led
    assert led is not None
    assert (row.topic, row.leader_id, led.topic_name) == (TOPIC, leader, TOPIC)
    assert ids(led.isr) == [101, 102, 103]
    assert {one.broker_id: one.broker_epoch for one in led.isr} == {
        id_: image.brokers[id_].epoch for id_ in cluster.brokers
    }
    assert (led.leader_epoch, led.partition_epoch) == (0, image.partitions[row.key].partition_epoch)
    assert led.high_watermark == led.log_end_offset == len(load.acknowledged)
    assert ids_of_followers(led) == [id_ for id_ in cluster.brokers if id_ != leader]
    other = follower_of(cluster)
    answers = await looker.ask()
    assert [id_ for id_ in answers if answers[id_].led] == [leader]
    (page,) = await ask_leader(
        cluster.transport,
        cluster.brokers[other].endpoint,
        timeout_s=1.0,
        keys=[row.key, (b"?" * 16, 0)],
    )
    assert [one.error_code for one in page.partitions] == [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]


def ids_of_followers(led: pb.LedPartition) -> list[int]:
    return sorted(one.replica_id for one in led.followers)


@scenario(on_cluster)
async def test_deposed_leader_that_does_not_know_it_is_reported(cluster: DataCluster) -> None:
    await cluster.create()
    looker = Looker(cluster)
    await looker.until()
    old = cluster.leader()
    others = [host.name for host in cluster.hosts if host.name != f"b{old}"]
    for name in others:
        cluster.network.partition(f"b{old}", name)
    row = await looker.until(Why.STALE_LEADER)
    assert row.leader_id not in (old, -1)
    assert row.differences[0].text == f"broker {old} believes it is the leader in leader epoch 0"
    assert row.led is not None
    assert old not in ids(row.led.isr)
    # Its own timeout is over: it says no more what it leads.
    await looker.until()
    answer = (await looker.ask())[old]
    assert answer.failure.startswith("BROKER_FENCED")
    assert not answer.led
    caught = await failure(
        ask_leader(cluster.transport, cluster.brokers[old].endpoint, timeout_s=1.0)
    )
    assert caught.code is ErrorCode.BROKER_FENCED
    cluster.network.heal_all()
    await cluster.until(lambda: len(cluster.isr()) == 3, "all are in sync again", 120)
    await looker.until()

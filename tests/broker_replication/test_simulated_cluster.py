"""The whole data plane on real controllers and brokers, in the simulated world: what is
acknowledged stays, whoever dies.
"""

import asyncio
from functools import partial

import pytest
from data_cluster import TOPIC, DataCluster, Load, Reader, nothing_is_lost, on_cluster
from scenarios import failure, scenario

from raftlog.client.producer import Producer, ProducerSettings
from raftlog.errors import ApiError, ErrorCode, StorageError
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.twins.loop import host_context


@scenario(on_cluster)
async def test_produced_records_are_consumed_in_order_from_three_replicas(
    cluster: DataCluster,
) -> None:
    await cluster.create(partitions=3, min_insync_replicas="2")
    load = Load(cluster, cluster.producer())
    reader = Reader(cluster, cluster.consumer())
    await load.more(300)
    await load.stop()
    await reader.stop()
    assert (load.refused, load.unknown) == ({}, {})
    assert {partition for partition, _ in load.acknowledged.values()} == {0, 1, 2}
    await nothing_is_lost(cluster, load, [reader])
    assert cluster.isr() == (101, 102, 103)


@scenario(on_cluster)
async def test_consumer_may_begin_inside_a_batch(cluster: DataCluster) -> None:
    await cluster.create()
    producer = cluster.producer()
    await asyncio.gather(
        *(producer.send(TOPIC, b"%d" % number, partition=0) for number in range(5))
    )
    for offset in range(5):
        records = await cluster.consumer(0, offset).poll(5.0)
        assert [one.value for one in records][:1] == [b"%d" % offset]
        assert records[0].timestamp_ms > 1_600_000_000_000


@pytest.mark.parametrize("acks", [1, 0, -1])
@scenario(on_cluster)
async def test_each_acks_ends_with_the_record_in_the_log(
    cluster: DataCluster, *, acks: int
) -> None:
    await cluster.create()
    load = Load(cluster, cluster.producer(acks=acks), writers=1)
    await load.more(5)
    await load.stop()
    if acks:
        await nothing_is_lost(cluster, load)


@scenario(on_cluster)
async def test_killed_leader_is_replaced_and_comes_back_as_a_follower(cluster: DataCluster) -> None:
    await cluster.create(min_insync_replicas="2")
    load = Load(cluster, cluster.producer())
    reader = Reader(cluster, cluster.consumer())
    for _ in range(3):
        await load.more(50)
        victim = cluster.leader()
        cluster.brokers[victim].kill()
        await load.more(50)
        assert cluster.leader() not in (victim, -1)
        cluster.brokers[victim].start()
        await cluster.until(lambda: len(cluster.isr()) == 3, "all are in sync again")
    await load.stop()
    await reader.stop()
    await nothing_is_lost(cluster, load, [reader])


@scenario(on_cluster)
async def test_below_min_insync_replicas_nothing_is_acknowledged_and_reads_go_on(
    cluster: DataCluster,
) -> None:
    await cluster.create(min_insync_replicas="2")
    load = Load(cluster, cluster.producer())
    await load.more(20)
    await load.stop()
    leader = cluster.leader()
    for broker_id, host in cluster.brokers.items():
        if broker_id != leader:
            host.kill()
    await cluster.until(lambda: cluster.isr() == (leader,), "the leader is alone")
    error = await failure(cluster.producer(delivery_timeout_ms=2000).send(TOPIC, b"x"))
    assert (error.code, error.outcome_unknown) == (ErrorCode.NOT_ENOUGH_REPLICAS, False)
    load.refused[b"x"] = error
    for host in cluster.brokers.values():
        if host.service is None:
            host.start()
    await cluster.producer().send(TOPIC, b"y")
    await nothing_is_lost(cluster, load)


@scenario(on_cluster)
async def test_replaced_disk_is_filled_before_its_replica_is_in_sync(cluster: DataCluster) -> None:
    await cluster.create(min_insync_replicas="2")
    load = Load(cluster, cluster.producer())
    await load.more(50)
    victim = next(one for one in cluster.brokers if one != cluster.leader())
    host = cluster.brokers[victim]
    host.kill()
    assert host.disk is not None
    host.disk.replace("another")
    host.start()
    await cluster.until(
        lambda: victim not in cluster.isr(), "its registration takes it out of the ISR"
    )
    await cluster.until(lambda: victim in cluster.isr(), "it is in sync again")
    await load.stop()
    # The others die: what it alone has is everything.
    for broker_id, other in cluster.brokers.items():
        if broker_id != victim:
            other.kill()
    await cluster.until(lambda: cluster.leader() == victim, "it leads")
    await nothing_is_lost(cluster, load)


@scenario(on_cluster)
async def test_isolated_leader_acknowledges_nothing(cluster: DataCluster) -> None:
    await cluster.create(min_insync_replicas="2")
    load = Load(cluster, cluster.producer())
    await load.more(50)
    old = cluster.leader()
    everybody = [host.name for host in cluster.hosts]
    for name in everybody:
        if name != f"b{old}":
            cluster.network.block(f"b{old}", name)
            cluster.network.block(name, f"b{old}")
    # A client that reaches the old leader alone.
    transport = cluster.network.transport_for("lonely")
    lonely = Producer(
        transport,
        [cluster.brokers[old].endpoint],
        rng=cluster.rng,
        settings=ProducerSettings(delivery_timeout_ms=8000, request_timeout_ms=4000),
    )
    outcomes = await asyncio.gather(
        *(lonely.send(TOPIC, b"lonely-%d" % number) for number in range(5)), return_exceptions=True
    )
    assert all(isinstance(one, ApiError) for one in outcomes), outcomes
    await cluster.until(lambda: cluster.leader() not in (old, -1), "another leads")
    await load.more(50)
    for name in everybody:
        if name != f"b{old}":
            cluster.network.unblock(f"b{old}", name)
            cluster.network.unblock(name, f"b{old}")
    await cluster.until(lambda: len(cluster.isr()) == 3, "the old leader is in sync again", 120)
    await load.stop()
    lonely.close()
    await nothing_is_lost(cluster, load)


@scenario(on_cluster)
async def test_all_die_at_once_and_nothing_acknowledged_is_lost(cluster: DataCluster) -> None:
    await cluster.create(partitions=2, min_insync_replicas="2")
    load = Load(cluster, cluster.producer())
    for _ in range(3):
        await load.more(40)
        for host in cluster.brokers.values():
            host.kill()
        await asyncio.sleep(1)
        for host in cluster.brokers.values():
            host.start()
        await load.more(20, within_s=120)
    await load.stop()
    await nothing_is_lost(cluster, load)


@scenario(on_cluster)
async def test_deleted_topic_takes_its_data_with_it(cluster: DataCluster) -> None:
    await cluster.create()
    load = Load(cluster, cluster.producer())
    await load.more(10)
    await load.stop()
    disks = [host.disk for host in cluster.brokers.values() if host.disk is not None]
    assert all(disk.live for disk in disks)
    await cluster.controller.call(pb.DeleteTopicsRequest(names=[TOPIC]))
    await cluster.until(lambda: not any(disk.live for disk in disks), "the replicas are gone")


@scenario(on_cluster)
async def test_leader_whose_disk_fails_stops_before_it_acknowledges_more(
    cluster: DataCluster,
) -> None:
    await cluster.create(min_insync_replicas="2")
    load = Load(cluster, cluster.producer())
    await load.more(50)
    leader = cluster.leader()
    host = cluster.brokers[leader]
    assert host.disk is not None
    host.disk.fail_next("flush")
    await cluster.until(lambda: host.fatal is not None, "the broker has stopped", checked=False)
    assert isinstance(host.fatal, StorageError)
    host.kill()
    await load.more(50)
    assert cluster.leader() not in (leader, -1)
    host.start()
    await cluster.until(lambda: len(cluster.isr()) == 3, "it is in sync again")
    await load.stop()
    await nothing_is_lost(cluster, load)


@scenario(on_cluster)
async def test_broker_that_is_stopped_gives_its_leaderships_away_and_nothing_is_refused(
    cluster: DataCluster,
) -> None:
    await cluster.create(partitions=3, min_insync_replicas="2")
    load = Load(cluster, cluster.producer())
    for broker_id, host in cluster.brokers.items():
        await load.more(50)
        assert host.service is not None
        host_context(host.name).run(host.service.stop)
        await cluster.until(partial(lambda one: one.exit is not None, host), "it has ended")
        assert host.exit is not None
        assert host.exit.clean
        host.kill()
        await load.more(50)
        assert broker_id not in [cluster.leader(index) for index in range(3)]
        host.start()
        await cluster.until(
            lambda: all(len(cluster.isr(index)) == 3 for index in range(3)), "all are in sync"
        )
    await load.stop()
    assert load.refused == {}
    await nothing_is_lost(cluster, load)

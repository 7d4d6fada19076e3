"""Attacks on brokers, on what they lead and on what they have acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from attack_kit import Attack, Stage, replicas_of
from cluster_kit import until_true
from siege import Operator, Siege, State
from stranger import Answer

from raftlog.local.cluster import HOST
from raftlog.transport.api import Conversation
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.records.v1 import records_pb2 as records

_STOP = "controller.v1.Controller/BrokerHeartbeat"


def _stop(stage: Stage) -> controller.BrokerHeartbeatRequest:
    broker = stage.before.image.brokers[stage.partition_follower.node_id]
    return controller.BrokerHeartbeatRequest(
        broker_id=broker.id, broker_epoch=broker.epoch, want_shut_down=True
    )


async def stop(stage: Stage) -> Sequence[Answer]:
    return [await stage.stranger.ask(stage.leader.endpoint, broker_heartbeat=_stop(stage))]


async def stop_by_unary_call(stage: Stage) -> Sequence[Answer]:
    response = controller.BrokerHeartbeatResponse
    return [await stage.stranger.call(stage.leader.endpoint, _STOP, _stop(stage), response)]


async def stop_through_itself(stage: Stage) -> Sequence[Answer]:
    """The broker would hand it on with its own certificate."""
    there = stage.partition_follower.endpoint
    return [await stage.stranger.forward(there, broker_heartbeat=_stop(stage))]


async def unregister(stage: Stage) -> Sequence[Answer]:
    gone = controller.UnregisterBrokerRequest(broker_id=stage.partition_follower.node_id)
    return [await stage.stranger.ask(stage.leader.endpoint, unregister_broker=gone)]


async def register(stage: Stage) -> Sequence[Answer]:
    """As the process that the log names, but at another address."""
    broker = stage.before.image.brokers[stage.partition_follower.node_id]
    request = controller.RegisterBrokerRequest(
        broker_id=broker.id,
        cluster_id=stage.siege.cluster.cluster_id,
        incarnation_id=broker.incarnation_id,
        listeners=[records.Listener(name=broker.listeners[0].name, host=HOST, port=1)],
        features=[
            records.FeatureRange(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in broker.features
        ],
        log_dirs=broker.log_dirs,
        registration_version=broker.registration_version,
    )
    return [await stage.stranger.ask(stage.leader.endpoint, register_broker=request)]


async def shrink_isr(stage: Stage) -> Sequence[Answer]:
    leader, partition = stage.partition_leader.node_id, stage.before.partition
    assert partition is not None
    epoch = stage.before.image.brokers[leader].epoch
    change = controller.AlterPartitionData(
        partition_index=partition.index,
        leader_epoch=partition.leader_epoch,
        new_isr_with_epochs=[records.BrokerState(broker_id=leader, broker_epoch=epoch)],
        partition_epoch=partition.partition_epoch,
    )
    topic = controller.AlterPartitionTopic(topic_id=partition.topic_id, partitions=[change])
    request = controller.AlterPartitionRequest(broker_id=leader, broker_epoch=epoch, topics=[topic])
    return [await stage.stranger.ask(stage.leader.endpoint, alter_partition=request)]


# --- acknowledgements ---------------------------------------------------------------------------


@asynccontextmanager
async def follower_stands_still(siege: Siege, operator: Operator) -> AsyncIterator[None]:
    """A record is produced, and a value written, that one broker does not hear of."""
    before = await operator.look()
    leader, follower = replicas_of(before)
    topic_id = before.partition.topic_id if before.partition is not None else b""
    with siege.pausing(follower):
        producing = asyncio.create_task(operator.produce(leader, topic_id, b"on one broker"))
        await operator.write("unseen")

        async def waits() -> bool:
            now = await operator.look()
            return now.led is not None and now.led.log_end_offset > now.led.high_watermark

        await until_true(waits, "a record waits for the follower")
        yield
    await producing


async def acknowledge(stage: Stage) -> Sequence[Answer]:
    follower, led = stage.partition_follower.node_id, stage.before.led
    assert led is not None
    request = data.ReplicaFetchRequest(
        correlation_id=1,
        cluster_id=stage.siege.cluster.cluster_id,
        replica_state=data.ReplicaState(
            replica_id=follower, replica_epoch=stage.before.image.brokers[follower].epoch
        ),
        leader_id=stage.partition_leader.node_id,
        max_wait_ms=1,
        max_bytes=1 << 20,
        partitions=[
            data.ReplicaFetchPartition(
                topic_id=led.topic_id,
                current_leader_epoch=led.leader_epoch,
                fetch_offset=led.log_end_offset,
                last_fetched_epoch=led.leader_epoch,
            )
        ],
    )
    there = stage.partition_leader.endpoint
    return [await stage.stranger.say(there, Conversation.REPLICA_FETCH, request)]


async def report(stage: Stage) -> Sequence[Answer]:
    follower, leader = stage.partition_follower.node_id, stage.before.leader
    request = controller.MetadataFetchRequest(
        cluster_id=stage.siege.cluster.cluster_id,
        replica_id=follower,
        broker_epoch=stage.before.image.brokers[follower].epoch,
        controller_epoch=leader.leader_epoch,
        fetch_offset=leader.high_watermark,
        applied_offset=leader.high_watermark - 1,
        told_lowest_acknowledged_offset=-1,
        high_watermark=-1,
        max_bytes=1 << 20,
        generation=0,
    )
    return [await stage.stranger.say(stage.leader.endpoint, Conversation.OBSERVER, request)]


# --- damage -------------------------------------------------------------------------------------


def broker_gone(before: State, after: State) -> str | None:
    _, victim = replicas_of(before)
    now = after.broker(victim)
    if now is None:
        return f"broker {victim} is not registered any more"
    return None if now.active else f"broker {victim} stops"


def broker_moved(before: State, after: State) -> str | None:
    _, victim = replicas_of(before)
    was, now = before.image.brokers[victim], after.image.brokers[victim]
    return f"broker {victim} is said to be elsewhere" if was.endpoint != now.endpoint else None


def isr_changed(before: State, after: State) -> str | None:
    was, now = before.partition, after.partition
    assert was is not None
    if now is None or now.partition_epoch == was.partition_epoch:
        return None
    return f"the ISR was {sorted(was.isr)} and is {sorted(now.isr)}"


def record_committed(before: State, after: State) -> str | None:
    was, now = before.led, after.led
    if was is None or now is None or now.high_watermark <= was.high_watermark:
        return None
    return "a record that one broker has is acknowledged for both"


def lao_moved(before: State, after: State) -> str | None:
    was, now = (one.leader.lowest_acknowledged_offset for one in (before, after))
    return f"LAO counts what a broker has not applied: {was} -> {now}" if now > was else None


ATTACKS = (
    Attack("AlterPartition", shrink_isr, isr_changed),
    Attack("ReplicaFetch", acknowledge, record_committed, scene=follower_stands_still),
    Attack("report of applied offset", report, lao_moved, scene=follower_stands_still),
    Attack("RegisterBroker", register, broker_moved),
    Attack("heartbeat that stops", stop, broker_gone),
    Attack("the same, unary", stop_by_unary_call, broker_gone),
    Attack("the same, through the broker", stop_through_itself, broker_gone),
    Attack("UnregisterBroker", unregister, broker_gone, forged=0),
)

"""Recovery of partitions after the faults: ISRs full again, everything committed, records accepted.

A reader receives all committed records, the last ones included: a partition that accepts records
may return none. This holds where the leader is a healed broker that reaches the controllers, for
the followers that are healed, too, and that it reaches. A partition may be without a leader as long
as no member of its ISR is healed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from raftlog.node.storage.partition_api import PartitionKey
from simulation.checks.api import CheckFailedError
from simulation.data_workload import DataWorkload
from simulation.hosts import BrokerHost
from simulation.world import World

READ_FOR_S = 5.0
"""Then a new consumer tries what is left."""


class _Led(NamedTuple):
    key: PartitionKey
    partition: Any
    leader: BrokerHost
    followers: list[BrokerHost]


async def recover(world: World, data: DataWorkload, within_s: float) -> None:
    """Wait for it. Raises CheckFailedError."""
    said: list[str] = [""]

    def full() -> bool:
        said[0] = _missing(world)
        return not said[0]

    try:
        await world.until(full, within_s, "partitions have recovered")
    except AssertionError as error:
        raise type(error)(f"{error}: {said[0]}") from None
    names = {topic_id: name for name, topic_id in world.active_image().topic_ids.items()}
    wanted = [
        (names[led.key[0]], led.key) for led in _led(world) if led.key[0] in names and _enough(led)
    ]
    if wanted:
        brokers = [host.name for host in world.healed_brokers()]
        refused = await data.last_records(brokers, wanted)
        await _active(world, within_s)
        # Leaders are still moved to where they belong, and that may be a broker that was not
        # healed: nothing is asked of it.
        still_led = {led.key for led in _led(world)}
        wrong = [why for key, why in refused.items() if key in still_led]
        if wrong:
            raise CheckFailedError(f"it did not happen: records are taken: {wrong}")
        await world.until(full, within_s, "partitions have recovered from the last records")
    await _read_all(world, data, within_s)
    world.note("data", f"{len(wanted)} partitions take records")
    world.outcome.operations["partitions recovered"] = len(wanted)


async def _active(world: World, within_s: float) -> None:
    """Wait for an active controller: one whose disk hung before the healing may resign now."""
    await world.until(lambda: world.active() is not None, within_s, "a controller is active again")


async def _read_all(world: World, data: DataWorkload, within_s: float) -> None:
    """Have the committed records of each partition that is led in the healed part read by the
    clients.

    Raises CheckFailedError.
    """
    await _active(world, within_s)
    names = {topic_id: name for name, topic_id in world.active_image().topic_ids.items()}
    ends = {
        (names[led.key[0]], led.key): _high_watermark(led)
        for led in _led(world)
        if led.key[0] in names
    }
    wanted = {place: end for place, end in ends.items() if end > 0}
    deadline, why = world.now() + within_s, ""
    while wanted:
        if world.now() > deadline:
            raise CheckFailedError(
                f"within {within_s:g} s it did not happen: records are given: {sorted(wanted)}:"
                f" {why}"
            )
        brokers = [host.name for host in world.healed_brokers()]
        read, why = await data.last_reads(brokers, wanted, READ_FOR_S)
        world.count("partitions read", len(read))
        await _active(world, within_s)
        # What was moved to a broker that was not healed, or cut off by an unclean leader, is asked
        # of nobody.
        led = {led.key: _high_watermark(led) for led in _led(world)}
        wanted = {
            place: end
            for place, end in wanted.items()
            if place not in read and led.get(place[1], -1) >= end
        }


def _high_watermark(led: _Led) -> int:
    """Return the leader's high watermark; -1: it does not lead."""
    data = led.leader.service.data if led.leader.service is not None else None
    replica = data.replicas.describe(led.key) if data is not None and data.recovered else None
    return replica.high_watermark if replica is not None else -1


def _enough(led: _Led) -> bool:
    service = led.leader.service
    assert service is not None
    assert service.data is not None
    replica = service.data.replicas.describe(led.key)
    assert replica is not None
    assert replica.leader_epoch >= 0
    # Members that were not healed may leave the ISR at any moment.
    healed = {led.leader.id, *(follower.id for follower in led.followers)}
    return len(healed & set(led.partition.isr)) >= replica.min_isr


def _led(world: World) -> list[_Led]:
    """Return the partitions led by brokers of the healed part."""
    image = world.active_image()
    core = {host.id: host for host in world.healed_brokers()}
    found = []
    for key in sorted(image.partitions):
        partition = image.partitions[key]
        leader = core.get(partition.leader)
        if leader is not None:
            followers = [
                core[replica]
                for replica in partition.replicas
                if replica in core
                and replica != partition.leader
                and not world.network.is_blocked(core[replica].name, leader.name)
                and not world.network.is_blocked(leader.name, core[replica].name)
            ]
            found.append(_Led(key, partition, leader, followers))
    return found


def _missing(world: World) -> str:
    """Return the first unmet condition; empty if all are met."""
    if world.active() is None:
        return "no controller is active"
    image = world.active_image()
    core = {host.id for host in world.healed_brokers()}
    for key in sorted(image.partitions):
        partition = image.partitions[key]
        if partition.leader < 0 and not core.isdisjoint(partition.isr):
            return f"{_name(key)} has no leader, its ISR is {partition.isr}"
    for led in _led(world):
        if why := _lacks(led):
            return f"{_name(led.key)}, led by broker {led.leader.id}: {why}"
    return ""


def _lacks(led: _Led) -> str:
    service = led.leader.service
    if service is None or service.data is None or not service.data.recovered:
        return "its leader is down"
    replica = service.data.replicas.describe(led.key)
    if replica is None or replica.leader_epoch < 0:
        return (
            "its leader does not lead it:"
            f" {replica.offline_reason if replica is not None else 'no replica'}"
        )
    for follower in led.followers:
        if follower.id not in led.partition.isr:
            return f"broker {follower.id} is not in its ISR {led.partition.isr}"
        end = (
            follower.service.data.replicas.end_offset(led.key)
            if follower.service and follower.service.data
            else -1
        )
        if end != replica.log_end_offset:
            return (
                f"broker {follower.id} has it up to {end}, the leader up to"
                f" {replica.log_end_offset}"
            )
    if replica.high_watermark != replica.log_end_offset:
        return f"its high watermark is {replica.high_watermark}, its end {replica.log_end_offset}"
    return ""


def _name(key: PartitionKey) -> str:
    return f"partition {key[1]} of {key[0].hex()}"

"""The liveness phase: a majority is healed, and conditions must hold within a bound: a leader, all
caught up, LAO at the end, writes served, and *final reads*: each healed broker answers reads of
every mode.

[A broker that never gets a lease again refuses strict reads forever, though all has caught up.]

Partitions recover: ISRs full, everything committed and readable to the last record, records
accepted, where the leader is a healed broker that reaches the controllers, for healed followers
that it reaches. A partition without a healed ISR member may have no leader.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from raftlog.node.storage.api import NO_NODE_ID
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from simulation.checks.api import Operation, fail, present
from simulation.checks.replica_logs import name_of
from simulation.data_workload import DataWorkload
from simulation.faults.disks import mend_disk
from simulation.faults.voters import end_roll, replace_left_ahead
from simulation.hosts import AnyHost, BrokerHost, ControllerHost
from simulation.workload import Client, Workload
from simulation.world import World

MODES = {
    "repeatable": broker_pb2.REPEATABLE,
    "latest": broker_pb2.LATEST,
    "at least": broker_pb2.LATEST,
    "strict": broker_pb2.STRICT,
}
PAUSE_S = 0.2


def heal(world: World, workload: Workload) -> None:
    """Choose hosts, and end their faults; all others stay broken."""
    rng = world.rng("heal")
    world.lasting = True
    chosen = _choose_controllers(world, rng)
    brokers = _choose_brokers(world, rng)
    for twin in world.brokers[len(world.members) :]:
        twin.kill()
    world.healed = dict.fromkeys([host.name for host in chosen] + [host.name for host in brokers])
    world.healed.update(dict.fromkeys([*workload.hosts(), "operator"]))
    world.note("world", f"heals {' '.join(world.healed)}; the rest stays as it is")
    world.network.unblock_all(among=world.healed)
    healed: list[AnyHost] = [*chosen, *brokers]
    for host in healed:
        _mend(world, host)
    for host in world.controllers:
        if host.name not in world.healed:
            host.doom(-1)
    workload.stop()
    world.watch.tell("healed")


def _choose_controllers(world: World, rng: random.Random) -> list[ControllerHost]:
    if world.voters_change:
        # Who is a majority now only the log knows.
        return list(world.controllers)
    sound = [host for host in world.fleet.voters() if host.name not in world.damaged]
    majority = len(world.fleet.voter_ids) // 2 + 1
    return sorted(rng.sample(sound, rng.randint(majority, len(sound))), key=lambda host: host.id)


def _choose_brokers(world: World, rng: random.Random) -> list[BrokerHost]:
    sound = [
        host for host in world.members if not lost_its_id(host, world.members, world.controllers)
    ]
    count = rng.randint(1, len(sound)) if sound else 0
    return sorted(rng.sample(sound, count), key=lambda host: host.id)


def _mend(world: World, host: AnyHost) -> None:
    world.network.resume(host.name)
    if isinstance(host, ControllerHost):
        host.doom(-1)
    mend_disk(world, host)
    if host.disk is not None:
        host.disk.forget_failures()
    if host.service is None:
        host.start()


def lost_its_id(
    host: BrokerHost, members: Sequence[BrokerHost], controllers: Sequence[ControllerHost]
) -> bool:
    """Return whether another broker, whose disk was lost, has got this host's id in its absence."""
    rivals = [
        other.name for other in members if other is not host and other.broker_id == host.broker_id
    ]
    images = [one.service.image for one in controllers if one.service is not None]
    if not rivals or host.broker_id == NO_NODE_ID or not images:
        return False
    registration = max(images, key=lambda image: image.offset).brokers.get(host.broker_id)
    return registration is not None and registration.endpoint.rpartition(":")[0] in rivals


async def recover(world: World, workload: Workload) -> None:
    """Wait for a leader, brokers that are caught up, LAO at the end, and a write. Raises
    CheckFailedError.
    """
    bound = world.config.liveness_s
    await world.until(lambda: world.active() is not None, bound, "a majority elects a leader")
    if "roll_heartbeats" in world.config.faults and not world.has_spawned("end of the roll"):
        world.spawn(end_roll(world), "end of the roll")
    if world.voters_change:
        world.spawn(replace_left_ahead(world), "operator of removed voters")
    await world.until(
        lambda: _have_joined(world), bound, "the brokers of the healed part are unfenced"
    )
    async with asyncio.timeout(bound * 2):
        written = await workload.last_write(bound)
    mark = written.offset
    await world.until(
        lambda: _are_at(world, mark), bound, f"everyone is caught up with offset {mark}"
    )
    await read_everywhere(world, workload, written, bound)
    await workload.watchers.reach(written, bound)
    if world.config.data_per_s and world.members:
        await recover_partitions(world, workload.data, bound)
    # A transfer that was asked for before the healing may come to its end only now.
    await world.until(
        lambda: world.active() is not None, bound, "a controller is active in the end"
    )


def _have_joined(world: World) -> bool:
    service = world.active()
    if service is None:
        return False
    brokers = service.image.brokers
    return all(
        host.id in brokers and not brokers[host.id].fenced for host in world.healed_brokers()
    )


def _are_at(world: World, offset: int) -> bool:
    service = world.active()
    if service is None or service.image.offset < offset:
        return False
    if world.healed_brokers() and service.node.lowest_acknowledged_offset < offset:
        return False
    healed: list[AnyHost] = [
        *world.healed_controllers(),
        *world.healed_brokers(),
    ]
    services = [host.service for host in healed]
    return all(service is not None and service.image.offset >= offset for service in services)


async def read_everywhere(
    world: World, workload: Workload, written: Operation, within_s: float
) -> None:
    """Wait until each healed broker shows ``written`` in each mode. Raises CheckFailedError."""
    names = [host.name for host in world.healed_brokers()]
    await asyncio.gather(
        *(_read(world, workload, written, name, mode, within_s) for name in names for mode in MODES)
    )


async def _read(
    world: World, workload: Workload, written: Operation, broker: str, name: str, within_s: float
) -> None:
    client = workload.reader(f"last.{broker}.{name}", broker)
    if name == "at least":
        client.see(common_pb2.MetadataToken(offset=written.offset, generation=written.generation))
    deadline, why = world.now() + within_s, ""
    try:
        while broker in (host.name for host in world.healed_brokers()):
            served, why = await _once(world, client, written, name)
            if served:
                world.count(f"last read {name}", bool(not why))
                return
            if world.now() > deadline:
                fail(f"within {within_s:g} s it did not happen: {broker} serves {name}: {why}")
            await asyncio.sleep(PAUSE_S)
    finally:
        client.close()


async def _once(world: World, client: Client, written: Operation, name: str) -> tuple[bool, str]:
    """Read once. Return whether the read was served as it must be, and why not."""
    operation = await client.read_config(written.key, MODES[name])
    if operation.outcome != "ok":
        return False, operation.error
    if operation.offset < written.offset:
        return False, f"its image is {operation.offset}, written was {written.offset}"
    return True, ""


READ_FOR_S = 5.0
"""Time in seconds after which a new consumer tries the remaining partitions."""


class _Led(NamedTuple):
    key: PartitionKey
    partition: Any
    leader: BrokerHost
    followers: list[BrokerHost]


async def recover_partitions(world: World, data: DataWorkload, within_s: float) -> None:
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
            fail(f"it did not happen: records are taken: {wrong}")
        await world.until(full, within_s, "partitions have recovered from the last records")
    await _read_all(world, data, within_s)
    world.note("data", f"{len(wanted)} partitions take records")
    world.outcome.operations["partitions recovered"] = len(wanted)


async def _active(world: World, within_s: float) -> None:
    """Wait for an active controller: one whose disk hung may resign even after the healing."""
    await world.until(lambda: world.active() is not None, within_s, "a controller is active again")


async def _read_all(world: World, data: DataWorkload, within_s: float) -> None:
    """Let clients read all partitions that healed brokers lead, to the end."""
    await _active(world, within_s)
    names = {topic_id: name for name, topic_id in world.active_image().topic_ids.items()}
    ends = {
        (names[led.key[0]], led.key): readable_end(led)
        for led in _led(world)
        if led.key[0] in names
    }
    wanted = {place: end for place, end in ends.items() if end > 0}
    deadline, why = world.now() + within_s, ""
    while wanted:
        if world.now() > deadline:
            fail(f"within {within_s:g} s it did not happen: records read: {sorted(wanted)}: {why}")
        brokers = [host.name for host in world.healed_brokers()]
        read, why = await data.last_reads(brokers, wanted, READ_FOR_S)
        world.count("partitions read", len(read))
        await _active(world, within_s)
        # What was moved to a broker that was not healed, cut off by an unclean leader, or dropped
        # by retention, is asked of nobody.
        led = {led.key: readable_end(led) for led in _led(world)}
        wanted = {
            place: end
            for place, end in wanted.items()
            if place not in read and led.get(place[1], -1) >= end
        }


def readable_end(led: _Led) -> int:
    """Return the leader's high watermark; -1 if it does not lead, or nothing is retained below."""
    data = led.leader.service.data if led.leader.service is not None else None
    replica = data.replicas.describe(led.key) if data is not None and data.recovered else None
    if replica is None or replica.high_watermark <= replica.log_start_offset:
        return -1
    return replica.high_watermark


def _enough(led: _Led) -> bool:
    replica = present(present(present(led.leader.service).data).replicas.describe(led.key))
    assert replica.leader_epoch >= 0
    # Members that were not healed may leave the ISR at any moment.
    healed = {led.leader.id, *(follower.id for follower in led.followers)}
    return len(healed & set(led.partition.isr)) >= replica.min_isr


def _led(world: World) -> list[_Led]:
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
                and not world.network.is_cut(core[replica].name, leader.name)
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
            return f"{name_of(key)} has no leader, its ISR is {partition.isr}"
    for led in _led(world):
        if why := _lacks(led):
            return f"{name_of(led.key)}, led by broker {led.leader.id}: {why}"
    return ""


def _lacks(led: _Led) -> str:
    service = led.leader.service
    if service is None or service.data is None or not service.data.recovered:
        return "its leader is down"
    replica = service.data.replicas.describe(led.key)
    if replica is None or replica.leader_epoch < 0:
        why = replica.offline_reason if replica is not None else "no replica"
        return f"its leader does not lead it: {why}"
    for follower in led.followers:
        if follower.id not in led.partition.isr:
            return f"broker {follower.id} is not in its ISR {led.partition.isr}"
        data = follower.service.data if follower.service is not None else None
        end = data.replicas.end_offset(led.key) if data is not None else -1
        if end != replica.log_end_offset:
            return f"broker {follower.id} has it up to {end} of {replica.log_end_offset}"
    # Below its min.insync.replicas, beside eligible replicas, it may not show or commit anything.
    if _enough(led) and replica.high_watermark != replica.log_end_offset:
        return f"its high watermark is {replica.high_watermark}, its end {replica.log_end_offset}"
    return ""

"""The liveness phase: a majority is healed, and conditions must hold within a bound.

A leader, all caught up, LAO at the end, writes served, and *final reads*: each healed broker, asked
alone, must answer reads of every mode. [A broker that has applied and told everything, and never
gets a lease again, refuses strict reads for ever. That a write is served, and all have caught up
with it, does not notice.]
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from raftlog.node.storage.api import NO_NODE_ID
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from simulation import data_recovery
from simulation.checks.api import CheckFailedError, Operation
from simulation.faults.data import mend as mend_broker_disk
from simulation.faults.disks import mend_disk
from simulation.faults.voters import end_roll, replace_left_ahead
from simulation.hosts import BrokerHost, ControllerHost
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
    """Choose the hosts to heal, and heal them; the others stay as they are."""
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
    healed: list[ControllerHost | BrokerHost] = [*chosen, *brokers]
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


def _mend(world: World, host: ControllerHost | BrokerHost) -> None:
    world.network.resume(host.name)
    if isinstance(host, ControllerHost):
        host.doom(-1)
        mend_disk(world, host)
        host.disk.forget_failures()
    else:
        mend_broker_disk(world, host)
    if host.service is None:
        host.start()


def lost_its_id(
    host: BrokerHost, members: Sequence[BrokerHost], controllers: Sequence[ControllerHost]
) -> bool:
    """Return whether another member has got the host's id, as this one was absent for long and the
    other had lost its disk.

    It is refused as long as the other runs: healing is not enough, an operator has to give it an
    empty disk.
    """
    rivals = [
        other.name for other in members if other is not host and other.broker_id == host.broker_id
    ]
    images = [one.service.image for one in controllers if one.service is not None]
    if not rivals or host.broker_id == NO_NODE_ID or not images:
        return False
    registration = max(images, key=lambda image: image.offset).brokers.get(host.broker_id)
    return registration is not None and registration.endpoint.rpartition(":")[0] in rivals


async def recover(world: World, workload: Workload) -> None:
    """A leader, everyone caught up with it, LAO at the end, writes served.

    Raises CheckFailedError.
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
        await data_recovery.recover(world, workload.data, bound)
    # A transfer that was asked for before the healing may come to its end only now.
    await world.until(
        lambda: world.active() is not None, bound, "a controller is active in the end"
    )


def _have_joined(world: World) -> bool:
    """Return whether the brokers of the healed part are registered and unfenced."""
    service = world.active()
    if service is None:
        return False
    brokers = service.image.brokers
    return all(
        host.id in brokers and not brokers[host.id].fenced for host in world.healed_brokers()
    )


def _are_at(world: World, offset: int) -> bool:
    """Return whether all of the healed part have applied this offset, and LAO has reached it."""
    service = world.active()
    if service is None or service.image.offset < offset:
        return False
    if world.healed_brokers() and service.node.lowest_acknowledged_offset < offset:
        return False
    everyone: list[ControllerHost | BrokerHost] = [
        *world.healed_controllers(),
        *world.healed_brokers(),
    ]
    return all(
        host.service is not None and host.service.image.offset >= offset for host in everyone
    )


async def read_everywhere(
    world: World, workload: Workload, written: Operation, within_s: float
) -> None:
    """Read until each healed broker has shown an image with ``written`` in it in each mode.

    Raises CheckFailedError.
    """
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
                raise CheckFailedError(
                    f"within {within_s:g} s it did not happen: {broker} serves a read, {name}:"
                    f" {why}"
                )
            await asyncio.sleep(PAUSE_S)
    finally:
        client.close()


async def _once(world: World, client: Client, written: Operation, name: str) -> tuple[bool, str]:
    """Return whether it was served, or need not be; and what was amiss."""
    operation = await client.read_config(written.key, MODES[name])
    if operation.outcome != "ok":
        return False, operation.error
    if operation.offset < written.offset:
        return False, f"its image is {operation.offset}, written was {written.offset}"
    return True, ""

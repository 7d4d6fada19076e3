"""Faults of brokers with partitions: disks, links between them, and long pauses. The checkers are
told of replaced and damaged disks (see ``checks/committed_data.py``).
"""

import asyncio
import random

from raftlog.transport.api import Conversation
from simulation.faults import fault
from simulation.faults.disks import full, hanging, low, resume_disk, slow
from simulation.faults.links import between, both, cut_for, duration_s
from simulation.faults.nodes import all_killed, paused, start_again
from simulation.world import World


@fault
async def kill_all_brokers(world: World, rng: random.Random) -> None:
    await all_killed(world, rng, world.members, "kill_all_brokers")


@fault
async def broker_pause(world: World, rng: random.Random) -> None:
    """Pause a broker for longer than one of its timeouts: replica lag, session or fencing."""
    host, config = rng.choice(world.members), world.config
    if host.service is None or world.network.is_paused(host.name):
        return  # Before anything is drawn.
    session_ms = config.session_timeout_ms
    timeout_ms = rng.choice((config.replica_lag_ms, session_ms, session_ms + 3000))
    seconds = timeout_ms / 1000 * rng.uniform(0.9, 1.5)
    await paused(world, seconds, host.name, "broker_pause", "pause")


@fault
async def brokers_cut(world: World, rng: random.Random) -> None:
    """Cut two brokers off from each other, in one direction or both; controllers reach both."""
    if len(world.members) < 2:
        return
    one, other = (host.name for host in rng.sample(world.members, 2))
    pairs = [(one, other)] if rng.random() < 0.3 else both(one, other)
    await cut_for(world, "brokers_cut", pairs, duration_s(rng))


@fault
async def broker_alone(world: World, rng: random.Random) -> None:
    """Cut a broker off from all controllers, or from all other nodes; clients still reach it."""
    name = rng.choice(world.members).name
    others = [host.name for host in world.controllers]
    if rng.random() < 0.5:
        others += [host.name for host in world.members if host.name != name]
    session_s = world.config.session_timeout_ms / 1000
    seconds = session_s * rng.uniform(0.8, 2.0) + rng.choice((0.0, 4.0))
    await cut_for(world, "broker_alone", between([name], others), seconds)


@fault
async def fetches_late(world: World, rng: random.Random) -> None:
    """Delay one broker's fetches from another; fetches on a new link overtake them."""
    if len(world.members) < 2:
        return
    one, other = (host.name for host in rng.sample(world.members, 2))
    lag_s = world.config.replica_lag_ms / 1000
    seconds = lag_s * rng.choice((rng.uniform(0.05, 0.5), rng.uniform(0.5, 3.0)))
    if world.network.stall(one, other, seconds, Conversation.REPLICA_FETCH):
        world.note("network", f"replica fetches {one}>{other} {seconds:.3f} s late")
        world.happened("fetches_late")


@fault
async def broker_disk_error(world: World, rng: random.Random) -> None:
    """Let a broker's next write or sync fail once (EIO): the broker stops, and is restarted."""
    host = rng.choice(world.members)
    if host.disk is not None:
        host.disk.fail_next(rng.choice(("append", "flush")))


@fault
async def broker_disk_full(world: World, rng: random.Random) -> None:
    await full(world, rng, rng.choice(world.members), 6.0)


@fault
async def broker_disk_low(world: World, rng: random.Random) -> None:
    """Fill the disks of one broker or of all beyond their free-space reserve, for a while."""
    hosts = world.members if rng.random() < 0.2 else [rng.choice(world.members)]
    await low(world, rng, hosts, world.config.broker_reserve_bytes, "broker_disk_low")


@fault
async def broker_disk_hang(world: World, rng: random.Random) -> None:
    await hanging(world, rng, rng.choice(world.members), resume_disk)


@fault
async def broker_disk_slow(world: World, rng: random.Random) -> None:
    await slow(world, rng, rng.choice(world.members), "broker_disk_slow")


@fault
async def broker_bit_flip(world: World, rng: random.Random) -> None:
    """Flip a bit on a broker's disk: the broker detects it and stops, and gets an empty disk."""
    host = rng.choice(world.members)
    if host.disk is None or not host.disk.flip_bit(rng):
        return
    world.note(host.name, "a bit of its partitions flips")
    world.watch.tell("broker_disk_lost", host, host.disk.directory_id)
    if rng.random() < 0.7:
        # A log is read whole at the start only.
        host.kill()
        await asyncio.sleep(rng.uniform(0.05, 1.0))
        start_again(world, host)


@fault
async def replace_broker_disk(world: World, rng: random.Random) -> None:
    host = rng.choice(world.members)
    if host.disk is None:
        return
    host.kill()
    await asyncio.sleep(rng.choice((0.0, rng.uniform(0.0, 4.0))))
    if host.service is not None or world.lasting:
        return
    world.fleet.replace_broker_disk(host)
    world.happened("replace_broker_disk")
    await asyncio.sleep(rng.uniform(0.0, 0.5))
    start_again(world, host)

"""Faults of disks. The disk itself counts its faults; ``collect`` gathers the counts.

The fault atlas: a permanently damaged copy (a flipped bit, a lost disk) is one of at most a
minority of the voters, and stays in the list of the damaged until the node has fetched a new copy.
So of everything a majority ever had, a sound copy is left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import get_args

from simulation.faults import fault
from simulation.hosts import ControllerHost
from simulation.twins.disk import Place, SimDisk
from simulation.twins.disk_hardware import Operation
from simulation.twins.loop import host_context
from simulation.world import World


def mend_disk(world: World, host: ControllerHost) -> None:
    """Make a disk work again that was full, slow or hanging."""
    host.disk.capacity_bytes = None
    host.disk.latency_factor = 1.0
    if host.disk.hung:
        # In the host's context: what completes is its own.
        world.network.loop.call_soon(host.disk.resume, context=host_context(host.name))


@fault
async def disk_error(world: World, rng: random.Random) -> None:
    """The next operation of a kind fails once (EIO); the node stops, and is started again."""
    host = rng.choice(world.controllers)
    host.disk.fail_next(rng.choice(get_args(Operation)))


@fault
async def disk_full(world: World, rng: random.Random) -> None:
    """No space left after a few more writes, for a while."""
    host = rng.choice(world.controllers)
    host.disk.capacity_bytes = host.disk.used_bytes() + rng.choice((0, rng.randint(0, 3000)))
    world.note(host.name, "its disk is nearly full")
    await asyncio.sleep(rng.uniform(0.5, 8.0))
    if world.may_mend(host.name):
        host.disk.capacity_bytes = None


@fault
async def disk_low(world: World, rng: random.Random) -> None:
    """Less than the reserve is free on the leader's disk, on some or on all, for a while; and still
    more than nothing.
    """
    if not world.config.reserve_bytes:
        return
    hosts = rng.choice(
        (world.controllers, rng.sample(world.controllers, rng.randint(1, len(world.controllers))))
    )
    service = world.active()
    if service is not None and rng.random() < 0.3:
        hosts = [each for each in world.controllers if each.service is service]
    disks = fill(world, hosts, lambda: rng.uniform(0.3, 0.9))
    if disks:
        world.happened("disk_low")
        await asyncio.sleep(rng.uniform(2.0, 15.0))
        make_room(world, disks)


def fill(
    world: World, hosts: Sequence[ControllerHost], share: Callable[[], float]
) -> dict[ControllerHost, SimDisk]:
    """Leave a share of the reserve free on these hosts' disks, drawn for each; those that were not
    nearly full before.
    """
    disks = {host: host.disk for host in hosts if host.disk.capacity_bytes is None}
    for disk in disks.values():
        disk.capacity_bytes = disk.used_bytes() + round(world.config.reserve_bytes * share())
    if disks:
        world.note("disks", f"low on {' '.join(host.name for host in disks)}")
    return disks


def make_room(world: World, disks: dict[ControllerHost, SimDisk]) -> None:
    """Take back what ``fill`` has done, unless it is to stay so."""
    for host, disk in disks.items():
        if host.disk is disk and world.may_mend(host.name):
            disk.capacity_bytes = None


@fault
async def disk_hang(world: World, rng: random.Random) -> None:
    """Let a disk hang: no operation completes for a while; the leader's half the time."""
    host = rng.choice(world.controllers)
    service = world.active()
    if service is not None and rng.random() < 0.5:
        host = next(each for each in world.controllers if each.service is service)
    if host.disk.hung:
        return
    seconds = rng.choice((rng.uniform(0.05, 1.0), rng.uniform(1.0, 15.0)))
    world.note(host.name, f"its disk hangs for {seconds:.3f} s")
    disk = host.disk
    disk.hang()
    await asyncio.sleep(seconds)
    if world.may_mend(host.name) and disk is host.disk:
        mend_disk(world, host)


@fault
async def disk_slow(world: World, rng: random.Random) -> None:
    """A disk takes ten to a hundred times as long."""
    host = rng.choice(world.controllers)
    world.note(host.name, "its disk is slow")
    world.happened("disk_slow")
    host.disk.latency_factor = rng.uniform(10.0, 100.0)
    await asyncio.sleep(rng.uniform(0.5, 8.0))
    if world.may_mend(host.name):
        host.disk.latency_factor = 1.0


@fault
async def bit_flip(world: World, rng: random.Random) -> None:
    """One durable bit of a voter changes, and sooner or later the node meets it: it must stop, or
    do without that copy.
    """
    hosts = [host for host in world.fleet.voters() if host.name not in world.damaged]
    if not world.may_damage() or not hosts or world.voters_change:
        return
    host = rng.choice(hosts)
    place: Place = rng.choice(get_args(Place))
    if host.disk.flip_bit(rng, place):
        world.note(host.name, f"a bit of its {place} flips")
        world.damaged[host.name] = None
        if rng.random() < 0.7:
            # A log is read whole at the start only.
            host.kill()
            await asyncio.sleep(rng.uniform(0.05, 1.0))
            if host.service is None and world.may_mend(host.name):
                host.start()

"""The liveness phase: conditions that must hold within a bound once a majority is healed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from simulation import data_recovery, faults_removed, faults_voters, last_reads
from simulation.hosts import BrokerHost, ControllerHost

if TYPE_CHECKING:
    from simulation.world import World


async def recover(world: World) -> None:
    """A leader, everyone caught up with it, LAO at the end, writes served.

    Raises CheckFailedError.
    """
    bound = world.config.liveness_s
    await world.until(lambda: world.active() is not None, bound, "a majority elects a leader")
    if "roll_heartbeats" in world.config.faults and not world.has_spawned("end of the roll"):
        world.spawn(faults_voters.end_roll(world), "end of the roll")
    if world.voters_change:
        world.spawn(faults_removed.replace_left_ahead(world), "operator of removed voters")
    await world.until(
        lambda: _have_joined(world), bound, "the brokers of the healed part are unfenced"
    )
    async with asyncio.timeout(bound * 2):
        written = await world.workload.last_write(bound)
    mark = written.offset
    await world.until(
        lambda: _are_at(world, mark), bound, f"everyone is caught up with offset {mark}"
    )
    await last_reads.read_everywhere(world, written, bound)
    await world.workload.watchers.reach(written, bound)
    if world.config.data_per_s and world.members:
        await data_recovery.recover(world, bound)
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
        host.id in brokers and not brokers[host.id].fenced for host in world.healed.brokers()
    )


def _are_at(world: World, offset: int) -> bool:
    """Return whether all of the healed part have applied this offset, and LAO has reached it."""
    service = world.active()
    if service is None or service.image.offset < offset:
        return False
    if world.healed.brokers() and service.node.lowest_acknowledged_offset < offset:
        return False
    everyone: list[ControllerHost | BrokerHost] = [
        *world.healed.controllers(),
        *world.healed.brokers(),
    ]
    return all(
        host.service is not None and host.service.image.offset >= offset for host in everyone
    )

"""Faults that stop the whole cluster: each strikes once, after the others have had their time.

Meanwhile only faults of brokers begin anew, what they are for takes a controller that stays; and
none where a broker has to stay, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from simulation.faults_disks import fill, make_room
from simulation.faults_links import both, mend
from simulation.faults_nodes import led, one_in_service, start_again
from simulation.faults_operators import whole_roll
from simulation.faults_snapshots import slow_fetch
from simulation.faults_twins import thought_dead
from simulation.hosts import FENCES_ITSELF_AFTER_MS

if TYPE_CHECKING:
    from simulation.world import World

Fault = Callable[["World", float], Awaitable[None]]
"""A fault. Its second argument is its duration in seconds."""

BACK_WITHIN_S = 5.0


async def all_disks_low(world: World, lasts_s: float) -> None:
    """Less than the reserve is free on each controller's disk, for longer than it takes to know
    that.
    """
    if world.config.reserve_bytes:
        # Who is cut off from others when it begins sees nothing of an outage.
        world.network.unblock_all()
        rng = world.rng("all_disks_low")
        disks = fill(world, world.controllers, lambda: rng.uniform(0.3, 0.6))
        world.happened("all_disks_low")
        await asyncio.sleep(lasts_s)
        make_room(world, disks)


async def controllers_away(world: World, lasts_s: float) -> None:
    """Kill all controllers, and keep them down until the brokers have fenced themselves; for the
    next leader these count as unfenced.

    One broker reaches no controller for a moment longer: the others are heard at once.
    """
    world.network.unblock_all()
    late = await one_in_service(world, world.rng("controllers_away"))
    world.note("controllers", "all killed, and stay away")
    for host in world.controllers:
        host.kill()
    world.happened("controllers_away")
    fencing_s = (world.config.session_timeout_ms + FENCES_ITSELF_AFTER_MS) / 1000
    await asyncio.sleep(fencing_s * (1 + world.config.drift) + lasts_s)
    pairs = [
        pair
        for host in world.controllers
        if late is not None
        for pair in both(late.name, host.name)
    ]
    for source, target in pairs:
        world.network.block(source, target)
    for host in world.controllers:
        start_again(world, host)
    await led(world, BACK_WITHIN_S)
    # Who is alone is found by looking now and then.
    await asyncio.sleep(1.0)
    mend(world, pairs)


RUN: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (slow_fetch, thought_dead, whole_roll, controllers_away, all_disks_low)
}

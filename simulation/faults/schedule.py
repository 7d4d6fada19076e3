"""The schedule of a run's faults: the safety phase."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from simulation.faults import (
    AGAIN_AND_AGAIN,
    data,
    disks,
    links,
    nodes,
    operators,
    snapshots,
    voters,
)
from simulation.faults.disks import fill, make_room
from simulation.faults.links import between, mend
from simulation.faults.nodes import led, one_in_service, start_again, thought_dead
from simulation.faults.operators import whole_roll
from simulation.faults.snapshots import slow_fetch
from simulation.hosts import FENCES_ITSELF_AFTER_MS
from simulation.swarm.faults import FAULTS
from simulation.twins.network_faults import LinkFaults
from simulation.world import World

BACK_WITHIN_S = 5.0


async def all_disks_low(world: World, lasts_s: float) -> None:
    """Fill all controllers' disks beyond their reserve, for long enough to be measured."""
    if world.config.reserve_bytes:
        # Who is cut off from others when it begins sees nothing of an outage.
        world.network.unblock_all()
        rng = world.rng("all_disks_low")
        disks = fill(
            world, world.controllers, world.config.reserve_bytes, lambda: rng.uniform(0.3, 0.6)
        )
        world.happened("all_disks_low")
        await asyncio.sleep(lasts_s)
        make_room(world, disks)


async def controllers_away(world: World, lasts_s: float) -> None:
    """Kill all controllers until the brokers have fenced themselves, which the next leader does not
    know. One broker reaches no controller for a moment longer.
    """
    world.network.unblock_all()
    late = await one_in_service(world, world.rng("controllers_away"))
    world.note("controllers", "all killed, and stay away")
    for host in world.controllers:
        host.kill()
    world.happened("controllers_away")
    fencing_s = (world.config.session_timeout_ms + FENCES_ITSELF_AFTER_MS) / 1000
    await asyncio.sleep(fencing_s * (1 + world.config.drift) + lasts_s)
    ones = [late.name] if late is not None else []
    pairs = between(ones, [host.name for host in world.controllers])
    for source, target in pairs:
        world.network.block(source, target)
    for host in world.controllers:
        start_again(world, host)
    await led(world, BACK_WITHIN_S)
    # Who is alone is found by looking now and then.
    await asyncio.sleep(1.0)
    mend(world, pairs)


ONCE: dict[str, Callable[[World, float], Awaitable[None]]] = {
    one.__name__: one
    for one in (slow_fetch, thought_dead, whole_roll, controllers_away, all_disks_low)
}
"""The faults that strike once, in their order; the second argument is their duration in seconds."""


MODULES = (data, disks, links, nodes, operators, snapshots, voters)


class FaultSchedule:
    """Lets the faults of the config strike until the liveness phase begins."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.spared: Literal["", "controllers", "all"] = ""
        """Hosts that new faults spare. "controllers": faults of brokers continue."""

    def begin(self) -> None:
        """Start faults of single messages, and a task for each repeated fault."""
        world = self._world
        chosen = world.config.faults
        world.network.faults = LinkFaults(
            world.happened,
            break_p=chosen.get("link_broken", 0.0),
            duplicate_p=chosen.get("request_repeated", 0.0),
            stall_p=chosen.get("message_late", 0.0),
            stall_mean_s=world.config.fetch_timeout_ms / 1000 * 2,
            refuse_p=chosen.get("connect_refused", 0.0),
            late_change_p=chosen.get("isr_change_late", 0.0),
            late_change_mean_s=world.config.session_timeout_ms / 1000,
            spares=lambda one, other: (
                world.lasting and one in world.healed and other in world.healed
            ),
        )
        for name, strength in sorted(chosen.items()):
            fault = FAULTS[name]
            if fault.needs_data and not world.config.data_per_s:
                continue
            if fault.kind == "every" and (world.members or not fault.needs_brokers):
                world.spawn(self._again_and_again(name, strength), f"fault {name}")

    async def strike_once(self) -> None:
        """Let the faults of this kind strike one after another, at the end of the safety phase."""
        world = self._world
        for name, fault in ONCE.items():
            if name in world.config.faults and (world.members or not FAULTS[name].needs_brokers):
                self.spared = "all" if FAULTS[name].needs_brokers else "controllers"
                await fault(world, world.config.faults[name])

    async def _again_and_again(self, name: str, mean_s: float) -> None:
        world = self._world
        rng = world.rng(f"fault {name}")
        strikes = AGAIN_AND_AGAIN[name]
        while not world.lasting:
            await asyncio.sleep(rng.expovariate(1 / mean_s))
            if not world.lasting and (
                not self.spared or (self.spared == "controllers" and FAULTS[name].needs_brokers)
            ):
                await strikes(world, rng)


__all__ = ["AGAIN_AND_AGAIN", "ONCE", "FaultSchedule"]

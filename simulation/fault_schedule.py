"""The schedule of a run's faults: the safety phase."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from simulation import (
    faults_data,
    faults_disks,
    faults_leases,
    faults_links,
    faults_nodes,
    faults_once,
    faults_operators,
    faults_removed,
    faults_snapshots,
    faults_twins,
    faults_voters,
)
from simulation.swarm.faults import FAULTS
from simulation.twins.network_faults import LinkFaults

if TYPE_CHECKING:
    from simulation.world import World

AGAIN_AND_AGAIN = {
    **faults_nodes.RUN,
    **faults_links.RUN,
    **faults_disks.RUN,
    **faults_voters.RUN,
    **faults_leases.RUN,
    **faults_data.RUN,
    **faults_operators.RUN,
    **faults_snapshots.RUN,
    **faults_twins.RUN,
    **faults_removed.RUN,
}
"""The faults that strike at random times: name and coroutine."""


class FaultSchedule:
    """Lets the faults of the config strike until the liveness phase begins."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.spared: Literal["", "controllers", "all"] = ""
        """Hosts that new faults spare; "controllers": those of brokers go on."""

    def begin(self) -> None:
        """Faults of single messages from now on, and a task for each fault that strikes again and
        again.
        """
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
        """The faults that strike once, one after the other, at the end of the safety phase."""
        world = self._world
        for name, fault in faults_once.RUN.items():
            if name in world.config.faults and (world.members or not FAULTS[name].needs_brokers):
                self.spared = "all" if FAULTS[name].needs_brokers else "controllers"
                await fault(world, world.config.faults[name])

    async def _again_and_again(self, name: str, mean_s: float) -> None:
        world = self._world
        rng = world.rng(f"fault {name}")
        fault = AGAIN_AND_AGAIN[name]
        while not world.lasting:
            await asyncio.sleep(rng.expovariate(1 / mean_s))
            if not world.lasting and (
                not self.spared or (self.spared == "controllers" and FAULTS[name].needs_brokers)
            ):
                await fault(world, rng)

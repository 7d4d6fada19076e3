"""A simulated run of a whole cluster. Everything above time, network and disk is shipped code; a
seed and a config determine the transcript, byte for byte.

In the safety phase the faults of the config strike, and every promise is checked at each step. In
the liveness phase (``liveness.py``) a majority is healed, and must recover within a bound.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from simulation import recovered_quorum
from simulation.checks.api import Checker
from simulation.checks.suite import all_checkers
from simulation.faults.schedule import FaultSchedule
from simulation.liveness import heal, recover
from simulation.outcome import Outcome
from simulation.supervisor import Supervisor
from simulation.swarm.config import SwarmConfig, draw
from simulation.twins.bounds import MAX_REAL_S, MAX_STEPS, RunTooLongError, real_time
from simulation.twins.loop import run
from simulation.workload import Workload
from simulation.world import World


class Swarm(World):
    """A world with clients, faults, and a supervisor that restarts ended processes."""

    def __init__(self, outcome: Outcome, checkers: Sequence[Checker] = ()) -> None:
        super().__init__(outcome, checkers)
        self.workload = Workload(self)
        self.supervisor = Supervisor(self)
        self.faults = FaultSchedule(self)

    async def come_up(self, within_s: float) -> None:
        """Start all hosts, and wait until they serve. Raises CheckFailedError."""
        for host in self.fleet.hosts():
            host.start()
        self.spawn(self.supervisor.keep_sampling(), "sampling")
        await self.until(self.is_up, within_s, "the cluster comes up")

    async def _live(self) -> None:
        await self.come_up(self.config.liveness_s)
        self.workload.begin()
        self.begin_faults()
        await asyncio.sleep(self.config.safety_s)
        await self.faults.strike_once()
        recovery = None
        if self.config.recovery:
            self.faults.spared = "controllers"
            recovery = await recovered_quorum.lose_majority(self, self.workload)
        heal(self, self.workload)
        if recovery is not None:
            await recovered_quorum.go_on(self, self.workload, recovery, self.config.liveness_s)
        await recover(self, self.workload)
        self.watch.tell("end")
        image = self.active_image()
        self.outcome.state_hash = f"{image.state_hash:032x}"
        self.note("end", f"{dict(self.outcome.operations)} state {self.outcome.state_hash}")

    def begin_faults(self) -> None:
        self.faults.begin()


def run_swarm(
    seed: int,
    config: SwarmConfig | None = None,
    checkers: Sequence[Checker] | None = None,
    **limits: Any,
) -> Outcome:
    """Run a simulated cluster from a seed; a failure is in the outcome. ``config``, ``checkers``:
    instead of the seed's and the standard ones. ``until_s``: virtual time to stop at.
    """
    outcome = Outcome(seed, draw(seed) if config is None else config)
    checkers = all_checkers() if checkers is None else checkers
    run_world(outcome, lambda: Swarm(outcome, checkers), **limits)
    return outcome


def run_world(
    outcome: Outcome, make: Callable[[], World], *, until_s: float = 0.0,
    max_steps: int = MAX_STEPS, max_real_s: float = MAX_REAL_S,
) -> None:  # fmt: skip
    """Run a world on its own loop. The failure is what a checker has found, or any exception.

    ``until_s``: virtual time at which to stop; 0: run to the end.
    """
    worlds: list[World] = []

    async def main() -> None:
        worlds.append(make())
        try:
            async with asyncio.timeout(until_s or None):
                await worlds[0].live()
        finally:
            worlds[0].finish()

    try:
        with real_time(max_real_s):
            run(main(), max_steps=max_steps)
    except TimeoutError as error:
        outcome.failure = None if until_s else error
    except (Exception, RunTooLongError) as error:
        outcome.failure = (worlds[0].watch.failure if worlds else None) or error

"""A whole cluster's life from a seed and a config: two phases, checks throughout, counted faults,
and a transcript.

*Safety* (``fault_schedule.py``): all the faults of the config, and every promise checked at each
step. *Liveness* (``healing.py``, ``liveness.py``): a majority is healed, what is broken outside of
it stays broken for ever (the dead stay dead, cut links stay cut), and within a bound there must be
a leader, everyone in the healed part caught up, LAO at the end, and writes served.

Everything above time, network and disk is the shipped code. The same seed and config give the same
transcript, byte for byte.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from controller.service.service import ControllerService
from raftlog.transport.api import TransportLimits
from simulation import faults_data, faults_disks, faults_voters, recovered_quorum
from simulation.checks.api import Checker, CheckFailedError
from simulation.checks.suite import all_checkers
from simulation.fault_schedule import FaultSchedule
from simulation.fleet import Fleet
from simulation.healing import HealedPart
from simulation.liveness import recover
from simulation.outcome import Outcome, Transcript
from simulation.restarts import Restarts
from simulation.sampling import SAMPLE_S, keep_sampling
from simulation.swarm.config import SwarmConfig, draw
from simulation.twins.bounds import MAX_REAL_S, MAX_STEPS, RunTooLongError, real_time
from simulation.twins.loop import host_context, run
from simulation.twins.network import NetworkParams, SimNetwork
from simulation.watching import Watch
from simulation.workload import Workload


class World:
    """Shared state of the hosts, faults and clients of one run. Make it on a running
    VirtualLoop.
    """

    def __init__(
        self, seed: int, config: SwarmConfig, checkers: Sequence[Checker], outcome: Outcome
    ) -> None:
        self.seed, self.config, self.outcome = seed, config, outcome
        self.loop = asyncio.get_running_loop()
        # One generator a purpose: a change in one does not reshuffle the others.
        params = NetworkParams(
            config.delay_min_ms,
            config.delay_mean_ms,
            TransportLimits(max_queued_messages=config.queue_messages).within(
                config.fetch_timeout_ms
            ),
        )
        self.network = SimNetwork(self.rng("network"), params)
        self.failed: asyncio.Future[None] = self.loop.create_future()
        self.watch = Watch(checkers, self.fail)
        self._transcript = Transcript(outcome, self.now)
        self._tasks: list[asyncio.Task[Any]] = []
        self.lasting = False
        """The liveness phase: what is broken stays broken, what is healed is not touched."""
        self.healed = HealedPart(self)
        self.damaged: dict[str, None] = {}
        """Names of hosts whose copy is not sound any more."""
        self._faults = FaultSchedule(self)
        self._restarts = Restarts(self)
        self.fleet = Fleet(self, self._restarts)
        self.controllers = self.fleet.controllers
        self.members, self.brokers = self.fleet.members, self.fleet.brokers
        self.workload = Workload(self)
        self.operator = faults_voters.Operator(self)
        self.watch.begin(self)

    def rng(self, purpose: str) -> random.Random:
        """Return a generator of its own for a purpose."""
        return random.Random(f"{self.seed} {purpose}")

    def now(self) -> float:
        """Virtual seconds."""
        return self.network.loop.true_time()

    def active(self) -> ControllerService | None:
        """Return the newest active controller that is up."""
        found = [
            host.service
            for host in self.controllers
            if host.service is not None and host.service.node.decider
        ]
        return max(found, key=lambda service: service.node.controller_epoch, default=None)

    def active_image(self) -> Any:
        """Committed image of the active controller.

        Raises CheckFailedError if no controller is active.
        """
        service = self.active()
        if service is None:
            raise CheckFailedError("there is no active controller")
        return service.image

    # --- what others tell ------------------------------------------------------------------------

    def note(self, who: str, what: str) -> None:
        """A line of the transcript."""
        self._transcript.note(who, what)

    def note_change(self, who: str, what: str) -> None:
        """A line, if it says something new about ``who``."""
        self._transcript.note_change(who, what)

    def happened(self, fault: str, times: int = 1) -> None:
        """A fault has had an effect."""
        self.outcome.faults[fault] = self.outcome.faults.get(fault, 0) + times

    def fail(self, error: BaseException) -> None:
        """End the run with this error; the first one counts."""
        if not self.failed.done():
            self.failed.set_exception(error)

    # --- what faults may do ----------------------------------------------------------------------

    def may_mend(self, *names: str) -> bool:
        """Return whether what is broken between or at these hosts may be mended: in the liveness
        phase only inside the healed part.
        """
        return not self.lasting or all(name in self.healed for name in names)

    @property
    def voters_change(self) -> bool:
        """True if this run changes the voter set: then the log alone knows the majority."""
        return (
            self.config.auto_join
            or self.config.recovery
            or not faults_voters.VOTER_FAULTS.isdisjoint(self.config.faults)
        )

    def may_damage(self) -> bool:
        """Return whether one more voter's copy may be lost: the others are a majority still."""
        return len(self.damaged) < (len(self.fleet.voter_ids) - 1) // 2

    # --- tasks -----------------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, host: str = "") -> asyncio.Task[Any]:
        """Return a task of the world, or of a client's host; when it fails, the run does."""
        task = self.loop.create_task(work, name=name, context=host_context(host))
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def has_spawned(self, name: str) -> bool:
        """Return whether a task of this name was begun, ended or not."""
        return any(task.get_name() == name for task in self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait for something that must happen. Raises CheckFailedError if it does not."""
        deadline = self.now() + within_s
        while not condition():
            if self.now() > deadline:
                raise CheckFailedError(f"within {within_s:g} s it did not happen: {what}")
            await asyncio.sleep(SAMPLE_S)

    # --- life ------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run the world from its start, through the faults, to rest.

        Raises CheckFailedError, or the error of any part.
        """
        work = self.loop.create_task(self._live(), name="life")
        await asyncio.wait({work, self.failed}, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            work.cancel()
            self.failed.result()
        work.result()

    async def _live(self) -> None:
        for host in self.fleet.hosts():
            host.start()
        self.spawn(keep_sampling(self, self._restarts), "sampling")
        await self.until(self.is_up, self.config.liveness_s, "the cluster comes up")
        self.workload.begin()
        self._begin_faults()
        await asyncio.sleep(self.config.safety_s)
        await self._faults.strike_once()
        if self.config.recovery:
            # What the lost disks alone have is to be committed first.
            self._faults.spared = "controllers"
        recovery = await recovered_quorum.lose_majority(self) if self.config.recovery else None
        self.healed.heal()
        if recovery is not None:
            await recovered_quorum.go_on(self, recovery, self.config.liveness_s)
        await recover(self)
        self.watch.tell("end")
        image = self.active_image()
        self.outcome.state_hash = f"{image.state_hash:032x}"
        self.note("end", f"{self.outcome.operations} state {self.outcome.state_hash}")

    def _begin_faults(self) -> None:
        self._faults.begin()

    def is_up(self) -> bool:
        """Return whether a controller is active and all members are unfenced."""
        service = self.active()
        return service is not None and all(
            host.id in service.image.brokers and not service.image.brokers[host.id].fenced
            for host in self.members
        )

    def finish(self) -> None:
        """Put down what there is to say."""
        for host in self.controllers:
            faults_disks.collect(host, self.outcome.faults)
        for broker in self.brokers:
            faults_data.collect(broker, self.outcome.faults)
        self.outcome.virtual_s = self.now()
        self.outcome.steps = self.network.loop.steps
        for checker in (*self.watch.retired, *self.watch.checkers):
            for what, count in checker.looked_at().items():
                name = f"{type(checker).__name__}.{what}"
                self.outcome.looked_at[name] = self.outcome.looked_at.get(name, 0) + count
        self.outcome.digest = self._transcript.digest()


def run_swarm(
    seed: int,
    config: SwarmConfig | None = None,
    checkers: Sequence[Checker] | None = None,
    *,
    until_s: float = 0.0,
    max_steps: int = MAX_STEPS,
    max_real_s: float = MAX_REAL_S,
) -> Outcome:
    """Make one run.

    ``checkers``: instead of the standard ones. A failure is in the outcome; nothing is raised.

    ``until_s``: stop there, at this virtual time. ``max_steps``, ``max_real_s``: a run that goes
    past one has failed.
    """
    config = config if config is not None else draw(seed)
    outcome = Outcome(seed, config)
    worlds: list[World] = []

    async def main() -> None:
        world = World(seed, config, all_checkers() if checkers is None else checkers, outcome)
        worlds.append(world)
        try:
            if until_s:
                async with asyncio.timeout(until_s):
                    await world.live()
            else:
                await world.live()
        finally:
            world.finish()

    try:
        with real_time(max_real_s):
            run(main(), max_steps=max_steps)
    except TimeoutError as error:
        outcome.failure = None if until_s else error
    except (Exception, RunTooLongError) as error:
        outcome.failure = error
        if worlds and worlds[0].watch.failure is not None:
            outcome.failure = worlds[0].watch.failure
    return outcome

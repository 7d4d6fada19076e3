"""A simulated cluster whose clients are a test's programs (raftlog.testing): coroutines on hosts of
their own, which can be paused, killed and cut off. No checker runs.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

from raftlog.client.async_client import SURROUNDINGS, Surroundings
from simulation.faults.links import between, cut_for, duration_s
from simulation.faults.schedule import AGAIN_AND_AGAIN
from simulation.hosts import BrokerHost, ControllerHost, Note
from simulation.outcome import Outcome
from simulation.supervisor import Supervisor
from simulation.swarm.config import SwarmConfig
from simulation.twins.loop import VirtualLoop, host_context
from simulation.world import SAMPLE_S, World

Fault = Callable[["GuestWorld", random.Random], Awaitable[None]]
UP_WITHIN_S = 60.0
PAUSES_S = ((0.05, 1.0), (1.0, 5.0), (5.0, 30.0))
"""Ranges of pauses: a garbage collection, swapping, a virtual machine's migration."""
RESTART_S = (0.1, 5.0)
_CLOSE_TRIES = 50


class _NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number: sets of tasks would otherwise be ordered by address."""

    def __init__(self, work: Any, *, number: int, **options: Any) -> None:
        # First: asyncio puts the new task into a set.
        self._number = number
        super().__init__(work, **options)

    def __hash__(self) -> int:
        return self._number


class GuestTasks:
    """The tasks of a run: their order in sets, and the end of those that belong to programs."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._numbers = itertools.count(1)
        loop.set_task_factory(self._make)
        # At the end nobody wants to hear of tasks that have come to none.
        loop.set_exception_handler(lambda _loop, _context: None)

    def _make(self, loop: Any, work: Any, **options: Any) -> asyncio.Task[Any]:
        return _NumberedTask(work, loop=loop, number=next(self._numbers), **options)

    def end(self) -> None:
        self._loop.leave_generators()
        for task in self._loop.tasks_of_hosts():
            _close(task.get_coro())


def _close(work: Any) -> None:
    # What waits for something as it is closed is closed again, there.
    for _ in range(_CLOSE_TRIES):
        try:
            work.close()
        except RuntimeError:
            continue
        except BaseException:
            return
        return


def guest_config(controllers: int, brokers: int, faults: Mapping[str, float]) -> SwarmConfig:
    """Return the config of a cluster with default settings that keeps partitions."""
    return SwarmConfig(
        voters=controllers,
        brokers=brokers,
        clients=0,
        writes_per_s=0.0,
        reads_per_s=0.0,
        data_per_s=1.0,
        replica_lag_ms=30_000,
        all_features=True,
        faults=dict(faults),
    )


class GuestSurroundings(Surroundings, Protocol):
    """The process of a program, as its clients see it."""

    def killed(self) -> None:
        """Note that no call of this process is answered any more."""


class Guest:
    """A program: a process on a host of its own."""

    def __init__(
        self,
        world: GuestWorld,
        name: str,
        work: Callable[[], Coroutine[Any, Any, Any]],
        surroundings: GuestSurroundings,
    ) -> None:
        self.name = name
        self._world, self._work, self._surroundings = world, work, surroundings
        self.ended: asyncio.Future[Any] = world.loop.create_future()
        self.task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """Start the process. Nothing happens if it runs, or has returned."""
        if self.task is not None or self.ended.done():
            return
        context = host_context(self.name)
        context.run(SURROUNDINGS.set, self._surroundings)
        self.task = self._world.loop.create_task(self._work(), name=self.name, context=context)
        self.task.add_done_callback(self._done, context=host_context(""))

    def kill(self) -> None:
        if self.task is not None:
            self.task = None
            self._world.network.crash(self.name)
            self._surroundings.killed()

    def _done(self, task: asyncio.Task[Any]) -> None:
        if task is not self.task or self._world.loop_ends:
            return
        self.task = None
        if task.cancelled():
            self._world.fail(RuntimeError(f"{self.name} has cancelled itself"))
            return
        if (error := task.exception()) is not None:
            self._world.note(self.name, f"raised {type(error).__name__}: {error}"[:300])
            self._world.fail(error)
            return
        self._world.note(self.name, "returned")
        self.ended.set_result(task.result())
        # The end of a process is the end of its connections.
        self._world.network.crash(self.name)


class GuestWorld(World):
    """A cluster with default settings, and the programs that use it."""

    def __init__(
        self, outcome: Outcome, main: Callable[[], Coroutine[Any, Any, None]], told: Note
    ) -> None:
        """``main``: the test; the run ends when it returns. ``told``: receives each line of the
        story.
        """
        self._told = told
        super().__init__(outcome)
        self.tasks = GuestTasks(self.network.loop)
        self._main = main
        self.guests: dict[str, Guest] = {}
        self._schedule = GuestFaults(self)
        self._supervisor = Supervisor(self)

    def note(self, who: str, what: str) -> None:
        super().note(who, what)
        self._told(who, what)

    def note_change(self, who: str, what: str) -> None:
        """Left out: a sample of a node is not an event."""

    def named(self, name: str) -> ControllerHost | BrokerHost:
        return {host.name: host for host in self.fleet.hosts()}[name]

    @property
    def loop_ends(self) -> bool:
        """True if the run is over, and all tasks are being cancelled."""
        return self.network.loop.ending

    async def _live(self) -> None:
        for host in self.fleet.hosts():
            host.start()
        self.spawn(self._supervisor.keep_sampling(), "sampling")
        await self.until(self.is_up, UP_WITHIN_S, "the cluster comes up")
        self.spawn(self._watch_roles(), "roles")
        self._schedule.begin()
        await self._main()

    async def calm(self) -> None:
        """End all faults, and wait until the cluster is healthy. Raises CheckFailedError."""
        self._schedule.end()
        self.network.unblock_all()
        for host in self.fleet.hosts():
            self.network.resume(host.name)
            host.wall_offset_ms = 0
            if host.service is None:
                host.start()
        for guest in self.guests.values():
            self.network.resume(guest.name)
        self.note("cluster", "calm: no more faults, all nodes run")
        await self.until(self.is_up, UP_WITHIN_S, "the cluster is whole again")

    async def _watch_roles(self) -> None:
        leader, fenced = "", dict.fromkeys((host.name for host in self.members), False)
        while True:
            active = self.active()
            if active is not None:
                now = f"c{active.quorum.node_id} leads, epoch {active.node.controller_epoch}"
                if now != leader:
                    leader = now
                    self.note("controllers", now)
                for host in self.members:
                    known = active.image.brokers.get(host.id)
                    if known is not None and known.fenced != fenced[host.name]:
                        fenced[host.name] = known.fenced
                        self.note(host.name, "is fenced" if known.fenced else "is unfenced")
            await asyncio.sleep(SAMPLE_S)


class GuestFaults:
    """Injects the faults of the config until it is ended."""

    def __init__(self, world: GuestWorld) -> None:
        self._world = world
        self._tasks: list[asyncio.Task[Any]] = []

    def begin(self) -> None:
        for name, mean_s in sorted(self._world.config.faults.items()):
            work = self._again_and_again(name, mean_s)
            self._tasks.append(self._world.spawn(work, f"fault {name}"))

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _again_and_again(self, name: str, mean_s: float) -> None:
        rng = self._world.rng(f"fault {name}")
        fault: Fault = GUEST_FAULTS[name]
        while True:
            await asyncio.sleep(rng.expovariate(1 / mean_s))
            await fault(self._world, rng)


def _running(world: GuestWorld, rng: random.Random) -> Guest | None:
    running = [
        guest
        for guest in world.guests.values()
        if guest.task is not None and not world.network.is_paused(guest.name)
    ]
    return rng.choice(running) if running else None


async def pause_program(world: GuestWorld, rng: random.Random) -> None:
    guest, seconds = _running(world, rng), rng.uniform(*rng.choice(PAUSES_S))
    if guest is None:
        return
    world.note(guest.name, f"pause for {seconds:.3f} s")
    world.happened("pause_program")
    world.network.pause(guest.name)
    try:
        await asyncio.sleep(seconds)
    finally:
        world.network.resume(guest.name)
        world.note(guest.name, "goes on")


async def cut_program(world: GuestWorld, rng: random.Random) -> None:
    """Cut a program off from one broker, or from all."""
    guest = _running(world, rng)
    if guest is None:
        return
    brokers = [host.name for host in world.members]
    cut = brokers if rng.random() < 0.5 else [rng.choice(brokers)]
    await cut_for(world, "cut_program", between([guest.name], cut), duration_s(rng))


async def kill_program(world: GuestWorld, rng: random.Random) -> None:
    guest = _running(world, rng)
    if guest is None:
        return
    world.note(guest.name, "killed")
    world.happened("kill_program")
    guest.kill()
    await asyncio.sleep(rng.uniform(*RESTART_S))
    world.note(guest.name, "started again")
    guest.start()


_OF_NODES = (
    "kill_controller",
    "kill_all_controllers",
    "kill_broker",
    "stop_broker",
    "pause",
    "long_pause",
    "clock_jump",
    "resign",
    "partition",
    "one_way",
    "isolate",
    "split",
    "flapping",
    "clog",
    "reset_links",
)
GUEST_FAULTS: dict[str, Any] = {
    **{name: AGAIN_AND_AGAIN[name] for name in _OF_NODES},
    **{fault.__name__: fault for fault in (pause_program, cut_program, kill_program)},
}

"""Simulated runs of a test's coroutine: in a simulated cluster, on virtual time, from a seed."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import structlog

from raftlog.client.async_client import SURROUNDINGS
from raftlog.testing.fault_rates import DEFAULT_FAULTS, checked
from raftlog.testing.simulated_cluster import MAIN, HostSurroundings, SimulatedCluster
from raftlog.testing.story import Story
from simulation.guest_world import GuestWorld, guest_config
from simulation.outcome import Outcome
from simulation.twins.bounds import RunTooLongError
from simulation.twins.loop import VirtualLoop, host_context, run

T = TypeVar("T")
Main = Callable[[SimulatedCluster], Coroutine[Any, Any, T]]
SHOWN_LINES = 20
"""Number of lines of the story in a failure's message; pytest shows all of them below."""


@dataclass(frozen=True, slots=True)
class Run(Generic[T]):
    """A finished run."""

    seed: int
    result: T
    """Result of the coroutine, or None after a failure."""
    story: str
    """The events in order, the same for the same seed, byte for byte."""
    faults: Mapping[str, int]
    """Number of occurrences of each fault."""
    virtual_s: float
    """Duration of the run in virtual seconds."""
    real_s: float = field(compare=False)
    """Duration of the run in real seconds."""


class SeedFailedError(AssertionError):
    """A failed run. The message contains the seed and the end of the story; the cause is the
    original error.
    """

    __module__ = "raftlog.testing"

    def __init__(self, message: str, failed: Run[None]) -> None:
        super().__init__(message)
        self.run = failed

    @property
    def seed(self) -> int:
        """The seed that reproduces the failure."""
        return self.run.seed

    @property
    def story(self) -> str:
        """The whole story."""
        return self.run.story


def simulated(
    main: Main[T],
    *,
    seed: int = 0,
    faults: Mapping[str, float] = DEFAULT_FAULTS,
    controllers: int = 3,
    brokers: int = 3,
    limit_s: float = 600.0,
) -> Run[T]:
    """Run ``main(cluster)`` in a simulated cluster, and return its result and its story.

    ``faults``: mean time between two faults of a kind in virtual seconds, by name (:data:`FAULTS`);
    ``{}`` for no faults. ``limit_s``: virtual time after which a run counts as failed. Raises
    SeedFailedError when ``main`` or one of its programs raises. The same seed, code and Python give
    the same run.
    """
    __tracebackhide__ = True  # Makes pytest show the lines of the test.
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise RuntimeError(
            "simulated() runs its own event loop: call it from `def`, not from `async def`"
        )
    outcome = Outcome(seed, guest_config(controllers, brokers, checked(faults)))
    began = time.perf_counter()
    lived = _Life(main, outcome, limit_s)
    with _alone(seed):
        try:
            run(lived.live())
        except (Exception, RunTooLongError) as error:
            raise lived.failed(error, time.perf_counter() - began) from error
    return lived.ended(lived.result[0], time.perf_counter() - began)


def sweep(main: Main[T], seeds: Iterable[int], **options: Any) -> list[Run[T]]:
    """Run ``main`` with each seed; ``options`` are those of :func:`simulated`.

    Raises the SeedFailedError of the first seed that fails, after all have run; its message names
    the others.
    """
    __tracebackhide__ = True
    ran: list[Run[T]] = []
    failures: list[SeedFailedError] = []
    for seed in seeds:
        try:
            ran.append(simulated(main, seed=seed, **options))
        except SeedFailedError as error:
            failures.append(error)
    if failures:
        first, failed = failures[0], ", ".join(str(each.seed) for each in failures)
        first.args = (f"{len(failures)} of {len(failures) + len(ran)} seeds failed: {failed}\n"
                      f"{first.args[0]}",)  # fmt: skip
        raise first
    return ran


class _Life(Generic[T]):
    """One run, from start to end."""

    def __init__(self, main: Main[T], outcome: Outcome, limit_s: float) -> None:
        self._main, self._outcome, self._limit_s = main, outcome, limit_s
        self._world: GuestWorld | None = None
        self.story = Story(lambda: 0.0)
        self.result: list[T] = []

    async def live(self) -> None:
        """Run ``main`` to its end. Raises the error of ``main``, a program or the cluster."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        story = self.story = Story(loop.true_time)
        world = self._world = GuestWorld(self._outcome, self._run_main, story.note)
        try:
            await world.live()
        finally:
            world.finish()
            story.end()
            world.tasks.end()

    async def _run_main(self) -> None:
        world = self._world
        assert world is not None
        context = host_context(MAIN)
        context.run(SURROUNDINGS.set, HostSurroundings(world, self.story, MAIN))
        work = self._main(SimulatedCluster(world, self.story))
        task = world.loop.create_task(work, name=MAIN, context=context)
        await asyncio.wait({task}, timeout=self._limit_s)
        if not task.done():
            raise TimeoutError(f"{MAIN} has not ended after {self._limit_s:g} s of virtual time")
        self.result.append(task.result())

    def ended(self, result: Any, real_s: float) -> Run[Any]:
        """Return the run with its story."""
        outcome = self._outcome
        return Run(
            outcome.seed,
            result,
            "".join(f"{line}\n" for line in self.story.lines),
            dict(sorted(outcome.faults.items())),
            outcome.virtual_s,
            real_s,
        )

    def failed(self, error: BaseException, real_s: float) -> SeedFailedError:
        """Return the error with its story."""
        failed = self.ended(None, real_s)
        message = (
            f"seed {failed.seed} failed after {failed.virtual_s:.3f} s of virtual time:"
            f" {type(error).__name__}: {error}\n"
            f"End of the story:\n{self.story.tail(SHOWN_LINES)}"
        )
        return SeedFailedError(message, failed)


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """Isolate a run, so that it and its surroundings do not affect each other."""
    numbers, level = random.getstate(), logging.getLogger("asyncio").level
    configured, logs = structlog.is_configured(), structlog.get_config()
    environment = {name: os.environ.pop(name) for name in [*os.environ] if name[:8] == "RAFTLOG_"}
    collects = gc.isenabled()
    random.seed(seed)
    # Which objects a collection frees, and so the order of later events, depends on earlier runs.
    gc.disable()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.ReturnLoggerFactory(),
    )
    try:
        with warnings.catch_warnings():
            # A killed program does not complete, so its open resources are not a mistake.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                yield
            finally:
                gc.collect()
    finally:
        structlog.reset_defaults()
        if configured:
            structlog.configure(**logs)
        logging.getLogger("asyncio").setLevel(level)
        if collects:
            gc.enable()
        os.environ.update(environment)
        random.setstate(numbers)

"""A run that never ends is ended, is a failure of its seed, and keeps no other seed waiting."""

import asyncio
import signal
import time
from collections.abc import Iterator

import pytest
import structlog
from typing_extensions import override

from simulation.checks.api import Checker
from simulation.cli import silence
from simulation.report import failure_report
from simulation.run import run_swarm
from simulation.soak import run_seeds, summary_of
from simulation.swarm.config import SwarmConfig
from simulation.twins.bounds import RunTooLongError, real_time
from simulation.twins.loop import run

QUIET = SwarmConfig(safety_s=2.0)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    silence()
    yield
    structlog.reset_defaults()


class _Stuck(Checker):
    """Does not return from its first sample."""

    @override
    def sample(self) -> None:
        while True:
            pass


def test_a_loop_in_which_time_stands_still_ends_after_so_many_steps() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(RunTooLongError, match="1000 steps, at 0 s"):
        run(spin(), max_steps=1000)


def test_the_bound_on_steps_is_the_same_on_each_machine() -> None:
    whole = run_swarm(1, QUIET)
    assert whole.failure is None
    short = run_swarm(1, QUIET, max_steps=whole.steps // 2)
    assert isinstance(short.failure, RunTooLongError)
    assert run_swarm(1, QUIET, max_steps=whole.steps // 2).digest == short.digest
    assert "raftlog debug simulate --seed 1 " in failure_report(short)


def test_a_step_that_does_not_return_ends_after_so_much_real_time() -> None:
    begun = time.monotonic()
    outcome = run_swarm(1, QUIET, [_Stuck()], max_real_s=0.2)
    assert isinstance(outcome.failure, RunTooLongError)
    assert time.monotonic() - begun < 10.0
    assert run_swarm(1, QUIET, []).failure is None, "the alarm of the last run is still set"


def test_the_alarm_of_a_caller_rings_when_it_would_have() -> None:
    class RungError(Exception):
        pass

    def ring(*_: object) -> None:
        raise RungError

    before = signal.signal(signal.SIGALRM, ring)
    left, again = signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with real_time(100.0):
            pass
        with pytest.raises(RungError):
            time.sleep(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, again)
        signal.signal(signal.SIGALRM, before)


def test_an_alarm_that_was_swallowed_fails_the_run_at_its_end() -> None:
    def swallow() -> None:
        try:
            while True:
                pass
        except BaseException:
            return

    with pytest.raises(RunTooLongError), real_time(0.1):
        swallow()


@pytest.mark.nightly
def test_a_soak_goes_on_with_the_next_seed() -> None:
    # Small ones, of which the one in the middle takes the most steps.
    few, many, also_few = (run_swarm(seed).steps for seed in (1, 29, 5))
    bound = (max(few, also_few) + many) // 2
    summary = summary_of(
        iter(run_seeds([1, 29, 5], shrink_s=60.0, max_steps=bound)), None, quiet=True
    )
    assert summary["seeds"] == 3
    assert [one["seed"] for one in summary["failed"]] == [29]
    assert "RunTooLongError" in summary["failed"][0]["failure"]

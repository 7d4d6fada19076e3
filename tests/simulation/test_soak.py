"""Soaks: endless runs, shrinking, interruption."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from typing_extensions import override

from simulation.checks.api import Checker
from simulation.outcome import Outcome, failure_report
from simulation.run import run_swarm
from simulation.shrink import shrink
from simulation.soak import run_seeds, summary_of
from simulation.swarm.config import SwarmConfig
from simulation.twins.bounds import RunTooLongError
from simulation.twins.loop import run

SOAK = (
    "from simulation.soak import main; from raftlog.cli.process import run_interruptible;"
    " run_interruptible(lambda: main)"
)


def test_ctrl_c_ends_a_soak_with_its_summary_and_without_a_traceback(tmp_path: Path) -> None:
    soak = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SOAK,
            "--minutes",
            "5",
            "--first-seed",
            "1",
            "--failures",
            str(tmp_path / "failures"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert soak.stdout is not None
    assert soak.stdout.readline().startswith("seeds from 1 on")
    tree = psutil.Process(soak.pid)
    while not any("spawn_main" in " ".join(child.cmdline()) for child in tree.children()):
        assert soak.poll() is None
    children = tree.children(recursive=True)
    # As a terminal does it: to the whole process group.
    os.killpg(soak.pid, signal.SIGINT)
    out, errors = soak.communicate(timeout=60)
    assert soak.returncode == -signal.SIGINT
    assert "Traceback" not in errors
    assert json.loads(out[out.index("{") :])["interrupted"] is True
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


QUIET = SwarmConfig(safety_s=2.0)


class _Stuck(Checker):
    """Does not return from its first sample."""

    @override
    def sample(self) -> None:
        while True:
            pass


def test_loop_without_progress_of_time_ends_after_a_number_of_steps() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(RunTooLongError, match="1000 steps, at 0 s"):
        run(spin(), max_steps=1000)


def test_bound_on_steps_is_the_same_on_each_machine() -> None:
    whole = run_swarm(1, QUIET)
    assert whole.failure is None
    short = run_swarm(1, QUIET, max_steps=whole.steps // 2)
    assert isinstance(short.failure, RunTooLongError)
    assert run_swarm(1, QUIET, max_steps=whole.steps // 2).digest == short.digest
    assert "raftlog debug simulate --seed 1 " in failure_report(short)


def test_step_that_does_not_return_ends_after_a_real_timeout() -> None:
    begun = time.monotonic()
    assert isinstance(run_swarm(1, QUIET, [_Stuck()], max_real_s=0.2).failure, RunTooLongError)
    assert time.monotonic() - begun < 10.0
    assert run_swarm(1, QUIET, []).failure is None, "the alarm of the last run is still set"


@pytest.mark.nightly
def test_soak_continues_with_the_next_seed() -> None:
    # Small ones, of which the one in the middle takes the most steps.
    few, many, also_few = (run_swarm(seed).steps for seed in (1, 29, 5))
    bound = (max(few, also_few) + many) // 2
    summary = summary_of(
        iter(run_seeds([1, 29, 5], shrink_s=60.0, max_steps=bound)), None, quiet=True
    )
    assert summary["seeds"] == 3
    assert [one["seed"] for one in summary["failed"]] == [29]
    assert "RunTooLongError" in summary["failed"][0]["failure"]


def _run(seed: int, config: SwarmConfig) -> Outcome:
    """Fails with reset links and three voters; else, if brokers die, differently."""
    outcome = Outcome(seed, config)
    if "reset_links" in config.faults and config.voters >= 3:
        outcome.failure = AssertionError(
            f"LAO {len(config.faults)} of c{config.voters} is too high"
        )
    elif "kill_broker" in config.faults:
        outcome.failure = AssertionError("something else")
    return outcome


def test_shrink_keeps_only_the_faults_that_the_failure_requires() -> None:
    names = ("burst", "kill_broker", "partition", "pause", "reset_links")
    config = SwarmConfig(
        voters=7, observers=2, brokers=8, clients=3, safety_s=20.0, faults=dict.fromkeys(names, 1.0)
    )
    failure = _run(1, config).failure
    assert failure is not None
    left = shrink(1, config, failure, run=_run)
    assert left.faults == {"reset_links": 1.0}
    assert (left.voters, left.observers, left.brokers, left.clients) == (3, 0, 0, 1)
    assert left.safety_s < 2


def test_report_contains_the_command_that_replays_the_run() -> None:
    outcome = _run(3, replace(SwarmConfig(), faults={"reset_links": 2.0}))
    outcome.transcript.append("1.0 c1 leader")
    report = failure_report(outcome)
    assert 'raftlog debug simulate --seed 3 --config \'{"faults": {"reset_links": 2.0}}\'' in report
    assert "c1 leader" in report
    assert "LAO 1 of c3 is too high" in report

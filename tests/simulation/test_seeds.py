"""Hundreds of swarm runs: all promises hold, and every fault happened."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiers import nightly

from controller.visibility.lao import LaoView
from raftlog.node.replica import replica
from raftlog.node.replica.replica import Replica
from raftlog.quorum import events
from simulation.checks.suite import all_checkers
from simulation.run import run_swarm
from simulation.soak import run_pool, summary_of
from simulation.swarm.config import SwarmConfig
from simulation.twins.network import SimNetwork

SEEDS = int(os.environ.get("RAFTLOG_SIMULATION_SEEDS", "300"))
AT_WORK_SHARE = 0.2
"""Share of the runs in which each counter of each checker must have counted something."""
LEFT_OUT = {"Recovered.excused": 0.1, "ReplicaLogs.resets": 0.1} | dict.fromkeys(
    ("Replacements.begun", "Replacements.completed"), 0.0
)
"""Partitions that a check passes over, as their records may be gone: to be seen now and then, and
no work. And replicas that begin anew above 0: topics drop records in less than a third of the runs,
which begin at the level of that, and there a replica has to be away until its leader has dropped
what comes next for it. In each such run ``ReplicaLogs.starts`` counts what is dropped.
Dead voters are replaced in few runs: ``test_fault_scenarios.py`` has scenes for that.
"""
AFTER_A_RECOVERY = "Recovered"
"""The checker that only a run with a lost quorum has."""


@pytest.mark.nightly
def test_all_promises_hold_and_every_fault_has_happened() -> None:
    outcomes = run_pool(
        iter(range(SEEDS)), processes=os.cpu_count() or 1, until=time.monotonic() + 3600, shrink_s=0
    )
    summary = summary_of(outcomes, None, quiet=True)
    assert [(one["seed"], one["failure"]) for one in summary["failed"]] == []
    assert summary["seeds"] == SEEDS
    if SEEDS >= 300:
        assert summary["never_happened"] == []
        assert {"broker:unsynced_loss", "broker:eio_append", "broker:eio_flush"} <= set(
            summary["faults"]
        )
        at_work = summary["checks_at_work"]
        assert {
            what: share
            for what, share in at_work.items()
            if share < LEFT_OUT.get(what, AT_WORK_SHARE)
        } == {}
        counted = {type(checker).__name__ for checker in all_checkers()} | {AFTER_A_RECOVERY}
        assert {what.partition(".")[0] for what in at_work} == counted
    done = summary["operations"]
    assert done["write_config ok"] > 20 * SEEDS
    assert done["read_config ok"] > 10 * SEEDS
    assert done["produce ok"] > 10 * SEEDS
    assert done["consumed"] > 20 * SEEDS


_DIGEST = """
import sys
from simulation.cli import silence
from simulation.twins.network import SimNetwork
silence()
from simulation.run import run_swarm
for seed in range(int(sys.argv[1])):
    outcome = run_swarm(seed)
    print(seed, outcome.digest, outcome.failure)
"""


@pytest.mark.parametrize("seeds", [2, nightly(12)])
def test_same_seed_produces_the_same_run_byte_for_byte_in_another_process(seeds: int) -> None:
    def begin(hash_seed: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.Popen(
            [sys.executable, "-c", _DIGEST, str(seeds)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    one, other = begin("1"), begin("2")
    lines = one.communicate()[0].splitlines()
    assert lines == other.communicate()[0].splitlines()
    assert len({line.split()[1] for line in lines}) == seeds


def test_config_printed_and_parsed_replays_the_run() -> None:
    outcome = run_swarm(20)
    again = run_swarm(20, SwarmConfig.from_json(outcome.config.to_json()))
    assert again.digest == outcome.digest
    assert run_swarm(21, outcome.config).digest != outcome.digest


def test_lao_above_a_brokers_applied_offset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = vars(LaoView)["lao"].fget
    monkeypatch.setattr(
        LaoView, "lao", property(lambda self: honest(self) + 1 if honest(self) >= 0 else -1)
    )
    assert "LAO" in str(run_swarm(1, SwarmConfig()).failure)


def test_acknowledging_before_the_disk_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_durable(self: Replica, effect: object) -> None:
        self._log._write()
        self._log._flushed(self.log_end_offset)

    monkeypatch.setitem(replica._EFFECTS, events.Flush, never_durable)
    assert "does not hold it durably" in str(run_swarm(1, SwarmConfig()).failure)


def test_cluster_that_cannot_recover_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    # Cuts are never mended.
    monkeypatch.setattr(SimNetwork, "unblock", lambda self, source, target: None)
    config = SwarmConfig(safety_s=10.0, liveness_s=10.0, faults={"isolate": 1.0})
    assert "did not happen" in str(run_swarm(1, config).failure)


LINES = (Path(__file__).parent / "regression_seeds.jsonl").read_text().splitlines()
REGRESSIONS = [json.loads(line) for line in reversed(LINES)]
CASES = [
    pytest.param(one, id=one["found"], marks=[pytest.mark.nightly] if index % 12 else [])
    for index, one in enumerate(REGRESSIONS)
]
"""One of twelve is in the gate, the newest among them."""


@pytest.mark.parametrize("regression", CASES)
def test_previously_failing_seed_passes(regression: dict) -> None:
    config = SwarmConfig.from_json(json.dumps(regression["config"]))
    assert run_swarm(regression["seed"], config).failure is None

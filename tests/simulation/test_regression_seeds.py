"""Runs that once failed, each by its seed and config, and what it was."""

import pytest
import structlog

from simulation.cli import silence
from simulation.swarm import SwarmConfig
from simulation.world import run_swarm

REGRESSIONS = [
    pytest.param(
        59,
        '{"clients": 3, "reads_per_s": 0.0, "topics_share": 0.3, "value_bytes": 20000, "shared_keys": 2,'
        ' "safety_s": 19.76244894508787, "delay_min_ms": 0.5, "delay_mean_ms": 1.5, "disk_max_ms": 0.5,'
        ' "election_timeout_ms": 500, "fetch_timeout_ms": 500, "session_timeout_ms": 1500, "snapshot_bytes": 1000,'
        ' "retention_bytes": 5000, "faults": {"pause": 5.83, "loop_blocked": 1.67, "clock_jump": 5.24, "one_way": 1.06,'
        ' "ring": 9.49, "flapping": 4.4, "clog": 2.12, "reset_links": 1.49, "link_broken": 0.000622,'
        ' "request_repeated": 0.489, "connect_refused": 0.0238, "disk_error": 1.43, "kill_broker": 1.94}}',
        id="a replica named snapshots that an installed one had replaced; the controller's timer died of it",
    ),
    pytest.param(
        1795267923672,
        '{"clients": 3, "writes_per_s": 2.0, "reads_per_s": 10.0, "value_bytes": 20000, "shared_keys": 1,'
        ' "numbered_share": 0.0, "safety_s": 14.490574681206036, "session_timeout_ms": 3000, "queue_messages": 64,'
        ' "drift": 0.1, "retention_bytes": 5000, "faults": {"connect_refused": 0.248, "disk_error": 2.25, "disk_full": 2.56,'
        ' "kill_controller": 2.28, "partition": 1.43, "reset_links": 1.06, "resign": 1.22, "split": 2.64}}',
        id="a follower truncated to the lower of two ends of different epochs, in the middle of a batch",
    ),
]


@pytest.fixture(autouse=True)
def _quiet():
    silence()
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize(("seed", "config"), REGRESSIONS)
def test_what_failed_once_holds(seed: int, config: str) -> None:
    outcome = run_swarm(seed, SwarmConfig.from_json(config))
    assert outcome.failure is None

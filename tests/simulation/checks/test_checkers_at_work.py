"""In a whole simulated cluster no checker is idle: each has found something to check."""

import logging
from typing import Any

import pytest
import structlog

from simulation.checks.broker_ids import BrokerIds
from simulation.checks.brokers import Brokers
from simulation.checks.commitment import Commitment
from simulation.checks.durability import Durability
from simulation.checks.elections import Elections
from simulation.checks.exactly_once import ExactlyOnce
from simulation.checks.existence import Existence
from simulation.checks.history import Linearizability
from simulation.checks.lao import Lao
from simulation.checks.ledger import Ledger
from simulation.checks.membership import VoterSets
from simulation.checks.partitions import Partitions
from simulation.checks.queues import Queues
from simulation.checks.states import States
from simulation.checks.strict import StrictReads
from simulation.checks.suite import all_checkers
from simulation.checks.visibility import Visibility
from simulation.swarm import SwarmConfig
from simulation.world import run_swarm

CONFIG = SwarmConfig(
    safety_s=8.0, reads_per_s=10.0, writes_per_s=10.0, topics_share=0.3, isr_changes_per_s=20.0, numbered_share=0.5, strict_share=0.4,
    snapshot_bytes=2000, retention_bytes=1, faults={"kill_controller": 2.0, "resign": 2.0, "partition": 3.0, "kill_broker": 3.0},
)  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet():
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def test_every_checker_finds_something_to_check() -> None:
    checkers = all_checkers()
    outcome = run_swarm(3, CONFIG, checkers)
    assert outcome.failure is None
    found: dict[type, Any] = {type(checker): checker for checker in checkers}
    golden = found[Ledger].golden
    assert golden.end > 50
    assert len(golden.hashes) > 50
    assert len(found[Elections].leaders) > 1
    assert len(found[Elections]._votes) > 2
    assert found[Commitment].advances > 20
    assert found[Durability].acknowledgements > 50
    assert found[VoterSets].changes > 0
    assert found[States].compared > 100
    assert found[States].snapshots > 3
    assert found[Brokers].repeatable > 20
    assert len(found[BrokerIds]._hosts) == CONFIG.brokers
    assert found[Partitions].proposals > 0
    assert found[Partitions].with_epochs > 0
    assert found[Partitions].answers > 0
    assert found[StrictReads].held_to > 5
    assert found[Lao].announcements > 20
    assert found[Lao]._recorded > 0
    assert len(found[ExactlyOnce]._committed) > 20
    assert found[ExactlyOnce]._sequences
    assert found[ExactlyOnce]._topics
    assert found[Visibility].reads > 20
    assert found[Visibility].held_to > 10
    assert found[Queues].longest["parked fetches"] > 0
    assert found[Existence].answers > 3
    assert found[Linearizability]._writes
    assert found[Linearizability]._topics


def test_checkers_change_nothing() -> None:
    watched, alone = run_swarm(3, CONFIG, all_checkers()), run_swarm(3, CONFIG, [])
    assert watched.digest == alone.digest

"""BrokerTimelines in which the disks of a majority are lost for good: what is left is led on, and
nothing else of it is lost.
"""

from collections import Counter
from collections.abc import Iterator

import pytest
import structlog

from simulation.checks.suite import all_checkers
from simulation.cli import silence
from simulation.mutants.configs import HOLDERS, RECOVERED
from simulation.world import run_swarm


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    silence()
    yield
    structlog.reset_defaults()


@pytest.mark.nightly
def test_what_is_left_is_led_on_and_what_brokers_hold_stays() -> None:
    found: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(6):
        outcome = run_swarm(seed, RECOVERED)
        assert outcome.failure is None, seed
        found.update(outcome.looked_at)
        faults.update(outcome.faults)
    for what in ("kept", "forgotten", "partitions", "verified", "elected"):
        assert found[f"Recovered.{what}"], what
    for what in ("", ":interrupted", ":old_token", ":successor"):
        assert faults[f"quorum_lost{what}"], what


def test_locks_of_the_log_before_hold_nothing_in_the_one_that_goes_on() -> None:
    """Seed 8: an old guard meets the lock that has its key and its offset."""
    outcome = run_swarm(8, HOLDERS)
    assert outcome.failure is None
    for what in ("guarded", "taken_after_recovery", "confirmed", "expired"):
        assert outcome.looked_at[f"Held.{what}"], what


def test_checkers_of_the_life_after_change_nothing() -> None:
    watched, alone = run_swarm(1, RECOVERED, all_checkers()), run_swarm(1, RECOVERED, [])
    assert watched.failure is None
    assert watched.digest == alone.digest

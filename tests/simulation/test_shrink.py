"""Shrinking: what is left fails in the same way, and a report says how to have it again."""

from dataclasses import replace

from simulation.outcome import Outcome
from simulation.report import failure_report
from simulation.shrink import kind_of, shrink
from simulation.swarm.config import SwarmConfig


def _run(seed: int, config: SwarmConfig) -> Outcome:
    """Fails as long as links are reset and there are three voters; otherwise, if brokers die, in
    another way.
    """
    outcome = Outcome(seed, config)
    if "reset_links" in config.faults and config.voters >= 3:
        outcome.failure = AssertionError(
            f"LAO {len(config.faults)} of c{config.voters} is too high"
        )
    elif "kill_broker" in config.faults:
        outcome.failure = AssertionError("something else")
    return outcome


def test_what_is_left_is_what_it_takes() -> None:
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


def test_it_stops_when_its_time_is_over() -> None:
    config = SwarmConfig(voters=7, faults={"reset_links": 1.0})
    failure = _run(1, config).failure
    assert failure is not None
    assert shrink(1, config, failure, within_s=-1.0, run=_run) == config
    assert shrink(1, config, failure, runs=0, run=_run) == config


def test_failures_are_of_one_kind_whatever_the_numbers() -> None:
    assert kind_of(AssertionError("LAO 5 of c1")) == kind_of(AssertionError("LAO 77 of c3"))
    assert kind_of(AssertionError("LAO 5")) != kind_of(ValueError("LAO 5"))
    assert kind_of(None) == ""


def test_a_report_holds_the_command_that_replays_it() -> None:
    outcome = _run(3, replace(SwarmConfig(), faults={"reset_links": 2.0}))
    outcome.transcript.append("1.0 c1 leader")
    report = failure_report(outcome)
    assert 'raftlog debug simulate --seed 3 --config \'{"faults": {"reset_links": 2.0}}\'' in report
    assert "c1 leader" in report
    assert "LAO 1 of c3 is too high" in report

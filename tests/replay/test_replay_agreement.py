"""Spark's state equals that of the simulated nodes; more seeds: scripts/agreement."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from pyspark.sql import SparkSession

from simulation.agreement.mutants import live_mutated
from simulation.agreement.replayed import (
    DIFFS,
    LOCAL_POINTS,
    Answer,
    ask,
    ask_local,
    findings_of,
    is_disputed,
)
from simulation.agreement.run_and_export import ExportedRun, live
from simulation.cli import silence
from simulation.mutants.registry import SEEDED

HONEST = (0, 2, 7, 8)
SEEN = {
    "isr-member-epoch-ignored": "STALE_BROKER_EPOCH",
    "registration-keeps-isr": "INACTIVE_IN_ISR",
    "unfenced-at-registration": "REGISTERED_UNFENCED",
}
UNSEEN = "isr-in-metadata"


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    silence()
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportedRun]:
    """Honest runs by seed, and one of each mutant."""
    directory = tmp_path_factory.mktemp("runs")
    found = {str(seed): live(seed, directory / str(seed)) for seed in HONEST}
    assert [run.failure for run in found.values()] == [""] * len(HONEST)
    for name in (*SEEN, UNSEEN):
        mutated = live_mutated(SEEDED[name], SEEDED[name].known, directory / name)
        assert mutated is not None
        found[name] = mutated
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("seed", HONEST[:2])
def test_replay_of_a_run_agrees_with_its_nodes(
    spark: SparkSession, runs: dict[str, ExportedRun], seed: int
) -> None:
    answer = ask(spark, runs[str(seed)])
    assert answer.disagreements == []
    assert answer.counts["states"] > 20
    assert answer.counts["local"] == LOCAL_POINTS + 1
    assert answer.counts["diffs"] == 2 * DIFFS
    assert answer.local_findings == {}
    assert answer.counts["verified"] >= 1
    assert answer.counts["snapshots"] > 2


def test_local_fold_of_a_simulated_run_equals_its_nodes(tmp_path: Path) -> None:
    run, answer = live(HONEST[0], tmp_path / "life"), Answer()
    ask_local(run, None, answer)
    assert (answer.counts["local"], answer.disagreements, answer.local_findings) == (
        LOCAL_POINTS,
        [],
        {},
    )
    assert answer.counts["diffs"] == DIFFS
    moved = {one._replace(state_hash=one.state_hash ^ 1): who for one, who in run.sightings.items()}
    ask_local(replace(run, sightings=moved), 0, answer)
    told = answer.disagreements
    assert len(told) == LOCAL_POINTS + 1
    assert all("the engine without Spark has" in line for line in told)


@pytest.mark.nightly
def test_audit_finds_nothing_in_honest_runs_and_the_violations_of_mutants(
    spark: SparkSession, runs: dict[str, ExportedRun]
) -> None:
    found = {name: findings_of(spark, run) for name, run in runs.items()}
    assert {name: set(rules) for name, rules in found.items() if name not in SEEN and rules} == {}
    assert {name: rule for name, rule in SEEN.items() if rule not in found[name]} == {}
    for name in SEEN:
        offsets = [offset for at in found[name].values() for offset in at]
        assert 0 <= min(offsets) <= max(offsets) < runs[name].end_offset


@pytest.mark.nightly
def test_node_with_another_state_is_seen(spark: SparkSession, runs: dict[str, ExportedRun]) -> None:
    """The replay of one run is compared with the nodes of another."""
    one, other = runs["0"], runs["2"]
    assert not is_disputed(one)
    forged = ExportedRun(
        one.seed, one.directory, one.end_offset, other.sightings, other.snapshots, ""
    )
    assert is_disputed(forged)
    assert any("the replay has" in line for line in ask(spark, forged).disagreements)

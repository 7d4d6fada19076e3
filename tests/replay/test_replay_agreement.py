"""What Spark makes of an exported log is what the nodes of the simulated cluster had; hundreds of seeds: scripts/agreement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from pyspark.sql import SparkSession

from simulation.agreement.lives import live
from simulation.agreement.replayed import ask
from simulation.cli import silence

SEEDS = (0, 2, 7)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    silence()
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_replay_of_a_life_agrees_with_its_nodes(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    life = live(seed, tmp_path / "export")
    assert life.failure == ""
    answer = ask(spark, life)
    assert (answer.disagreements, answer.findings) == ([], {})
    assert answer.states > 20

"""Seeds of simulated runs that failed once: each run, with its config, holds now.

``regression_seeds.jsonl`` has a line for each, the newest last: the seed, what was found, the config.
"""

import json
from pathlib import Path

import pytest

from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig

LINES = (Path(__file__).parent / "regression_seeds.jsonl").read_text().splitlines()
REGRESSIONS = [json.loads(line) for line in reversed(LINES)]
CASES = [
    pytest.param(one, id=one["found"], marks=[pytest.mark.nightly] if index % 6 else [])
    for index, one in enumerate(REGRESSIONS)
]
"""One of six is in the gate, the newest among them."""


@pytest.mark.parametrize("regression", CASES)
def test_seed_that_failed_once_holds(regression: dict) -> None:
    config = SwarmConfig.from_json(json.dumps(regression["config"]))
    assert run_swarm(regression["seed"], config).failure is None

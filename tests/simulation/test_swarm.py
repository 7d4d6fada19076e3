"""Swarm runs: what one config says, and that a run is decided by its seed and config alone."""

import pytest

from raftlog.errors import ConfigError
from simulation.fault_list import FAULTS
from simulation.swarm import SwarmConfig, draw


@pytest.mark.parametrize("seed", range(20))
def test_a_config_survives_its_line_of_json(seed: int) -> None:
    config = draw(seed)
    line = config.to_json()
    assert "\n" not in line
    assert SwarmConfig.from_json(line) == config


def test_a_config_with_something_unknown_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="votes"):
        SwarmConfig.from_json('{"votes": 3}')
    with pytest.raises(ConfigError, match="meteor"):
        SwarmConfig.from_json('{"faults": {"meteor": 1.0}}')


def test_the_draws_cover_every_fault_and_every_size() -> None:
    configs = [draw(seed) for seed in range(300)]
    assert {name for config in configs for name in config.faults} == set(FAULTS)
    assert {config.voters for config in configs} == set(range(1, 8))
    assert any(not config.faults for config in configs)
    assert any(config.brokers == 0 for config in configs)

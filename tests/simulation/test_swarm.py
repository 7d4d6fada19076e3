"""Configs of swarm runs."""

import pytest

from raftlog.errors import ConfigError
from simulation.faults.schedule import AGAIN_AND_AGAIN, ONCE
from simulation.swarm.config import PROFILES, SwarmConfig, apply, draw, draw_freely
from simulation.swarm.faults import FAULTS


@pytest.mark.parametrize("seed", range(20))
def test_config_round_trips_through_json(seed: int) -> None:
    config = draw(seed)
    line = config.to_json()
    assert "\n" not in line
    assert SwarmConfig.from_json(line) == config


def test_config_with_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="votes"):
        SwarmConfig.from_json('{"votes": 3}')
    with pytest.raises(ConfigError, match="meteor"):
        SwarmConfig.from_json('{"faults": {"meteor": 1.0}}')


def test_each_fault_has_a_coroutine_of_its_name() -> None:
    kinds = {
        kind: {n for n, one in FAULTS.items() if one.kind == kind} for kind in ("every", "once")
    }
    assert {*AGAIN_AND_AGAIN} == kinds["every"]
    assert {*ONCE} | {"quorum_lost"} >= kinds["once"] >= {*ONCE}


def test_draws_cover_every_fault_and_every_size() -> None:
    configs = [draw(seed) for seed in range(300)]
    assert {name for config in configs for name in config.faults} == set(FAULTS)
    assert {config.voters for config in configs} == set(range(1, 8))
    assert any(not config.faults for config in configs)
    assert any(config.brokers == 0 for config in configs)


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_fits_any_drawn_config(name: str) -> None:
    for seed in range(50):
        config = apply(seed, draw_freely(seed), (name,))
        assert config.brokers >= PROFILES[name].brokers
        assert SwarmConfig.from_json(config.to_json()) == config
        # Who proposes ISRs of partitions that have data knows what he says.
        assert not (config.data_per_s and config.isr_changes_per_s)

"""Swarm runs: what one config says, and that a run is decided by its seed and config alone."""

from collections.abc import Callable

import pytest

from raftlog.errors import ConfigError
from simulation.faults.schedule import AGAIN_AND_AGAIN, ONCE
from simulation.swarm.config import (
    PROFILES,
    SwarmConfig,
    apply,
    draw,
    draw_elements,
    draw_freely,
    profiles_of,
)
from simulation.swarm.faults import FAULTS


@pytest.mark.parametrize("seed", range(20))
def test_config_survives_its_line_of_json(seed: int) -> None:
    config = draw(seed)
    line = config.to_json()
    assert "\n" not in line
    assert SwarmConfig.from_json(line) == config


def test_config_with_something_unknown_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="votes"):
        SwarmConfig.from_json('{"votes": 3}')
    with pytest.raises(ConfigError, match="meteor"):
        SwarmConfig.from_json('{"faults": {"meteor": 1.0}}')


def test_each_fault_that_strikes_has_a_coroutine_of_its_name() -> None:
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


def test_most_seeds_draw_some_profiles_and_each_is_drawn_often() -> None:
    drawn = {seed: profiles_of(seed, draw_freely(seed)) for seed in range(300)}
    assert 0.05 < sum(not names for names in drawn.values()) / 300 < 0.2
    for name, profile in PROFILES.items():
        # Some are plain, and some without brokers draw few.
        assert (
            0.7 * profile.share
            < sum(name in names for names in drawn.values()) / 300
            < 1.15 * profile.share
        )
    assert all(
        draw(seed) == draw_elements(seed, draw_freely(seed))
        for seed, names in drawn.items()
        if not names
    )


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_fits_any_drawn_config(name: str) -> None:
    for seed in range(50):
        free = draw_freely(seed)
        config = apply(seed, free, (name,))
        assert config.brokers >= PROFILES[name].brokers
        assert SwarmConfig.from_json(config.to_json()) == config
        # Who proposes ISRs of partitions that have data knows what he says.
        assert not (config.data_per_s and config.isr_changes_per_s)


def test_elements_are_drawn_for_some_runs_each_and_fit_the_rest() -> None:
    configs = [draw(seed) for seed in range(300)]
    for share in (
        sum(bool(config.snapshot_part_bytes) for config in configs) / 300,
        sum(bool(config.old_build) for config in configs) / 300,
        sum(config.recovery for config in configs) / 300,
        sum(config.authorizer for config in configs) / 300,
    ):
        assert 0.2 < share < 0.5
    for config in configs:
        # Nodes of the older build must know the level that the cluster begins with.
        assert not config.old_build or 0 < config.release_version <= config.old_build
        assert not config.recovery or (config.voters > 1 and not config.release_version)
        assert not config.recovery or not {"bit_flip", "lower_features"} & set(config.faults)
        # A broker without an id has no certificate.
        assert not config.authorizer or (config.brokers and "newcomer" not in config.faults)


def test_enough_drawn_configs_have_each_optional_feature() -> None:
    # Nightly each counter of each checker counts in one run of five: see test_seeds.py.
    configs = [draw(seed) for seed in range(300)]
    has: dict[str, Callable[[SwarmConfig], object]] = {
        "data": lambda config: config.data_per_s,
        "data that is not kept": lambda config: config.data_kept_bytes,
        "exports": lambda config: config.exports_per_s,
        "watchers": lambda config: config.watchers,
        "keepers": lambda config: config.keepers,
        "lockers": lambda config: config.lockers,
        "lockers in a recovered log": lambda config: config.lockers and config.recovery,
        "newcomers": lambda config: "newcomer" in config.faults and config.adopt_after_ms,
        "disks below a reserve": lambda config: config.reserve_bytes,
        "direct clients": lambda config: config.direct_clients,
        "lowered levels": lambda config: "lower_features" in config.faults,
    }
    shares = {
        what: sum(bool(said(config)) for config in configs) / 300 for what, said in has.items()
    }
    assert {what: share for what, share in shares.items() if share < 0.24} == {}

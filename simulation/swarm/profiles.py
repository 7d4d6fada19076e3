"""Profiles: settings that must come together in one run, so that a check has something to look at.

Faults and workload are drawn each for itself (``swarm.draw_freely``), so that what one fault hides
another run shows. But some checks have work only where several meet: a process that was taken for
dead needs a second one under its id, a session that ends, and a way back. By chance alone that
happens in one run of a hundred. So most seeds draw some profiles, too: each changes what was drawn
just enough to make its scene likely. The rest stays as it is, but for some faults that are left
out. How often each is drawn is its share: so often that every counter of every checker is at work
in a fifth of all runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.swarm.config import SwarmConfig

PLAIN_SHARE = 0.08
"""Share of the seeds without a profile: everything is as it was drawn."""
KEPT_SHARE = 0.5
"""Share of the freely drawn faults that such a seed keeps: among all of them no scene would
complete.
"""
SHORTER = 0.2
"""Share of the time beyond ``SHORTEST_S`` that is kept: scenes need less of it than chance does."""
SHORTEST_S = 5.0
VOTERS_MAX, BROKERS_MAX, CALLS_MAX = 5, 4, 5.0
"""Limits of a seed with profiles; calls: writes a second, and reads. More only make a run
longer.
"""
STAY_WITHOUT_BROKERS = 0.25
"""Share of the seeds that drew no brokers and stay so: they draw only from the profiles that need
none.
"""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile: one scene."""

    change: Callable[[SwarmConfig, random.Random], SwarmConfig]
    share: float
    """Share of the seeds with profiles that may draw this one."""
    brokers: int = 0
    """Least number of brokers."""


def _with(
    config: SwarmConfig, faults: dict[str, float], *, without: tuple[str, ...] = ()
) -> dict[str, float]:
    """Return the faults of a run, these at least as often as said, and some not at all."""
    kept = {name: strength for name, strength in config.faults.items() if name not in without}
    return {
        **kept,
        **{name: min(mean_s, kept.get(name, mean_s)) for name, mean_s in faults.items()},
    }


def _data(config: SwarmConfig) -> SwarmConfig:
    """Brokers that keep partitions."""
    if config.data_per_s:
        return config
    # Who proposes ISRs of partitions that have data knows what he says.
    return replace(config, data_per_s=5.0, isr_changes_per_s=0.0)


def _current(config: SwarmConfig) -> SwarmConfig:
    """Return a cluster that begins at the newest metadata.version."""
    return replace(config, release_version=0)


def _incarnations(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """A broker is thought dead, another process takes its id, and it is not dead."""
    # A twin's machine has another name: a disk that is lost with it must not be found by that.
    # Without heartbeats nobody is thought dead.
    return replace(
        config,
        session_timeout_ms=1500,
        faults=_with(
            config,
            {"thought_dead": rng.uniform(1.0, 2.0)},
            without=("lose_broker_disk", "roll_heartbeats", "twin_broker"),
        ),
    )


def _unclean(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Kill whole ISRs, and elect leaders outside of them: records that only the last leader had are
    truncated.
    """
    return replace(
        config,
        data_per_s=8.0,
        isr_changes_per_s=0.0,
        unclean=True,
        unclean_topics=True,
        replica_lag_ms=500,
        session_timeout_ms=1500,
        disk_max_ms=max(config.disk_max_ms, 10.0),
        safety_s=max(config.safety_s, 8.0),
        faults=_with(
            config,
            {"kill_broker": 0.8, "kill_all_brokers": 4.0, "brokers_cut": 1.0, "broker_pause": 2.0},
        ),
    )


def _moving(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Partitions are moved about, and topics come and go with what is in them."""
    return replace(
        _data(config),
        admin_per_s=3.0,
        topics_share=0.3,
        writes_per_s=max(config.writes_per_s, 5.0),
    )


def _operated(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Brokers leave in order and are back at once, others die; metadata.version goes down and
    up.
    """
    return replace(
        _current(config),
        faults=_with(config, {"stop_broker": 0.7, "kill_broker": 4.0, "lower_features": 0.7}),
    )


def _newcomers(config: SwarmConfig) -> SwarmConfig:
    return replace(
        _current(config),
        topics_share=max(config.topics_share, 0.1),
        session_timeout_ms=1500,
        adopt_after_ms=1000,
        safety_s=max(config.safety_s, 9.0),
    )


def _ids(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Brokers without ids: some find one that is missing, some get a new one."""
    # A host that somebody has mapped waits for its id, and keeps it from others.
    without = ("roll_heartbeats", "alter_hostnames", "unregister_broker")
    return replace(
        _newcomers(config),
        faults=_with(config, {"newcomer": 0.5, "broker_away": 1.0}, without=without),
    )


def _mapped(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Start brokers without ids, on hosts that an operator has mapped to one."""
    faults = {"newcomer": 0.5, "broker_away": 2.0, "alter_hostnames": 1.0}
    return replace(_newcomers(config), faults=_with(config, faults, without=("roll_heartbeats",)))


def _outages(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Keep all controllers down until the brokers have fenced themselves; then bring all their
    disks below their reserve.
    """
    return replace(
        config,
        session_timeout_ms=1500,
        reserve_bytes=100_000,
        timeout_s=min(config.timeout_s, 0.5),
        writes_per_s=max(config.writes_per_s, 5.0),
        faults=_with(
            config,
            {"all_disks_low": rng.uniform(6.8, 7.5), "controllers_away": rng.uniform(0.1, 1.0)},
            without=("disk_full", "disk_low", "roll_heartbeats"),
        ),
    )


def _exports(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Logs are cut while exports read them."""
    return replace(
        _current(config),
        exports_per_s=1.0,
        snapshot_bytes=500,
        retention_bytes=1,
        writes_per_s=max(config.writes_per_s, 5.0),
    )


def _fetches(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Snapshots are fetched in small parts, and replaced every few records: what comes next of one
    may be gone when it is asked for.
    """
    return replace(
        config,
        value_bytes=10,
        snapshot_bytes=200,
        # What an export has yet to read is not dropped, nor what somebody fetches.
        exports_per_s=0.0,
        held_bytes=1,
        snapshot_part_bytes=rng.choice((300, 500)),
        retention_bytes=1,
        writes_per_s=max(config.writes_per_s, 5.0),
        faults=_with(config, {"slow_fetch": rng.uniform(1.2, 1.8)}, without=("snapshot_cut",)),
    )


PROFILES: dict[str, Profile] = {
    "incarnations": Profile(_incarnations, 0.35, brokers=2),
    "unclean": Profile(_unclean, 0.28, brokers=3),
    "moving": Profile(_moving, 0.28, brokers=3),
    "operated": Profile(_operated, 0.54, brokers=2),
    "ids": Profile(_ids, 0.66, brokers=2),
    "mapped": Profile(_mapped, 0.44, brokers=2),
    "outages": Profile(_outages, 0.36, brokers=2),
    "exports": Profile(_exports, 0.52),
    "fetches": Profile(_fetches, 0.32, brokers=2),
}


def profiles_of(seed: int, config: SwarmConfig) -> tuple[str, ...]:
    """Return the names of those that a seed draws, in the order of ``PROFILES``.

    ``config``: what it drew freely.
    """
    rng = random.Random(f"{seed} swarm, profiles")
    if rng.random() < PLAIN_SHARE:
        return ()
    names = list(PROFILES)
    if not config.brokers and rng.random() < STAY_WITHOUT_BROKERS:
        names = [name for name in names if not PROFILES[name].brokers]
    return tuple(name for name in names if rng.random() < PROFILES[name].share)


def apply(seed: int, config: SwarmConfig, names: tuple[str, ...]) -> SwarmConfig:
    """Return a config, changed by these profiles."""
    if not names:
        return config
    rng = random.Random(f"{seed} swarm, kept")
    config = replace(
        config,
        voters=min(config.voters, VOTERS_MAX),
        brokers=min(config.brokers, BROKERS_MAX),
        writes_per_s=min(config.writes_per_s, CALLS_MAX),
        reads_per_s=min(config.reads_per_s, CALLS_MAX),
        safety_s=SHORTEST_S + (config.safety_s - SHORTEST_S) * SHORTER,
        faults={
            name: strength for name, strength in config.faults.items() if rng.random() < KEPT_SHARE
        },
    )
    for name in names:
        profile = PROFILES[name]
        if config.brokers < profile.brokers:
            config = replace(config, brokers=profile.brokers)
        config = profile.change(config, random.Random(f"{seed} swarm, profile {name}"))
    return config

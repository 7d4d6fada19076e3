"""The config of a run: size and pace of the cluster, its clients, and fault rates.

Swarm testing (Groce et al., ISSTA 2012): each run draws a subset of the faults from its seed, so
that what one fault hides another run shows. A printed config replays the run.

Some checks have work only where several settings meet, which chance alone brings once in a hundred
runs: so most seeds also draw *profiles*, each of which changes the draw just enough to make its
scene likely, and leaves out some faults. Shares are such that every counter of every checker works
in a fifth of all runs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from raftlog.errors import ConfigError
from simulation.swarm.faults import DATA_FAULTS, FAULTS

DRAWN_LAST = ("broker_behind",)
"""Faults that are drawn last, so that the draws of all others stay the same for each seed."""
DRAWN_AFTER_THEM = ("stranded", "answers_late")
DRAWN_APART = (
    "stop_broker", "roll_heartbeats", "lose_broker_disk", "newcomer", "connection_dead",
    "conversation_cut", "broker_away", "broker_refused", "lower_features", "move_voter",
    "unregister_broker", "alter_hostnames", "kill_between_steps", "disk_low", "clocks_ahead",
    "damaged_logs",
)  # fmt: skip
"""Faults that are drawn by a separate generator, for the same reason."""
BESIDE_SHARE = 0.5
BUILDS_SHARE, RECOVERY_SHARE = 0.4, 0.9
"""RECOVERY_SHARE is the share of the runs that are able to recover a quorum."""
LOWERED_SHARE = 0.2
"""These shares in runs with ``lower_features``."""
NOT_RECOVERED = ("bit_flip", "lower_features", "removed_campaigns", "set_back_directory")
AUTHORIZER_SHARES = {False: 0.7, True: 0.2}
"""Shares of runs with an authorizer, by whether the run would have had a newcomer."""
NOT_WITH_AUTHORIZER = ("newcomer", "lose_broker_disk")
"""Faults that need brokers without an id, which have no certificate."""
DRAWN_WITH_THEIR_SETTING = ("snapshot_cut", "change_build")
"""Faults that are drawn together with the setting without which they do nothing."""
DRAWN_BESIDE = {
    "removed_campaigns": ("change_voters", "lose_disk"),
    "set_back_directory": ("lose_disk",),
}
"""Faults that are drawn only beside one of these others, in half of such runs."""
DRAWN_BY_PROFILES = (
    "slow_fetch",
    "whole_roll",
    "thought_dead",
    "controllers_away",
    "all_disks_low",
)


@dataclass(frozen=True, slots=True)
class SwarmConfig:
    """One run. Printed and parsed as one line of JSON."""

    voters: int = 3
    observers: int = 0
    brokers: int = 3
    clients: int = 2
    direct_clients: int = 0
    """Clients that write to the controllers themselves, deposed ones included."""
    writes_per_s: float = 5.0
    reads_per_s: float = 5.0
    topics_share: float = 0.1
    asks_share: float = 0.0
    """Share of direct clients' calls that ask whether a topic exists. If positive, such a client
    keeps to one controller, even if that does not lead.
    """
    isr_changes_per_s: float = 0.0
    """AlterPartition of all leaders of partitions together."""
    admin_per_s: float = 0.0
    """Rate of reassignments, cancellations, added partitions and leader elections, with brokers."""
    cordons_per_s: float = 0.0
    """With an administrator: brokers cordoned a second, each for a while."""
    unclean: bool = False
    """Among these, unclean leaders are asked for, and allowed to topics."""
    unclean_topics: bool = False
    """The topics with records that stay allow unclean leaders from the beginning."""
    balance_interval_s: int = 0
    """Interval of the controller's own leader elections, in seconds; 0: the default."""
    value_bytes: int = 10
    shared_keys: int = 3
    """Keys that all clients write; each has seven of its own besides."""
    numbered_share: float = 0.5
    """Share of exactly-once writes, retried under their numbers; others are sent once."""
    timeout_s: float = 3.0
    safety_s: float = 15.0
    liveness_s: float = 60.0
    """Time in which everything must have recovered after a majority is healed, in seconds."""
    delay_min_ms: float = 0.05
    delay_mean_ms: float = 0.15
    """Mean delay of a message on top of the minimum, in ms; exponentially distributed."""
    disk_min_ms: float = 0.1
    disk_max_ms: float = 2.0
    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 1000
    session_timeout_ms: int = 9000
    queue_messages: int = 65536
    """Maximum number of unsent messages on a link before it is closed."""
    drift: float = 0.0
    """Each host's clock runs up to this much too fast or too slow."""
    snapshot_bytes: int = 0
    """Size of the records after which a snapshot is taken, in bytes; 0: the default."""
    retention_bytes: int = 20000
    """With ``snapshot_bytes``: size of log and snapshots above which the log is cut, in bytes."""
    held_bytes: int = 0
    """Bytes of log and snapshots kept for exports and snapshot fetchers; 0: the default."""
    snapshot_part_bytes: int = 0
    """Largest part of a fetched snapshot, in bytes; 0: the default, one part."""
    recovery: bool = False
    """At the end of the faults a majority's disks are lost, and the remaining log is led on."""
    release_version: int = 0
    """The level of metadata.version that the cluster begins with; 0: the latest."""
    old_build: int = 0
    """Half of the nodes begin as a build with at most this metadata.version; 0: none."""
    auto_join: bool = False
    """Observers that are caught up ask to become voters."""
    replace_after_ms: int = 0
    """A voter that is silent for so long is replaced by an observer; 0: never."""
    preferred: int = 0
    """The voter with the highest priority to lead; 0: all have the same."""
    data_per_s: float = 0.0
    """Records a second by all producers; with brokers, which keep partitions. 0: none."""
    replica_lag_ms: int = 3000
    """A follower that was not caught up for so long leaves the ISR."""
    data_kept_bytes: int = 0
    """Retained size of each partition of permanent topics, in bytes; 0: everything."""
    all_features: bool = False
    """Brokers say that they know every feature that they are shipped with."""
    max_clients: int = 0
    """Largest number of open exactly-once clients; 0 for the default."""
    strict_share: float = 0.0
    round_robin: bool = False
    """Clients go from broker to broker; else each keeps to one as long as that answers."""
    lag_max_ms: int = 0
    """A broker is fenced if it lags this long behind the committed records; 0 for the default."""
    exports_per_s: float = 0.0
    """Turns of two exports that keep cursors; 0 if there are none."""
    watchers: int = 0
    """Clients that watch the metadata; with an authorizer: of those whose rights change."""
    keepers: int = 0
    """Clients that change keys and configs on conditions, and hold leases."""
    lockers: int = 0
    adopt_after_ms: int = 0
    """Absence after which a broker id is missing and given to a newcomer; 0: the default."""
    reserve_bytes: int = 0
    """The free-space reserve of controllers; 0 if not watched."""
    broker_reserve_bytes: int = 0
    """The free-space reserve of brokers; 0 if not watched."""
    authorizer: bool = False
    """Nodes and clients have certificates, and nodes ask an authorizer about each request."""
    allow_everyone: bool = False
    """With an authorizer: a resource without an entry is open to all."""
    entries_per_s: float = 3.0
    """With an authorizer: access control entries added or removed a second."""
    callers_per_s: float = 20.0
    """With an authorizer: calls a second of all callers together."""
    work_us: float = 0.0
    """Mean duration of callbacks and decided requests, exponential, in µs; 0: none."""
    faults: dict[str, float] = field(default_factory=dict)
    """Rates of the faults by name, see ``FAULTS``: mean seconds between two, or a probability."""

    def to_json(self) -> str:
        """Return one line without the values that equal their defaults."""
        default = asdict(SwarmConfig())
        return json.dumps(
            {name: value for name, value in asdict(self).items() if value != default[name]}
        )

    def but(
        self,
        faults: dict[str, float] | None = None,
        *,
        without: tuple[str, ...] = (),
        **changes: Any,
    ) -> SwarmConfig:
        kept = {name: how for name, how in self.faults.items() if name not in without}
        return replace(self, **changes, faults={**kept, **(faults or {})})

    @classmethod
    def from_json(cls, text: str) -> SwarmConfig:
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"no JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError("a JSON object is wanted")
        unknown = sorted(set(values) - {one.name for one in fields(cls)})
        unknown += sorted(set(values.get("faults", {})) - set(FAULTS))
        if unknown:
            raise ConfigError(f"unknown: {', '.join(unknown)}")
        return cls(**values)


def draw(seed: int) -> SwarmConfig:
    config = draw_freely(seed)
    return draw_elements(seed, apply(seed, config, profiles_of(seed, config)))


def _rng(seed: int, what: str) -> random.Random:
    return random.Random(f"{seed} swarm, {what}")


def draw_elements(seed: int, config: SwarmConfig) -> SwarmConfig:
    """Draw further elements: snapshot parts, removed campaigners, two builds, a lost quorum."""
    if config.snapshot_bytes and not config.snapshot_part_bytes:
        rng = _rng(seed, "parts")
        config = replace(config, snapshot_part_bytes=rng.choice((*(0,) * 9, 100, 300, 1000)))
        if config.snapshot_part_bytes:
            cut = {"snapshot_cut": FAULTS["snapshot_cut"].draw(rng)}
            config = config.but(cut, retention_bytes=rng.choice((1, 1, 5000)))
    rng = _rng(seed, "beside")
    for name, others in DRAWN_BESIDE.items():
        if rng.random() < BESIDE_SHARE and not config.faults.keys().isdisjoint(others):
            config = config.but({name: FAULTS[name].draw(rng)})
    rng = _rng(seed, "builds")
    lowered = "lower_features" in config.faults
    if rng.random() < (LOWERED_SHARE if lowered else BUILDS_SHARE):
        changes = {name: rng.uniform(0.4, 0.8) for name in ("change_build", "raise_features")}
        changes["whole_roll"] = FAULTS["whole_roll"].draw(rng)
        config = config.but(changes, old_build=1, release_version=1)
    share = LOWERED_SHARE if lowered else RECOVERY_SHARE
    if _rng(seed, "recovery").random() < share and not config.release_version and config.voters > 1:
        # In that life voters come and go: whose copy is sound only the log knows.
        config = config.but(without=NOT_RECOVERED, recovery=True)
        if config.brokers:
            # What brokers hold is judged, too.
            config = replace(
                config,
                brokers=max(config.brokers, 2),
                data_per_s=config.data_per_s or 5.0,
                isr_changes_per_s=0.0,
                session_timeout_ms=1500,
                replica_lag_ms=500,
            )
    config = _draw_authorizer(_rng(seed, "authorizer"), config)
    watchers = _rng(seed, "watchers").choice((0, 0, 2, 4))
    # With permissions if the run has any. A recovered log alone shows the value of a lock
    # afterwards: few others have both.
    config = replace(config, watchers=4 if config.authorizer else watchers)
    if config.brokers:
        rng = _rng(seed, "keepers")
        keepers, lockers = rng.choice((0, 2, 2, 3, 3)), rng.choice((2, 3))
        config = replace(config, keepers=keepers, lockers=lockers)
        if config.data_per_s:
            kept = _rng(seed, "kept data").choice((0, 100, 100, 100, 400, 400, 100, 100))
            config = replace(config, data_kept_bytes=kept)
    rng = _rng(seed, "operations")
    cordons, after_ms = rng.choice((0.0, 0.5)), rng.choice((0, 700, 3000))
    if config.admin_per_s:
        config = replace(config, cordons_per_s=cordons)
    if config.observers and config.voters > 2 and not (config.auto_join or config.recovery):
        config = replace(config, replace_after_ms=after_ms)
    return config


def _draw_authorizer(rng: random.Random, config: SwarmConfig) -> SwarmConfig:
    """Draw an authorizer for clusters with brokers; rarely, as brokers without an id have none."""
    if rng.random() >= AUTHORIZER_SHARES["newcomer" in config.faults] or not config.brokers:
        return config
    return config.but(
        without=NOT_WITH_AUTHORIZER,
        authorizer=True,
        allow_everyone=rng.random() < 0.2,
        entries_per_s=rng.choice((2.0, 5.0)),
        callers_per_s=rng.choice((10.0, 20.0)),
    )


def draw_freely(seed: int) -> SwarmConfig:
    rng = random.Random(f"{seed} swarm")
    voters = rng.choice((1, 2, 3, 3, 3, 3, 4, 5, 5, 6, 7))
    timeout_ms = rng.choice((200, 500, 1000, 1000))
    slow = rng.choice((1.0, 1.0, 1.0, 10.0))
    share = rng.choice((0.0, 0.15, 0.3, 0.5))
    old = rng.random() < 0.15
    later = {*DRAWN_WITH_THEIR_SETTING, *DRAWN_LAST, *DRAWN_AFTER_THEM, *DRAWN_APART}
    later |= {*DRAWN_BESIDE, *DRAWN_BY_PROFILES, *DATA_FAULTS}
    names = [name for name in FAULTS if name not in later and rng.random() < share]
    if old and "raise_features" not in names and rng.random() < 0.5:
        names.append("raise_features")
    config = SwarmConfig(
        voters=voters,
        observers=rng.choice((0, 0, 0, 1, 2)),
        brokers=rng.choice((0, 1, 2, 3, 3, 3, 4, 5, 8)),
        clients=rng.randint(1, 3),
        direct_clients=rng.choice((0, 0, 1)),
        writes_per_s=rng.choice((2.0, 5.0, 10.0)),
        reads_per_s=rng.choice((0.0, 5.0, 10.0)),
        topics_share=rng.choice((0.0, 0.1, 0.3)),
        value_bytes=rng.choice((10, 10, 1000, 20000)),
        shared_keys=rng.randint(0, 4),
        timeout_s=rng.choice((0.3, 3.0, 3.0, 10.0)),
        safety_s=rng.uniform(8.0, 25.0),
        delay_min_ms=0.05 * slow,
        delay_mean_ms=0.15 * slow,
        disk_max_ms=rng.choice((0.5, 2.0, 2.0, 20.0)),
        election_timeout_ms=timeout_ms,
        fetch_timeout_ms=timeout_ms,
        session_timeout_ms=rng.choice((1500, 3000, 9000)),
        queue_messages=rng.choice((64, 65536)),
        drift=rng.choice((0.0, 0.0, 0.01, 0.1)),
        snapshot_bytes=rng.choice((0, 1000, 1000, 5000, 50000)),
        retention_bytes=rng.choice((1, 5000, 20000, 100000)),
        release_version=1 if old else 0,
        auto_join=rng.random() < 0.1,
        max_clients=rng.choice((0, 0, 0, 2)),
        faults={name: FAULTS[name].draw(rng) for name in names},
        numbered_share=rng.choice((0.0, 0.5, 1.0)),
        asks_share=rng.choice((0.0, 0.0, 0.5, 0.9)),
    )

    def drawn(names: tuple[str, ...], rng: random.Random) -> dict[str, float]:
        return {name: FAULTS[name].draw(rng) for name in names if rng.random() < share}

    lives = drawn(DRAWN_APART, _rng(seed, "apart"))
    config = config.but(
        drawn(DRAWN_LAST, rng),
        isr_changes_per_s=rng.choice((0.0, 0.0, 2.0, 10.0)),
        admin_per_s=rng.choice((0.0, 0.0, 1.0, 5.0)),
        unclean=rng.random() < 0.5,
        balance_interval_s=rng.choice((0, 1, 5)),
        strict_share=rng.choice((0.0, 0.3, 0.7)),
        round_robin=rng.random() < 0.5,
        lag_max_ms=rng.choice((0, 0, 1500)),
        work_us=_rng(seed, "work").choice((0.0,) * 5 + (50.0, 50.0, 300.0)),
    ).but({**drawn(DRAWN_AFTER_THEM, rng), **lives})
    if not old:
        exports_per_s = _rng(seed, "exports").choice((0.0, 0.0, 0.2, 1.0))
        config = replace(config, exports_per_s=exports_per_s)
    if "newcomer" in config.faults:
        config = replace(config, adopt_after_ms=_rng(seed, "ids").choice((0, 2000, 5000)))
    if "disk_low" in config.faults:
        config = replace(config, reserve_bytes=_rng(seed, "space").choice((3000, 20000, 100000)))
    apart = _rng(seed, "data")
    data_per_s, lag_ms = apart.choice((0.0, 5.0, 20.0)), apart.choice((500, 3000, 10000))
    chosen = drawn(DATA_FAULTS, apart)
    if not data_per_s or not config.brokers:
        return config
    # Who proposes ISRs of partitions that have data knows what he says.
    return config.but(
        chosen,
        data_per_s=data_per_s,
        replica_lag_ms=lag_ms,
        isr_changes_per_s=0.0,
        broker_reserve_bytes=100_000 if "broker_disk_low" in chosen else 0,
    )


PLAIN_SHARE = 0.08
"""Share of the seeds without a profile: everything is as it was drawn."""
KEPT_SHARE = 0.5
"""Share of drawn faults that such a seed keeps: among all no scene would complete."""
SHORTER = 0.2
"""Share of the time beyond ``SHORTEST_S`` that is kept: scenes need less of it than chance does."""
SHORTEST_S = 5.0
VOTERS_MAX, BROKERS_MAX, CALLS_MAX = 5, 4, 5.0
"""Limits of a seed with profiles (calls: writes and reads a second); more only takes longer."""
STAY_WITHOUT_BROKERS = 0.25
"""Share of seeds without brokers that stay so, with profiles that need none."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile: one scene."""

    change: Callable[[SwarmConfig, random.Random], SwarmConfig]
    share: float
    """Share of the seeds with profiles that may draw this one."""
    brokers: int = 0


def _often(config: SwarmConfig, **faults: float) -> dict[str, float]:
    """Return these faults, with the drawn rates if those are higher."""
    return {name: min(mean_s, config.faults.get(name, mean_s)) for name, mean_s in faults.items()}


def _data(config: SwarmConfig) -> SwarmConfig:
    if config.data_per_s:
        return config
    # Who proposes ISRs of partitions that have data knows what he says.
    return replace(config, data_per_s=5.0, isr_changes_per_s=0.0)


def _incarnations(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """A paused broker is replaced by another process with its id, and resumes."""
    # A twin's machine has another name: a disk that is lost with it must not be found by that.
    # Without heartbeats nobody is thought dead.
    return config.but(
        _often(config, thought_dead=rng.uniform(1.0, 2.0)),
        without=("lose_broker_disk", "roll_heartbeats", "twin_broker"),
        session_timeout_ms=1500,
    )


def _unclean(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Kill whole ISRs, and elect leaders outside them: the last leader's records are truncated."""
    return config.but(
        _often(config, kill_broker=0.8, kill_all_brokers=4.0, brokers_cut=1.0, broker_pause=2.0),
        data_per_s=8.0, isr_changes_per_s=0.0, unclean=True, unclean_topics=True,
        replica_lag_ms=500, session_timeout_ms=1500, disk_max_ms=max(config.disk_max_ms, 10.0),
        safety_s=max(config.safety_s, 8.0),
    )  # fmt: skip


def _moving(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Partitions are reassigned, and topics with records are created and deleted."""
    return replace(
        _data(config), admin_per_s=3.0, topics_share=0.3, writes_per_s=max(config.writes_per_s, 5.0)
    )


def _operated(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Brokers stop and return, others crash; metadata.version is lowered and raised."""
    often = _often(config, stop_broker=0.7, kill_broker=4.0, lower_features=0.7)
    return config.but(often, release_version=0)


def _newcomers(config: SwarmConfig) -> SwarmConfig:
    return replace(
        config,
        release_version=0,
        topics_share=max(config.topics_share, 0.1),
        session_timeout_ms=1500,
        adopt_after_ms=1000,
        safety_s=max(config.safety_s, 9.0),
    )


def _ids(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Brokers without ids get a missing broker's id, or a new one."""
    # A host that somebody has mapped waits for its id, and keeps it from others.
    without = ("roll_heartbeats", "alter_hostnames", "unregister_broker")
    often = _often(config, newcomer=0.5, broker_away=1.0)
    return _newcomers(config).but(often, without=without)


def _mapped(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Start brokers without ids, on hosts that an operator has mapped to one."""
    often = _often(config, newcomer=0.5, broker_away=2.0, alter_hostnames=1.0)
    return _newcomers(config).but(often, without=("roll_heartbeats",))


def _outages(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Keep all controllers down until brokers fence themselves; then fill their disks."""
    low_s, away_s = rng.uniform(6.8, 7.5), rng.uniform(0.1, 1.0)
    return config.but(
        _often(config, all_disks_low=low_s, controllers_away=away_s),
        without=("disk_full", "disk_low", "roll_heartbeats"),
        session_timeout_ms=1500,
        reserve_bytes=100_000,
        timeout_s=min(config.timeout_s, 0.5),
        writes_per_s=max(config.writes_per_s, 5.0),
    )


def _exports(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    return replace(
        config, release_version=0, exports_per_s=1.0, snapshot_bytes=500, retention_bytes=1,
        writes_per_s=max(config.writes_per_s, 5.0),
    )  # fmt: skip


def _fetches(config: SwarmConfig, rng: random.Random) -> SwarmConfig:
    """Fetch snapshots in small parts while they are replaced every few records."""
    part_bytes = rng.choice((300, 500))
    return config.but(
        _often(config, slow_fetch=rng.uniform(1.2, 1.8)),
        without=("snapshot_cut",),
        value_bytes=10,
        snapshot_bytes=200,
        # What an export has yet to read is not dropped, nor what somebody fetches.
        exports_per_s=0.0,
        held_bytes=1,
        snapshot_part_bytes=part_bytes,
        retention_bytes=1,
        writes_per_s=max(config.writes_per_s, 5.0),
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
    """Return the profiles that a seed draws, in order. ``config``: its free draw."""
    rng = _rng(seed, "profiles")
    if rng.random() < PLAIN_SHARE:
        return ()
    names = list(PROFILES)
    if not config.brokers and rng.random() < STAY_WITHOUT_BROKERS:
        names = [name for name in names if not PROFILES[name].brokers]
    return tuple(name for name in names if rng.random() < PROFILES[name].share)


def apply(seed: int, config: SwarmConfig, names: tuple[str, ...]) -> SwarmConfig:
    if not names:
        return config
    rng = _rng(seed, "kept")
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
        config = profile.change(config, _rng(seed, f"profile {name}"))
    return config

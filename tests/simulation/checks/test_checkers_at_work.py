"""Every checker checks something in a simulated cluster."""

from collections import Counter

import pytest

from simulation.checks.suite import all_checkers
from simulation.mutants import configs
from simulation.run import run_swarm
from simulation.swarm.config import SwarmConfig

CONFIG = SwarmConfig(
    safety_s=8.0, reads_per_s=10.0, writes_per_s=10.0, topics_share=0.3, isr_changes_per_s=20.0, numbered_share=0.5, strict_share=0.4,
    snapshot_bytes=2000, retention_bytes=1, faults={"kill_controller": 2.0, "resign": 2.0, "partition": 3.0, "kill_broker": 3.0},
)  # fmt: skip


DATA = SwarmConfig(
    safety_s=12.0, reads_per_s=10.0, topics_share=0.3, exports_per_s=2.0, data_per_s=20.0, admin_per_s=5.0, unclean=True,
    balance_interval_s=1, replica_lag_ms=500, session_timeout_ms=1500, snapshot_bytes=2000, retention_bytes=1, adopt_after_ms=2000,
    faults={"kill_controller": 4.0, "kill_broker": 2.0, "twin_broker": 3.0, "stop_broker": 3.0, "connection_dead": 3.0,
            "conversation_cut": 4.0, "broker_alone": 4.0, "lose_broker_disk": 4.0, "replace_broker_disk": 4.0},
)  # fmt: skip
AWAY = SwarmConfig(
    safety_s=8.0, session_timeout_ms=1500, work_us=50.0, faults={"controllers_away": 0.5}
)
OTHERS = (
    (2, configs.TWINS),
    (1, configs.LOW),
    (1, configs.MAPPED),
    (1, configs.OPERATED),
    (0, AWAY),
    (1, configs.TRANSFERS),
    (5, configs.BUILDS),
    (1, configs.RIGHTS),
    (1, configs.WATCHES),
    (1, configs.WATCHED),
    (1, configs.KEEPERS),
    (2, configs.KEEPS_LITTLE),
    (0, configs.RECOVERED),
    (1, configs.HOLDERS),
    (1, configs.OUTLIVED),
    (1, configs.CLOCKS_RIGHTED),
    (0, configs.REPLACED),
    (1, configs.CORDONED),
    (1, configs.SET_BACK),
    (0, configs.DATA_LOW),
)
"""Twins; disks below their reserve; ids that are given by hand, adopted and new; levels that are
lowered; controllers that are away, and code that takes time; snapshots in many parts; nodes of two
builds; rights that change; clients that watch, also with such rights; leases and locks; partitions
that keep little; logs that are recovered by hand, with data, among locks and among watchers; wrong
clocks; dead voters that are replaced; cordoned brokers;
directories that were set back; brokers' disks below their reserve."""


@pytest.mark.nightly
def test_each_counter_of_each_checker_counts() -> None:
    """Each counter counts in its own scene; the twenty seeds show none idle in the gate."""
    looked_at: Counter[str] = Counter()
    for seed, config in ((3, CONFIG), (3, DATA), (5, DATA), (6, DATA), *OTHERS):
        outcome = run_swarm(seed, config)
        assert outcome.failure is None
        looked_at.update(outcome.looked_at)
    checkers = {what.partition(".")[0] for what in looked_at}
    assert checkers == {type(checker).__name__ for checker in all_checkers()} | {"Recovered"}
    assert [what for what, count in looked_at.items() if not count] == []


def test_checkers_change_nothing() -> None:
    watched, alone = run_swarm(3, CONFIG, all_checkers()), run_swarm(3, CONFIG, [])
    assert watched.digest == alone.digest

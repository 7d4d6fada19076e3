"""Whole clusters live from a seed: the promises hold through faults, the same seed is the same life, and the checks can fail."""

import hashlib
import logging
import os
import subprocess
import sys

import pytest
import structlog

from controller.lao import LaoTracker
from raftlog.replica.replica import Replica
from simulation.cluster import CheckFailedError, LifeConfig, live


@pytest.fixture(autouse=True)
def _quiet():
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("seed", range(40))
def test_a_life_keeps_all_promises_and_converges(seed: int) -> None:
    outcome = live(seed)
    assert outcome.acknowledged > 10
    assert outcome.state_hash


def test_the_lives_together_have_seen_every_fault() -> None:
    seen: dict[str, int] = {}
    for seed in range(40, 55):
        for fault, count in live(seed).faults.items():
            seen[fault] = seen.get(fault, 0) + count
    assert set(seen) == {"_kill_controller", "_kill_all_controllers", "_kill_broker", "_partition", "_pause"}


_DIGEST = """
import hashlib, logging, structlog
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
from simulation.cluster import live
for seed in range(50):
    print(seed, hashlib.sha256("\\n".join(live(seed).transcript).encode()).hexdigest())
"""


def test_the_same_seed_is_the_same_life_byte_for_byte_in_another_process() -> None:
    def digests(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", _DIGEST], env=environment, check=True, capture_output=True, text=True, timeout=300
        ).stdout

    one, other = digests("1"), digests("2")
    assert len(one.splitlines()) == 50
    assert one == other
    assert len({line.split()[1] for line in one.splitlines()}) == 50


def test_another_seed_is_another_life() -> None:
    def digest(seed: int) -> str:
        return hashlib.sha256("\n".join(live(seed).transcript).encode()).hexdigest()

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def _survives(seeds: range, config: LifeConfig | None = None) -> bool:
    for seed in seeds:
        try:
            live(seed, config)
        except (CheckFailedError, AssertionError):
            return False
    return True


def test_an_lao_above_what_some_broker_has_applied_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = LaoTracker.lao.fget
    monkeypatch.setattr(LaoTracker, "lao", property(lambda self: honest(self) + 1 if honest(self) >= 0 else -1))
    assert not _survives(range(20))


def test_acknowledging_before_the_disk_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_durable(self: Replica, effect: object) -> None:
        self._write()
        self._flushed(self.log_end_offset)

    from raftlog.quorum import events
    from raftlog.replica import replica

    monkeypatch.setitem(replica._EFFECTS, events.Flush, never_durable)
    assert not _survives(range(30), LifeConfig(faults_s=20, fault_every_s=0.7, writes_per_s=20))

"""BrokerTimelines in which the disks of a majority are lost for good: what is left is led on, and
nothing else of it is lost.
"""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from simulation import recovered_quorum
from simulation.checks.api import CheckFailedError
from simulation.checks.suite import all_checkers
from simulation.mutants.configs import HOLDERS, RECOVERED
from simulation.run import run_swarm


@pytest.mark.nightly
def test_recovered_quorum_leads_on_and_brokers_keep_their_records() -> None:
    found: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(6):
        outcome = run_swarm(seed, RECOVERED)
        assert outcome.failure is None, seed
        found.update(outcome.looked_at)
        faults.update(outcome.faults)
    for what in ("kept", "forgotten", "partitions", "verified", "elected"):
        assert found[f"Recovered.{what}"], what
    for what in ("", ":interrupted", ":old_token", ":successor"):
        assert faults[f"quorum_lost{what}"], what


def test_locks_of_the_log_before_hold_nothing_in_the_one_that_goes_on() -> None:
    """Seed 8: an old guard meets the lock that has its key and its offset."""
    outcome = run_swarm(8, HOLDERS)
    assert outcome.failure is None
    for what in ("guarded", "taken_after_recovery", "confirmed", "expired"):
        assert outcome.looked_at[f"Held.{what}"], what


class Elections:
    """A world whose leader resigns, and who leads next: its epoch, and from when on."""

    def __init__(self, *next_leaders: str) -> None:
        self.services = {name: self._service(name) for name in ("c1", "c2")}
        self._next, self.resigned, self._at, self._epoch = list(next_leaders), 0, 0.0, 7
        self.services["c1"].node.controller_epoch = 7
        self.leads: str | None = "c1"
        self.network = SimpleNamespace(loop=SimpleNamespace(call_soon=self._soon))

    def _service(self, name: str) -> Any:
        return SimpleNamespace(
            replica=SimpleNamespace(resign=self._resign),
            quorum=SimpleNamespace(node_id=int(name[1:])),
            node=SimpleNamespace(controller_epoch=-1),
        )

    def _soon(self, call: Any, *arguments: Any, context: Any) -> None:
        call(*arguments)

    def _resign(self, reason: str) -> None:
        self.resigned, self._epoch = self.resigned + 1, self._epoch + 1
        self.leads = self._next.pop(0) if self._next else None
        if self.leads:
            self.services[self.leads].node.controller_epoch = self._epoch

    def now(self) -> float:
        return self._at

    def active(self) -> Any:
        return self.services[self.leads] if self.leads else None

    async def until(self, condition: Any, within_s: float, what: str) -> None:
        self._at += 1.0
        if not condition() or within_s <= 0:
            raise CheckFailedError(f"within {within_s:g} s it did not happen: {what}")


def succeeded(*next_leaders: str, within_s: float = 60.0) -> Elections:
    world: Any = Elections(*next_leaders)
    asyncio.run(recovered_quorum.another_leads(world, world.services["c1"], within_s))
    return world


def test_voter_with_the_longer_log_is_reelected_until_another_can_lead() -> None:
    """[seeds 771994 and 775264 of an older build: of two voters one lacked three records]"""
    assert succeeded("c2").resigned == 1
    world = succeeded("c1", "c1", "c2")
    assert (world.resigned, world.leads) == (3, "c2")


def test_recovery_fails_when_no_leader_or_no_other_leader_is_elected() -> None:
    with pytest.raises(CheckFailedError, match="another one leads"):
        succeeded()
    with pytest.raises(CheckFailedError, match="another one leads"):
        succeeded(*["c1"] * 100, within_s=20.0)


def test_checkers_of_the_life_after_change_nothing() -> None:
    watched, alone = run_swarm(1, RECOVERED, all_checkers()), run_swarm(1, RECOVERED, [])
    assert watched.failure is None
    assert watched.digest == alone.digest

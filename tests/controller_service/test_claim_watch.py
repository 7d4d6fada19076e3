"""A standby that is far behind lets the new leader claim first, and never waits for long."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from controller.service.catch_up import CLAIM_MAX_S, FAR_BEHIND_RECORDS, CatchUp, ClaimWatch
from controller.settings import ControllerSettings

FAR = FAR_BEHIND_RECORDS


def test_claim_watch_waits_while_a_new_leader_may_be_claiming() -> None:
    watch = ClaimWatch()
    assert not watch.waits(FAR, 5.0)
    watch.leader_changed(elected=True, now=5.0)
    watch.committed(100)
    assert watch.waits(FAR, 5.0)
    assert watch.waits(FAR, 5.0 + CLAIM_MAX_S - 0.01)
    assert not watch.waits(FAR, 5.0 + CLAIM_MAX_S)


def test_claim_watch_does_not_wait_for_a_leader_that_decides() -> None:
    watch = ClaimWatch()
    watch.leader_changed(elected=True, now=5.0)
    watch.committed(100)
    watch.committed(100)
    assert watch.waits(FAR, 5.1)
    watch.committed(101)
    assert not watch.waits(FAR, 5.1)
    watch.leader_changed(elected=False, now=6.0)
    assert not watch.waits(FAR, 6.0)


def test_claim_watch_does_not_delay_short_work() -> None:
    watch = ClaimWatch()
    watch.leader_changed(elected=True, now=5.0)
    assert not watch.waits(FAR - 1, 5.0)


def test_leader_that_is_lost_is_not_waited_for() -> None:
    watch = ClaimWatch()
    watch.leader_changed(elected=True, now=5.0)
    watch.leader_changed(elected=False, now=5.1)
    assert not watch.waits(FAR, 5.1)


class Standby:
    """A node with a clock of its own, and what it has folded."""

    def __init__(self) -> None:
        self.now = 5.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.woken = 0
        self.folded: list[int] = []
        self.node: Any = SimpleNamespace(
            now=lambda: self.now,
            load=None,
            leadership=None,
            closed=False,
            committed_end=-1,
            committed=SimpleNamespace(offset=-1, advance=self._advance),
            replica=SimpleNamespace(last_epoch=1),
        )
        self.catch_up = CatchUp(
            cast(Any, self.node),
            ControllerSettings(),
            SimpleNamespace(),  # type: ignore[arg-type]
            random.Random(1),
            send=lambda _: None,
            claimed=lambda: None,
            wake=self._wake,
            call_later=self._call_later,
        )

    def _advance(self, _replica: object, end: int) -> bool:
        self.node.committed.offset = end - 1
        self.folded.append(end)
        return True

    def _wake(self) -> None:
        self.woken += 1

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.timers.append((self.now + delay_s, callback))
        return SimpleNamespace(cancel=lambda: None)

    def committed(self, end: int) -> None:
        self.node.committed_end = end
        self.catch_up.fold_soon()

    def run_until(self, at: float) -> None:
        while self.timers and self.timers[0][0] <= at:
            self.now, callback = self.timers.pop(0)
            woken = self.woken
            callback()
            if self.woken > woken:
                self.catch_up.step()
        self.now = at


def test_standby_with_a_long_log_folds_when_the_leader_has_had_its_time() -> None:
    standby = Standby()
    standby.catch_up.leader_changed(2, 7)
    standby.committed(FAR)
    standby.run_until(5.0 + CLAIM_MAX_S - 0.05)
    assert standby.folded == []
    standby.run_until(5.0 + CLAIM_MAX_S + 0.05)
    assert standby.folded == [FAR]


def test_standby_with_a_long_log_folds_once_the_leader_decides() -> None:
    standby = Standby()
    standby.catch_up.leader_changed(2, 7)
    standby.committed(FAR)
    standby.run_until(5.1)
    standby.committed(FAR + 1)
    standby.run_until(5.2)
    assert standby.folded == [FAR + 1]


def test_standby_folds_at_once_under_a_leader_that_it_has_records_of() -> None:
    standby = Standby()
    standby.node.replica.last_epoch = 7
    standby.catch_up.leader_changed(2, 7)
    standby.committed(FAR)
    standby.run_until(5.1)
    assert standby.folded == [FAR]

"""One timer for many deadlines, on a loop whose time jumps."""

from __future__ import annotations

import asyncio

from scenarios import simulated

from raftlog.clock import NEVER, DeadlineTimer


class Alarm:
    """Notes when it is called, and asks for what ``then`` says."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.called: list[float] = []
        self.then: list[float] = []
        self.timer = DeadlineTimer(self.loop, self._due)

    def _due(self) -> None:
        self.called.append(self.loop.time() - self.began)
        if self.then:
            self.arm(self.then.pop(0))

    def arm(self, after_s: float) -> None:
        self.timer.arm(self.began + after_s)


@simulated
async def test_the_earliest_deadline_counts_and_a_later_one_moves_nothing() -> None:
    alarm = Alarm()
    for after_s in (5.0, 9.0, 2.0, 7.0):
        alarm.arm(after_s)
    await asyncio.sleep(20)
    assert alarm.called == [2.0]


@simulated
async def test_what_it_calls_arms_it_again() -> None:
    alarm = Alarm()
    alarm.then = [3.0, 3.0]
    alarm.arm(1.0)
    await asyncio.sleep(20)
    assert alarm.called == [1.0, 3.0, 3.0], (
        "a deadline that is past comes at once, in a turn of its own"
    )


@simulated
async def test_never_asks_for_nothing_and_takes_nothing_back() -> None:
    alarm = Alarm()
    alarm.arm(NEVER)
    await asyncio.sleep(20)
    assert alarm.called == []
    alarm.arm(21.0)
    alarm.arm(NEVER)
    await asyncio.sleep(20)
    assert alarm.called == [21.0]


@simulated
async def test_a_cancelled_one_calls_nobody_until_it_is_armed_again() -> None:
    alarm = Alarm()
    alarm.arm(1.0)
    alarm.timer.cancel()
    await asyncio.sleep(5)
    alarm.arm(6.0)
    await asyncio.sleep(5)
    assert alarm.called == [6.0]

"""Bounded turns of work on the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from raftlog.bounds import TransportLimits
from raftlog.transport import turns as module
from raftlog.transport.turns import (
    MEETING_S,
    MEETINGS,
    OTHERS_MAX_S,
    SHORT,
    WORTH_MEETING_S,
    Newcomers,
    Turns,
)

TURN_MS, LONG_MS = TransportLimits().turn_ms, TransportLimits().long_turn_ms


class Loop:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.later.append((delay_s, callback))

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def turn(self) -> None:
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()


class Cpu:
    """A CPU clock, and work that advances it."""

    def __init__(self, turns: Turns) -> None:
        self.now = 0.0
        self._turns = turns

    def work(self, ms: float) -> None:
        self.now += ms / 1000
        self._turns.spent(ms / 1000)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def newcomers() -> Newcomers:
    return Newcomers()


@pytest.fixture
def turns(loop: Loop, newcomers: Newcomers) -> Turns:
    return Turns(loop, TURN_MS, long_turn_ms=LONG_MS, newcomers=newcomers)  # type: ignore[arg-type]


@pytest.fixture
def cpu(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> Cpu:
    cpu = Cpu(turns)
    monkeypatch.setattr(module, "thread_time", lambda: cpu.now)
    return cpu


def test_short_work_starts_no_turn(loop: Loop, turns: Turns, cpu: Cpu) -> None:
    for _ in range(9):
        cpu.work(TURN_MS * SHORT / 10)
    assert loop.soon == []
    cpu.work(TURN_MS * SHORT / 4)
    assert len(loop.soon) == 1
    cpu.work(1.0)
    assert len(loop.soon) == 1


def test_short_turns_before_do_not_count_in_this_one(loop: Loop, turns: Turns, cpu: Cpu) -> None:
    cpu.work(TURN_MS * SHORT * 0.9)
    cpu.work(TURN_MS * (1 - SHORT))
    assert not bool(turns.over)
    cpu.work(TURN_MS * SHORT * 0.2)
    assert bool(turns.over)
    assert bool(turns.busy)
    loop.turn()
    ((_, begin),) = loop.later
    begin()
    assert not turns.busy
    # All of it again.
    cpu.work(TURN_MS * 0.9)
    assert not turns.over


def test_full_turn_pauses_whatever_was_short_before(loop: Loop, turns: Turns, cpu: Cpu) -> None:
    cpu.work(TURN_MS * SHORT * 0.9)
    for _ in range(10):
        cpu.work(TURN_MS * (1 - SHORT * 0.9) / 9.99)
    assert turns.over
    loop.turn()
    assert turns.busy, "as long a pause"
    ((delay_s, begin),) = loop.later
    assert delay_s > LONG_MS / 1000
    begin()
    assert not turns.busy


def test_short_turn_has_no_pause(loop: Loop, turns: Turns, cpu: Cpu) -> None:
    for _ in range(20):
        cpu.work(LONG_MS * 0.9)
        loop.turn()
        assert not turns.busy
    assert loop.later == []


def meet(loop: Loop) -> list[float]:
    waited = []
    while loop.soon or loop.later:
        loop.turn()
        for delay_s, callback in loop.later[:]:
            loop.later.remove((delay_s, callback))
            waited.append(delay_s)
            callback()
    return waited


def test_work_waits_while_new_calls_arrive(
    loop: Loop, turns: Turns, cpu: Cpu, newcomers: Newcomers
) -> None:
    newcomers.count = 1
    cpu.work(LONG_MS * 0.9)
    turns.begin_last()
    for _ in range(3):
        loop.turn()
        assert turns.busy, "a call has come since the last look"
        ((delay_s, begin),) = loop.later
        assert delay_s == MEETING_S
        loop.later.clear()
        newcomers.count += 1
        loop.call_soon(begin)
    assert meet(loop) == [MEETING_S]
    assert not turns.busy
    # Nobody came since.
    cpu.work(LONG_MS * 0.9)
    turns.begin_last()
    assert meet(loop) == []
    assert not turns.busy


def test_new_calls_do_not_delay_work_forever(
    loop: Loop, turns: Turns, cpu: Cpu, newcomers: Newcomers
) -> None:
    cpu.work(LONG_MS * 0.9)
    turns.begin_last()
    waited = 0
    while turns.busy:
        newcomers.count += 1
        loop.turn()
        for delay_s, callback in loop.later[:]:
            loop.later.remove((delay_s, callback))
            waited += 1
            newcomers.count += 1
            callback()
    assert waited == MEETINGS


def test_tiny_work_waits_for_no_new_call(
    loop: Loop, turns: Turns, cpu: Cpu, newcomers: Newcomers
) -> None:
    for _ in range(5):
        newcomers.count += 1
        cpu.work(WORTH_MEETING_S * 1000 * 0.9)
        turns.begin_last()
        assert meet(loop) == []
        assert not turns.busy


def test_last_task_of_a_turn_gets_the_remaining_time(loop: Loop, turns: Turns, cpu: Cpu) -> None:
    turns.begin_last()
    assert turns.busy
    assert len(loop.soon) == 1
    cpu.now += 2 * LONG_MS / 1000
    loop.turn()
    assert turns.busy, "a pause: it took long"


async def test_other_tasks_run_while_the_turn_has_time(loop: Loop, turns: Turns, cpu: Cpu) -> None:
    assert not bool(turns.others_may_go)
    tasks = [asyncio.create_task(turns.next(peer)) for peer in ("a", "a", "b")]
    await asyncio.sleep(0)
    assert turns.busy
    assert bool(turns.others_may_go)
    assert len(loop.soon) == 1
    loop.turn()
    await asyncio.sleep(0)
    assert _done(tasks) == [True, False, False], "one begins, and passes on what it leaves"
    cpu.work(1.0)
    turns.pass_on()
    await asyncio.sleep(0)
    assert _done(tasks) == [True, False, True], "one of each peer"
    cpu.work(TURN_MS)
    assert not turns.others_may_go
    turns.pass_on()
    await asyncio.sleep(0)
    assert _done(tasks) == [True, False, True], "nothing is left of the turn"
    loop.turn()
    for _, begin in loop.later:
        begin()
    await asyncio.sleep(0)
    assert _done(tasks) == [True, True, True]


async def test_new_waiter_gets_a_later_turn(loop: Loop, turns: Turns, cpu: Cpu) -> None:
    """[One that waited alone was called, and a newcomer used up the turn before it: three messages
    of 4 ms in one turn of the loop.]
    """
    task = asyncio.create_task(turns.next("a"))
    await asyncio.sleep(0)
    loop.turn()
    assert bool(turns.busy), "the turn is another's, which has not begun"
    second = asyncio.create_task(turns.next("b"))
    await task
    assert bool(turns.busy), "and now the second waits"
    cpu.work(TURN_MS)
    meet(loop)
    await second
    assert not turns.busy


async def test_removed_waiters_turn_goes_to_the_next(loop: Loop, turns: Turns, cpu: Cpu) -> None:
    gone, waits = [asyncio.create_task(turns.next(peer)) for peer in "ab"]
    await asyncio.sleep(0)
    loop.turn()
    turns.pass_on()
    gone.cancel()
    await asyncio.wait([gone])
    assert gone.cancelled()
    await waits
    assert not turns.busy


def _done(tasks: list[asyncio.Task[Any]]) -> list[bool]:
    return [task.done() for task in tasks]


def test_cpu_time_of_other_processes_does_not_count(loop: Loop, turns: Turns, cpu: Cpu) -> None:
    cpu.work(TURN_MS)
    assert bool(turns.over)
    meet(loop)
    # Taken from the CPU in the middle of a short message, for longer than a turn takes.
    for _ in range(3):
        cpu.now += TURN_MS * SHORT / 4 / 1000
        turns.used(2 * TURN_MS / 1000)
        assert not bool(turns.busy)
        assert loop.soon == [], "no turn begins for so little"
    cpu.now += TURN_MS * SHORT / 1000
    turns.used(2 * LONG_MS / 1000)
    assert len(loop.soon) == 1
    assert not bool(turns.busy)
    assert meet(loop) == [], "nothing was long"
    cpu.work(TURN_MS * 1.01)
    assert bool(turns.busy), "what the CPU has done counts in full"


def test_long_wait_counts_as_a_turn_on_an_idle_cpu(loop: Loop, turns: Turns, cpu: Cpu) -> None:
    """[Each message waits for the disk: a hundred of them blocked the loop in one turn.]"""
    cpu.work(TURN_MS)
    meet(loop)
    waits = 0
    while not turns.over:
        waits += 1
        turns.used(2 * TURN_MS / 1000)
    assert waits * 2 * TURN_MS / 1000 == pytest.approx(OTHERS_MAX_S, abs=3 * TURN_MS / 1000)
    assert len(loop.soon) == 1
    meet(loop)
    turns.used(2 * TURN_MS / 1000)
    assert not turns.over, "each turn has its own bound"


def test_last_task_stays_last_on_a_busy_machine(loop: Loop, turns: Turns, cpu: Cpu) -> None:
    cpu.work(TURN_MS)
    meet(loop)
    turns.begin_last()
    turns.used(TURN_MS / 1000)
    assert turns.busy

"""The set-up of a node's process."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from scenarios import simulated

from raftlog.clock import NEVER, DeadlineTimer
from raftlog.files import BackgroundLook
from raftlog.process import StopSignals
from raftlog.step_tracer import traced


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)]
)
async def test_signal_reaches_listeners_added_before_and_after_it(number: int, code: int) -> None:
    first, later = asyncio.Event(), asyncio.Event()
    signals = StopSignals(first.set)
    try:
        assert signals.exit_code == 0
        os.kill(os.getpid(), number)
        async with asyncio.timeout(10):
            await first.wait()
        signals.call(later.set)
        assert later.is_set(), "a signal that came while the node was starting is not lost"
        assert signals.exit_code == code
    finally:
        for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(one)


async def test_node_started_with_nohup_survives_the_end_of_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    asked = asyncio.Event()
    StopSignals(asked.set)
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10):
            await asked.wait()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        for one in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(one)
        signal.signal(signal.SIGHUP, before)


# --- One timer for many deadlines, on a loop whose time jumps ------------------------------------


class Alarm:
    """Records its calls, and requests the next deadlines from ``then``."""

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
async def test_alarm_keeps_the_earliest_of_its_deadlines() -> None:
    alarm = Alarm()
    for after_s in (5.0, 9.0, 2.0, 7.0):
        alarm.arm(after_s)
    await asyncio.sleep(20)
    assert alarm.called == [2.0]


@simulated
async def test_alarm_can_be_armed_by_its_callback() -> None:
    alarm = Alarm()
    alarm.then = [3.0, 3.0]
    alarm.arm(1.0)
    await asyncio.sleep(20)
    assert alarm.called == [1.0, 3.0, 3.0], (
        "a deadline that is past comes at once, in a turn of its own"
    )


@simulated
async def test_infinite_deadline_requests_nothing_and_cancels_nothing() -> None:
    alarm = Alarm()
    alarm.arm(NEVER)
    await asyncio.sleep(20)
    assert alarm.called == []
    alarm.arm(21.0)
    alarm.arm(NEVER)
    await asyncio.sleep(20)
    assert alarm.called == [21.0]


@simulated
async def test_cancelled_alarm_makes_no_call_until_it_is_armed_again() -> None:
    alarm = Alarm()
    alarm.arm(1.0)
    alarm.timer.cancel()
    await asyncio.sleep(5)
    alarm.arm(6.0)
    await asyncio.sleep(5)
    assert alarm.called == [6.0]


# --- A file system that hangs holds up nobody, and one that fails is told ------------------------


WAIT_S = 30.0


class Disk:
    """Answers with ``says``, or raises it, as soon as it may."""

    def __init__(self) -> None:
        self.says: int | OSError = 1
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.asked = 0
        self.by: set[int] = set()

    def ask(self) -> int:
        self.asked += 1
        self.by.add(threading.get_ident())
        self.goes_on.wait(WAIT_S)
        if isinstance(self.says, OSError):
            raise self.says
        return self.says


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.goes_on.set()


def becomes(ask: Callable[[], object], wanted: object) -> None:
    until = time.monotonic() + WAIT_S
    while ask() != wanted:
        assert time.monotonic() < until
        time.sleep(0.001)


def test_first_poll_waits_for_an_answer_and_later_polls_do_not(disk: Disk) -> None:
    look = BackgroundLook(disk.ask)
    assert look.latest is None
    assert look.poll() == 1
    disk.says = 2
    becomes(look.poll, 2)
    assert len(disk.by) > 1, "only the first is asked here"


def test_poll_does_not_wait_for_a_hanging_disk_and_asks_it_once(disk: Disk) -> None:
    look = BackgroundLook(disk.ask)
    look.poll()
    disk.goes_on.clear()
    disk.says = 3
    assert [look.poll() for _ in range(5)] == [1] * 5
    assert disk.asked == 2
    disk.goes_on.set()
    becomes(look.poll, 3)


def test_poll_raises_the_error_of_a_check_until_one_succeeds(disk: Disk) -> None:
    disk.says = OSError("stale file handle")
    look = BackgroundLook(disk.ask)
    with pytest.raises(OSError, match="stale"):
        look.poll()
    disk.says = 4

    def polled() -> int | None:
        try:
            return look.poll()
        except OSError:
            return None

    becomes(polled, 4)
    disk.says = OSError("gone again")
    becomes(polled, None)


async def test_awaited_answer_arrives_or_times_out(disk: Disk) -> None:
    look = BackgroundLook(disk.ask)
    assert await look.now(WAIT_S) == 1
    disk.goes_on.clear()
    begun = time.monotonic()
    assert [await look.now(0.01) for _ in range(3)] == [None] * 3
    assert time.monotonic() - begun < WAIT_S / 2
    assert disk.asked == 2
    assert look.latest == 1
    disk.goes_on.set()
    assert await look.now(WAIT_S) == 1
    disk.says = OSError("gone")
    assert await look.now(WAIT_S) is None
    assert look.latest is None


def test_process_exits_though_a_check_hangs(disk: Disk) -> None:
    """[Threads of an executor are joined at exit: a node with a dead mount would not stop.]"""
    disk.goes_on.clear()
    before = threading.enumerate()
    look = BackgroundLook(disk.ask)
    look._begin()
    becomes(lambda: disk.asked, 1)
    started = [one for one in threading.enumerate() if one not in before]
    assert [one.daemon for one in started] == [True]


# --- Who traces a state machine sees each step before its effects; nobody else pays for it -------


class Tracer:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def stepped(self, event: int, effects: Sequence[str], now: float) -> None:
        self.seen.append((event, list(effects), now))

    def step_failed(self, error: Exception) -> None:
        self.seen.append(error)


def step(event: int, now: float) -> list[str]:
    if event < 0:
        raise ValueError(event)
    return [str(event)] * event


def test_step_is_unwrapped_without_a_tracer() -> None:
    assert traced(step, None) is step


def test_each_step_is_traced_with_its_effects_and_duration() -> None:
    tracer = Tracer()
    assert traced(step, tracer)(2, 0.5) == ["2", "2"]
    assert tracer.seen == [(2, ["2", "2"], 0.5)]


def test_failing_step_is_traced_and_raises() -> None:
    tracer = Tracer()
    with pytest.raises(ValueError, match="-1") as raised:
        traced(step, tracer)(-1, 0.5)
    assert tracer.seen == [raised.value]

"""A file system that hangs holds up nobody, and one that fails is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from raftlog.files import BackgroundLook

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


def test_a_poll_has_an_answer_at_once_and_the_next_one_later(disk: Disk) -> None:
    look = BackgroundLook(disk.ask)
    assert look.latest is None
    assert look.poll() == 1
    disk.says = 2
    becomes(look.poll, 2)
    assert len(disk.by) > 1, "only the first is asked here"


def test_a_poll_does_not_wait_for_a_disk_that_hangs_and_asks_it_once(disk: Disk) -> None:
    look = BackgroundLook(disk.ask)
    look.poll()
    disk.goes_on.clear()
    disk.says = 3
    assert [look.poll() for _ in range(5)] == [1] * 5
    assert disk.asked == 2
    disk.goes_on.set()
    becomes(look.poll, 3)


def test_a_poll_raises_what_a_look_raised_until_one_succeeds(disk: Disk) -> None:
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


async def test_who_awaits_an_answer_gets_it_or_none_in_time(disk: Disk) -> None:
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


def test_a_process_ends_though_a_look_hangs(disk: Disk) -> None:
    """[Threads of an executor are joined at the exit: a node with a dead mount would not stop.]"""
    disk.goes_on.clear()
    before = threading.enumerate()
    look = BackgroundLook(disk.ask)
    look._begin()
    becomes(lambda: disk.asked, 1)
    started = [one for one in threading.enumerate() if one not in before]
    assert [one.daemon for one in started] == [True]

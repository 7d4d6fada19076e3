import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

import pytest

from raftlog.errors import FatalError, StorageError
from raftlog.node.storage.rocks_store import (
    SLOW_CALL_S,
    SLOW_PENALTY_MAX_S,
    SLOW_PENALTY_S,
    DiskThread,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Disk:
    """A DiskThread, with the thread of its last job."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.thread = DiskThread(asyncio.get_running_loop(), self.clock)
        self.ran_in: list[threading.Thread] = []

    async def run(self, *, takes_s: float = 0.0, inline: bool = True) -> bool:
        """Return whether the job ran on the loop."""
        done: asyncio.Future[FatalError | None] = asyncio.get_running_loop().create_future()

        def job() -> None:
            self.clock.now_s += takes_s
            self.ran_in.append(threading.current_thread())

        self.thread.run(job, done.set_result, inline=inline)
        assert await done is None
        return self.ran_in[-1] is threading.current_thread()


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    disk = Disk()
    yield disk
    disk.thread.close()


async def test_job_runs_inline_only_on_request(disk: Disk) -> None:
    assert await disk.run()
    assert not await disk.run(inline=False)
    assert await disk.run()


@pytest.mark.parametrize("first_inline", [True, False])
async def test_slow_disk_moves_jobs_off_the_loop_awhile(disk: Disk, first_inline: bool) -> None:
    assert await disk.run(takes_s=SLOW_CALL_S * 0.9, inline=first_inline) is first_inline
    assert await disk.run(takes_s=SLOW_CALL_S * 2) is True
    disk.clock.now_s += SLOW_PENALTY_S * 0.9
    assert await disk.run(takes_s=SLOW_CALL_S * 2) is False
    disk.clock.now_s += SLOW_PENALTY_S * 1.9
    assert await disk.run() is False, (
        "still slow in the thread: the wait begins anew, twice as long"
    )
    disk.clock.now_s += SLOW_PENALTY_S * 0.2
    assert await disk.run() is True


async def test_persistently_slow_disk_moves_jobs_off_the_loop_for_longer(disk: Disk) -> None:
    waits = []
    for _ in range(8):
        assert await disk.run(takes_s=SLOW_CALL_S * 2) is True
        waited_s = 0.0
        while not await disk.run():
            disk.clock.now_s += SLOW_PENALTY_S / 10
            waited_s += SLOW_PENALTY_S / 10
        waits.append(round(waited_s, 1))
    assert waits[:4] == sorted(waits[:4])
    assert waits[0] == pytest.approx(SLOW_PENALTY_S, abs=0.1)
    assert waits[-1] == pytest.approx(SLOW_PENALTY_MAX_S, abs=SLOW_PENALTY_S)
    disk.clock.now_s += 2 * SLOW_PENALTY_MAX_S
    assert await disk.run(takes_s=SLOW_CALL_S * 2) is True
    disk.clock.now_s += SLOW_PENALTY_S * 1.1
    assert await disk.run() is True, "it was fast for long: one slow call is one again"


async def test_disk_tasks_run_in_order(disk: Disk) -> None:
    order: list[str] = []
    go = threading.Event()
    disk.thread.run(go.wait, lambda _: order.append("first"), inline=False)  # type: ignore[arg-type]
    disk.thread.run(lambda: None, lambda _: order.append("second"), inline=True)
    assert order == []
    go.set()
    await disk.run()
    assert order == ["first", "second"]


async def test_disk_error_is_reported(disk: Disk) -> None:
    error = StorageError("no")

    def fail() -> None:
        raise error

    for inline in (True, False):
        done: asyncio.Future[FatalError | None] = asyncio.get_running_loop().create_future()
        disk.thread.run(fail, done.set_result, inline=inline)
        assert await done is error


async def test_close_waits_and_reports_nothing_more(disk: Disk) -> None:
    ran: list[str] = []
    for name in "ab":
        disk.thread.run(partial(ran.append, name), lambda _: ran.append("reported"), inline=False)
    disk.thread.close()
    assert ran == ["a", "b"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ran == ["a", "b"]


async def test_disk_time_excludes_waiting_for_the_loop(disk: Disk) -> None:
    """Neither a job's wait in the queue, nor its report."""
    began, go, ended = threading.Event(), threading.Event(), threading.Event()

    def job() -> None:
        began.set()
        go.wait()

    told: list[float] = []
    assert disk.thread.busy_s == 0.0
    disk.thread.run(job, lambda _: told.append(disk.thread.last_s), inline=False)
    disk.thread.run(ended.set, lambda _: told.append(disk.thread.last_s), inline=False)
    began.wait()
    disk.clock.now_s += 2.0
    assert disk.thread.busy_s == 2.0
    go.set()
    ended.wait()
    # The loop is away for long: both are done, and neither is reported yet.
    disk.clock.now_s += 30.0
    assert told == []
    while len(told) < 2:
        await asyncio.sleep(0)
    assert disk.thread.busy_s == 0.0
    assert told == [2.0, 0.0]

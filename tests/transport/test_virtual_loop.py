import asyncio
import gc
import time
from functools import partial
from typing import Any

import pytest
from scenarios import simulated

from simulation.twins.loop import DeadlockError, VirtualLoop, host_context, run


def loop_now() -> float:
    return asyncio.get_running_loop().time()


def test_time_jumps_without_waiting_for_the_real_clock() -> None:
    async def main() -> float:
        await asyncio.sleep(1_000_000)
        return loop_now()

    began = time.monotonic()
    assert run(main(), start_time=5.0) == 1_000_005.0
    assert time.monotonic() - began < 60


@simulated
async def test_time_does_not_advance_while_a_callback_is_ready() -> None:
    before = loop_now()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert loop_now() == before


def test_timers_run_by_time_and_ties_in_creation_order() -> None:
    async def main() -> list[int]:
        ran: list[int] = []
        loop = asyncio.get_running_loop()
        for i in range(100):
            loop.call_at(1.0, ran.append, i)
        loop.call_at(0.5, ran.append, -1)
        loop.call_soon(ran.append, -2)
        await asyncio.sleep(1)
        return ran

    assert run(main()) == [-2, -1, *range(100)]


@simulated
async def test_cancelled_timers_do_not_run_and_do_not_accumulate() -> None:
    loop: Any = asyncio.get_running_loop()
    ran: list[int] = []
    for i in range(10_000):
        loop.call_later(1.0, ran.append, i).cancel()
        assert len(loop._timers) < 200
    kept = [loop.call_later(1.0, ran.append, i) for i in range(1000)]
    for i in range(0, 1000, 2):
        kept[i].cancel()
        kept[i].cancel()
    await asyncio.sleep(2)
    assert ran == list(range(1, 1000, 2))
    assert loop._cancelled_timers == 0


def test_deadlock_is_an_error_that_names_the_waiting_tasks() -> None:
    async def waits_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match=r"task-00000001 .*waits_for_ever"):
        run(waits_for_ever())


def test_collector_does_not_close_the_tasks_of_a_killed_host() -> None:
    """Otherwise a run would depend on when the collector closes them."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("closed")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.create_task(work(), context=host_context("b1"))  # noqa: RUF006 (nobody else has it)
        await asyncio.sleep(1)
        loop.drop_host("b1")
        gc.collect()
        assert ended == []

    run(main())


def test_failing_callback_ends_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 / 0)
        await asyncio.sleep(10)

    with pytest.raises(ZeroDivisionError):
        run(main())


async def ticking(ticks: list[float], every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        ticks.append(loop_now())


def two_hosts() -> tuple[VirtualLoop, list[float], list[float], list[asyncio.Task[None]]]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    one, two = list[float](), list[float]()
    tasks = [
        loop.create_task(ticking(ticks, 1), context=host_context(name))
        for name, ticks in (("one", one), ("two", two))
    ]
    return loop, one, two, tasks


@simulated
async def test_paused_host_runs_nothing_and_then_catches_up() -> None:
    loop, one, two, tasks = two_hosts()
    await asyncio.sleep(2.5)
    loop.pause_host("one")
    await asyncio.sleep(5)
    assert (one, two) == ([1, 2], [1, 2, 3, 4, 5, 6, 7])
    loop.resume_host("one")
    await asyncio.sleep(2)
    # It was asleep when stopped: its timer fires at once, and the gap shows in its clock.
    assert one == [1, 2, 7.5, 8.5]
    assert len(tasks) == 2


@simulated
async def test_dropped_host_never_runs_again() -> None:
    loop, one, two, tasks = two_hosts()
    await asyncio.sleep(2.5)
    loop.drop_host("one")
    tasks.append(loop.create_task(ticking(one, 10), context=host_context("one")))
    await asyncio.sleep(21)
    assert one == [1, 2, 12.5, 22.5]  # The new process of that host only.
    assert len(two) == 23
    assert len(tasks) == 3


def test_callbacks_with_a_duration_delay_later_callbacks_of_their_host_in_order() -> None:
    ran: list[tuple[str, float]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.set_cost("slow", lambda: 1.0)
        for name, host in (("a", "slow"), ("x", "other"), ("b", "slow"), ("c", "slow")):
            loop.call_soon(
                partial(lambda name: ran.append((name, loop.time())), name),
                context=host_context(host),
            )
        loop.call_later(1.5, loop.pause_host, "slow", context=host_context(""))
        loop.call_later(5.0, loop.resume_host, "slow", context=host_context(""))
        await asyncio.sleep(9.0)

    run(main())
    assert ran == [("a", 0.0), ("x", 0.0), ("b", 1.0), ("c", 5.0)]


@simulated
async def test_reading_the_stopwatch_counts_as_work() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.set_cost("slow", lambda: 1.0)
    seen: list[float] = []
    loop.call_soon(
        lambda: seen.extend(loop.stopwatch("slow") for _ in range(3)), context=host_context("slow")
    )
    await asyncio.sleep(9.0)
    assert seen == [1.0, 2.0, 3.0]
    assert loop.longest_s == {"slow": 4.0}
    assert loop.stopwatch("other") == 9.0

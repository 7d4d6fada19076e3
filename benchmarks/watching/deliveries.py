"""Many watchers of the same keys, and writes at a bounded rate: the time until the first and the
last watcher have each change, the servers' cost per delivered change, and the memory per watcher.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import uvloop

from benchmarks.stats import busy_s, latency_ms, resident_bytes, thread_cpu_s
from benchmarks.watching.watchers import Plan, mark

WATCHERS = (10, 1_000, 10_000)
DELIVERIES_PER_S = 4_000
"""Maximum number of deliveries per second, which determines the interval between writes."""
PERIOD_MIN_S, WRITES_MIN = 0.01, 10
PROCESSES = 2
SETTLE_S = 1.0
"""Pause in seconds between the last watcher's first response and the first measurement."""
IDLE_S = 3.0
"""Seconds for which the servers' idle CPU is measured."""
AFTER_S = 2.0
"""Seconds within which every watcher must receive the last change; otherwise the run fails."""
TOLD_MAX_BYTES = 16 << 20
"""Longest report from a watcher process, in bytes."""
VALUE_BYTES = 256


@dataclass(frozen=True, slots=True)
class Case:
    """A case. ``own_keys``: a write concerns one watcher instead of all. ``shared``: the watchers
    of one process at one server share a stream. ``laned``: each has a lane for its stream; the peer
    has none.
    """

    watchers: int
    own_keys: bool = False
    shared: bool = False
    laned: bool = False


CASES = (
    *map(Case, WATCHERS),
    Case(WATCHERS[-1], own_keys=True),
    *(Case(count, shared=True) for count in WATCHERS[1:]),
    *(Case(count, laned=True) for count in WATCHERS),
)
Write = Callable[[int, bytes], Awaitable[None]]
"""Function that writes a value under the key with this number, and returns when it is durable."""


@dataclass(frozen=True, slots=True)
class Served:
    """Addresses and requests for watchers. ``pids``: the servers that send them changes.
    ``all_pids``: the whole cluster.
    """

    addresses: Sequence[str]
    path: str
    request: bytes
    asked_once: bool
    pids: Sequence[int]
    all_pids: Sequence[int]
    shared: str = ""
    """See :class:`benchmarks.watching.watchers.Plan`."""


@asynccontextmanager
async def _watchers(served: Served, case: Case) -> AsyncIterator[list[Process]]:
    """Yield processes with a case's watchers, spread over the addresses. Raises RuntimeError."""
    count = case.watchers
    places = PROCESSES * len(served.addresses)
    shares = [count // places + (index < count % places) for index in range(places)]
    processes: list[Process] = []
    try:
        for index in range(PROCESSES):
            plan = Plan(
                list(served.addresses),
                shares[index * len(served.addresses) : (index + 1) * len(served.addresses)],
                served.path,
                served.request,
                served.asked_once,
                served.shared,
                first=sum(shares[: index * len(served.addresses)]),
                laned=case.laned,
            )
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.watching.watchers"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                limit=TOLD_MAX_BYTES,
            )
            processes.append(child)
            await _say(child, msgspec.json.encode(plan))
        for child in processes:
            if await _line(child) != b"ready":
                raise RuntimeError("a watcher process has exited")
        yield processes
    finally:
        for child in processes:
            if child.returncode is None:
                child.kill()
            await child.wait()


async def _say(child: Process, line: bytes) -> None:
    assert child.stdin is not None
    child.stdin.write(line + b"\n")
    await child.stdin.drain()


async def _line(child: Process) -> bytes:
    assert child.stdout is not None
    return (await child.stdout.readline()).strip()


async def _taken(processes: Sequence[Process]) -> dict[int, tuple[int, float, float]]:
    """Return for each change how many watchers received it, and the times of the first and the
    last. Raises RuntimeError.
    """
    found: dict[int, tuple[int, float, float]] = {}
    for child in processes:
        await _say(child, b"stop")
        out = await _line(child)
        if not out:
            raise RuntimeError("a watcher process has failed")
        rows = msgspec.json.decode(out, type=dict[int, tuple[int, float, float]])
        for number, (count, first, last) in rows.items():
            before = found.get(number, (0, first, last))
            found[number] = (before[0] + count, min(before[1], first), max(before[2], last))
    return found


def _memory(pids: Sequence[int]) -> int:
    return sum(map(resident_bytes, pids))


def _used_s(pids: Sequence[int]) -> float:
    return sum(map(thread_cpu_s, pids))


def each_case(
    measured: Callable[[Case], Coroutine[Any, Any, dict[str, Any]]], *, laned: bool
) -> list[dict[str, Any]]:
    """Return a row for each case. ``laned``: include those with lanes."""
    return [uvloop.run(measured(case)) for case in CASES if laned or not case.laned]


async def deliveries(served: Served, case: Case, write: Write, *, seconds: float) -> dict[str, Any]:
    """Measure one case. Raises RuntimeError if a watcher misses a change, receives one twice or out
    of order, or stops.
    """
    count, concerned = case.watchers, 1 if case.own_keys else case.watchers
    period_s = max(PERIOD_MIN_S, concerned / DELIVERIES_PER_S)
    writes = max(WRITES_MIN, round(seconds / period_s))
    for number in range(WRITES_MIN):
        await write(number, _value(number))
    memory = _memory(served.pids)
    async with _watchers(served, case) as processes:
        await asyncio.sleep(SETTLE_S)
        memory = _memory(served.pids) - memory
        idle_s = -_used_s(served.pids)
        idle_all_s = -_used_s(served.all_pids)
        await asyncio.sleep(IDLE_S)
        used_s, used_all_s = _used_s(served.pids), _used_s(served.all_pids)
        idle_s, idle_all_s = (idle_s + used_s) / IDLE_S, (idle_all_s + used_all_s) / IDLE_S
        watcher_pids = [child.pid for child in processes]
        own_s = _used_s(watcher_pids)
        others, begun = busy_s(), time.monotonic()
        sent: dict[int, float] = {}
        for number in range(WRITES_MIN, WRITES_MIN + writes):
            due = begun + (number - WRITES_MIN) * period_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sent[number] = time.monotonic()
            await write(number, _value(number))
        await asyncio.sleep(max(AFTER_S, period_s))
        took_s = time.monotonic() - begun
        used_s, used_all_s = _used_s(served.pids) - used_s, _used_s(served.all_pids) - used_all_s
        own_s = _used_s(watcher_pids) - own_s
        others = busy_s() - others - used_all_s - own_s
        seen = await _taken(processes)
    for number in sent:
        had = seen.get(number, (0, 0.0, 0.0))[0]
        if had != concerned:
            raise RuntimeError(f"{had} of {concerned} watchers had change {number}")
    told = concerned * writes
    return {
        "watchers": count,
        **({"own_keys": True} if case.own_keys else {}),
        **({"shared": True} if case.shared else {}),
        **({"laned": True} if case.laned else {}),
        "writes": writes,
        "writes_per_s": round(1 / period_s, 2),
        "first_from_send_ms": latency_ms([seen[n][1] - at for n, at in sent.items()]),
        "last_from_send_ms": latency_ms([seen[n][2] - at for n, at in sent.items()]),
        "cpu_us_per_delivery": round((used_s - idle_s * took_s) / told * 1e6, 1),
        "cpu_of_all_servers_us_per_delivery": round(
            (used_all_s - idle_all_s * took_s) / told * 1e6, 1
        ),
        "idle_cpu_percent": round(100 * idle_s, 1),
        "memory_kb_per_watcher": round(memory / count / 1000, 1),
        "watchers_cpu_us_per_delivery": round(own_s / told * 1e6, 1),
    }


def _value(number: int) -> bytes:
    return mark(number).ljust(VALUE_BYTES, b"x")

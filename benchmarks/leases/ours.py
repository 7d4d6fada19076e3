"""``leases``: many leases that are kept alive, locks and elections, through the library.

``etcd/main.go`` measures the same, step by step, with etcd's client and recipes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from benchmarks.nodes import Quorum
from benchmarks.stats import cpu_s, latency_ms
from raftlog.client.async_client import AsyncClient
from raftlog.client.leases import AsyncLease
from raftlog.recipes import AsyncElection, AsyncLock

LEASES, CLIENTS, IN_FLIGHT = 3_000, 100, 64
TTL_S, TTL_MIN_S = 10.0, 2.0
KEPT_EVERY_S = TTL_S / 4
SETTLE_S = KEPT_EVERY_S
"""Pause after the last grant, so that all leases are kept alive at their regular pace."""
CONTENDERS, CONTENDING_CLIENTS = 50, 10
DEATHS = 5
TIMEOUT_S = 60.0


class _Burnt:
    """The CPU time of the servers and of this process since this was created."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids, self._servers, self._own = pids, cpu_s(pids), time.process_time()
        self._begun = time.monotonic()

    def us_each(self, count: float) -> dict[str, float]:
        """Return the CPU time of the servers and of this process, in µs per operation."""
        servers, own = cpu_s(self._pids) - self._servers, time.process_time() - self._own
        return {
            "servers": round(servers / max(1.0, count) * 1e6, 1),
            "client": round(own / max(1.0, count) * 1e6, 1),
        }

    def seconds(self) -> float:
        """Return the seconds since this was created."""
        return time.monotonic() - self._begun


def leases(quorum: Quorum, seconds: float) -> dict[str, Any]:
    """Run all steps, one after the other."""
    addresses = [quorum.endpoint(name) for name in quorum.brokers]
    pids = [*quorum.pids, *quorum.broker_pids]
    return uvloop.run(_measured(addresses, pids, seconds))


async def _measured(addresses: list[str], pids: Sequence[int], seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for count in (1, CLIENTS):
        async with _clients(addresses, count) as clients:
            step = await _kept_alive(clients, pids, seconds)
        found["one client" if count == 1 else "many clients"] = step
    async with _clients(addresses, 1) as (client,):
        found["lock"] = await _uncontended(client, pids, seconds)
        found["election"] = await _deaths(client)
    async with _clients(addresses, CONTENDING_CLIENTS) as clients:
        found["hand-over"] = await _handed_over(clients, pids, seconds)
    return found


@asynccontextmanager
async def _clients(addresses: list[str], count: int) -> AsyncIterator[list[AsyncClient]]:
    """Open ``count`` clients, each starting with a different broker."""
    turns = [
        addresses[i % len(addresses) :] + addresses[: i % len(addresses)] for i in range(count)
    ]
    clients = [AsyncClient(turn, timeout_s=TIMEOUT_S) for turn in turns]
    try:
        yield clients
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def _each(count: int, work: Callable[[int], Awaitable[None]]) -> list[float]:
    """Run ``work`` for 0 to ``count`` - 1, IN_FLIGHT at a time; return the duration of each."""
    numbers, taken = iter(range(count)), []

    async def loop() -> None:
        for number in numbers:
            begun = time.perf_counter()
            await work(number)
            taken.append(time.perf_counter() - begun)

    await asyncio.gather(*(loop() for _ in range(IN_FLIGHT)))
    return taken


async def _kept_alive(
    clients: list[AsyncClient], pids: Sequence[int], seconds: float
) -> dict[str, Any]:
    held: list[AsyncLease] = []

    async def grant(number: int) -> None:
        held.append(await clients[number % len(clients)].leases.grant(TTL_S))

    burnt = _Burnt(pids)
    grants = await _each(LEASES, grant)
    granted_s, grant_us = burnt.seconds(), burnt.us_each(LEASES)
    await asyncio.sleep(SETTLE_S)
    burnt = _Burnt(pids)
    least_s = TTL_S
    await asyncio.sleep(max(seconds, 2 * KEPT_EVERY_S))
    kept_us = burnt.us_each(LEASES * burnt.seconds() / KEPT_EVERY_S)
    for _ in range(5):
        seen = await clients[0].leases.list()
        least_s = min(least_s, *(one.remaining_s for one in seen))
        await asyncio.sleep(KEPT_EVERY_S / 5)
    lost = sum(not one.is_held for one in held)
    burnt = _Burnt(pids)

    async def revoke(number: int) -> None:
        await held[number].revoke()

    revocations = await _each(LEASES, revoke)
    return {
        "leases": LEASES,
        "clients": len(clients),
        "grants_per_s": round(LEASES / granted_s),
        "grant_ms": latency_ms(grants),
        "cpu_us_per_grant": grant_us,
        "cpu_us_per_keep_alive": kept_us,
        "least_left_s": round(least_s, 2),
        "lost": lost,
        "revocations_per_s": round(LEASES / burnt.seconds()),
        "revocation_ms": latency_ms(revocations),
    }


async def _uncontended(client: AsyncClient, pids: Sequence[int], seconds: float) -> dict[str, Any]:
    acquired: list[float] = []
    released: list[float] = []
    burnt = _Burnt(pids)
    while burnt.seconds() < seconds:
        lock = AsyncLock(client, "alone", ttl_s=TTL_S)
        begun = time.perf_counter()
        await lock.acquire()
        has = time.perf_counter()
        await lock.release()
        acquired.append(has - begun)
        released.append(time.perf_counter() - has)
    return {
        "acquire_ms": latency_ms(acquired),
        "release_ms": latency_ms(released),
        "cpu_us_per_lock": burnt.us_each(len(acquired)),
    }


async def _handed_over(
    clients: list[AsyncClient], pids: Sequence[int], seconds: float
) -> dict[str, Any]:
    """Measure rounds in which the lock is held until all other clients wait, and then passes from
    one to the next.
    """
    taken: list[float] = []
    released_at = 0.0

    async def contend(number: int) -> None:
        nonlocal released_at
        lock = AsyncLock(clients[number % len(clients)], "contended", ttl_s=TTL_S)
        await lock.acquire()
        taken.append(time.perf_counter() - released_at)
        released_at = time.perf_counter()
        await lock.release()

    begun, burnt = time.monotonic(), _Burnt(pids)
    rounds = 0
    while time.monotonic() - begun < seconds:
        rounds += 1
        first = AsyncLock(clients[0], "contended", ttl_s=TTL_S)
        await first.acquire()
        contenders = [asyncio.create_task(contend(number)) for number in range(CONTENDERS)]
        while len(await clients[0].kv.list("locks/contended/", read="strict")) <= CONTENDERS:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)  # until the last one watches
        released_at = time.perf_counter()
        await first.release()
        await asyncio.gather(*contenders)
    return {
        "contenders": CONTENDERS,
        "hand_over_ms": latency_ms(taken),
        "cpu_us_per_lock": burnt.us_each(rounds * (CONTENDERS + 1)),
    }


async def _deaths(client: AsyncClient) -> dict[str, Any]:
    """Measure the time from a leader's last keep-alive of its lease until the next one leads."""
    taken: list[float] = []
    leader = AsyncElection(client, "deaths", "0", ttl_s=TTL_MIN_S)
    await leader.campaign()
    for number in range(DEATHS):
        candidate = AsyncElection(client, "deaths", str(number + 1), ttl_s=TTL_MIN_S)
        campaign = asyncio.create_task(candidate.campaign())
        await asyncio.sleep(TTL_MIN_S * (1 + number / DEATHS))
        begun = time.perf_counter()
        leader.abandon()
        await campaign
        taken.append(time.perf_counter() - begun)
        leader = candidate
    await leader.resign()
    return {"ttl_s": TTL_MIN_S, "dead_until_led_ms": latency_ms(taken)}

"""Clients of the key-value store and configs: conditional changes, leases, and a lock.
``checks/compared.py`` and ``checks/held.py`` judge the results.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Any

import raftlog
from raftlog.client.leases import BELIEVED_SHARE
from raftlog.errors import ApiError, ErrorCode, RaftlogError
from raftlog.recipes import AsyncDoubleBarrier, AsyncLock, PlaceLostError
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import fail
from simulation.checks.held import GUARDED, LOCK, MEETING, MEETING_SIZE
from simulation.round_robin import PinnedClient
from simulation.world import Actors, World

KEEPER, LOCKER = "keeper", "locker"
KEYS = 2
"""Number of keys of each kind that all hosts compare and set."""
CONFIG_KEY = "metrics"
TTL_MS = (400, 1_000, 3_000)
TROUBLES_PER_S = 0.3
"""Rate of pauses and cuts of each host."""
TIMEOUT_S = 2.0
DELETE_SHARE = 0.2
THINKS_SHARE = 0.5
"""Share of the changes before which the client waits, so that another client may be faster."""
READS = ("latest", "repeatable", "strict")
CONFIG_SHARE = 0.3
REMEMBERED = 20
"""Number of former locks and leases that a host still tries to use."""


class Keepers(Actors):
    """All keepers and lockers; without brokers none."""

    def __init__(self, world: World) -> None:
        config = world.config
        counts = (config.keepers, config.lockers) if world.members else (0, 0)
        self._keepers, self._lockers = (
            [Keeper(world, prefix, number) for number in range(count)]
            for prefix, count in zip((KEEPER, LOCKER), counts, strict=True)
        )
        super().__init__(world, *(each.host for each in (*self._keepers, *self._lockers)))
        self._holding: list[asyncio.Task[Any]] = []

    def begin(self) -> None:
        for each in self._keepers:
            self._begin(each.compare(), each, self._tasks)
            self._begin(each.keep_leases(), each, self._holding)
        for each in self._lockers:
            self._begin(each.take_turns(), each, self._holding)
            self._begin(each.meet(), each, self._tasks)
        for each in (*self._keepers, *self._lockers):
            # Of the world: a host that stands still cannot go on by itself.
            self._holding.append(self._world.spawn(each.suffer(), f"{each.host} suffers"))

    def _begin(
        self, work: Coroutine[Any, Any, None], of: Keeper, tasks: list[asyncio.Task[Any]]
    ) -> None:
        tasks.append(self._world.spawn(work, of.host, of.host))

    @property
    def believe_s(self) -> float:
        """Longest time in seconds for which a client may rely on a lock that it has lost."""
        slowest = 1 + self._world.config.drift
        return max(TTL_MS) / 1000 * BELIEVED_SHARE * slowest if self._lockers else 0.0

    def stop(self) -> None:
        """Start no more operations. Before a recovery, clients with leases and locks continue."""
        for task in self._tasks:
            task.cancel()
        if not self._world.config.recovery:
            self.let_go()

    def let_go(self) -> None:
        for task in self._holding:
            task.cancel()


class Keeper:
    """A host with keepers. Each client on it is a program of its own."""

    def __init__(self, world: World, prefix: str, number: int) -> None:
        self._world, self.host = world, f"{prefix}{number}"
        self._pinned = number % 3 != 2
        """True if the host sends its keep-alives to one controller only."""
        self._count = 0
        self._past: deque[Any] = deque(maxlen=REMEMBERED)
        """Former locks and leases, in runs with a recovery."""

    def _client(self, purpose: str, **options: Any) -> raftlog.AsyncClient:
        return raftlog.AsyncClient.over(
            lambda: self._world.network.transport_for(self.host),
            [member.endpoint for member in self._world.members],
            rng=self._world.rng(f"{purpose} {self.host} client"),
            timeout_s=TIMEOUT_S,
            **options,
        )

    async def suffer(self) -> None:
        rng, network = self._world.rng(f"troubles {self.host}"), self._world.network
        while True:
            await asyncio.sleep(rng.expovariate(TROUBLES_PER_S))
            lasts_s = rng.uniform(0.1, 4.0)
            names = [broker.name for broker in self._world.brokers]
            try:
                if rng.random() < 0.4:
                    network.pause(self.host)
                else:
                    for name in names:
                        network.partition(self.host, name)
                await asyncio.sleep(lasts_s)
            finally:
                network.resume(self.host)
                for name in names:
                    network.heal(self.host, name)

    async def compare(self) -> None:
        """Repeatedly read a key, and write it on the condition that it has not changed since."""
        rng = self._world.rng(f"compare {self.host}")
        client = self._client("compare", exactly_once=rng.choice((True, False)))
        while True:
            await asyncio.sleep(rng.expovariate(6.0))
            number = rng.randrange(KEYS)
            if rng.random() < CONFIG_SHARE:
                await self._compare_config(client, f"compared-{number}", rng)
            else:
                await self._compare_key(client, f"compared/{number}", rng)

    async def _compare_key(self, client: raftlog.AsyncClient, key: str, rng: Any) -> None:
        try:
            found = await client.kv.get(key, read=rng.choice(READS))
        except ApiError:
            return
        if rng.random() < THINKS_SHARE:
            await asyncio.sleep(rng.expovariate(5.0))
        expected = raftlog.ABSENT if found is None else found.offset
        value = self._next_value(rng, there=found is not None)
        work = (
            client.kv.put(key, value, expected=expected)
            if value
            else client.kv.delete(key, expected=expected)
        )
        await self._carry_out(f"kv:{key}", value, expected, work)

    async def _compare_config(self, client: raftlog.AsyncClient, name: str, rng: Any) -> None:
        try:
            found = (await client.configs.describe("client-metrics", name, keys=[CONFIG_KEY])).get(
                CONFIG_KEY
            )
        except ApiError:
            return
        expected = None if found is None or found.is_default else found.value
        value = self._next_value(rng, there=expected is not None)
        what: Any = {"set": {CONFIG_KEY: value}} if value else {"delete": [CONFIG_KEY]}
        work = client.configs.alter("client-metrics", name, expected={CONFIG_KEY: expected}, **what)
        await self._carry_out(f"config:{name}", value, expected, work)

    def _next_value(self, rng: Any, *, there: bool) -> str:
        """Return a value that nobody has written; empty to delete the key."""
        self._count += 1
        return "" if there and rng.random() < DELETE_SHARE else f"{self.host}.{self._count}"

    async def _carry_out(
        self, key: str, value: str, expected: str | int | None, work: Coroutine[Any, Any, Any]
    ) -> None:
        operation = self._world.operation(
            client=self.host, kind="compare", key=key, value=value, expected=expected
        )
        try:
            result = await work
        except ApiError as error:
            operation.refused(error)
        else:
            operation.outcome = "ok"
            operation.offset = -1 if result.token is None else result.offset
        self._world.answered(operation)

    async def keep_leases(self) -> None:
        """Hold one lease after another, each with a key, and report confirmed keep-alives."""
        rng = self._world.rng(f"keys {self.host}")
        client, pinned = self._client("keys"), _Pinned(self._world, self.host)
        while True:
            await asyncio.sleep(rng.expovariate(2.0))
            ttl_ms = rng.choice(TTL_MS)
            sent_at = self._world.now()
            try:
                lease = await client.leases.grant(ttl_ms / 1000, name=self.host)
            except ApiError as error:
                await _begin_anew(client, error)
                continue
            # Its own keeping is not what is looked at here.
            lease.abandon()
            keep_alive: Any = pinned.keep_alive
            if not self._pinned:
                keep_alive = partial(_through_brokers, client)
            self._confirmed(lease.id, sent_at, ttl_ms)
            with contextlib.suppress(ApiError):
                await client.kv.put(f"live/{self.host}", "here", lease_id=lease.id)
            for _ in range(rng.randrange(4 if self._world.config.recovery else 40)):
                await asyncio.sleep(rng.uniform(0.1, 0.9) * ttl_ms / 1000)
                sent_at = self._world.now()
                try:
                    await keep_alive(lease.id, ttl_ms / 1000)
                except ApiError as error:
                    if error.code is ErrorCode.RESOURCE_NOT_FOUND:
                        break
                else:
                    self._confirmed(lease.id, sent_at, ttl_ms)
            await self._look_at_leases(client)
            if rng.random() < 0.3:
                with contextlib.suppress(ApiError):
                    await client.leases.revoke(lease.id)
            await self._keep_one_of_the_past(client, lease.id, ttl_ms)

    async def _look_at_leases(self, client: raftlog.AsyncClient) -> None:
        """Raise CheckFailedError if a lease has more time left than its TTL."""
        with contextlib.suppress(ApiError):
            for lease in await client.leases.list():
                if lease.remaining_s > lease.ttl_s:
                    fail(f"I31: lease {lease.id} of {lease.ttl_s} s has {lease.remaining_s} s left")

    async def _keep_one_of_the_past(
        self, client: raftlog.AsyncClient, lease_id: raftlog.LogOffset, ttl_ms: int
    ) -> None:
        """Send keep-alives for leases of a former log: their ids may belong to other leases now."""
        if not self._world.config.recovery:
            return
        self._past.append((lease_id, ttl_ms))
        for old_id, old_ttl_ms in self._past:
            sent_at = self._world.now()
            with contextlib.suppress(ApiError):
                await client.leases.keep_alive(old_id, timeout_s=0.5)
                self._confirmed(old_id, sent_at, old_ttl_ms)

    def _confirmed(self, lease_id: int, sent_at: float, ttl_ms: int) -> None:
        self._world.watch.tell("lease_confirmed", self.host, lease_id, sent_at, ttl_ms)

    async def take_turns(self) -> None:
        """Repeatedly acquire the lock, use what it guards, and release it or, as in a crash, forget
        it.
        """
        rng = self._world.rng(f"turns {self.host}")
        client = self._client("turns")
        while True:
            await asyncio.sleep(rng.expovariate(2.0))
            lock = AsyncLock(client, LOCK, ttl_s=rng.choice(TTL_MS) / 1000, value=self.host)
            try:
                if not await lock.acquire(timeout_s=5.0):
                    continue
            except PlaceLostError:
                continue
            except ApiError as error:
                await _begin_anew(client, error)
                continue
            self._world.watch.tell("lock_taken", self.host, lock)
            for _ in range(rng.choice((0, 1, 3, 8, 20))):
                # Between the look and the use nothing is awaited: what a pause does to that, the
                # token is for.
                if lock.is_held:
                    self._world.watch.tell("lock_used", self.host, lock)
                await self._use_guarded(client, lock)
                await asyncio.sleep(rng.expovariate(4.0))
            if rng.random() < 0.3:
                lock.abandon()
            else:
                with contextlib.suppress(RaftlogError):
                    await lock.release()

    async def _use_guarded(self, client: raftlog.AsyncClient, lock: AsyncLock) -> None:
        """Change the guarded key under current and former locks, without checking whether they are
        held.
        """
        if not self._world.config.recovery:
            return
        says = f"{self.host} {lock.generation} {lock.token}"
        if (lock.guard(), says) not in self._past:
            self._past.append((lock.guard(), says))
        for guard, said in (self._past[-1], *list(self._past)[:-1]):
            try:
                await client.kv.alter(guard, raftlog.Put(GUARDED, said), timeout_s=0.5)
            except ApiError as error:
                await _begin_anew(client, error)

    async def meet(self) -> None:
        """Repeatedly enter the double barrier, and leave it or vanish as in a crash."""
        rng = self._world.rng(f"meets {self.host}")
        client = self._client("meets")
        while True:
            await asyncio.sleep(rng.expovariate(2.0))
            ttl_s = rng.choice(TTL_MS) / 1000
            barrier = AsyncDoubleBarrier(client, MEETING, MEETING_SIZE, ttl_s=ttl_s)
            try:
                if not await barrier.enter(timeout_s=rng.choice((0.2, 1.0, 5.0))):
                    continue
            except (PlaceLostError, ApiError):
                continue
            self._world.watch.tell("group_entered", self.host, barrier.key)
            await asyncio.sleep(rng.expovariate(4.0))
            if rng.random() < 0.3:
                barrier.abandon()
            else:
                with contextlib.suppress(RaftlogError):
                    await barrier.leave(timeout_s=5.0)


async def _begin_anew(client: raftlog.AsyncClient, error: ApiError) -> None:
    if error.code is ErrorCode.INCONSISTENT_GENERATION:
        await client.forget()


async def _through_brokers(client: raftlog.AsyncClient, lease_id: int, timeout_s: float) -> None:
    await client.leases.keep_alive(lease_id, timeout_s=timeout_s)


class _Pinned:
    """A client that asks one controller as long as that confirms, whichever leads."""

    def __init__(self, world: World, host: str) -> None:
        transport = world.network.transport_for(host)
        self._rng = world.rng(f"pinned {host}")
        self._clients = [
            PinnedClient(transport, [each.endpoint], rng=world.rng(f"pinned {host} {each.name}"))
            for each in world.controllers
        ]
        self._asked = self._clients[0]

    async def keep_alive(self, lease_id: raftlog.LogOffset, timeout_s: float) -> None:
        body = pb.KeepLeaseAliveRequest(lease_id=lease_id, generation=lease_id.generation)
        for client in (self._asked, *self._rng.sample(self._clients, len(self._clients))):
            self._asked = client
            try:
                await client.call(body, timeout_s=timeout_s)
            except ApiError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER:
                    raise
            else:
                return
        raise ApiError(ErrorCode.NOT_CONTROLLER, "nobody leads")

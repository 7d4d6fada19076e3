"""Locks, elections and barriers on a simulated cluster."""

import asyncio
import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from scenarios import scenario
from simulated_cluster import Cluster, client_beside_a_lagging_broker, on_cluster

import raftlog
from raftlog import errors, recipes
from raftlog.client.blocking import Attribute
from raftlog.client.core import Core
from raftlog.client.leases import AsyncLease, AsyncLeases
from raftlog.errors import ErrorCode
from raftlog.recipes import (
    AsyncBarrier,
    AsyncDoubleBarrier,
    AsyncElection,
    AsyncLock,
    Leader,
    PlaceLostError,
)
from raftlog.recipes.place import until_gone


async def lock_key(client: raftlog.AsyncClient, lock: AsyncLock) -> raftlog.KeyValue:
    """Return a lock's key as another client finds it."""
    found = await client.kv.get(lock.key, read="strict")
    assert found is not None
    return found


async def lease_of(client: raftlog.AsyncClient, lock: AsyncLock) -> int:
    """Return the lease id of a lock's key."""
    lease_id = (await lock_key(client, lock)).lease_id
    assert lease_id is not None
    return lease_id


def test_lock_has_one_holder_at_a_time_in_order_of_arrival() -> None:
    async def test(cluster: Cluster) -> None:
        order: list[int] = []
        tokens: list[int] = []
        inside = 0

        async def worker(number: int) -> None:
            nonlocal inside
            async with cluster.client(f"w{number}") as client:
                await asyncio.sleep(number * 0.1)
                async with AsyncLock(client, "orders") as lock:
                    inside += 1
                    assert (inside, lock.is_held) == (1, True)
                    order.append(number)
                    tokens.append(lock.token)
                    await asyncio.sleep(2.0)
                    inside -= 1

        await asyncio.gather(*(worker(number) for number in range(5)))
        assert order == list(range(5))
        assert tokens == sorted(set(tokens))

    on_cluster(test)


@scenario(on_cluster)
async def test_lock_that_was_never_held_guards_nothing(cluster: Cluster) -> None:
    async with cluster.client() as client:
        lock = AsyncLock(client, "l")
        with pytest.raises(PlaceLostError, match="lock l is not held: acquire"):
            lock.guard()
        await lock.acquire()
        with pytest.raises(errors.RaftlogError, match=r"lock l is already held .* not reentrant"):
            await lock.acquire(timeout_s=1)
        assert lock.is_held
        await lock.release()
        both = await asyncio.gather(lock.acquire(), lock.acquire(), return_exceptions=True)
        assert [type(one) for one in both] == [bool, errors.RaftlogError]
        await lock.release()
        assert await client.leases.list() == []
        await lock.acquire()
        await lock.release()
        # The guard of a lock that is over stays, and never holds again.
        with pytest.raises(errors.InvalidUpdateVersionError):
            await client.kv.alter(lock.guard(), raftlog.Put("k", "late"))


def test_only_the_next_waiter_reads_when_the_holder_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(cluster: Cluster) -> None:
        async with cluster.client() as client:
            holder = AsyncLock(client, "l")
            await holder.acquire()
            waiting = [AsyncLock(client, "l") for _ in range(6)]
            tasks = []
            for lock in waiting:
                tasks.append(asyncio.ensure_future(lock.acquire()))
                await asyncio.sleep(0.2)
            looks = 0
            listing = client.kv.list

            async def counted(*args: Any, **kwargs: Any) -> list[raftlog.KeyValue]:
                nonlocal looks
                looks += 1
                return await listing(*args, **kwargs)

            monkeypatch.setattr(client.kv, "list", counted)
            await holder.release()
            assert await tasks[0]
            await asyncio.sleep(1.0)
            assert (looks, [task.done() for task in tasks]) == (1, [True] + [False] * 5)
            # One in the middle of the queue goes: the one behind it waits for another one.
            tasks[3].cancel()
            await asyncio.sleep(1.0)
            assert (looks, tasks[4].done()) == (2, False)
            for lock, task in zip(waiting, tasks, strict=True):
                if lock is not waiting[3]:
                    assert await task
                    await lock.release()
            assert await client.kv.list("locks/", read="strict") == []

    on_cluster(test)


@scenario(on_cluster)
async def test_acquire_that_times_out_leaves_no_key(cluster: Cluster) -> None:
    async with cluster.client("a") as one, cluster.client("b") as other:
        async with AsyncLock(one, "l") as lock:
            assert not await AsyncLock(other, "l").acquire(timeout_s=1.0)
            assert [each.key for each in await one.kv.list("locks/", read="strict")] == [lock.key]
        again = AsyncLock(other, "l")
        assert await again.acquire(timeout_s=1.0)
        assert again.token > lock.token
        assert not lock.is_held


@scenario(on_cluster)
async def test_lock_of_a_dead_holder_goes_to_the_next_after_its_ttl(cluster: Cluster) -> None:
    dead = AsyncLock(cluster.client("dead"), "l", ttl_s=5.0)
    assert await dead.acquire()
    dead._place.lease._keeper._task.cancel()  # it says nothing more
    begun = cluster.loop.time()
    async with cluster.client("next") as client, AsyncLock(client, "l") as lock:
        assert 4.5 < (cluster.loop.time() - begun) < 6.0
        assert not dead.is_held
        assert "no keep-alive was confirmed" in dead._place.lease.why_lost
        # What the dead one would still write is refused by its token.
        with pytest.raises(errors.InvalidUpdateVersionError):
            await client.kv.alter(dead.guard(), raftlog.Put("data", "late"))
        await client.kv.alter(lock.guard(), raftlog.Put("data", "fresh"))
        found = await client.kv.get("data")
        assert found is not None
        assert found.text == "fresh"


@scenario(on_cluster)
async def test_abandoning_leader_stops_leading_and_is_succeeded_later(cluster: Cluster) -> None:
    async with cluster.client("old") as old, cluster.client("new") as new:
        leader, next_one = AsyncElection(old, "e", ttl_s=5.0), AsyncElection(new, "e")
        await leader.campaign()
        guard, begun = leader.guard(), cluster.loop.time()
        leader.abandon()
        assert not leader.is_leader
        await next_one.campaign()
        assert 4.5 < cluster.loop.time() - begun < 6.0
        with pytest.raises(errors.InvalidUpdateVersionError):
            await old.kv.alter(guard, raftlog.Put("data", "late"))


@scenario(on_cluster)
async def test_lost_lock_is_reported_to_its_holder(cluster: Cluster) -> None:
    async with cluster.client("a") as one, cluster.client("b") as other:
        lock = AsyncLock(one, "l", ttl_s=4.0)
        await lock.acquire()
        await other.leases.revoke(await lease_of(other, lock))
        assert await lock.wait_lost(3.0)
        assert not lock.is_held
        waiting = AsyncLock(other, "l", ttl_s=4.0)
        holder = AsyncLock(one, "l")
        await holder.acquire()
        task = asyncio.ensure_future(waiting.acquire())
        await asyncio.sleep(1.0)
        # It has a key in the queue, and a lease that lives, and no lock.
        assert waiting.key
        assert (holder.is_held, waiting.is_held) == (True, False)
        await one.leases.revoke(await lease_of(one, waiting))
        with pytest.raises(PlaceLostError):
            await task
        await holder.release()


@scenario(on_cluster)
async def test_release_of_a_lost_lock_is_silent_at_the_end_of_its_block(cluster: Cluster) -> None:
    async with cluster.client("a", timeout_s=0.5) as client:
        lock, block = AsyncLock(client, "l", ttl_s=4.0), AsyncLock(client, "m", ttl_s=4.0)
        await lock.acquire()
        async with block:
            for member in cluster.members:
                member.kill()  # Nobody is asked to end what is lost.
            assert await lock.wait_lost(4.0)
            assert await block.wait_lost(4.0)
        await lock.release()


@pytest.mark.parametrize("after_s", [0.0, 0.0003, 0.001, 0.004, 1.0])
@pytest.mark.parametrize("what", ["lock", "double barrier"])
@scenario(on_cluster)
async def test_closing_the_client_ends_an_acquire_and_leaves_the_queue(
    cluster: Cluster, *, what: str, after_s: float
) -> None:
    """[Its key stayed in the queue until the lease ended.]"""
    async with cluster.client("a") as one, cluster.client("b") as other:
        await AsyncLock(other, "l").acquire()
        await one.kv.list("locks/")
        lock, barrier = AsyncLock(one, "l", ttl_s=600.0), AsyncDoubleBarrier(one, "l", 2)
        taking = lock.acquire() if what == "lock" else barrier.enter()
        waiting = asyncio.ensure_future(taking)
        await asyncio.sleep(after_s)
        await one.close()
        with pytest.raises(errors.ClientClosedError):
            await waiting
        assert len(await other.kv.list("locks/", read="strict")) == 1
        assert await other.kv.list("double_barriers/", read="strict") == []
        assert len(await other.leases.list()) == 1


@scenario(on_cluster)
async def test_lost_lock_can_be_acquired_again(cluster: Cluster) -> None:
    """[It was lost with the connection, and the object reported forever that it is held.]"""
    async with cluster.client("a") as one, cluster.client("b") as other:
        lock = AsyncLock(one, "l", ttl_s=4.0)
        await lock.acquire()
        token = lock.token
        await other.leases.revoke(await lease_of(other, lock))
        assert await lock.wait_lost(3.0)
        assert await lock.acquire(timeout_s=1.0)
        assert lock.is_held
        assert lock.token > token
        with pytest.raises(errors.RaftlogError, match="not reentrant"):
            await lock.acquire()
        await lock.release()
        assert await one.kv.list("locks/", read="strict") == []


@scenario(on_cluster)
async def test_cancelled_acquire_leaves_no_contender(cluster: Cluster) -> None:
    """[Cancelled while its key was in flight, it stayed in the queue until its lease ended.]"""
    async with cluster.client("a") as one, cluster.client("b") as other:
        async with AsyncLock(one, "l"):
            for number in range(40):
                task = asyncio.ensure_future(AsyncLock(other, "l", ttl_s=600.0).acquire())
                await asyncio.sleep(number * 0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await asyncio.sleep(1.0)
            assert len(await one.kv.list("locks/", read="strict")) == 1
        async with AsyncLock(one, "l"):
            pass


@scenario(on_cluster)
async def test_lock_whose_response_is_lost_has_one_place(cluster: Cluster) -> None:
    """[The server created the place, the client retried under another name, and waited for itself.]"""
    async with cluster.client("a") as one, cluster.client("b") as other:
        await one.kv.put("k", "v")
        tokens: list[int] = []
        for number in range(20):
            lock = AsyncLock(one, "l", ttl_s=600.0)
            task = asyncio.ensure_future(lock.acquire())
            await asyncio.sleep(number * 0.001)
            for member in cluster.members:
                cluster.network.partition("a", member.name)
            await asyncio.sleep(0.5)
            for member in cluster.members:
                cluster.network.heal("a", member.name)
            assert await task
            assert lock.is_held
            (place,) = await other.kv.list("locks/", read="strict")
            assert (place.key, place.create_offset) == (lock.key, lock.token)
            tokens.append(lock.token)
            await lock.release()
        assert tokens == sorted(set(tokens))
        assert await other.leases.list() == []


@scenario(on_cluster)
async def test_contenders_take_turns_while_leaders_die(cluster: Cluster) -> None:
    """[After a change of the leader each waited for the other, and none for the lock.]"""
    turns: list[tuple[int, str]] = []
    inside = 0

    async def contend(name: str) -> None:
        nonlocal inside
        async with cluster.client(name) as client:
            while True:
                async with AsyncLock(client, "l", ttl_s=30.0) as lock:
                    inside += 1
                    assert inside == 1
                    turns.append((lock.token, name))
                    await asyncio.sleep(0.05)
                    inside -= 1

    tasks = [asyncio.ensure_future(contend(name)) for name in ("a", "b", "c")]
    for _ in range(2):
        await asyncio.sleep(2.0)
        leader = next(one for one in cluster.controllers if one.service is cluster.active())
        leader.kill("test")
        more = partial(lambda count: len(turns) > count, len(turns) + 6)
        await cluster.until(more, 20, "all go on")
        leader.start()
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended
    assert turns == sorted(turns)
    assert {name for _, name in turns[-6:]} == {"a", "b", "c"}


@scenario(on_cluster)
async def test_block_of_a_lost_lock_ends_though_no_server_answers(cluster: Cluster) -> None:
    async with cluster.client("a") as one:
        async with AsyncLock(one, "l", ttl_s=4.0) as lock:
            for host in cluster.fleet.hosts():
                host.kill("test")
            await lock.wait_lost()
            begun = cluster.loop.time()
        assert cluster.loop.time() - begun < 1.0


@scenario(on_cluster)
async def test_failed_release_can_be_retried(
    cluster: Cluster, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[The second one did nothing, and the next holder waited for the whole lease.]"""
    write, failed = Core.write, errors.UnknownOutcomeError(ErrorCode.REQUEST_TIMED_OUT, "late")

    async def fail(*_: Any, **__: Any) -> None:
        raise failed

    async with cluster.client("a") as client:
        lock, election = AsyncLock(client, "l"), AsyncElection(client, "l")
        barrier = AsyncDoubleBarrier(client, "l", 1)
        for take, leave in (
            (lock.acquire, lock.release),
            (election.campaign, election.resign),
            (barrier.enter, barrier.leave),
        ):
            assert await take()
            monkeypatch.setattr(Core, "write", fail)
            with pytest.raises(errors.UnknownOutcomeError):
                await leave()
            monkeypatch.setattr(Core, "write", write)
            assert len(await client.leases.list()) == 1
            await leave()
            assert await client.leases.list() == []


@scenario(on_cluster)
async def test_election_has_one_leader_whom_everybody_sees(cluster: Cluster) -> None:
    seen: list[str | None] = []
    async with cluster.client("a") as one, cluster.client("b") as other:
        observer = AsyncElection(cluster.client("o"), "e")

        async def observe() -> None:
            async for leader in observer.observe():
                said = None if leader is None else leader.value
                seen.append(said)

        watching = asyncio.ensure_future(observe())
        await asyncio.sleep(0.5)
        first, second = AsyncElection(one, "e", "one"), AsyncElection(other, "e", "two")
        assert await first.campaign()
        assert first.is_leader
        task = asyncio.ensure_future(second.campaign())
        await asyncio.sleep(0.5)
        assert not task.done()
        await first.proclaim("one, still")
        found = await second.leader()
        assert found is not None
        assert (found.value, found.token) == ("one, still", first.token)
        await first.resign()
        assert await task
        assert second.is_leader
        assert second.token > first.token
        await second.resign()
        await asyncio.sleep(0.5)
        watching.cancel()
        assert seen == [None, "one", "one, still", "two", None]
        with pytest.raises(PlaceLostError):
            await second.proclaim("late")


@scenario(on_cluster)
async def test_barrier_holds_until_it_is_lifted(cluster: Cluster) -> None:
    async with cluster.client("a") as one, cluster.client("b") as other:
        barrier, theirs = AsyncBarrier(one, "b"), AsyncBarrier(other, "b")
        assert await theirs.wait(1.0)
        await barrier.hold()
        assert not await theirs.wait(1.0)
        task = asyncio.ensure_future(theirs.wait())
        await asyncio.sleep(1.0)
        assert not task.done()
        await barrier.lift()
        assert await asyncio.wait_for(task, 2.0)
        await barrier.lift()


@scenario(on_cluster)
async def test_observer_of_an_election_sees_each_leader_of_its_watch(cluster: Cluster) -> None:
    """Also when it reads at a broker that lags behind the one it watches at."""
    async with cluster.client("a") as leading:
        election = AsyncElection(leading, "e", "one")
        leaders = AsyncElection(client_beside_a_lagging_broker(cluster, 2.0), "e").observe()
        assert await anext(leaders) is None
        await election.campaign()
        leader = await asyncio.wait_for(anext(leaders), 5.0)
        assert leader is not None
        assert leader.value == "one"
        await leaders.aclose()
        await election.resign()


@scenario(on_cluster)
async def test_held_barrier_is_seen_at_a_lagging_broker(cluster: Cluster) -> None:
    beside = client_beside_a_lagging_broker(cluster, 2.0)
    async with cluster.client("a") as client:
        await AsyncBarrier(client, "b").hold()
        assert not await AsyncBarrier(beside, "b").wait(4.0)


@scenario(on_cluster)
async def test_wait_for_an_already_deleted_key_ends_at_a_lagging_broker(cluster: Cluster) -> None:
    async with cluster.client("a") as client:
        await client.kv.put("k", "v", acks="visible")
        beside = client_beside_a_lagging_broker(cluster, 2.0)
        await client.kv.delete("k")
        await asyncio.wait_for(until_gone(beside, "k"), 6.0)


@scenario(on_cluster)
async def test_barrier_wait_raises_when_its_watch_is_closed(
    cluster: Cluster, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as client:
        barrier, begun = AsyncBarrier(client, "b"), client.watch
        await barrier.hold()
        watches: list[Any] = []

        def watched(*selectors: str, **options: Any) -> Any:
            watches.append(begun(*selectors, **options))
            return watches[-1]

        monkeypatch.setattr(client, "watch", watched)
        task = asyncio.ensure_future(barrier.wait())
        await asyncio.sleep(1.0)
        assert not task.done()
        await watches[0].close()
        with pytest.raises(errors.ClientClosedError):
            await asyncio.wait_for(task, 2.0)


@scenario(on_cluster)
async def test_names_that_are_prefixes_of_each_other_are_independent(cluster: Cluster) -> None:
    async with cluster.client() as client:
        async with AsyncLock(client, "a/b"):
            for name in ("a", "a/b/c", "a/00000000000000000001"):
                lock = AsyncLock(client, name)
                assert await lock.acquire(timeout_s=5.0)
                await lock.release()
        other = AsyncElection(client, "svc/eu", "eu")
        await other.campaign()
        election = AsyncElection(client, "svc", "all")
        assert await election.leader() is None
        assert await election.campaign(timeout_s=0)
        assert (await election.leader(), await other.leader()) == (
            Leader("all", election.token, election.key),
            Leader("eu", other.token, other.key),
        )
        await AsyncBarrier(client, "a/b").hold()
        assert await AsyncBarrier(client, "a").wait(timeout_s=0)
        one = AsyncDoubleBarrier(client, "step/waiting", 1)
        assert await one.enter(timeout_s=0)
        assert not await AsyncDoubleBarrier(client, "step", 2).enter(timeout_s=1.0)
        assert await one.leave(timeout_s=0)


@scenario(on_cluster)
async def test_recipes_try_once_when_their_timeout_is_zero(cluster: Cluster) -> None:
    async with cluster.client("a") as client, cluster.client("b") as late:
        for timeout_s in (0, 0.0005, -1):
            lock, election = AsyncLock(client, "l"), AsyncElection(client, "e")
            assert await lock.acquire(timeout_s)
            assert await election.campaign(timeout_s)
            assert not await AsyncLock(late, "l").acquire(timeout_s)
            assert not await AsyncElection(late, "e").campaign(timeout_s)
            assert not await lock.wait_lost(timeout_s)
            await lock.release()
            await election.resign()
            barrier = AsyncBarrier(client, "b")
            assert await barrier.wait(timeout_s)
            await barrier.hold()
            assert not await AsyncBarrier(late, "b").wait(timeout_s)
            await barrier.lift()
            first, second = (AsyncDoubleBarrier(one, "d", 2) for one in (client, late))
            entering = asyncio.ensure_future(first.enter())
            await asyncio.sleep(1.0)
            assert await second.enter(timeout_s)
            assert await entering
            assert not await first.leave(timeout_s)
            assert await second.leave(timeout_s)
        assert await client.leases.list() == []


def test_each_recipe_has_a_blocking_twin_with_the_same_arguments() -> None:
    for name in ("Lock", "Election", "Barrier", "DoubleBarrier"):
        asynchronous, twin = getattr(recipes, f"Async{name}"), getattr(recipes, name)
        for method, what in inspect.getmembers(asynchronous):
            if method.startswith("_"):
                continue
            if not callable(what):
                assert isinstance(getattr(twin, method), Attribute), (name, method)
                continue
            ours = inspect.signature(getattr(twin, method)).parameters
            assert ours == inspect.signature(what).parameters, (name, method)


def test_recipe_name_must_be_a_valid_key_part() -> None:
    """[The cluster refused the key with its own message, and the lease stayed until it ended.]"""
    client = raftlog.AsyncClient("127.0.0.1:1")
    makers: list[Callable[[str], object]] = [
        lambda name: AsyncLock(client, name),
        lambda name: AsyncElection(client, name),
        lambda name: AsyncBarrier(client, name),
        lambda name: AsyncDoubleBarrier(client, name, 2),
    ]
    for make in makers:
        for name in ("", "a b", "ü", "/a", "a/", "a//b", "a,b", "x" * 10_000):
            with pytest.raises(
                ValueError, match=r"is not a valid (lock|election|.*barrier) name: "
            ):
                make(name)
        with pytest.raises(ValueError, match="it is empty"):
            make("")
        for name in ("a", "a/b", "job:1@host"):
            make(name)


@scenario(on_cluster)
async def test_refused_place_leaves_no_lease_behind(cluster: Cluster) -> None:
    async with cluster.client() as client:
        with pytest.raises(errors.InvalidRequestError):
            await AsyncLock(client, "l", value="x" * 20_000).acquire()
        assert await client.leases.list() == []


@scenario(on_cluster)
async def test_free_lock_is_acquired_by_one_write_and_no_read(
    cluster: Cluster, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client("a") as one, cluster.client("b") as other:
        await AsyncLock(one, "before").acquire()  # The client has its session.
        written = await one.kv.put("k", "v")
        monkeypatch.setattr(Core, "read", None)
        lock = AsyncLock(one, "l", value="me")
        assert await lock.acquire(timeout_s=0)
        monkeypatch.undo()
        # The lease and the key, and nothing else.
        assert lock.token == written.offset + 2
        found = await other.kv.get(lock.key, read="strict")
        assert found is not None
        assert (found.text, found.create_offset) == ("me", lock.token)
        assert found.lease_id == lock.token - 1
        # A second place in the queue is not the first one, also of the same client; nothing is left.
        assert not await AsyncLock(one, "l").acquire(timeout_s=0)
        assert [each.key for each in await other.kv.list("locks/l/", read="strict")] == [lock.key]
        # Of a queue whose name continues that of another one no key counts.
        assert await AsyncLock(one, "l/m").acquire(timeout_s=0)


@scenario(on_cluster)
async def test_answer_without_number_of_siblings_makes_the_client_read_the_queue(
    cluster: Cluster, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry of an executed write is answered without it."""
    granted = AsyncLeases.grant

    async def without_items(self: AsyncLeases, *args: Any, **kwargs: Any) -> AsyncLease:
        lease = await granted(self, *args, **kwargs)
        lease.granted = dataclasses.replace(lease.granted, items=())
        return lease

    monkeypatch.setattr(AsyncLeases, "grant", without_items)
    async with cluster.client("a") as one, cluster.client("b") as other:
        async with AsyncLock(one, "l") as lock:
            assert lock.token == (await lock_key(other, lock)).create_offset
            assert not await AsyncLock(other, "l").acquire(timeout_s=1.0)
        assert await one.leases.list() == []


@scenario(on_cluster)
async def test_place_whose_write_is_not_visible_in_time_is_removed(cluster: Cluster) -> None:
    """[The key stayed for the time of a lease that was not kept alive.]"""
    async with cluster.client("a", acks="visible", timeout_s=2.0) as one, cluster.client() as other:
        await one.kv.put("k", "v")
        cluster.network.pause(cluster.members[1].name)
        with pytest.raises(errors.AcksNotReachedError):
            await AsyncLock(one, "l", ttl_s=600.0).acquire()
        cluster.network.resume(cluster.members[1].name)
        assert await other.kv.list("locks/", read="strict") == []
        assert await other.leases.list() == []


def test_blocking_twins_show_the_state_of_the_others_and_change_nothing() -> None:
    with raftlog.Client("127.0.0.1:1") as client:
        lock = recipes.Lock(client, "l")
        assert (lock.token, lock.key, lock.is_held, client.token) == (0, "", False, None)
        assert "fencing token" in str(type(lock).token.__doc__)
        with pytest.raises(AttributeError, match="read-only"):
            lock.token = 5
        with pytest.raises(PlaceLostError):
            lock.generation  # noqa: B018


@scenario(on_cluster)
async def test_client_with_one_address_continues_when_it_is_down(cluster: Cluster) -> None:
    given, other = cluster.members
    async with cluster.client(bootstrap=[given.endpoint], timeout_s=5.0) as client:
        lock = AsyncLock(client, "l", ttl_s=5.0)
        assert await lock.acquire(timeout_s=1.0)
        async with client.watch("kv/seen", tip=True) as changes:
            await asyncio.sleep(2.0)
            given.kill()
            await asyncio.sleep(20.0)
            assert lock.is_held
            await client.kv.alter(lock.guard(), raftlog.Put("seen", "1"))
            assert (await anext(changes)).key == "seen"
            assert (await client.brokers.list())[1].address == other.endpoint
            late = client.watch("kv/seen", initial=True)
            async with late:
                assert (await anext(late)).key == "seen"

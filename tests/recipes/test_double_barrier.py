"""Double barriers on a simulated cluster."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from scenarios import scenario
from simulated_cluster import Cluster, on_cluster

from raftlog import errors
from raftlog.recipes import AsyncDoubleBarrier, PlaceLostError

NAME = "step"


@scenario(on_cluster)
async def test_group_enters_and_leaves_together(cluster: Cluster) -> None:
    inside: list[int] = []
    log: list[tuple[str, int]] = []

    async def program(number: int) -> None:
        async with cluster.client(f"p{number}") as client:
            await asyncio.sleep(number)
            async with AsyncDoubleBarrier(client, NAME, 3):
                log.append(("begins", number))
                inside.append(number)
                await asyncio.sleep(1.0 + number)
                log.append(("is done", number))
            log.append(("ends", number))

    await asyncio.gather(*(program(number) for number in range(3)))
    assert [what for what, _ in log] == ["begins"] * 3 + ["is done"] * 3 + ["ends"] * 3


@scenario(on_cluster)
async def test_double_barrier_forms_groups_of_the_requested_size(cluster: Cluster) -> None:
    groups: dict[Any, list[int]] = {}

    async def program(number: int, wait_s: float) -> None:
        async with cluster.client(f"p{number}") as client:
            barrier = AsyncDoubleBarrier(client, NAME, 3)
            await asyncio.sleep(wait_s)
            assert await barrier.enter()
            groups.setdefault(barrier._group, []).append(number)
            assert await barrier.leave()

    rng = random.Random(4)
    # All at once, and one after the other: several groups are formed before one has looked.
    for spread_s in (0.0, 0.1, 1.0):
        groups.clear()
        waits = [rng.random() * spread_s for _ in range(12)]
        await asyncio.gather(*(program(number, wait) for number, wait in enumerate(waits)))
        assert sorted(map(len, groups.values())) == [3] * 4
        assert sorted(one for group in groups.values() for one in group) == list(range(12))


@scenario(on_cluster)
async def test_late_process_waits_for_the_next_barrier_group(cluster: Cluster) -> None:
    clients = [cluster.client(name) for name in "abcd"]
    one, two, three, four = [AsyncDoubleBarrier(each, NAME, 2) for each in clients]
    assert all(await asyncio.gather(one.enter(), two.enter()))
    late = asyncio.ensure_future(three.enter())
    await asyncio.sleep(1.0)
    assert not late.done()
    assert all(await asyncio.gather(one.leave(timeout_s=5.0), two.leave(timeout_s=5.0)))
    assert not late.done()
    assert await four.enter(timeout_s=5.0)
    assert await late


def before_it_forms(
    monkeypatch: pytest.MonkeyPatch,
    barrier: AsyncDoubleBarrier,
    first: Callable[[], Coroutine[Any, Any, object]],
) -> None:
    """Run something once between the read of the waiting processes and the forming of the group."""
    form = barrier._form
    done: list[bool] = []

    async def late(look: Any) -> None:
        if not done:
            done.append(True)
            await first()
        await form(look)

    monkeypatch.setattr(barrier, "_form", late)


@scenario(on_cluster)
async def test_barrier_group_never_forms_with_a_lost_member(
    cluster: Cluster, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [cluster.client(name) for name in "abc"]
    gone, second, third = [AsyncDoubleBarrier(each, NAME, 2) for each in clients]
    entering = asyncio.ensure_future(gone.enter())
    await asyncio.sleep(0.5)
    before_it_forms(monkeypatch, second, lambda: clients[2].leases.revoke(gone._place.lease.id))
    task = asyncio.ensure_future(second.enter())
    with pytest.raises(PlaceLostError):
        await entering
    await asyncio.sleep(1.0)
    assert not task.done()
    assert await third.enter(timeout_s=5.0)
    assert await task


@scenario(on_cluster)
async def test_double_barrier_group_is_formed_once(
    cluster: Cluster, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    barriers = [AsyncDoubleBarrier(cluster.client(f"c{n}"), NAME, 2) for n in range(5)]
    tasks = [asyncio.ensure_future(barriers[0].enter())]
    await asyncio.sleep(0.5)

    async def others() -> None:
        # They form the group that this one was about to form, and another one.
        tasks.extend(asyncio.ensure_future(each.enter()) for each in barriers[2:4])
        await asyncio.sleep(1.0)

    before_it_forms(monkeypatch, barriers[1], others)
    tasks.append(asyncio.ensure_future(barriers[1].enter()))
    await asyncio.sleep(3.0)
    assert all(await asyncio.gather(*tasks))
    assert not await barriers[2].leave(timeout_s=0.1)
    last = asyncio.ensure_future(barriers[4].enter())
    await asyncio.sleep(1.0)
    assert not last.done(), "all others are, or were, of a group"
    last.cancel()


@scenario(on_cluster)
async def test_group_formed_by_another_process_is_read_strictly(
    cluster: Cluster, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lagging broker would return the same state again and again."""
    barriers = [AsyncDoubleBarrier(cluster.client(f"c{n}"), NAME, 2) for n in range(3)]
    first = asyncio.ensure_future(barriers[0].enter())
    await asyncio.sleep(0.5)
    modes: list[str] = []
    look = barriers[1]._look

    async def looked(read: Any) -> Any:
        modes.append(read)
        return await look(read)

    monkeypatch.setattr(barriers[1], "_look", looked)

    others: list[asyncio.Future[bool]] = []

    async def other() -> None:
        others.append(asyncio.ensure_future(barriers[2].enter()))
        await asyncio.sleep(0.5)

    before_it_forms(monkeypatch, barriers[1], other)
    assert await barriers[1].enter(timeout_s=2.0)
    assert await first
    assert modes == ["latest", "strict"]
    others[0].cancel()


@scenario(on_cluster)
async def test_process_that_gives_up_leaves_the_barrier(cluster: Cluster) -> None:
    async with cluster.client("a") as one, cluster.client("b") as other:
        early = AsyncDoubleBarrier(one, NAME, 2)
        assert not await early.enter(timeout_s=1.0)
        assert await one.kv.list("double_barriers/", read="strict") == []
        assert await one.leases.list() == []
        late = AsyncDoubleBarrier(other, NAME, 2)
        task = asyncio.ensure_future(late.enter())
        await asyncio.sleep(1.0)
        assert not task.done()
        assert await early.enter(timeout_s=1.0)
        assert await task
        # One does not wait for ever for the other.
        assert not await early.leave(timeout_s=1.0)
        assert await early.leave()
        assert await late.leave()


@scenario(on_cluster)
async def test_group_formed_as_a_member_times_out_includes_it(
    cluster: Cluster, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client("a") as one, cluster.client("b") as other:
        first, second = (AsyncDoubleBarrier(each, NAME, 2) for each in (one, other))
        look = first._look
        entering: list[asyncio.Future[bool]] = []

        async def late(read: Any) -> Any:
            found = await look(read)
            if read == "strict" and not entering:
                # It has seen no group; now there is one.
                entering.append(asyncio.ensure_future(second.enter()))
                await entering[0]
            return found

        monkeypatch.setattr(first, "_look", late)
        assert await first.enter(timeout_s=1.0)
        assert await entering[0]


async def killed(cluster: Cluster, count: int) -> None:
    """A process that is killed while it waits to enter: it sends nothing more, and its lease ends."""
    dead = AsyncDoubleBarrier(cluster.client("dead"), NAME, count, ttl_s=5.0)
    await dead._place.enter("")
    dead._place.abandon()


@scenario(on_cluster)
async def test_killed_process_does_not_count_after_its_lease(cluster: Cluster) -> None:
    await killed(cluster, 3)
    barriers = [AsyncDoubleBarrier(cluster.client(name), NAME, 3) for name in "abc"]
    tasks = [asyncio.ensure_future(barriers[0].enter())]
    await asyncio.sleep(7.0)
    tasks.append(asyncio.ensure_future(barriers[1].enter()))
    await asyncio.sleep(1.0)
    assert not any(task.done() for task in tasks), "two of them are no three"
    tasks.append(asyncio.ensure_future(barriers[2].enter()))
    assert all(await asyncio.wait_for(asyncio.gather(*tasks), 2.0))


@scenario(on_cluster)
async def test_others_leave_without_a_killed_member_when_its_lease_ends(cluster: Cluster) -> None:
    begun = cluster.loop.time()
    await killed(cluster, 2)
    async with cluster.client("a") as client:
        barrier = AsyncDoubleBarrier(client, NAME, 2)
        # Its key is there still, so it is of the group.
        assert await barrier.enter(timeout_s=2.0)
        assert await barrier.leave()
        assert 4.5 < cluster.loop.time() - begun < 6.5


@scenario(on_cluster)
async def test_barrier_reports_a_lost_lease_and_refuses_wrong_counts(cluster: Cluster) -> None:
    async with cluster.client("a") as one, cluster.client("b") as other:
        barrier = AsyncDoubleBarrier(one, NAME, 2)
        task = asyncio.ensure_future(barrier.enter())
        await asyncio.sleep(0.5)
        with pytest.raises(errors.RaftlogError, match="not reentrant"):
            await barrier.enter()
        await other.leases.revoke(barrier._place.lease.id)
        with pytest.raises(PlaceLostError):
            await task
        for count in (0, 901):
            with pytest.raises(ValueError, match="1 to 900"):
                AsyncDoubleBarrier(one, NAME, count)


@scenario(on_cluster)
async def test_failing_body_waits_for_no_other_member(cluster: Cluster) -> None:
    async with cluster.client("a") as one, cluster.client("b") as other:
        second = AsyncDoubleBarrier(other, NAME, 2)
        entering = asyncio.ensure_future(second.enter())
        with pytest.raises(KeyError):
            async with AsyncDoubleBarrier(one, NAME, 2):
                raise KeyError("no")
        assert await entering
        assert await second.leave(timeout_s=2.0)

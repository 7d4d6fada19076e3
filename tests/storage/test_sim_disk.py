"""The simulated disks of nodes and of partition replicas."""

import asyncio
from random import Random

import partition_kit as parts
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_kit import A0, A1, B7
from storage_kit import LATE_VOTE, flush, make_batch, make_chunk, sim_disk, whole, write_vote

from raftlog.errors import CorruptLogError, StorageError
from raftlog.node.storage.api import RecoveredLog, VoteState
from raftlog.node.storage.partition_api import PartitionKey
from simulation.twins.disk import SimDisk, SimLogStore
from simulation.twins.partition_disk import SimPartitionDisk, SimPartitionStore


def opened(disk: SimDisk) -> tuple[SimLogStore, RecoveredLog]:
    store = disk.open()
    return store, store.recover()


async def crash_after_two_syncs(seed: int) -> tuple[bytes, int]:
    """Ten batches, four of them synced, then a crash; return the remaining log and its end."""
    disk = sim_disk()
    store, _ = opened(disk)
    for i in range(4):
        store.append(make_batch(i), i, i + 1)
    assert await flush(store) == 4
    for i in range(4, 10):
        store.append(make_batch(i), i, i + 1)
    store.flush(lambda _: pytest.fail("a crashed store calls nobody"), inline=True)
    disk.crash(Random(seed))
    with pytest.raises(StorageError, match="crashed"):
        store.read(0, until=1, max_bytes=1)
    store, found = opened(disk)
    return whole(store, found.end_offset), found.end_offset


async def test_crash_keeps_what_was_synced_and_a_prefix_of_the_rest() -> None:
    ends = set()
    for seed in range(60):
        content, end = await crash_after_two_syncs(seed)
        assert content == b"".join(make_batch(i) for i in range(end))
        ends.add(end)
    assert ends == set(range(4, 11))


async def test_crash_keeps_the_written_vote_or_a_later_one() -> None:
    seen = set()
    for seed in range(30):
        disk = sim_disk()
        store, _ = opened(disk)
        assert await write_vote(store, VoteState(epoch=1)) is None
        for epoch in (2, 3):
            store.write_vote(
                VoteState(epoch=epoch), lambda _: pytest.fail("a crashed store calls nobody")
            )
        disk.crash(Random(seed))
        seen.add(opened(disk)[1].vote.epoch)
    assert seen == {1, 2, 3}


async def test_failed_sync_makes_nothing_durable() -> None:
    ends = set()
    for seed in range(10):
        disk = sim_disk()
        store, _ = opened(disk)
        store.append(make_batch(0), 0, 1)
        disk.fail_next("flush")
        assert isinstance(await flush(store), StorageError)
        disk.crash(Random(seed))
        ends.add(opened(disk)[1].end_offset)
    assert ends == {0, 1}


async def test_failed_vote_is_not_replayed_later() -> None:
    disk = sim_disk()
    store, _ = opened(disk)
    disk.fail_next("write_vote")
    assert isinstance(await write_vote(store, VoteState(epoch=1)), StorageError)
    store.close()
    store, found = opened(disk)
    assert found.vote == LATE_VOTE
    assert await write_vote(store, VoteState(epoch=2)) is None
    store.close()
    assert opened(disk)[1].vote == VoteState(epoch=2)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("flush"), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 99), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(OPERATIONS)
async def test_simulated_disk_agrees_with_a_list(operations: list[tuple[str, int, int]]) -> None:
    """Batches and durable ones in lists; a crash ends in a state since the last sync."""
    disk = sim_disk()
    store, _ = opened(disk)
    ends: list[tuple[int, bytes]] = []
    states: list[list[tuple[int, bytes]]] = [[]]
    epoch = 1
    for name, a, b in operations:
        end = ends[-1][0] if ends else 0
        if name == "append":
            chunk = b""
            for _ in range(b):
                batch = make_batch(end, a, epoch=epoch)
                chunk, end = chunk + batch, end + a
                ends.append((end, batch))
            store.append(chunk, end - a * b, end)
        elif name == "truncate":
            ends = ends[: max(len(ends) - a, 0)]
            store.truncate(ends[-1][0] if ends else 0)
            epoch += 1
        elif name == "flush":
            assert await flush(store) == end
            states = []
        else:
            disk.crash(Random(a))
            store, found = opened(disk)
            content = whole(store, found.end_offset)
            ends = next(
                state for state in states if b"".join(batch for _, batch in state) == content
            )
            states = []
        states.append(list(ends))
        assert whole(store, ends[-1][0] if ends else 0) == b"".join(batch for _, batch in ends)


# --- partition replicas --------------------------------------------------------------------------


def opened_partitions(disk: SimPartitionDisk) -> SimPartitionStore:
    store = disk.open()
    store.recover()
    return store


async def crash_after_a_sync(seed: int) -> dict[PartitionKey, int]:
    """Two synced batches, then six unsynced writes, and a crash; return the remaining logs."""
    disk = SimPartitionDisk("d1", Random(1))
    store = opened_partitions(disk)
    for key in (A0, A1):
        store.append(key, make_chunk(0, 1, 1), 0, 2)
    assert await parts.flush(store) is None
    store.append(A0, make_batch(2), 2, 3)
    store.append(B7, make_batch(0), 0, 1)
    store.truncate(A1, 1)
    store.append(A1, make_chunk(1, 3, epoch=2), 1, 4)
    store.delete(A0)
    store.append(A0, make_batch(0, epoch=9), 0, 1)
    store.flush(lambda _: pytest.fail("a crashed store calls nobody"), inline=True)
    disk.crash(Random(seed))
    with pytest.raises(StorageError, match="crashed"):
        store.read(A0, 0, until=1, max_bytes=1)
    store = disk.open()
    found = parts.ends(store.recover())
    for key, end in found.items():
        assert parts.whole(store, key, end)
    return found


async def test_crash_keeps_a_prefix_of_the_writes_across_all_replicas() -> None:
    prefixes = [
        {A0: 2, A1: 2},
        {A0: 3, A1: 2},
        {A0: 3, A1: 2, B7: 1},
        {A0: 3, A1: 1, B7: 1},
        {A0: 3, A1: 4, B7: 1},
        {A1: 4, B7: 1},
        {A0: 1, A1: 4, B7: 1},
    ]
    left = [await crash_after_a_sync(seed) for seed in range(60)]
    assert all(one in prefixes for one in left)
    assert [one for one in prefixes if one in left] == prefixes
    assert left[:10] == [await crash_after_a_sync(seed) for seed in range(10)]


async def test_flipped_bit_is_detected_at_recovery_and_when_read() -> None:
    for seed in range(40):
        disk = SimPartitionDisk("d1", Random(1))
        store = opened_partitions(disk)
        for key in (A0, B7):
            store.append(key, make_chunk(0, 2, 1), 0, 3)
            store.append(key, make_chunk(3, 1), 3, 4)
        await parts.flush(store)
        contents = {key: parts.whole(store, key, 4) for key in (A0, B7)}
        assert disk.flip_bit(Random(seed))
        ((bad, _),) = disk.flipped
        other = B7 if bad == A0 else A0
        assert parts.whole(store, other, 4) == contents[other]
        with pytest.raises(CorruptLogError, match=f"topic {bad[0].hex()}") as caught:
            parts.whole(store, bad, 4)
        with pytest.raises(CorruptLogError) as again:
            store.append(other, make_batch(4), 4, 5)
        assert again.value is caught.value
        disk.crash(Random(seed))
        with pytest.raises(CorruptLogError, match=f"topic {bad[0].hex()}"):
            disk.open().recover()
    assert not SimPartitionDisk("d1", Random(1)).flip_bit(Random(1))


async def test_bit_flipped_before_a_truncation_is_durable_is_detected_or_truncated() -> None:
    outcomes = set()
    for seed in range(20):
        disk = SimPartitionDisk("d1", Random(1))
        store = opened_partitions(disk)
        store.append(A0, make_chunk(0, 1, 1, 1), 0, 3)
        await parts.flush(store)
        store.truncate(A0, 1)
        assert disk.flip_bit(Random(seed))
        store.append(A0, make_batch(1, epoch=2), 1, 2)
        assert await parts.flush(store) is None
        disk.crash(Random(1))
        store = disk.open()
        try:
            store.recover()
        except CorruptLogError:
            outcomes.add("found")
        else:
            assert parts.whole(store, A0, 2) == make_batch(0) + make_batch(1, epoch=2)
            outcomes.add("truncated")
    assert outcomes == {"found", "truncated"}


async def test_full_disk_refuses_what_does_not_fit_and_breaks_the_store() -> None:
    disk = SimPartitionDisk("d1", Random(1))
    store = opened_partitions(disk)
    store.append(A0, make_batch(0), 0, 1)
    disk.capacity_bytes = disk.used_bytes() + 10
    assert store.free_bytes() == 10
    with pytest.raises(StorageError, match="no space left"):
        store.append(B7, make_batch(0), 0, 1)
    with pytest.raises(StorageError, match="no space left"):
        store.append(B7, b"", 0, 1)
    assert disk.faults == {"enospc": 1}


async def test_hung_disk_completes_nothing_until_it_resumes() -> None:
    disk = SimPartitionDisk("d1", Random(1))
    store = opened_partitions(disk)
    store.append(A0, make_batch(0), 0, 1)
    disk.hang()
    seen: list[StorageError | None] = []
    store.flush(seen.append, inline=True)
    await asyncio.sleep(0.02)
    assert seen == []
    disk.resume()
    assert seen == [None]
    disk.hang()
    store.flush(seen.append, inline=True)
    await asyncio.sleep(0.02)
    disk.crash(Random(1))
    disk.resume()
    assert seen == [None], "who waited is gone"

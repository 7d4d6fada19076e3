"""The simulated disk of partition replicas."""

import asyncio
from random import Random

import pytest
from partition_kit import A0, A1, B7, ends, flush, whole
from storage_kit import make_batch, make_chunk

from raftlog.errors import CorruptLogError, StorageError
from raftlog.node.storage.partition_api import PartitionKey
from simulation.twins.partition_disk import SimPartitionDisk, SimPartitionStore


def opened(disk: SimPartitionDisk) -> SimPartitionStore:
    store = disk.open()
    store.recover()
    return store


async def crash_after_a_sync(seed: int) -> dict[PartitionKey, int]:
    """Two synced batches, then six unsynced writes, and a crash; return the remaining logs."""
    disk = SimPartitionDisk("d1", Random(1))
    store = opened(disk)
    for key in (A0, A1):
        store.append(key, make_chunk(0, 1, 1), 0, 2)
    assert await flush(store) is None
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
    found = ends(store.recover())
    for key, end in found.items():
        assert whole(store, key, end)
    return found


async def test_crash_keeps_a_prefix_of_the_writes_over_all_replicas() -> None:
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
        store = opened(disk)
        for key in (A0, B7):
            store.append(key, make_chunk(0, 2, 1), 0, 3)
            store.append(key, make_chunk(3, 1), 3, 4)
        await flush(store)
        contents = {key: whole(store, key, 4) for key in (A0, B7)}
        assert disk.flip_bit(Random(seed))
        ((bad, _),) = disk.flipped
        other = B7 if bad == A0 else A0
        assert whole(store, other, 4) == contents[other]
        with pytest.raises(CorruptLogError, match=f"topic {bad[0].hex()}") as caught:
            whole(store, bad, 4)
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
        store = opened(disk)
        store.append(A0, make_chunk(0, 1, 1, 1), 0, 3)
        await flush(store)
        store.truncate(A0, 1)
        assert disk.flip_bit(Random(seed))
        store.append(A0, make_batch(1, epoch=2), 1, 2)
        assert await flush(store) is None
        disk.crash(Random(1))
        store = disk.open()
        try:
            store.recover()
        except CorruptLogError:
            outcomes.add("found")
        else:
            assert whole(store, A0, 2) == make_batch(0) + make_batch(1, epoch=2)
            outcomes.add("truncated")
    assert outcomes == {"found", "truncated"}


async def test_full_disk_refuses_what_does_not_fit_and_breaks_the_store() -> None:
    disk = SimPartitionDisk("d1", Random(1))
    store = opened(disk)
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
    store = opened(disk)
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

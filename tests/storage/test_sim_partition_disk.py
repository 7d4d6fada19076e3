"""The simulated disk of partition replicas."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
from partition_kit import A0, A1, B7, KEYS, RocksMachine, SimMachine, ends, flush, whole
from storage_kit import make_batch, make_chunk

from raftlog.errors import CorruptLogError, StorageError
from raftlog.node.storage.partition_api import PartitionKey, PartitionStore
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


# --- The real store of partition replicas and its simulated twin, given the same calls, answer ---


STEPS = 250


def outcome(call: Any, store: PartitionStore) -> object:
    try:
        return call(store)
    except ValueError as error:
        return f"refused: {error}"


class RpcClient:
    """Mostly valid calls, by the known ends of replicas, and some invalid ones."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.ends: dict[Any, int] = {}

    def next(self, epoch: int) -> tuple[str, Any, Any, int]:
        """Return the next step's name, call, replica, and log end after it (-1: unchanged)."""
        rng = self._rng
        key, what = rng.choice(KEYS), rng.random()
        end, count = self.ends.get(key, 0), rng.randint(1, 3)
        base = end if rng.random() < 0.8 else rng.randrange(0, end + 2)
        if what < 0.5:
            chunk = make_chunk(
                base,
                *([1] * count),
                epoch=epoch,
                body=bytes([97 + epoch % 26]) * rng.randrange(1, 300),
            )
            return (
                f"append {base}",
                lambda store: store.append(key, chunk, base, base + count),
                key,
                base + count,
            )
        if what < 0.6:
            to = rng.randrange(0, end + 2)
            return f"truncate {to}", lambda store: store.truncate(key, to), key, to
        if what < 0.63:
            return "delete", lambda store: store.delete(key), key, 0
        if what < 0.7:
            start = rng.randrange(0, end + 2)
            return (
                f"begin at {start}",
                lambda store: store.advance_start(key, start, dropped_bytes=17 << 20),
                key,
                -1,
            )
        if what < 0.72:
            anew = rng.randrange(0, end + 9)
            return f"reset to {anew}", lambda store: store.reset(key, anew), key, anew
        first, size = rng.randrange(0, end + 1), rng.choice((0, 100, 1 << 20))
        until = first + rng.randrange(0, 6)
        return (
            f"read {first} {until}",
            lambda store: store.read(key, first, until=until, max_bytes=size),
            key,
            -1,
        )


@pytest.mark.parametrize("seed", range(4))
async def test_both_partition_stores_respond_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = Random(f"twins {seed}")
    machines = RocksMachine(tmp_path / "data", monkeypatch), SimMachine()
    stores: list[PartitionStore] = [machine.open()[0] for machine in machines]
    caller = RpcClient(rng)
    carried_out = refused = 0
    for step in range(STEPS):
        name, call, key, end = caller.next(1 + step // 50)
        real, simulated = (outcome(call, store) for store in stores)
        assert real == simulated, f"step {step}: {name} of {key}"
        if isinstance(real, str):
            refused += 1
        else:
            carried_out += 1
            caller.ends[key] = end if end >= 0 else caller.ends.get(key, 0)
        if rng.random() < 0.05:
            assert [await flush(store) for store in stores] == [None, None]
        if rng.random() < 0.02:
            for store in stores:
                store.close()
            opened = [machine.open() for machine in machines]
            assert opened[0][1] == opened[1][1], f"after step {step}"
            stores = [store for store, _ in opened]
    for store in stores:
        store.close()
    assert carried_out > STEPS // 2
    assert refused > STEPS // 20

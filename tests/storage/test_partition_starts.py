"""Replicas whose log does not begin at 0."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from partition_kit import A0, A1, KEYS, ends, flush, rocks_machine, sim_machine
from storage_kit import Machine, make_batch, make_chunk

from raftlog.errors import CorruptLogError
from raftlog.node.storage import partition_store
from raftlog.node.storage.partition_api import PartitionStore, Run
from raftlog.node.storage.partition_store import RocksPartitionStore
from simulation.twins.partition_disk import SimPartitionDisk


@pytest.fixture(params=["rocks", "sim"])
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    is_sim = request.param == "sim"
    made = sim_machine() if is_sim else rocks_machine(tmp_path / "data", monkeypatch)
    yield made
    made.close()


def filled(store: PartitionStore) -> None:
    """Offsets 0 to 6 of each replica, in chunks of one, two and four batches."""
    for key in KEYS:
        for base, counts in ((0, (1,)), (1, (1, 1)), (3, (1, 1, 1, 1))):
            chunk = make_chunk(base, *counts)
            store.append(key, chunk, base, base + len(counts))


@pytest.mark.parametrize("start", [1, 2, 3, 5, 6])
async def test_log_start_survives_a_restart(machine: Machine, start: int) -> None:
    store, _ = machine.open()
    filled(store)
    rest = store.read(A0, start, until=7, max_bytes=1 << 20)
    store.advance_start(A0, start, dropped_bytes=100)
    assert await flush(store) is None
    for _ in range(2):
        assert store.read(A0, start, until=7, max_bytes=1 << 20) == rest
        with pytest.raises(ValueError, match=f"it has \\[{start}, 7\\)"):
            store.read(A0, start - 1, until=7, max_bytes=1 << 20)
        with pytest.raises(ValueError, match=f"it has \\[{start}, 7\\)"):
            store.truncate(A0, start - 1)
        assert store.read(A1, 0, until=7, max_bytes=1 << 20) != b""
        store, found = machine.reopen()
        assert {one.key: (one.start_offset, one.end_offset) for one in found} == {
            key: (start if key == A0 else 0, 7) for key in KEYS
        }
        assert found[0].epochs == ((1, start),)
    store.append(A0, make_batch(7), 7, 8)
    assert store.read(A0, 7, until=8, max_bytes=100) == make_batch(7)


async def test_fully_truncated_log_ends_at_its_start(machine: Machine) -> None:
    store, _ = machine.open()
    filled(store)
    store.advance_start(A0, 5, dropped_bytes=100)
    store.truncate(A0, 5)
    store, found = machine.reopen()
    assert (found[0].start_offset, found[0].end_offset, found[0].epochs) == (5, 5, ())
    with pytest.raises(ValueError, match="ends at 5"):
        store.append(A0, make_batch(0), 0, 1)
    store.append(A0, make_batch(5), 5, 6)
    assert store.read(A0, 5, until=6, max_bytes=100) == make_batch(5)


async def test_reset_replica_is_empty_and_may_begin_anywhere(machine: Machine) -> None:
    store, _ = machine.open()
    filled(store)
    for start in (90, 4):
        store.reset(A0, start)
        with pytest.raises(ValueError, match="ends at"):
            store.append(A0, make_batch(7), 7, 8)
        store.append(A0, make_batch(start), start, start + 1)
        store, found = machine.reopen()
        assert (found[0].start_offset, found[0].end_offset) == (start, start + 1)
    store.reset(A0, 0)
    store, found = machine.reopen()
    assert A0 not in ends(found), "as good as new"
    assert len(found) == len(KEYS) - 1


async def test_deleted_replica_begins_at_0_again(machine: Machine) -> None:
    store, _ = machine.open()
    filled(store)
    store.advance_start(A0, 3, dropped_bytes=100)
    store.delete(A0)
    store.append(A0, make_batch(0), 0, 1)
    store, found = machine.reopen()
    assert (found[0].start_offset, found[0].end_offset) == (0, 1)


@pytest.mark.parametrize("start", [-1, 4, 7, 8])
async def test_refused_start_changes_nothing(machine: Machine, start: int) -> None:
    store, _ = machine.open()
    for base in (0, 3):
        store.append(A0, make_batch(base, 3), base, base + 3)
    with pytest.raises(ValueError, match=r"cannot move the start|not a batch boundary"):
        store.advance_start(A0, start, dropped_bytes=100)
    assert len(store.read(A0, 0, until=6, max_bytes=1 << 20)) == 2 * len(make_batch(0, 3))


async def test_runs_report_the_age_and_size_of_the_rest(machine: Machine) -> None:
    store, _ = machine.open()
    filled(store)
    store.advance_start(A0, 2, dropped_bytes=100)
    store, found = machine.reopen()
    size = len(make_batch(0))
    assert found[0].runs.runs == (Run(3, 1000, size), Run(7, 1000, 4 * size))
    assert found[0].runs.last_base == 3


async def test_deleted_space_is_reclaimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_store, "COMPACT_MIN_BYTES", 1 << 20)
    store, _ = rocks_machine(tmp_path / "data", monkeypatch).open()
    assert isinstance(store, RocksPartitionStore)
    rng = Random(1)
    for base in range(60):
        chunk = make_batch(base, body=rng.randbytes(100_000))
        store.append(A0, chunk, base, base + 1)
    await flush(store)
    before = store.used_bytes()
    store.advance_start(A0, 50, dropped_bytes=5 << 20)
    async with asyncio.timeout(30):
        while store.used_bytes() > before // 2:
            await asyncio.sleep(0.01)
    assert len(store.read(A0, 50, until=60, max_bytes=1 << 30)) > 1_000_000
    store.close()


async def test_cleanly_closed_store_that_lost_a_start_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first records are missing, and nothing says that they were dropped."""
    machine = rocks_machine(tmp_path / "data", monkeypatch)
    store, _ = machine.open()
    filled(store)
    store.advance_start(A0, 3, dropped_bytes=100)
    assert isinstance(store, RocksPartitionStore)
    store._rocks._db.delete(A0[0] + A0[1].to_bytes(4, "big"))
    store.close()
    with pytest.raises(CorruptLogError, match="next chunk begins at offset 3 instead of 0"):
        machine.open()


@pytest.mark.parametrize("seed", range(20))
async def test_power_loss_reverts_or_keeps_a_start(seed: int) -> None:
    disk = SimPartitionDisk("d1", Random(seed))
    store = disk.open()
    store.recover()
    filled(store)
    assert await flush(store) is None
    store.advance_start(A0, 3, dropped_bytes=100)
    store.append(A0, make_batch(7), 7, 8)
    store.reset(A1, 90)
    disk.crash(Random(seed))
    found = {one.key: (one.start_offset, one.end_offset) for one in disk.open().recover()}
    assert found[A0] in {(0, 7), (3, 7), (3, 8)}
    assert found[A1] in {(0, 7), (90, 90)}
    assert found[A1] == (0, 7) or found[A0] == (3, 8), "in the order of the writes"

"""Partition replicas in a broker's directory."""

import asyncio
import shutil
import threading
import time
from pathlib import Path

import pytest
from partition_kit import A0, A1, B7, KEYS, RECORDS, ends, fill, flush, open_rocks_partitions, whole
from storage_kit import IDENTITY, make_batch, make_chunk

from raftlog.errors import ConfigError, CorruptLogError, StorageError
from raftlog.node.storage.directory import (
    META_FILE,
    PARTITIONS_DIRECTORY,
    PARTITIONS_STATE_FILE,
    format_storage,
)
from raftlog.node.storage.rocks_adapter import RocksPartitions


@pytest.fixture
async def clean(tmp_path: Path) -> Path:
    """Closed in order."""
    (await fill(tmp_path / "clean")).close()
    return tmp_path / "clean"


def recovered(directory: Path) -> dict[tuple[bytes, int], int]:
    store = open_rocks_partitions(directory)
    try:
        found = ends(store.recover())
        for key, end in found.items():
            assert whole(store, key, end)
        return found
    finally:
        store.close()


async def test_lost_replicas_are_not_taken_for_new_ones(clean: Path) -> None:
    shutil.rmtree(clean / PARTITIONS_DIRECTORY)
    with pytest.raises(CorruptLogError, match="partition replicas of this broker are lost"):
        open_rocks_partitions(clean)
    assert not (clean / PARTITIONS_DIRECTORY).exists()


async def test_missing_or_damaged_state_is_refused(clean: Path) -> None:
    state = clean / PARTITIONS_STATE_FILE
    good = state.read_bytes()
    state.write_bytes(good.replace(b"true", b"True"))
    with pytest.raises(CorruptLogError, match=state.name):
        open_rocks_partitions(clean)
    state.unlink()
    with pytest.raises(CorruptLogError, match=f"{state.name} is missing"):
        open_rocks_partitions(clean)


async def test_replicas_restored_from_a_copy_are_detected(clean: Path, tmp_path: Path) -> None:
    shutil.copytree(clean / PARTITIONS_DIRECTORY, tmp_path / "older")
    store = open_rocks_partitions(clean)
    store.recover()
    store.append(A0, make_batch(RECORDS), RECORDS, RECORDS + 1)
    store.close()
    shutil.rmtree(clean / PARTITIONS_DIRECTORY)
    shutil.copytree(tmp_path / "older", clean / PARTITIONS_DIRECTORY)
    store = open_rocks_partitions(clean)
    with pytest.raises(CorruptLogError, match=r"24 records, but was closed with 4 replicas and 25"):
        store.recover()
    store.close()


async def test_unrecovered_store_does_not_know_its_end(clean: Path) -> None:
    open_rocks_partitions(clean).close()
    assert recovered(clean) == dict.fromkeys(KEYS, RECORDS)


def test_formatting_leaves_replicas_unchanged(tmp_path: Path) -> None:
    format_storage(tmp_path, IDENTITY)
    (tmp_path / PARTITIONS_DIRECTORY).mkdir()
    (tmp_path / META_FILE).rename(tmp_path / f"{META_FILE}.tmp")
    with pytest.raises(ConfigError, match=f"has .*{PARTITIONS_DIRECTORY} but no {META_FILE}"):
        format_storage(tmp_path, IDENTITY)


async def test_read_damage_is_not_served(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_rocks_partitions(clean)
    store.recover()
    bad = bytearray(make_chunk(0, 1, 2, body=b"x" * 300))
    bad[-1] ^= 1
    monkeypatch.setattr(RocksPartitions, "scan", lambda *_: (one for one in [(0, bytes(bad))]))
    with pytest.raises(
        CorruptLogError, match=f"partition 0 of topic {A0[0].hex()}: .*offset 1"
    ) as first:
        whole(store, A0, RECORDS)
    monkeypatch.undo()
    with pytest.raises(CorruptLogError) as again:
        store.append(B7, make_batch(RECORDS), RECORDS, RECORDS + 1)
    assert again.value is first.value
    store.close()


async def test_space_of_deleted_replicas_is_reclaimed(tmp_path: Path) -> None:
    store = open_rocks_partitions(tmp_path)
    store.recover()
    for key in KEYS:
        for base in range(0, 200, 2):
            store.append(key, make_chunk(base, 1, 1, body=b"y" * 10_000), base, base + 2)
    assert await flush(store) is None
    store.close()
    store = open_rocks_partitions(tmp_path)
    store.recover()
    before = store.used_bytes()
    for key in (A0, A1, B7):
        store.delete(key)
    assert await flush(store) is None
    # Waits for the compaction that has begun; what still waits for its turn comes at the next
    # opening, or with RocksDB's own.
    store._compaction._queue.put(None)
    store._compaction._thread.join(30)
    used = store.used_bytes()
    assert used < 0.6 * before
    assert len(whole(store, KEYS[3], 200)) > 2_000_000
    store.close()


async def test_scan_ends_at_the_end_of_its_replica(clean: Path) -> None:
    rocks = RocksPartitions(clean / PARTITIONS_DIRECTORY)
    for key in KEYS:
        name = key[0] + key[1].to_bytes(4, "big")
        assert [base for base, _ in rocks.scan(name, 0)] == [0, 3]
        assert [base for base, _ in rocks.scan(name, 2)] == [0, 3]
        assert [base for base, _ in rocks.scan(name, 99)] == [3]
        assert list(rocks.scan(key[0] + (5).to_bytes(4, "big"), 7)) == []
    rocks.close()


async def test_hanging_file_system_does_not_block_a_query_of_the_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def hanging(_: Path) -> object:
        goes_on.wait(30)
        raise OSError("stale file handle")

    store = open_rocks_partitions(tmp_path)
    before = store.free_bytes()
    monkeypatch.setattr("os.statvfs", hanging)
    try:
        begun = time.monotonic()
        assert [store.free_bytes() for _ in range(3)] == [before] * 3
        assert time.monotonic() - begun < 10
    finally:
        goes_on.set()
    with pytest.raises(StorageError, match="stale file handle"):  # noqa: PT012  (it comes later)
        for _ in range(3000):
            store.free_bytes()
            await asyncio.sleep(0.01)
    store.close()


async def test_failed_compaction_is_reported_when_the_free_space_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise StorageError("can't compact")

    monkeypatch.setattr(RocksPartitions, "compact", broken)
    store = open_rocks_partitions(tmp_path)
    store.recover()
    store.append(A0, make_chunk(0, 1, 1), 0, 1)
    assert await flush(store) is None
    store.delete(A0)
    for _ in range(1000):
        if store._commit.failure is not None:
            break
        await asyncio.sleep(0.01)
    with pytest.raises(StorageError, match="can't compact"):
        store.free_bytes()
    store.close()

"""Both partition stores behind one interface."""

import asyncio
from pathlib import Path
from random import Random

import pytest
from storage_kit import RocksMachine, SimMachine, make_chunk

from raftlog.errors import StorageError
from raftlog.node.storage.opening import open_partition_store
from raftlog.node.storage.partition_api import PartitionKey, PartitionStore, RecoveredPartition
from raftlog.node.storage.partition_store import RocksPartitionStore
from raftlog.node.storage.rocks_adapter import RocksPartitions
from simulation.twins.partition_disk import SimPartitionDisk

A0: PartitionKey = (b"a" * 16, 0)
A1: PartitionKey = (b"a" * 16, 1)
"""The next one to A0 in the order of keys."""
B7: PartitionKey = (b"b" * 16, 7)
LAST: PartitionKey = (b"\xff" * 16, 2**31 - 1)
"""The last key in the order."""
KEYS = (A0, A1, B7, LAST)


def open_rocks_partitions(directory: Path, **options: float) -> RocksPartitionStore:
    """Open a partition store in a broker's directory that has nothing else."""
    directory.mkdir(parents=True, exist_ok=True)
    return open_partition_store(directory, asyncio.get_running_loop(), **options)


RECORDS = 6


async def fill(directory: Path) -> RocksPartitionStore:
    """Write two chunks to every replica, and flush; the store stays open."""
    store = open_rocks_partitions(directory)
    store.recover()
    for base in (0, RECORDS // 2):
        for key in KEYS:
            store.append(key, make_chunk(base, 1, 2, body=b"x" * 300), base, base + 3)
    assert await flush(store) is None
    return store


def whole(store: PartitionStore, key: PartitionKey, end: int) -> bytes:
    return store.read(key, 0, until=end, max_bytes=1 << 40)


async def flush(store: PartitionStore, *, inline: bool = False) -> StorageError | None:
    done: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
    store.flush(done.set_result, inline=inline)
    async with asyncio.timeout(60):
        return await done


def ends(found: tuple[RecoveredPartition, ...]) -> dict[PartitionKey, int]:
    return {one.key: one.end_offset for one in found}


def sim_machine() -> SimMachine:
    return SimMachine(SimPartitionDisk("d1", Random(1)))


def rocks_machine(directory: Path, monkeypatch: pytest.MonkeyPatch) -> RocksMachine:
    return RocksMachine(lambda: open_rocks_partitions(directory), RocksPartitions, monkeypatch)

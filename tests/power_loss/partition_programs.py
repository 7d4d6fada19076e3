"""Recorded programs on a broker's partition replicas."""

import asyncio
from pathlib import Path

from marks import mark
from said import batches_of, chunk_of

from raftlog.errors import StorageError
from raftlog.node.storage.opening import open_partition_store
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.node.storage.partition_store import RocksPartitionStore

A0: PartitionKey = (b"a" * 16, 0)
A1: PartitionKey = (b"a" * 16, 1)
B7: PartitionKey = (b"b" * 16, 7)


class SaidPartitions:
    """A store that reports each step before it is taken, and each result."""

    def __init__(self, directory: Path) -> None:
        self.store: RocksPartitionStore = open_partition_store(
            directory, asyncio.get_running_loop()
        )
        self.ends = {one.key: one.end_offset for one in self.store.recover()}

    def append(self, key: PartitionKey, *counts: int, epoch: int = 1, size: int = 10) -> None:
        base = self.ends.get(key, 0)
        chunk, end = chunk_of(base, *counts, epoch=epoch, size=size)
        for first, behind, data in batches_of(chunk, base):
            mark("appending", key=_named(key), base=first, end=behind, data=data)
        self.store.append(key, chunk, base, end)
        self.ends[key] = end

    def truncate(self, key: PartitionKey, end: int) -> None:
        mark("truncating", key=_named(key), end=end)
        self.store.truncate(key, end)
        self.ends[key] = end

    def delete(self, key: PartitionKey) -> None:
        mark("truncating", key=_named(key), end=0)
        self.store.delete(key)
        self.ends[key] = 0

    async def flush(self, *, inline: bool = False) -> None:
        done: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
        self.store.flush(done.set_result, inline=inline)
        assert await done is None
        self._say_durable()

    def close(self) -> None:
        self.store.close()
        self._say_durable()

    def _say_durable(self) -> None:
        for key, end in self.ends.items():
            mark("durable", key=_named(key), end=end)


def _named(key: PartitionKey) -> str:
    return f"{key[0].hex()}-{key[1]}"


def prepare_partitions(root: Path) -> None:
    (root / "data").mkdir()


def partitions(root: Path) -> None:
    """Partition replicas that are created, written, truncated and deleted, and closed in order or
    not.
    """
    mark("begins")
    asyncio.run(_partitions(root / "data"))


async def _partitions(directory: Path) -> None:
    store = SaidPartitions(directory)
    store.append(A0, 1)
    store.append(B7, 2, 1)
    await store.flush()
    store.append(A1, 1, size=40_000)
    store.append(A0, 2)
    await store.flush(inline=True)
    store.truncate(B7, 2)
    store.append(B7, 1, epoch=2)
    store.append(A0, 1)
    await store.flush()
    store.delete(A1)
    await store.flush()
    store.append(A1, 1, epoch=2)
    store.close()
    store = SaidPartitions(directory)
    store.append(A0, 3, epoch=2)
    await store.flush()
    store.append(B7, 1, epoch=2)
    store.close()

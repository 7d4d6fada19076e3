"""Batches, and both log stores behind one interface."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from raftlog import batch
from raftlog.batch import RecordData
from raftlog.endpoint import Voter
from raftlog.errors import FatalError, StorageError
from raftlog.metadata.snapshot_file import SnapshotHeader, encode_footer, encode_header
from raftlog.node.storage import api, log_store
from raftlog.node.storage.directory import format_storage
from raftlog.node.storage.files import VoteFile, write_vote_file
from raftlog.node.storage.opening import open_store
from raftlog.node.storage.rocks_adapter import RocksLog
from raftlog.node.storage.wal import pieces
from simulation.twins.disk import SimDisk
from simulation.twins.disk_hardware import Operation

IDENTITY = api.NodeIdentity(cluster_id="c1", node_id=1, directory_id="d1")
LATE_VOTE = api.VoteState(epoch=50)
"""A vote of an epoch above every record of these tests: a vote older than its log is refused."""


def format_with_vote(directory: Path) -> None:
    format_storage(directory, IDENTITY)
    write_vote_file(directory, LATE_VOTE)


def sim_disk() -> SimDisk:
    disk = SimDisk(IDENTITY, Random(1))
    disk.vote = LATE_VOTE
    return disk


def make_batch(base_offset: int, count: int = 1, *, epoch: int = 1, body: bytes = b"body") -> bytes:
    return batch.encode(
        [RecordData(1, 0, body + str(base_offset + i).encode()) for i in range(count)],
        base_offset=base_offset,
        epoch=epoch,
        timestamp_ms=1_000,
    )


def make_chunk(base_offset: int, *counts: int, epoch: int = 1, body: bytes = b"body") -> bytes:
    """Return a chunk of batches with this many records each."""
    batches = []
    for count in counts:
        batches.append(make_batch(base_offset, count, epoch=epoch, body=body))
        base_offset += count
    return b"".join(batches)


def open_rocks(directory: Path, **options: float) -> log_store.RocksLogStore:
    return open_store(
        directory,
        expect_cluster_id="c1",
        expect_node_id=1,
        loop=asyncio.get_running_loop(),
        **options,
    )


def written_bytes(wal: Path) -> int:
    """Return up to where RocksDB has written: the preallocated zeros follow."""
    return max(behind for _, _, behind in pieces(wal.read_bytes()))


def without_zeros_ahead(log: Path) -> Path:
    """Cut the WAL of a copied log where RocksDB was: like a file that grows."""
    (wal,) = log.glob("*.log")
    size = written_bytes(wal)
    assert not wal.read_bytes()[size:].strip(b"\0")
    os.truncate(wal, size)
    return wal


def whole(store: api.LogStore, end: int) -> bytes:
    return store.read(0, until=end, max_bytes=1 << 40)


async def flush(store: api.LogStore, *, inline: bool = False) -> int | StorageError:
    done: asyncio.Future[int | StorageError] = asyncio.get_running_loop().create_future()
    store.flush(done.set_result, inline=inline)
    async with asyncio.timeout(60):
        return await done


async def write_vote(store: api.LogStore, vote: api.VoteState) -> StorageError | None:
    done: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
    store.write_vote(vote, done.set_result)
    async with asyncio.timeout(60):
        return await done


class Machine:
    """A disk on which one store is opened again and again."""

    def __init__(self, open_store: Callable[[], Any], fail_next: Callable[[Operation], None]):
        self._open_store = open_store
        self.fail_next = fail_next
        self._store: Any = None

    def open(self) -> tuple[Any, Any]:
        """Return the opened store, and what it has recovered."""
        self._store = self._open_store()
        return self._store, self._store.recover()

    def reopen(self) -> tuple[Any, Any]:
        self.close()
        return self.open()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


class SimMachine(Machine):
    def __init__(self, disk: Any = None) -> None:
        self.disk = disk or sim_disk()
        super().__init__(self.disk.open, self.disk.fail_next)


class RocksMachine(Machine):
    """``adapter``: the class whose next ``put`` or ``sync`` may fail."""

    def __init__(
        self, open_store: Callable[[], Any], adapter: type, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail_next(operation: Operation) -> None:
            calls = {"append": (adapter, "put"), "flush": (adapter, "sync")}
            owner, name = calls.get(operation, (VoteFile, "write"))
            real = getattr(owner, name)

            def fail(*_: object) -> None:
                monkeypatch.setattr(owner, name, real)
                raise StorageError(f"{operation}: injected disk failure")

            monkeypatch.setattr(owner, name, fail)

        super().__init__(open_store, fail_next)


def rocks_machine(directory: Path, monkeypatch: pytest.MonkeyPatch) -> RocksMachine:
    format_with_vote(directory)
    return RocksMachine(lambda: open_rocks(directory), RocksLog, monkeypatch)


def snapshot_content(snapshot_id: api.SnapshotId, voters: tuple[Voter, ...] = ()) -> bytes:
    header = SnapshotHeader("c1", (), snapshot_id.end_offset, snapshot_id.epoch, 7_000, voters, 2)
    body = batch.encode(
        [RecordData(1008, 0, b"x" * 500)] * 9, base_offset=1, epoch=1, timestamp_ms=7_000
    )
    return encode_header(header) + body + encode_footer(header, 10, 99)


async def make_snapshot(
    store: api.LogStore,
    snapshot_id: api.SnapshotId,
    data: bytes | None = None,
    accept: api.AcceptHeader | None = None,
) -> FatalError | None:
    data = snapshot_content(snapshot_id) if data is None else data
    for position in range(0, len(data), 700):
        store.store_snapshot(snapshot_id, position, data[position : position + 700])
    done: asyncio.Future[FatalError | None] = asyncio.get_running_loop().create_future()
    store.freeze_snapshot(snapshot_id, done.set_result, accept)
    async with asyncio.timeout(60):
        return await done

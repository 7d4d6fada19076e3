"""A node's store that reports each step before it is taken and each result, and the bytes that go
in.
"""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marks import mark

from raftlog import batch
from raftlog.batch import RecordData
from raftlog.errors import FatalError, StorageError
from raftlog.metadata.snapshot_file import SnapshotHeader, encode_footer, encode_header
from raftlog.node.storage.api import NodeIdentity, SnapshotId, VoteState
from raftlog.node.storage.chunks import walk
from raftlog.node.storage.directory import read_identity
from raftlog.node.storage.log_store import RocksLogStore
from raftlog.node.storage.opening import open_store
from raftlog.node.storage.snapshot_files import file_name

IDENTITY = NodeIdentity(cluster_id="c1", node_id=1, directory_id="d1")


def chunk_of(base_offset: int, *counts: int, epoch: int = 1, size: int = 10) -> tuple[bytes, int]:
    """Return batches of this many records of ``size`` bytes each, and where they end."""
    parts = []
    for count in counts:
        records = [
            RecordData(1, 0, (b"%d.%d " % (epoch, base_offset + at)).ljust(size, b"y"))
            for at in range(count)
        ]
        parts.append(
            batch.encode(records, base_offset=base_offset, epoch=epoch, timestamp_ms=1_000)
        )
        base_offset += count
    return b"".join(parts), base_offset


def batches_of(chunk: bytes, base_offset: int) -> list[list[Any]]:
    """Return [base offset, end offset, hex] of each."""
    return [
        [base, end, chunk[position:behind].hex()]
        for base, end, _, position, behind in walk(chunk, base_offset)
    ]


def snapshot_of(snapshot_id: SnapshotId, *, size: int = 3000) -> bytes:
    """Return a sound snapshot."""
    header = SnapshotHeader("c1", (), snapshot_id.end_offset, snapshot_id.epoch, 7_000, (), 2)
    body = batch.encode(
        [RecordData(1008, 0, b"x" * size)] * 3, base_offset=1, epoch=1, timestamp_ms=7_000
    )
    return encode_header(header) + body + encode_footer(header, 4, 99)


def vote_as_said(vote: VoteState) -> list[Any]:
    """Return a vote as JSON."""
    return [vote.epoch, vote.voted_id, vote.voted_directory_id, vote.leader_id]


class SaidStore:
    """An opened and recovered store of a node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        identity = read_identity(directory)
        self.store: RocksLogStore = open_store(
            directory, expect_cluster_id=None, expect_node_id=None, loop=asyncio.get_running_loop()
        )
        found = self.store.recover()
        assert identity == self.store.identity
        start, self.end = found.start_offset, found.end_offset
        self.epoch = found.vote.epoch
        content = self.store.read(start, until=self.end, max_bytes=1 << 30)
        # What was found is durable, whatever it was.
        mark("log", start=start, end=self.end, batches=batches_of(content, start))
        mark("voted", vote=vote_as_said(found.vote))

    def append(self, *counts: int, epoch: int = 1, size: int = 10) -> None:
        """Append at the end, without a sync."""
        chunk, end = chunk_of(self.end, *counts, epoch=epoch, size=size)
        say_batches(chunk, self.end)
        self.store.append(chunk, self.end, end)
        self.end = end

    async def flush(self, *, inline: bool = False) -> None:
        """Make all earlier writes durable."""
        done: asyncio.Future[int | StorageError] = asyncio.get_running_loop().create_future()
        self.store.flush(done.set_result, inline=inline)
        say_durable(await done)

    async def write(
        self, *counts: int, epoch: int = 1, size: int = 10, inline: bool = False
    ) -> None:
        """Append and flush."""
        self.append(*counts, epoch=epoch, size=size)
        await self.flush(inline=inline)

    def truncate(self, end: int) -> None:
        """Truncate; not durable."""
        mark("truncating", end=end)
        self.store.truncate(end)
        self.end = end

    async def vote(self, vote: VoteState) -> None:
        """Write a vote; durable when reported."""
        mark("voting", vote=vote_as_said(vote))
        done: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
        self.store.write_vote(vote, done.set_result)
        assert await done is None
        mark("voted", vote=vote_as_said(vote))

    async def snapshot(self, snapshot_id: SnapshotId) -> None:
        """Write a snapshot in three parts; durable when reported."""
        data = snapshot_of(snapshot_id)
        mark("storing", name=file_name(snapshot_id), data=data.hex())
        for at in range(0, len(data), 4000):
            self.store.store_snapshot(snapshot_id, at, data[at : at + 4000])
        done: asyncio.Future[FatalError | None] = asyncio.get_running_loop().create_future()
        self.store.freeze_snapshot(snapshot_id, done.set_result)
        assert await done is None
        mark("stored", name=file_name(snapshot_id))

    def start_at(self, snapshot_id: SnapshotId) -> None:
        """Move the log's start; durable when it returns. Earlier snapshots are deleted."""
        self._drop_before(snapshot_id)
        self._say_new_format()
        mark("starting", end=snapshot_id.end_offset)
        self.store.advance_log_start(snapshot_id)
        mark("started", end=snapshot_id.end_offset)

    async def replace_by(self, snapshot_id: SnapshotId) -> None:
        """Store and install a snapshot of another log, with the flush that makes it durable. Once
        stored it counts.
        """
        self._drop_before(snapshot_id)
        self._say_new_format()
        mark("installing", end=snapshot_id.end_offset)
        await self.snapshot(snapshot_id)
        self.store.install_snapshot(snapshot_id)
        self.end = snapshot_id.end_offset
        await self.flush()
        mark("started", end=snapshot_id.end_offset)

    def _drop_before(self, snapshot_id: SnapshotId) -> None:
        for one in sorted(self.directory.joinpath("snapshots").glob("*.checkpoint")):
            if one.name < file_name(snapshot_id):
                mark("dropping", name=one.name)

    def _say_new_format(self) -> None:
        mark("identifying", identity={**asdict(self.store.identity), "format_version": 2})

    def close(self) -> None:
        """Close the store, which makes everything durable."""
        self.store.close()
        mark("durable", end=self.end)


def say_batches(chunk: bytes, base_offset: int) -> None:
    """Report that they are about to be appended."""
    for base, end, data in batches_of(chunk, base_offset):
        mark("appending", base=base, end=end, data=data)


def say_durable(outcome: int | StorageError) -> None:
    """Report what a flush has reported."""
    assert isinstance(outcome, int), outcome
    mark("durable", end=outcome)

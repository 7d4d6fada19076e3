"""Small real directories to damage, and older copies of their files. ``closed`` and ``killed`` are
a controller's whose log begins at 0, ``late`` and ``late-killed`` one's whose log begins after a
snapshot; then a broker's, an export, and a configuration. A killed one is a copy of an open store:
the end of its log is in the write-ahead log.
"""

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from raftlog import batch
from raftlog.endpoint import Voter
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.records import record
from raftlog.metadata.snapshot import header_of, pieces
from raftlog.node.storage.api import NodeIdentity, SnapshotId, VoteState
from raftlog.node.storage.directory import format_storage
from raftlog.node.storage.files import Bootstrap
from raftlog.node.storage.log_store import RocksLogStore
from raftlog.node.storage.opening import open_partition_store, open_store
from raftlog.segments.export import export
from raftlog.segments.manifest import read_manifest
from raftlog.segments.writer import ExportWriter
from raftlog.wire.records.v1 import records_pb2 as pb

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "segments"))
from log_history import CLUSTER_ID, LogHistory

NODE_ID = 1
SESSIONS = (60, 120, 180, 230)
"""Ends of the log at which a store is closed; the last session is killed."""
KEYS = tuple((bytes([letter]) * 16, index) for letter in b"abc" for index in (0, 1))


class Base(NamedTuple):
    """One directory, and older ones of the same kind whose files may be put in place of newer
    ones.
    """

    name: str
    kind: str
    directory: Path
    older: tuple[Path, ...]


def make_bases(parent: Path, seed: int) -> list[Base]:
    """Return all bases. The same seed gives the same content."""
    made: list[Base] = []
    for late in (False, True):
        where = parent / ("late" if late else "whole")
        asyncio.run(_controller(where, LogHistory(seed), late=late))
        older = tuple(where / f"old{number}" for number in range(len(SESSIONS) - 1))
        prefix = "late-" if late else ""
        made.append(Base(f"{prefix}closed", "controller", where / "closed", older))
        made.append(Base(f"{prefix}killed", "controller", where / "killed", older))
    asyncio.run(_broker(parent / "broker", Random(seed)))
    broker, older = parent / "broker", (parent / "broker" / "old",)
    made += [
        Base(f"broker-{name}", "broker", broker / name, older) for name in ("closed", "killed")
    ]
    _export(parent / "export", LogHistory(seed))
    made.append(Base("export", "export", parent / "export" / "now", (parent / "export" / "old",)))
    _config(parent / "config", parent / "data")
    made.append(Base("config", "config", parent / "config", ()))
    return made


# --- a controller -------------------------------------------------------------------------------


async def _controller(where: Path, history: LogHistory, *, late: bool) -> None:
    live = where / "closed"
    voters = tuple(Voter(number, f"h{number}:9093", f"d{number}") for number in (1, 2, 3))
    format_storage(live, NodeIdentity(CLUSTER_ID, NODE_ID, "d1"), bootstrap=Bootstrap(voters, 4))
    for number, end in enumerate(SESSIONS):
        store = _opened(live)
        before = store.recover().end_offset
        history.run(end)
        await _vote(store, VoteState(history.epoch, 1, "d1"))
        if number == 2:
            # What a new leader did not have, on disk in a table of its own, and then truncated.
            stale = batch.encode(
                [record(pb.NoOpRecord()).data] * 9, base_offset=before, epoch=1, timestamp_ms=1
            )
            _append(store, stale, before, before + 9, history)
            await _flush(store)
            store.close()
            store = _opened(live)
            store.recover()
            store.truncate(before)
        for position in range(before, history.end_offset):
            if position in history.positions:
                data = history.batches[history.positions[position]]
                store.append(data, position, position + _count(data))
        await _flush(store)
        if number < 3:
            made = await _snapshot(store, history, sorted(history.positions)[-4])
            if late and number == 1:
                store.advance_log_start(made)
        else:
            shutil.copytree(live, where / "killed")
        store.close()
        if number < len(SESSIONS) - 1:
            shutil.copytree(live, where / f"old{number}")


def _append(store: RocksLogStore, chunk: bytes, base: int, end: int, history: LogHistory) -> None:
    """Append a batch in the current epoch of the log."""
    (header,) = batch.headers(chunk)
    records = [tuple(one) for one in batch.records(chunk, header)]
    again = batch.encode(
        records, base_offset=base, epoch=history.epoch, timestamp_ms=history.timestamp_ms
    )
    store.append(again, base, end)


def _count(data: bytes) -> int:
    (header,) = batch.headers(data)
    return header.record_count


def _opened(directory: Path) -> RocksLogStore:
    return open_store(
        directory, expect_cluster_id=None, expect_node_id=None, loop=asyncio.get_running_loop()
    )


async def _snapshot(store: RocksLogStore, history: LogHistory, end_offset: int) -> SnapshotId:
    """Take a snapshot of the state before ``end_offset``, where a batch begins."""
    builder = ImageBuilder(Image())
    builder.apply_chunk(b"".join(history.batches), until=end_offset)
    image = builder.snapshot()
    content = b"".join(pieces(image, header_of(image, cluster_id=CLUSTER_ID, generations=())))
    made = SnapshotId(end_offset, image.epoch)
    store.store_snapshot(made, 0, content)
    await _done(lambda done: store.freeze_snapshot(made, done))
    return made


async def _vote(store: RocksLogStore, vote: VoteState) -> None:
    await _done(lambda done: store.write_vote(vote, done))


async def _flush(store: RocksLogStore) -> None:
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    store.flush(future.set_result, inline=True)
    assert isinstance(await future, int)


async def _done(call: Callable[[Callable[[object], None]], None]) -> None:
    future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    call(future.set_result)
    assert await future is None


# --- a broker, an export, a configuration -------------------------------------------------------


async def _broker(where: Path, rng: Random) -> None:
    live = where / "closed"
    format_storage(live, NodeIdentity(CLUSTER_ID, NODE_ID, "d1"))
    ends = dict.fromkeys(KEYS, 0)
    for number in range(3):
        store = open_partition_store(live, asyncio.get_running_loop())
        store.recover()
        for _ in range(40):
            key = rng.choice(KEYS)
            count = rng.randrange(1, 4)
            records = [(1, 0, rng.randbytes(rng.randrange(1, 200)))] * count
            chunk = batch.encode(records, base_offset=ends[key], epoch=number, timestamp_ms=1)
            store.append(key, chunk, ends[key], ends[key] + count)
            ends[key] += count
        await _done(lambda done, store=store: store.flush(done, inline=True))  # type: ignore[misc]
        if number == 2:
            shutil.copytree(live, where / "killed")
        store.close()
        if number == 1:
            shutil.copytree(live, where / "old")


def _export(where: Path, history: LogHistory) -> None:
    now = where / "now"
    export(history.run(100), now)
    export(history.run(160), now)
    shutil.copytree(now, where / "old")
    with ExportWriter(
        now, history.cluster_id, history.generation, max_segment_records=50
    ) as writer:
        end = writer.next_offset
        history.run(260)
        writer.append_chunk(b"".join(history.batches[history.positions[end] :]))
        writer.commit(history.end_offset)
    assert len(read_manifest(now).segments) >= 8


def _config(where: Path, data: Path) -> None:
    where.mkdir()
    (where / "node.toml").write_text(
        f'''# A controller.
process.roles = ["controller"]
node.id = 1
cluster.id = "{CLUSTER_ID}"
listeners = ["127.0.0.1:9093"]
http.listener = "127.0.0.1:9193"
[log]
dirs = ["{data}"]
level = "info"
[controller.quorum]
voters = ["1@127.0.0.1:9093", "2@127.0.0.2:9093", "3@127.0.0.3:9093"]
fetch.timeout.ms = 2000
election.timeout.ms = 1000
'''
    )

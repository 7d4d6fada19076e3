"""Writing and serving snapshots in bounded slices."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from scenarios import simulated

from raftlog.errors import CorruptLogError, ErrorCode, FatalError, StorageError
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.node.replica import snapshots
from raftlog.node.replica.snapshots import (
    FETCHED_WITHIN_S,
    PAUSE_S,
    ReplicaSnapshots,
    SnapshotWriter,
)
from raftlog.node.storage.api import AcceptHeader, SnapshotId
from raftlog.quorum import events as ev
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

HEADER = SnapshotHeader("c", (), 8, 3, 1)
ID = SnapshotId(8, 3)


class Store:
    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.frozen: list[Callable[[FatalError | None], None]] = []
        self.dropped: list[SnapshotId] = []
        self.failure: FatalError | None = None

    def store_snapshot(self, snapshot_id: SnapshotId, position: int, data: bytes) -> None:
        assert snapshot_id == ID
        assert position == sum(map(len, self.parts))
        if self.failure is not None:
            raise self.failure
        self.parts.append(data)

    def freeze_snapshot(
        self,
        snapshot_id: SnapshotId,
        done: Callable[[FatalError | None], None],
        accept: AcceptHeader | None = None,
    ) -> None:
        assert snapshot_id == ID
        self.frozen.append(done)

    def drop_snapshot(self, snapshot_id: SnapshotId) -> None:
        self.dropped.append(snapshot_id)


class Outcome:
    def __init__(self) -> None:
        self.heard: list[FatalError | None] = []

    def __call__(self, error: FatalError | None) -> None:
        self.heard.append(error)


def start(store: Any, pieces: Iterator[bytes], done: Any) -> SnapshotWriter:
    return SnapshotWriter(store, HEADER, pieces, done)


@simulated
async def test_snapshot_writer_yields_the_loop_between_slices() -> None:
    store, done = Store(), Outcome()
    loop = asyncio.get_running_loop()
    others = 0
    at: list[tuple[int, float]] = []

    async def everybody_else() -> None:
        nonlocal others
        while not store.frozen:
            others += 1
            await asyncio.sleep(0.0005)

    def pieces() -> Iterator[bytes]:
        for number in range(200):
            at.append((others, loop.time()))
            yield b"" if number % 3 else b"x" * number

    busy = asyncio.ensure_future(everybody_else())
    start(store, pieces(), done)
    await busy
    assert len(at) == 200
    for (before, then), (after, now) in itertools.pairwise(at):
        assert after >= before + 2, "two slices with hardly a turn of the loop between them"
        assert now - then >= PAUSE_S * 0.99
    assert b"".join(store.parts) == b"".join(b"x" * n for n in range(200) if n % 3 == 0)
    assert done.heard == []
    store.frozen[0](None)
    assert done.heard == [None]


@simulated
async def test_disk_error_stops_the_snapshot_writer() -> None:
    store, done = Store(), Outcome()
    store.failure = StorageError("no")
    start(store, iter([b"a", b"b"]), done)
    await asyncio.sleep(1)
    assert done.heard == [store.failure]
    assert store.frozen == []


@pytest.mark.parametrize("error", [FatalError("the hash"), KeyError("a defect")])
@simulated
async def test_state_that_cannot_be_written_is_never_frozen(error: Exception) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"a"
        raise error

    store, done = Store(), Outcome()
    start(store, pieces(), done)
    await asyncio.sleep(1)
    assert store.frozen == []
    [heard] = done.heard
    assert isinstance(heard, FatalError)


@simulated
async def test_cancelled_snapshot_writer_drops_its_parts_silently() -> None:
    store, done = Store(), Outcome()
    writer = start(store, iter([b"a"] * 100), done)
    await asyncio.sleep(0.01)
    writer.cancel()
    written = len(store.parts)
    assert 0 < written < 100
    await asyncio.sleep(1)
    assert (len(store.parts), store.dropped, store.frozen, done.heard) == (written, [ID], [], [])


@simulated
async def test_snapshot_writer_cancelled_while_freezing_reports_nothing() -> None:
    store, done = Store(), Outcome()
    writer = start(store, iter([b"a"]), done)
    await asyncio.sleep(1)
    writer.cancel()
    store.frozen[0](CorruptLogError("late"))
    assert (done.heard, store.dropped) == ([], [])


class Shelf:
    content = bytes(range(100))

    def snapshot_size(self, snapshot_id: SnapshotId) -> int:
        if snapshot_id != ID:
            raise LookupError(snapshot_id)
        return len(self.content)

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> bytes:
        return self.content[position : position + max_bytes]


def ask(position: int, max_bytes: int = 30, end_offset: int = 8) -> pb.FetchSnapshotResponse:
    response = pb.FetchSnapshotResponse(snapshot_id=pb.SnapshotId(end_offset=end_offset, epoch=3))
    unused: Any = None
    shelf: Any = Shelf()
    reply = ReplicaSnapshots(shelf, unused, "c", step=unused, fail=unused, now=lambda: 0.0).reply(
        ev.ReplySnapshot("to", response, position, max_bytes)
    )
    assert reply.reply_to == "to"
    return reply.response


@pytest.mark.parametrize(
    ("position", "max_bytes", "count"),
    [(0, 30, 30), (90, 30, 10), (99, 30, 1), (0, 0, 1), (0, -5, 1)],
)
def test_piece_contains_the_bytes_from_its_position(
    position: int, max_bytes: int, count: int
) -> None:
    """At least one of them."""
    response = ask(position, max_bytes)
    assert response.bytes == Shelf.content[position : position + count]
    assert (response.size, response.position, response.error_code) == (100, position, 0)


@pytest.mark.parametrize("position", [-1, 100, 101, 1 << 40])
def test_position_beyond_the_end_is_refused(position: int) -> None:
    response = ask(position)
    assert (response.error_code, response.bytes) == (ErrorCode.POSITION_OUT_OF_RANGE, b"")


def test_missing_snapshot_is_reported() -> None:
    assert ask(0, end_offset=9).error_code == ErrorCode.SNAPSHOT_NOT_FOUND


def test_no_piece_is_larger_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PIECE_MAX_BYTES", 7)
    assert len(ask(0, 1 << 30).bytes) == 7


def test_snapshot_counts_as_fetched_while_its_pieces_are_requested() -> None:
    clock, unused, shelf = [0.0], cast("Any", None), cast("Any", Shelf())
    snapshots = ReplicaSnapshots(shelf, unused, "c", step=unused, fail=unused, now=lambda: clock[0])
    snapshots.ids = (ID,)

    def piece(end_offset: int, position: int) -> None:
        response = pb.FetchSnapshotResponse(
            snapshot_id=pb.SnapshotId(end_offset=end_offset, epoch=3)
        )
        snapshots.reply(ev.ReplySnapshot("to", response, position, 30))

    for end_offset, position in ((ID.end_offset, 100), (ID.end_offset + 1, 0)):
        piece(end_offset, position)
    assert snapshots.fetched() == [], "what was refused"
    for clock[0] in (1.0, 5.0, 9.0):
        piece(ID.end_offset, 0)
    clock[0] = 9.0 + FETCHED_WITHIN_S
    assert snapshots.fetched() == [ID]
    clock[0] += 0.1
    assert snapshots.fetched() == []
    piece(ID.end_offset, 0)
    snapshots.ids = ()
    assert snapshots.fetched() == [], "it is gone"

"""Recorded programs on a node's store. Each function is one program, on a directory made by
``prepare_``…: it first reports what its directory holds, then that it *begins*.
"""

import asyncio
import threading
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from marks import mark
from said import IDENTITY, SaidStore, batches_of, chunk_of, say_durable, snapshot_of, vote_as_said

from raftlog.endpoint import Voter
from raftlog.node.recovery import unsafe_recovery
from raftlog.node.recovery.unsafe_recovery import recover_unsafely
from raftlog.node.storage.api import SnapshotId, VoteState
from raftlog.node.storage.directory import format_storage, write_identity
from raftlog.node.storage.files import Bootstrap
from raftlog.node.storage.snapshot_files import file_name

VOTE = VoteState(epoch=3, voted_id=2, voted_directory_id="d2")
LOG_EPOCHS = (1, 1, 1, 1, 1, 2, 2, 2, 2, 2)
"""Epochs of the prepared log: ten records in as many chunks."""
EARLY = SnapshotId(4, 1)
OF_ANOTHER = SnapshotId(6, 3)
"""Inside the prepared log, and not of it: record 5 has epoch 2 there."""


def _format(root: Path) -> None:
    format_storage(root / "data", IDENTITY, bootstrap=Bootstrap((), 2))


async def _fill(root: Path) -> None:
    _format(root)
    node = SaidStore(root / "data")
    await node.vote(VOTE)
    for epoch in LOG_EPOCHS:
        node.append(1, epoch=epoch)
    await node.flush()
    node.close()


def _say_formatted() -> None:
    mark("identified", identity=asdict(IDENTITY))
    mark("voted", vote=vote_as_said(VoteState()))


def _say_filled() -> None:
    mark("identified", identity=asdict(IDENTITY))
    mark("voted", vote=vote_as_said(VOTE))
    batches = [
        one
        for at, epoch in enumerate(LOG_EPOCHS)
        for one in batches_of(chunk_of(at, 1, epoch=epoch)[0], at)
    ]
    mark("log", start=0, end=len(LOG_EPOCHS), batches=batches)


# --- formatting ---------------------------------------------------------------------------------


def format_anew(root: Path) -> None:
    """Format new directories; then the promises from the first record on."""
    mark("unformatted")
    mark("begins")
    mark("identifying", identity=asdict(IDENTITY))
    mark("voting", vote=vote_as_said(VoteState()))
    directory = root / "srv" / "raftlog" / "data"
    format_storage(directory, IDENTITY, bootstrap=Bootstrap((Voter(1, "h:1", "d1"),), 2))
    mark("formatted")
    asyncio.run(_first_record(directory))


async def _first_record(directory: Path) -> None:
    node = SaidStore(directory)
    await node.vote(VoteState(epoch=1, voted_id=1))
    await node.write(2)


# --- the log and the vote -----------------------------------------------------------------------

prepare_append = _format


def append(root: Path) -> None:
    """Append votes, small and large chunks, with syncs on the loop and in parallel; stop without
    closing, or close in order.
    """
    _say_formatted()
    mark("begins")
    asyncio.run(_append(root / "data"))


async def _append(directory: Path) -> None:
    node = SaidStore(directory)
    await node.vote(VoteState(epoch=1, voted_id=1, voted_directory_id="d1"))
    await node.write(1)
    await node.write(2, 3, size=3000, inline=True)
    await node.vote(VoteState(epoch=2, voted_id=3))
    node.append(1, epoch=2, size=50_000)
    node.append(1, epoch=2)
    await node.flush()
    await node.vote(VoteState(epoch=2, leader_id=3))
    node.append(4, epoch=2, size=2000)
    node.close()
    node = SaidStore(directory)
    node.append(2, epoch=2)
    node.append(1, epoch=2, size=9000)
    await node.flush(inline=True)
    node.append(1, epoch=2, size=100)


prepare_group_commit = _format


def group_commit(root: Path) -> None:
    """Append chunks while a sync runs, after it has reached the disk: the next sync covers them."""
    _say_formatted()
    mark("begins")
    asyncio.run(_group_commit(root / "data"))


async def _group_commit(directory: Path) -> None:
    node = SaidStore(directory)
    await node.vote(VoteState(epoch=1))
    rocks, loop = node.store._rocks, asyncio.get_running_loop()
    sync, synced, appended, said = rocks.sync, asyncio.Event(), threading.Event(), threading.Event()
    said.set()

    def held() -> None:
        # What the sync before this one is taken to cover is said before this one covers more.
        assert said.wait(30)
        sync()
        said.clear()
        loop.call_soon_threadsafe(synced.set)
        appended.wait(30)

    def durable(done: asyncio.Future[None], outcome: Any) -> None:
        say_durable(outcome)
        said.set()
        done.set_result(None)

    rocks.sync = held
    dones: list[asyncio.Future[None]] = []
    for _ in range(4):
        appended.clear()
        synced.clear()
        node.append(1)
        for _ in range(2):
            done = loop.create_future()
            dones.append(done)
            node.store.flush(partial(durable, done), inline=False)
        await synced.wait()
        node.append(1)
        appended.set()
        await dones[-2]
    await asyncio.gather(*dones)


prepare_truncate = prepare_restart = _fill


def truncate(root: Path) -> None:
    """Truncate the log twice, as a follower whose leader has another tail."""
    _say_filled()
    mark("begins")
    asyncio.run(_truncate(root / "data"))


async def _truncate(directory: Path) -> None:
    node = SaidStore(directory)
    await node.vote(VoteState(epoch=4))
    node.truncate(7)
    await node.write(2, epoch=4)
    node.truncate(8 if node.end == 8 else 7)
    await node.flush()
    node.append(3, epoch=4)
    node.close()


def restart(root: Path) -> None:
    """Reopen again and again, written or not, closed or not."""
    _say_filled()
    mark("begins")
    asyncio.run(_restart(root / "data"))


async def _restart(directory: Path) -> None:
    SaidStore(directory).close()
    node = SaidStore(directory)
    await node.write(1, epoch=3)
    node.close()
    SaidStore(directory)


# --- snapshots, and what begins with them -------------------------------------------------------

prepare_move_start = prepare_install = _fill


def move_start(root: Path) -> None:
    """Take two snapshots and move the log's start to each, while records are written."""
    _say_filled()
    mark("begins")
    asyncio.run(_move_start(root / "data"))


async def _move_start(directory: Path) -> None:
    node = SaidStore(directory)
    await node.snapshot(EARLY)
    node.start_at(EARLY)
    await node.write(1, epoch=3)
    later = SnapshotId(9, 2)
    await node.snapshot(later)
    node.append(2, epoch=3)
    node.start_at(later)
    await node.flush()
    node.close()


def install(root: Path) -> None:
    """Install a snapshot of another log than this one's, then one beyond the end."""
    _say_filled()
    mark("begins")
    asyncio.run(_install(root / "data"))


async def _install(directory: Path) -> None:
    node = SaidStore(directory)
    await node.replace_by(OF_ANOTHER)
    await node.write(2, epoch=3)
    await node.replace_by(SnapshotId(20, 3))
    await node.write(1, epoch=3)
    node.close()


def prepare_install_over_start(root: Path) -> None:
    async def prepare() -> None:
        await _fill(root)
        node = SaidStore(root / "data")
        await node.snapshot(EARLY)
        node.start_at(EARLY)
        node.close()

    asyncio.run(prepare())


def install_over_start(root: Path) -> None:
    """Install on a log that begins above 0."""
    _say_filled()
    mark("identified", identity={**asdict(IDENTITY), "format_version": 2})
    mark("storing", name=file_name(EARLY), data=snapshot_of(EARLY).hex())
    mark("stored", name=file_name(EARLY))
    mark("starting", end=EARLY.end_offset)
    mark("started", end=EARLY.end_offset)
    mark("begins")

    async def run() -> None:
        node = SaidStore(root / "data")
        await node.replace_by(OF_ANOTHER)
        await node.write(1, epoch=3)

    asyncio.run(run())


# --- identities ---------------------------------------------------------------------------------

prepare_identify = _format


def identify(root: Path) -> None:
    """Store a broker's node id, and then a different id."""
    _say_formatted()
    mark("begins")
    for node_id in (1003, 1004):
        identity = replace(IDENTITY, node_id=node_id)
        mark("identifying", identity=asdict(identity))
        write_identity(root / "data", identity)
        mark("identified", identity=asdict(identity))


prepare_recover_by_hand = _fill


def recover_by_hand(root: Path) -> None:
    """Recover unsafely: the vote, and then the records that begin a new generation."""
    _say_filled()
    vote = vote_as_said(VoteState(epoch=VOTE.epoch + unsafe_recovery.EPOCHS_SKIPPED))
    mark("recovering", end=len(LOG_EPOCHS), vote=vote)
    mark("begins")
    made = unsafe_recovery.beginning_chunk

    def said(*args: object, **details: object) -> bytes:
        chunk = made(*args, **details)  # type: ignore[arg-type]
        mark("voting", vote=vote)
        for base, behind, data in batches_of(chunk, len(LOG_EPOCHS)):
            mark("appending", base=base, end=behind, data=data)
        return chunk

    unsafe_recovery.beginning_chunk = said
    done = asyncio.run(recover_unsafely(root / "data", endpoint="h:1", reason="fire", now_ms=5_000))
    assert vote == vote_as_said(VoteState(epoch=done.epoch))
    mark("voted", vote=vote)
    mark("durable", end=done.end_offset)


# --- starts on what a power cut has left --------------------------------------------------------


def start_again(root: Path) -> None:
    """Start on a damaged directory, so that power can fail while a start repairs an earlier cut."""
    mark("begins")

    async def run() -> None:
        node = SaidStore(root / "data")
        # A recovery that was cut short is over: what follows is of the old generation.
        mark("recovering", end=2**62, vote=None)
        await node.vote(VoteState(epoch=node.epoch + 1))
        await node.write(1, epoch=node.epoch + 1)
        node.close()

    asyncio.run(run())

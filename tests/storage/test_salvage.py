"""Salvaging the intact parts of damaged logs."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest
from storage_kit import (
    flush,
    format_with_vote,
    make_chunk,
    make_snapshot,
    open_rocks,
    whole,
    without_zeros_ahead,
)

from raftlog.errors import ApiError, CorruptLogError
from raftlog.node.recovery.mending import DESCRIBE, Answered, DamagedLog, Mending, Request, Span
from raftlog.node.recovery.salvage import Salvage, SnapshotDownload, replace_log, salvage
from raftlog.node.storage.api import SnapshotId
from raftlog.node.storage.directory import DAMAGED_DIRECTORY, LOG_DIRECTORY
from raftlog.node.storage.wal import (
    HEADER,
    NO_END,
    DamagedWrite,
    LogEnd,
    WholeWrite,
    pieces,
    read_writes,
)

END = 60
EPOCHS = (1, 1, 2, 4)
"""Epoch of each quarter of the log."""


async def make_log(directory: Path, *, tables: int = 0, truncated: bool = False) -> bytes:
    """Make a killed node's log: the first ``tables`` offsets in tables, the rest in the WAL.
    ``truncated``: offsets 30 to 34 were once those of a losing epoch.
    """
    format_with_vote(directory)
    live = directory.with_name(directory.name + "-live")
    shutil.move(directory, live)
    store = open_rocks(live)
    store.recover()
    for base in range(0, END, 2):
        if base == tables and base:
            store.close()
            store = open_rocks(live)
            store.recover()
        if truncated and base == 30:
            lost = make_chunk(30, 2, 2, epoch=1, body=b"lost")
            store.append(lost, 30, 34)
            await flush(store)
            store.truncate(30)
        chunk = make_chunk(base, 1, 1, epoch=EPOCHS[base * 4 // END], body=b"x" * 100)
        store.append(chunk, base, base + 2)
        await flush(store)
    content = whole(store, END)
    shutil.copytree(live, directory)
    store.close()
    return content


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x40
    path.write_bytes(content)


def wal_of(directory: Path) -> Path:
    return max((directory / LOG_DIRECTORY).glob("*.log"))


def writes_of(directory: Path) -> list[int]:
    """Return the positions at which the writes of the WAL begin."""
    return [at for at, _, behind in pieces(wal_of(directory).read_bytes()) if behind > 0]


async def refused(directory: Path) -> bool:
    try:
        store = open_rocks(directory)
    except CorruptLogError:
        return True
    try:
        store.recover()
    except CorruptLogError:
        return True
    finally:
        store.close()
    return False


async def mend(directory: Path, others: dict[str, Salvage]) -> list[tuple[int, int]]:
    """Repair the log from the other copies; return what is still missing."""
    found = salvage(directory)
    assert found.why_not == ""

    async def ask(source: str, request: Request) -> Answered:
        other = others[source]
        if request.snapshot is not None:
            return Answered(data=other.read_snapshot(request.snapshot, request.offset, 300))
        if request.section == DESCRIBE:
            return Answered(other.sections(request.offset), other.snapshot_ids())
        return Answered(data=other.read(request.section, request.offset, request.end, 300))

    async def go_on(_: str) -> bool:
        return False

    download = SnapshotDownload(directory, found.identity)
    mending = Mending(found.damaged_log(), list(others), ask, download)
    if not await mending.run(go_on):
        assert mending.failures == {}
        return mending.missing
    if not found.is_whole:
        records = found.assemble(mending.log, mending.got)
        replace_log(directory, found, mending.log, records, "now")
    return []


async def test_log_that_differs_from_an_intact_batch_replaces_nothing(tmp_path: Path) -> None:
    await make_log(tmp_path)
    flip(wal_of(tmp_path), writes_of(tmp_path)[5] + 40)
    found = salvage(tmp_path)
    first = found.contents[-1][0].span.base
    others = [
        make_chunk(base, 1, 1, epoch=EPOCHS[base * 4 // END], body=b"y" * 100)
        for base in range(0, END, 2)
    ]
    with pytest.raises(CorruptLogError, match=f"differs at offset {first} from an intact batch"):
        replace_log(tmp_path, found, found.damaged_log(), others, "now")
    assert await refused(tmp_path), "the damaged log is still in place"


async def content_of(directory: Path) -> bytes:
    store = open_rocks(directory)
    try:
        store.recover()
        return whole(store, END)
    finally:
        store.close()


@pytest.mark.parametrize("tables", [0, 20, 40])
async def test_logs_damaged_at_different_offsets_are_mended(tmp_path: Path, tables: int) -> None:
    rng = Random(tables)
    content = b""
    for name in "abc":
        content = await make_log(tmp_path / name, tables=tables)
        starts = writes_of(tmp_path / name)
        flip(wal_of(tmp_path / name), starts[rng.randrange(1, len(starts) - 1)] + 40)
        assert await refused(tmp_path / name)
    for name in "abc":
        others = {one: salvage(tmp_path / one) for one in "abc" if one != name}
        assert await mend(tmp_path / name, others) == []
        assert await content_of(tmp_path / name) == content
        assert (tmp_path / name / DAMAGED_DIRECTORY / "now" / LOG_DIRECTORY).exists()


@pytest.mark.parametrize("closed", [False, True])
async def test_damaged_table_hides_only_its_own_chunks(tmp_path: Path, closed: bool) -> None:
    content = await make_log(tmp_path / "a", tables=40)
    if closed:
        store = open_rocks(tmp_path / "a")
        store.recover()
        store.close()
    tables = (tmp_path / "a" / LOG_DIRECTORY).glob("*.sst")
    flip(max(tables, key=lambda path: path.stat().st_size), 100)
    assert await refused(tmp_path / "a")
    assert salvage(tmp_path / "a").end == LogEnd(END, EPOCHS[-1])
    await make_log(tmp_path / "b")
    assert await mend(tmp_path / "a", {"b": salvage(tmp_path / "b")}) == []
    assert await content_of(tmp_path / "a") == content


async def test_truncated_batch_is_not_restored(tmp_path: Path) -> None:
    content = await make_log(tmp_path / "a", truncated=True)
    await make_log(tmp_path / "b")
    starts = writes_of(tmp_path / "a")
    # The truncation, and the chunk after it, which only the other one has.
    flip(wal_of(tmp_path / "a"), starts[17] + 20)
    flip(wal_of(tmp_path / "a"), starts[18] + 40)
    log = salvage(tmp_path / "a").damaged_log()
    assert log.missing() == [(0, 32)]
    assert await mend(tmp_path / "a", {"b": salvage(tmp_path / "b")}) == []
    assert await content_of(tmp_path / "a") == content


@pytest.mark.parametrize("place", ["length", "checksum", "first mark", "chunk", "last mark"])
async def test_log_with_a_damaged_last_write_is_repaired(tmp_path: Path, place: str) -> None:
    content = await make_log(tmp_path / "a")
    await make_log(tmp_path / "b")
    begin = writes_of(tmp_path / "a")[-1]
    size = HEADER.unpack_from(wal_of(tmp_path / "a").read_bytes(), begin)[1]
    at = {"length": 4, "checksum": 0, "first mark": 30, "chunk": 80, "last mark": size}[place]
    flip(wal_of(tmp_path / "a"), begin + at)
    assert await refused(tmp_path / "a")
    assert salvage(tmp_path / "a").end == LogEnd(END, EPOCHS[-1])
    assert await mend(tmp_path / "a", {}) == [(END - 2, END)]
    assert await mend(tmp_path / "a", {"b": salvage(tmp_path / "b")}) == []
    assert await content_of(tmp_path / "a") == content


async def test_log_without_preallocated_zeros_is_repaired(tmp_path: Path) -> None:
    """[A store that stops for a damaged table leaves a WAL that ends with its last write.]"""
    content = await make_log(tmp_path / "a")
    wal = without_zeros_ahead(tmp_path / "a" / LOG_DIRECTORY)
    flip(wal, writes_of(tmp_path / "a")[7] + 80)
    await make_log(tmp_path / "b")
    assert await mend(tmp_path / "a", {"b": salvage(tmp_path / "b")}) == []
    assert await content_of(tmp_path / "a") == content


async def test_wal_truncated_anywhere_is_read_to_its_end(tmp_path: Path) -> None:
    await make_log(tmp_path / "a")
    data = without_zeros_ahead(tmp_path / "a" / LOG_DIRECTORY).read_bytes()
    ends = [behind for _, _, behind in pieces(data)]
    for size in range(ends[-3], len(data) + 1):
        found = list(read_writes(data[:size]))
        wholes = sum(end <= size for end in ends)
        assert [type(one) for one in found[:wholes]] == [WholeWrite] * wholes
        assert found[wholes:] == ([] if size in ends else [DamagedWrite(NO_END)])


async def begin_behind(directory: Path, *ends: SnapshotId) -> None:
    """Let the log begin after the first snapshot; the others are newer."""
    store = open_rocks(directory)
    store.recover()
    for one in ends:
        assert await make_snapshot(store, one) is None
    store.advance_log_start(ends[0])
    store.close()


@pytest.mark.parametrize("others", [(30,), (40,), (20, 40), (70,)])
async def test_damaged_snapshot_is_fetched(tmp_path: Path, others: tuple[int, ...]) -> None:
    """Any one that the log may begin with, also one beyond its end."""
    await make_log(tmp_path / "a")
    await begin_behind(tmp_path / "a", SnapshotId(30, EPOCHS[1]))
    (damaged,) = (tmp_path / "a" / "snapshots").glob("*.checkpoint")
    flip(damaged, 200)
    assert await refused(tmp_path / "a")
    await make_log(tmp_path / "b")
    epochs = {20: 1, 30: 1, 40: 2, 70: 7}
    store = open_rocks(tmp_path / "b")
    store.recover()
    for end in others:
        assert await make_snapshot(store, SnapshotId(end, epochs[end])) is None
    sound = salvage(tmp_path / "b")
    store.close()
    assert await mend(tmp_path / "a", {}) == []
    assert salvage(tmp_path / "a").damaged_log().lacks_snapshot, "it is missing still"
    assert await mend(tmp_path / "a", {"b": sound}) == []
    store = open_rocks(tmp_path / "a")
    found = store.recover()
    store.close()
    assert found.snapshots[-1].end_offset == max(others)
    assert (found.start_offset, found.end_offset) == ((70, 70) if others == (70,) else (30, END))


@pytest.mark.parametrize("epoch", [2, 3])
async def test_snapshot_of_another_log_is_not_accepted(tmp_path: Path, epoch: int) -> None:
    await make_log(tmp_path / "a")
    await begin_behind(tmp_path / "a", SnapshotId(30, EPOCHS[1]))
    for damaged in (tmp_path / "a" / "snapshots").glob("*.checkpoint"):
        flip(damaged, 200)
    await make_log(tmp_path / "b")
    store = open_rocks(tmp_path / "b")
    store.recover()
    # The log has offset 49 in epoch 4.
    assert await make_snapshot(store, SnapshotId(50, epoch)) is None
    sound = salvage(tmp_path / "b")
    store.close()
    await mend(tmp_path / "a", {"b": sound})
    assert salvage(tmp_path / "a").damaged_log().lacks_snapshot


async def test_log_whose_last_write_lost_both_marks_is_not_repaired(tmp_path: Path) -> None:
    await make_log(tmp_path / "a")
    begin = writes_of(tmp_path / "a")[-1]
    size = HEADER.unpack_from(wal_of(tmp_path / "a").read_bytes(), begin)[1]
    flip(wal_of(tmp_path / "a"), begin + 30)
    flip(wal_of(tmp_path / "a"), begin + size)
    assert salvage(tmp_path / "a").why_not == (
        "no intact data shows where the log ended after offset 58, so it is unknown which later"
        " records this node has acknowledged"
    )


def test_batches_after_the_last_certain_record_of_their_epoch_are_not_accepted() -> None:
    log = DamagedLog(0, LogEnd(30, 2), [[], [Span(25, 30, 2)]])
    # This leader of epoch 1 wrote more than the leader of epoch 2 has kept.
    log.offer("a", [[Span(0, 28, 1)]])
    assert log.wanted() == []
    log.offer("b", [[Span(0, 20, 1), Span(20, 22, 2), Span(40, 42, 2)]])
    wanted = [(one.base, one.end, one.epoch) for one in log.wanted()]
    assert (20, 22, 2) in wanted
    assert max(end for _, end, epoch in wanted if epoch == 1) == 20
    assert log.missing([(base, end) for base, end, _ in wanted]) == [(22, 25)]


def test_record_before_the_start_of_an_undamaged_log_is_certain_with_its_first_record() -> None:
    """[Every other controller had deleted the records below its snapshot: the log was not mended,
    although it had all of them itself.]
    """
    log = DamagedLog(0, LogEnd(30, 3), [[Span(0, 20, 1)], [Span(25, 30, 3)]])
    assert log.missing() == [(0, 25)]
    log.offer("a", [[Span(20, 25, 2), Span(25, 30, 3)]])
    assert log.missing([(20, 25)]) == [(0, 20)], "record 19 may be of another epoch"
    log.offer("a", [[Span(20, 25, 2), Span(25, 30, 3)]], log_start=SnapshotId(20, 1))
    assert {(one.base, one.end, one.epoch) for one in log.certain()} == {(0, 20, 1), (25, 30, 3)}
    assert log.missing([(20, 25)]) == []


@pytest.mark.parametrize(
    "spans",
    [
        [Span(21, 25, 2), Span(25, 30, 3)],  # without the first records
        [Span(20, 25, 2), Span(25, 30, 4)],  # of another history
        [],
    ],
)
def test_start_of_a_log_whose_first_record_is_uncertain_proves_nothing(spans: list[Span]) -> None:
    log = DamagedLog(0, LogEnd(30, 3), [[Span(0, 20, 1)], [Span(25, 30, 3)]])
    log.offer("a", [spans], log_start=SnapshotId(20, 1))
    assert (0, 20) not in [(one.base, one.end) for one in log.certain()]


@pytest.mark.parametrize("start", [SnapshotId(0, 1), SnapshotId(2**62, 1), SnapshotId(20, 0)])
def test_impossible_start_of_a_log_is_refused(start: SnapshotId) -> None:
    log = DamagedLog(0, LogEnd(30, 3), [[Span(0, 20, 1)], [Span(25, 30, 3)]])
    with pytest.raises(ApiError, match="no log starts at"):
        log.offer("a", [], log_start=start)

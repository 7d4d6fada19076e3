"""Reading a log offline."""

import os
import shutil
from pathlib import Path

import pytest
from storage_kit import (
    IDENTITY,
    flush,
    make_batch,
    make_chunk,
    make_snapshot,
    open_rocks,
    write_vote,
)

from raftlog.errors import ConfigError, CorruptLogError
from raftlog.node.storage.api import SnapshotId, VoteState
from raftlog.node.storage.chunks import read_span
from raftlog.node.storage.directory import LOG_STATE_FILE, format_storage
from raftlog.node.storage.reader import open_read_only


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    }


@pytest.mark.parametrize("how", ["closed", "copied while in use"])
async def test_reading_a_log_changes_nothing(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "data"
    format_storage(directory, IDENTITY)
    store = open_rocks(directory)
    store.recover()
    chunks = [make_chunk(0, 1, 2), make_chunk(3, 1)]
    store.append(chunks[0], 0, 3)
    store.append(chunks[1], 3, 4)
    await flush(store)
    await write_vote(store, VoteState(epoch=2, voted_id=1))
    if how != "closed":
        shutil.copytree(directory, tmp_path / "copy")
        (tmp_path / "copy" / "lock").unlink()
    store.close()
    read = directory if how == "closed" else tmp_path / "copy"
    before = snapshot(read)
    with open_read_only(read) as reader:
        assert (reader.identity, reader.start_offset, reader.end_offset) == (IDENTITY, 0, 4)
        assert reader.vote == VoteState(epoch=2, voted_id=1)
        assert reader.read(0, 4, 1 << 20) == b"".join(chunks)
        assert reader.read(1, 4, 1) == make_batch(1, 2)
        with pytest.raises(ValueError, match="boundary"):
            reader.read(2, 4, 1)
        with pytest.raises(ValueError, match=r"it has \["):
            reader.read(0, 5, 1)
    assert snapshot(read) == before


async def test_older_state_with_a_start_below_the_first_record_is_damage(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    format_storage(directory, IDENTITY)
    store = open_rocks(directory)
    store.recover()
    await write_vote(store, VoteState(epoch=1))
    store.append(make_chunk(0, 1, 2), 0, 3)
    store.append(make_chunk(3, 1), 3, 4)
    await flush(store)
    store.close()
    older = (directory / LOG_STATE_FILE).read_bytes()
    store = open_rocks(directory)
    store.recover()
    assert await make_snapshot(store, SnapshotId(3, 1)) is None
    store.advance_log_start(SnapshotId(3, 1))
    await flush(store)
    store.close()
    with open_read_only(directory) as reader:
        assert (reader.start_offset, reader.end_offset) == (3, 4)
    (directory / LOG_STATE_FILE).write_bytes(older)
    with pytest.raises(
        CorruptLogError,
        match=r"log-state.json says that the log begins at offset 0, but its first record has"
        r" offset 3",
    ):
        open_read_only(directory)


async def test_empty_log_is_readable_and_a_lost_vote_refused(tmp_path: Path) -> None:
    format_storage(tmp_path / "data", IDENTITY)
    (tmp_path / "data" / "quorum-state.json").unlink()
    with open_read_only(tmp_path / "data") as reader:
        assert (reader.start_offset, reader.end_offset, reader.read(0, 0, 1)) == (0, 0, b"")
        with pytest.raises(CorruptLogError, match="missing"):
            _ = reader.vote


def test_unformatted_or_damaged_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not formatted"):
        open_read_only(tmp_path)
    format_storage(tmp_path / "data", IDENTITY)
    left = set(os.listdir("/tmp"))
    os.truncate(tmp_path / "data" / "log" / "CURRENT", 0)
    with pytest.raises(CorruptLogError):
        open_read_only(tmp_path / "data")
    assert not [name for name in set(os.listdir("/tmp")) - left if name.startswith("raftlog-read-")]


# --- A read begins where it was asked to, and every batch that it gives was checked --------------


MAX = 1 << 20


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def test_chunks_that_begin_above_the_offset_are_a_gap() -> None:
    """The chunk at 0 is lost: the later chunks are sound and contiguous, but not the requested
    ones.
    """
    for inside in (False, True):
        with pytest.raises(
            CorruptLogError, match="next chunk begins at offset 2 instead of 0"
        ) as caught:
            read_span([(2, make_chunk(2, 1, 1))], 0, 4, MAX, inside=inside)
        assert caught.value.offset == 0


def test_gap_after_the_chunk_before_the_offset_is_detected() -> None:
    """The scan returns the chunk at or before the offset, and the next one is lost."""
    with pytest.raises(
        CorruptLogError, match="next chunk begins at offset 6 instead of 4"
    ) as caught:
        read_span([(0, make_chunk(0, 2)), (6, make_chunk(6, 1, 1))], 4, 8, MAX)
    assert caught.value.offset == 4


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_crc_of_every_returned_batch_is_checked(inside: bool, bad: int) -> None:
    batches = [make_batch(0, 4), make_batch(4, 2), make_batch(6, 2)]
    assert read_span([(0, b"".join(batches))], 0, 8, MAX, inside=inside) == b"".join(batches)
    batches[bad] = flipped(batches[bad], len(batches[bad]) - 1)
    with pytest.raises(CorruptLogError, match="CRC32C") as caught:
        read_span([(0, b"".join(batches))], 0, 8, MAX, inside=inside)
    assert caught.value.offset == (0, 4, 6)[bad]


def test_crc_of_a_batch_that_a_read_begins_inside_is_checked() -> None:
    """The walk verifies from the offset on, and this batch begins below it."""
    whole = make_batch(0, 4)
    assert read_span([(0, whole)], 2, 4, MAX, inside=True) == whole
    with pytest.raises(CorruptLogError, match="CRC32C") as caught:
        read_span([(0, flipped(whole, len(whole) - 1))], 2, 4, MAX, inside=True)
    assert caught.value.offset == 0

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from storage_kit import IDENTITY, flush, make_batch, make_chunk, open_rocks, write_vote
from test_snapshot_contract import make

from raftlog.errors import ConfigError, CorruptLogError
from raftlog.node.storage.api import SnapshotId, VoteState
from raftlog.node.storage.directory import LOG_STATE_FILE, format_storage
from raftlog.node.storage.reader import open_read_only


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    }


@pytest.mark.parametrize("how", ["closed", "copied while in use"])
async def test_reading_changes_nothing(tmp_path: Path, how: str) -> None:
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
        with pytest.raises(ValueError, match="the log is"):
            reader.read(0, 5, 1)
    assert snapshot(read) == before


async def test_an_older_state_that_names_a_start_below_the_first_record_is_damage(
    tmp_path: Path,
) -> None:
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
    assert await make(store, SnapshotId(3, 1)) is None
    store.advance_log_start(SnapshotId(3, 1))
    await flush(store)
    store.close()
    with open_read_only(directory) as reader:
        assert (reader.start_offset, reader.end_offset) == (3, 4)
    (directory / LOG_STATE_FILE).write_bytes(older)
    with pytest.raises(
        CorruptLogError,
        match=r"log-state.json says that the log begins at offset 0, its first record is at 3",
    ):
        open_read_only(directory)


async def test_an_empty_log_and_a_lost_vote(tmp_path: Path) -> None:
    format_storage(tmp_path / "data", IDENTITY)
    (tmp_path / "data" / "quorum-state.json").unlink()
    with open_read_only(tmp_path / "data") as reader:
        assert (reader.start_offset, reader.end_offset, reader.read(0, 0, 1)) == (0, 0, b"")
        with pytest.raises(CorruptLogError, match="missing"):
            _ = reader.vote


def test_what_can_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not formatted"):
        open_read_only(tmp_path)
    format_storage(tmp_path / "data", IDENTITY)
    left = set(os.listdir("/tmp"))
    os.truncate(tmp_path / "data" / "log" / "CURRENT", 0)
    with pytest.raises(CorruptLogError):
        open_read_only(tmp_path / "data")
    assert not [name for name in set(os.listdir("/tmp")) - left if name.startswith("raftlog-read-")]

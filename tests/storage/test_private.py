"""A data directory is its owner's alone: a new one from the beginning, an old one from the next
start on.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from storage_kit import IDENTITY, flush, make_chunk, open_rocks, write_vote
from structlog.testing import capture_logs

from broker.registration.directory import open_directory
from raftlog.errors import StorageError
from raftlog.metadata.snapshot_file import SnapshotHeader, encode_footer, encode_header
from raftlog.storage.api import SnapshotId, VoteState
from raftlog.storage.directory import LOCK_FILE, DirectoryLock, format_storage, read_identity


def open_to_others(directory: Path) -> list[str]:
    """What others could use, were it not for the directory above."""
    found = [directory, *directory.rglob("*")]
    return [
        f"{path} {path.stat().st_mode:o}" for path in sorted(found) if path.stat().st_mode & 0o077
    ]


def test_a_formatted_directory_is_private(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        format_storage(tmp_path / "new", IDENTITY)
        (tmp_path / "mounted").mkdir(mode=0o755)
        format_storage(tmp_path / "mounted", IDENTITY)
        assert os.umask(0o022) == 0o022, "the process's own umask is back"
    finally:
        os.umask(before)
    assert open_to_others(tmp_path / "new") == []
    assert open_to_others(tmp_path / "mounted") == []


async def test_what_a_store_writes_is_private(tmp_path: Path) -> None:
    """RocksDB's own files go by the process's umask, which a node sets; no other file relies on
    that.
    """
    before = os.umask(0o022)
    try:
        format_storage(tmp_path / "data", IDENTITY)
        store = open_rocks(tmp_path / "data")
        store.recover()
        await write_vote(store, VoteState(1))
        store.append(make_chunk(0, 1), 0, 1)
        await flush(store)
        header = SnapshotHeader("c1", (), 1, 1, 1)
        made = SnapshotId(1, 1)
        store.store_snapshot(made, 0, encode_header(header) + encode_footer(header, 1, 0))
        store.close()
    finally:
        os.umask(before)
    assert [name for name in open_to_others(tmp_path / "data") if "/log/" not in name] == []


@pytest.mark.parametrize("role", ["controller", "broker"])
async def test_an_open_directory_is_closed_with_a_warning(tmp_path: Path, role: str) -> None:
    directory = tmp_path / "data"
    format_storage(directory, IDENTITY)
    directory.chmod(0o2755)

    def start() -> None:
        if role == "controller":
            open_rocks(directory).close()
        else:
            open_directory(directory, cluster_id="c1", broker_id=1).close()

    with capture_logs() as logs:
        start()
    assert directory.stat().st_mode & 0o7777 == 0o2700
    (line,) = [one for one in logs if "open to others" in one["event"]]
    assert (line["log_level"], line["mode"]) == ("warning", "0o2755")
    with capture_logs() as logs:
        start()
    assert not [one for one in logs if "others" in one["event"]]


async def test_a_directory_of_somebody_else_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "not yours")

    directory = tmp_path / "data"
    format_storage(directory, IDENTITY)
    directory.chmod(0o770)
    monkeypatch.setattr(Path, "chmod", refuse)
    with capture_logs() as logs:
        open_rocks(directory).close()
    assert [one["event"] for one in logs] == ["others can read the data directory"]


def test_a_lock_is_given_back_on_a_broken_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written in it is for people only: that it can't be wiped is no reason to end with a
    traceback.
    """

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    lock = DirectoryLock.exclusive(tmp_path)
    monkeypatch.setattr(os, "ftruncate", refuse)
    lock.release()
    with pytest.raises(StorageError, match=f"can't write {tmp_path / LOCK_FILE}: .*I/O error"):
        DirectoryLock.exclusive(tmp_path)
    monkeypatch.undo()
    DirectoryLock.exclusive(tmp_path).release()


def test_an_identity_that_can_not_be_read_is_the_disks_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(StorageError, match=f"can't read {tmp_path}/meta.json"):
        read_identity(tmp_path)

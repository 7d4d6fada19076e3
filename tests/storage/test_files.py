"""The small files of a data directory: the vote, and file permissions."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from storage_kit import IDENTITY, flush, make_chunk, open_rocks, write_vote
from structlog.testing import capture_logs

from broker.registration.directory import open_directory
from raftlog import files as durable
from raftlog.errors import CorruptLogError, StorageError
from raftlog.metadata.snapshot_file import SnapshotHeader, encode_footer, encode_header
from raftlog.node.storage import files
from raftlog.node.storage.api import SnapshotId, VoteState
from raftlog.node.storage.directory import LOCK_FILE, DirectoryLock, format_storage, read_identity

SECTOR_BYTES = 512
BEFORE = VoteState(8, -1, "", 2)
TOLD = VoteState(9, 2, "d2")
NEXT = VoteState(10, 3, "d3-with-a-longer-name")
LATER = VoteState(10, 3, "d3-with-a-longer-name", 3)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    format_storage(tmp_path / "data", IDENTITY)
    return tmp_path / "data"


def copies_after(directory: Path, *votes: VoteState) -> list[bytes]:
    """Return the file after each of these votes, the first of them from before."""
    files.write_vote_file(directory, votes[0])
    file = files.VoteFile(directory)
    images = [(directory / files.VOTE_FILE).read_bytes()]
    for vote in votes[1:]:
        file.write(vote)
        assert files.read_vote_file(directory) == vote
        images.append((directory / files.VOTE_FILE).read_bytes())
    file.close()
    return images


async def test_store_overwrites_the_vote(directory: Path) -> None:
    files.write_vote_file(directory, BEFORE)
    store = open_rocks(directory)
    assert store.recover().vote == BEFORE
    assert await write_vote(store, NEXT) is None
    inode = (directory / files.VOTE_FILE).stat().st_ino
    assert await write_vote(store, LATER) is None
    assert (directory / files.VOTE_FILE).stat().st_ino == inode, "overwritten in place"
    store.close()
    store = open_rocks(directory)
    assert store.recover().vote == files.read_vote_file(directory) == LATER
    store.close()


def torn(old: bytes, new: bytes, rng: Random) -> Iterator[bytes]:
    """Yield the remains of a write after a power failure: any sectors, or a cut or ruined block."""
    sectors = range(0, len(old), SECTOR_BYTES)
    for _ in range(40):
        kept = [(new if rng.random() < 0.5 else old)[at : at + SECTOR_BYTES] for at in sectors]
        yield b"".join(kept)
    for at in (*range(0, 200, 7), files.COPY_BYTES, files.COPY_BYTES + 40):
        yield new[:at] + old[at:]
        yield old[:at] + new[at:]
    for ruined in (bytes(files.COPY_BYTES), rng.randbytes(files.COPY_BYTES)):
        for whole in (old, new):
            yield ruined + whole[files.COPY_BYTES :]
            yield whole[: files.COPY_BYTES] + ruined


def test_power_failure_leaves_the_reported_vote_or_the_one_being_written(directory: Path) -> None:
    _, old, new = copies_after(directory, BEFORE, TOLD, NEXT)
    seen = set()
    for image in torn(old, new, Random("torn votes")):
        (directory / files.VOTE_FILE).write_bytes(image)
        seen.add(files.read_vote_file(directory))
    assert seen == {TOLD, NEXT}


def test_damage_to_one_copy_never_yields_an_older_vote(directory: Path) -> None:
    """[Of two slots a damaged newer one yields the previous vote: the node votes twice.]"""
    _, image = copies_after(directory, BEFORE, TOLD)
    for begin in (0, files.COPY_BYTES):
        for position in (*range(150), SECTOR_BYTES, files.COPY_BYTES - 1):
            for mask in (0x01, 0x20, 0x80):
                damaged = bytearray(image)
                damaged[begin + position] ^= mask
                (directory / files.VOTE_FILE).write_bytes(damaged)
                assert files.read_vote_file(directory) == TOLD
    older = copies_after(directory, BEFORE)[0]
    for unwritten in (
        older[: files.COPY_BYTES] + image[files.COPY_BYTES :],
        image[: files.COPY_BYTES] + older[files.COPY_BYTES :],
    ):
        (directory / files.VOTE_FILE).write_bytes(unwritten)
        assert files.read_vote_file(directory) == TOLD, "the disk has lost one of the two writes"
    sector = image[:SECTOR_BYTES]
    (directory / files.VOTE_FILE).write_bytes(sector.ljust(len(image), b"\0"))
    assert files.read_vote_file(directory) == TOLD, "what lies after a copy is nothing"
    for size in (files.COPY_BYTES, files.COPY_BYTES + 1, files.COPY_BYTES + 60):
        (directory / files.VOTE_FILE).write_bytes(image[:size])
        assert files.read_vote_file(directory) == TOLD


def test_vote_without_an_intact_copy_is_refused(directory: Path) -> None:
    _, image = copies_after(directory, BEFORE, TOLD)
    one, other = image[: files.COPY_BYTES], image[files.COPY_BYTES :]
    broken = bytes([one[0] ^ 1]) + one[1:]
    for left in (
        b"",
        bytes(len(image)),
        broken + broken,
        broken + bytes(files.COPY_BYTES),
        one.rstrip(b" ")[:-1],
        b" " + one + other,
    ):
        (directory / files.VOTE_FILE).write_bytes(left)
        with pytest.raises(CorruptLogError, match=r"quorum-state\.json is corrupt"):
            files.read_vote_file(directory)


async def test_damaged_copy_is_repaired_at_the_next_start(directory: Path) -> None:
    _, image = copies_after(directory, BEFORE, TOLD)
    (directory / files.VOTE_FILE).write_bytes(bytes(files.COPY_BYTES) + image[files.COPY_BYTES :])
    with capture_logs() as lines:
        store = open_rocks(directory)
        assert store.recover().vote == TOLD
    said = [line for line in lines if line["event"].startswith("one of the two copies")]
    assert [line["log_level"] for line in said] == ["warning"]
    assert files.damaged_copies(directory) == ()
    store.close()


def test_vote_read_at_start_is_made_durable(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[The vote is granted again by what was read, and a power failure takes it back.]"""
    *_, image = copies_after(directory, BEFORE, TOLD)
    (directory / files.VOTE_FILE).write_bytes(image)
    synced = set()

    def recorded(sync: Callable[[int], None]) -> Callable[[int], None]:
        def noting(fd: int) -> None:
            sync(fd)
            synced.add(os.fstat(fd).st_ino)

        return noting

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, recorded(getattr(os, name)))
    file = files.VoteFile(directory)
    assert file.vote == TOLD
    assert {(directory / files.VOTE_FILE).stat().st_ino, directory.stat().st_ino} <= synced
    assert (directory / files.VOTE_FILE).read_bytes() == image
    file.close()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
async def test_failed_write_breaks_the_store_and_leaves_the_file_unchanged(
    directory: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store = open_rocks(directory)
    store.recover()
    assert await write_vote(store, TOLD) is None

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        error = await write_vote(store, NEXT)
    assert isinstance(error, StorageError)
    assert "quorum-state.json: [Errno 5]" in str(error)
    with pytest.raises(StorageError):
        store.append(b"", 0, 1)
    store.close()
    assert files.read_vote_file(directory) in (TOLD, NEXT)


def test_short_write_is_an_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = files.VoteFile(directory)
    file.write(TOLD)
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", lambda *_: files.COPY_BYTES)
        with pytest.raises(StorageError, match=r"quorum-state\.json: only 4096 of 8192 bytes"):
            file.write(NEXT)
    file.close()
    assert files.read_vote_file(directory) == TOLD


def open_to_others(directory: Path) -> list[str]:
    """Return what other users could access if the parent directory were open."""
    found = [directory, *directory.rglob("*")]
    return [
        f"{path} {path.stat().st_mode:o}" for path in sorted(found) if path.stat().st_mode & 0o077
    ]


def test_formatted_directory_is_private(tmp_path: Path) -> None:
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


async def test_store_files_are_private(tmp_path: Path) -> None:
    """RocksDB's own files follow the umask that a node sets; no other file relies on it."""
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
async def test_open_directory_is_made_private_with_a_warning(tmp_path: Path, role: str) -> None:
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
    (line,) = [one for one in logs if "other users' access" in one["event"]]
    assert (line["log_level"], line["mode"]) == ("warning", "0o2755")
    with capture_logs() as logs:
        start()
    assert not [one for one in logs if "other users" in one["event"]]


async def test_directory_of_another_owner_is_used_with_a_warning(
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
    assert [one["event"] for one in logs] == ["other users can access the data directory"]


def test_lock_is_released_on_a_broken_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's content only informs people: a failure to clear it must not end in a traceback."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    lock = DirectoryLock.exclusive(tmp_path)
    monkeypatch.setattr(os, "ftruncate", refuse)
    lock.release()
    with pytest.raises(StorageError, match=f"cannot write {tmp_path / LOCK_FILE}: .*I/O error"):
        DirectoryLock.exclusive(tmp_path)
    monkeypatch.undo()
    DirectoryLock.exclusive(tmp_path).release()


def test_unreadable_identity_is_a_disk_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(StorageError, match=f"cannot read {tmp_path}/meta.json"):
        read_identity(tmp_path)


# --- Directories that are made are there after a power cut; tests/power_loss cuts the power, he---


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    done: list[Path] = []

    def sync(directory: Path) -> None:
        if directory.name == "unreadable":
            raise PermissionError(directory)
        done.append(directory)

    monkeypatch.setattr(durable, "fsync_directory", sync)
    return done


def test_all_parent_names_are_synced_for_any_creator(tmp_path: Path, synced: list[Path]) -> None:
    for _ in ("made", "there already, perhaps by a process that was killed"):
        synced.clear()
        durable.make_directories(tmp_path / "a" / "b")
        assert synced[:2] == [tmp_path / "a", tmp_path]
        assert tmp_path.parent in synced


def test_unreadable_parent_fails_only_if_changed(tmp_path: Path, synced: list[Path]) -> None:
    (tmp_path / "unreadable" / "there").mkdir(parents=True)
    durable.make_directories(tmp_path / "unreadable" / "there" / "a")
    assert synced[:2] == [tmp_path / "unreadable" / "there", tmp_path]
    with pytest.raises(PermissionError):
        durable.make_directories(tmp_path / "unreadable" / "a")


def test_relative_path_and_link_lead_to_the_same_names(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    monkeypatch.chdir(tmp_path)
    durable.make_directories(Path("link/a"))
    assert synced[:2] == [tmp_path / "disk", tmp_path]

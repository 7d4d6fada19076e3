import asyncio
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command_runs import run_text
from storage_kit import IDENTITY, flush, make_batch, open_rocks, write_vote

from raftlog.errors import ConfigError, CorruptLogError, StorageError
from raftlog.files import fsync_directory
from raftlog.node.storage.api import NodeIdentity, VoteState
from raftlog.node.storage.directory import (
    DirectoryLock,
    format_anew,
    format_storage,
    read_identity,
    set_aside_before,
)
from raftlog.node.storage.files import read_checked, read_vote_file, write_checked, write_vote_file
from raftlog.node.storage.opening import open_store
from raftlog.node.storage.reader import open_read_only


@pytest.fixture
def formatted(tmp_path: Path) -> Path:
    format_storage(tmp_path / "data", IDENTITY)
    return tmp_path / "data"


def test_formatting_creates_an_identity(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    assert format_storage(directory, IDENTITY) == IDENTITY
    assert read_identity(directory) == IDENTITY
    assert read_vote_file(directory) == VoteState()


def test_a_formatted_directory_is_not_formatted_again(formatted: Path) -> None:
    with pytest.raises(ConfigError, match="already formatted for cluster 'c1', node 1"):
        format_storage(formatted, IDENTITY)
    other = replace(IDENTITY, directory_id="another")
    assert format_storage(formatted, other, ignore_formatted=True) == IDENTITY, (
        "what is there stays in force"
    )
    with pytest.raises(ConfigError, match="requested: cluster 'c2', node 1"):
        format_storage(formatted, replace(IDENTITY, cluster_id="c2"), ignore_formatted=True)


def test_data_without_its_identity_is_not_formatted_over(formatted: Path) -> None:
    (formatted / "meta.json").unlink()
    with pytest.raises(ConfigError, match=r"has log, quorum-state\.json"):
        format_storage(formatted, IDENTITY)
    assert (formatted / "log" / "CURRENT").exists()


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ("log", "has log but no meta.json"),
        ("spool", "contains spool: a node needs an empty directory"),
    ],
)
def test_format_touches_no_directory_of_another_owner(tmp_path: Path, there: str, why: str) -> None:
    """[log.dirs was /var: it was refused for its `log`, and had been made private.]"""
    (tmp_path / there).mkdir()
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match=why):
        format_storage(tmp_path, IDENTITY)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert [path.name for path in tmp_path.iterdir()] == [there]


def test_format_accepts_the_root_of_a_new_file_system(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".snapshots").mkdir()
    assert format_storage(tmp_path, IDENTITY) == IDENTITY


def test_unformatted_directory_is_reported_with_the_remedy(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="If the node has run before, do not format it"):
            read_identity(directory)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        read_identity(tmp_path / "file")
    with pytest.raises(ConfigError, match="file"):
        format_storage(tmp_path / "file" / "data", IDENTITY)


def test_a_newer_format_is_refused(formatted: Path) -> None:
    write_checked(formatted / "meta.json", "meta", replace(IDENTITY, format_version=3))
    with pytest.raises(ConfigError, match="format_version 3, but this program supports at most 2"):
        read_identity(formatted)


def test_identity_is_refused_when_a_byte_is_changed_or_missing(formatted: Path) -> None:
    path = formatted / "meta.json"
    good = path.read_bytes()
    damaged = [
        good[:at] + bytes([good[at] ^ mask]) + good[at + 1 :]
        for at in range(len(good))
        for mask in (0x01, 0x20, 0x80)
    ]
    for content in (*damaged, *(good[:size] for size in range(len(good)))):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="corrupt"):
            read_identity(formatted)


def test_checked_file_of_another_kind_or_shape_is_corrupt(tmp_path: Path) -> None:
    write_checked(tmp_path / "x", "vote", IDENTITY)
    with pytest.raises(CorruptLogError):
        read_checked(tmp_path / "x", "meta", NodeIdentity)
    with pytest.raises(CorruptLogError):
        read_checked(tmp_path / "x", "vote", VoteState)


def test_failed_replacement_is_undone(formatted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="No space left"):
        write_vote_file(formatted, VoteState(epoch=9))
    assert read_vote_file(formatted) == VoteState()


async def test_opening_for_another_cluster_or_node_names_both(formatted: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(
            formatted, expect_cluster_id="c9", expect_node_id=7, loop=asyncio.get_running_loop()
        )
    for word in ("'c1'", "'c9'", "node 1", "has node 7"):
        assert word in str(caught.value)
    open_store(
        formatted, expect_cluster_id=None, expect_node_id=None, loop=asyncio.get_running_loop()
    ).close()


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
async def test_missing_vote_is_refused(formatted: Path, damage: str) -> None:
    store = open_rocks(formatted)
    store.recover()
    store.append(make_batch(0), 0, 1)
    await flush(store)
    assert await write_vote(store, VoteState(epoch=4, voted_id=1)) is None
    store.close()
    path = formatted / "quorum-state.json"
    good = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(good.replace(b'"epoch":4', b'"epoch":3'))
    store = open_rocks(formatted)
    with pytest.raises(CorruptLogError, match=r"quorum-state\.json.*" + damage):
        store.recover()
    store.close()


async def test_directory_belongs_to_one_process(formatted: Path) -> None:
    store = open_rocks(formatted)
    store.recover()
    with pytest.raises(ConfigError, match=f"in use by pid {os.getpid()}"):
        open_read_only(formatted)
    assert f"in use by pid {os.getpid()}" in _open_elsewhere(formatted)
    store.append(make_batch(0), 0, 1)
    assert await flush(store) == 1
    store.close()
    open_rocks(formatted).close()


def _open_elsewhere(directory: Path) -> str:
    code = (
        "import asyncio, sys; from pathlib import Path; from raftlog.node.storage.opening import"
        " open_store\nfrom raftlog.errors import ConfigError\ntry: open_store(Path(sys.argv[1]),"
        " expect_cluster_id=None, expect_node_id=None, loop=asyncio.new_event_loop())\nexcept"
        " ConfigError as error: print(error)"
    )
    other = run_text([sys.executable, "-c", code, str(directory)], check=True, timeout=60)
    return other.stdout


async def test_reader_locks_out_a_node(formatted: Path) -> None:
    with (
        open_read_only(formatted),
        pytest.raises(ConfigError, match="in use by a process that reads it"),
    ):
        open_rocks(formatted)
    lock = DirectoryLock.exclusive(formatted)
    lock.release()
    lock.release()


async def test_event_loop_continues_while_a_vote_is_written(formatted: Path) -> None:
    """[Messages sent before a vote wait in the loop until its two syncs are done.]"""
    store = open_rocks(formatted)
    store.recover()
    told: list[StorageError | None] = []
    store.write_vote(VoteState(1), told.append)
    store.write_vote(VoteState(2), told.append)
    assert told == []
    assert await write_vote(store, VoteState(3)) is None
    assert told == [None, None], "in order"
    assert read_vote_file(formatted) == VoteState(3)
    store.close()


@pytest.mark.parametrize("crash_at", range(1, 9))
async def test_directory_set_aside_halfway_starts_only_its_successor(
    formatted: Path, monkeypatch: pytest.MonkeyPatch, crash_at: int
) -> None:
    """The former identity never starts without its vote, whichever step a crash interrupts."""
    write_vote_file(formatted, VoteState(epoch=7, voted_id=2))
    anew = replace(IDENTITY, directory_id="anew")
    steps = 0
    sync = fsync_directory

    def crashing(path: Path) -> None:
        nonlocal steps
        steps += 1
        if steps == crash_at:
            raise OSError("the power fails")
        sync(path)

    monkeypatch.setattr("raftlog.node.storage.directory.fsync_directory", crashing)
    with pytest.raises(StorageError, match="the power fails"):
        format_anew(formatted, anew, "1")
    monkeypatch.undo()

    if (identity := _identity_that_starts(formatted)) is None:
        format_anew(formatted, anew, "2")
        assert set_aside_before(formatted) == 2
        identity = _identity_that_starts(formatted)
    assert identity == anew
    assert read_vote_file(formatted) == VoteState()
    kept = [read_vote_file(one) for one in (formatted / "damaged").iterdir() if _has_vote(one)]
    assert kept == [VoteState(epoch=7, voted_id=2)]


@pytest.mark.parametrize("crash_at", [1, 2])
async def test_crash_during_the_replacement_of_the_identity_never_starts_the_former_one(
    formatted: Path, crash_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[The empty vote is in place beside the former identity, which may vote a second time.]"""
    write_vote_file(formatted, VoteState(epoch=7, voted_id=2))
    anew = replace(IDENTITY, directory_id="anew")
    replaced, rename = 0, Path.replace

    def crashing(self: Path, target: Path) -> Path:
        nonlocal replaced
        replaced += Path(target).name == "meta.json"
        if replaced == crash_at:
            raise OSError("the power fails")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", crashing)
    with pytest.raises(StorageError, match="the power fails"):
        format_anew(formatted, anew, "1")
    monkeypatch.undo()
    assert _identity_that_starts(formatted) == (None if crash_at == 1 else anew)
    assert read_identity(formatted) == (IDENTITY if crash_at == 1 else anew)


def _identity_that_starts(directory: Path) -> NodeIdentity | None:
    store = None
    try:
        store = open_store(
            directory, expect_cluster_id=None, expect_node_id=None, loop=asyncio.get_running_loop()
        )
        store.recover()
        return store.identity
    except CorruptLogError:
        return None
    finally:
        if store is not None:
            store.close()


def _has_vote(directory: Path) -> bool:
    return (directory / "quorum-state.json").exists()

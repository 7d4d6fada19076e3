"""Damaged RocksDB files: detected and named, or harmless."""

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import pytest
from partition_kit import A0, A1, RECORDS, fill, open_rocks_partitions
from storage_kit import (
    IDENTITY,
    flush,
    make_batch,
    make_chunk,
    open_rocks,
    whole,
    without_zeros_ahead,
    write_vote,
)
from structlog.testing import capture_logs

from raftlog.errors import ConfigError, CorruptLogError, FatalError, StorageError
from raftlog.node.storage.api import VoteState
from raftlog.node.storage.directory import (
    PARTITIONS_DIRECTORY,
    LogState,
    format_storage,
    write_log_state,
)
from raftlog.node.storage.log_store import read_between
from raftlog.node.storage.reader import open_read_only
from raftlog.node.storage.rocks_adapter import RocksLog, RocksPartitions
from raftlog.node.storage.wal import NO_END, check_tails

VOTE = VoteState(epoch=5, voted_id=2)
END = 60


class Image(NamedTuple):
    directory: Path
    content: bytes


async def make_images(tmp_path: Path) -> dict[str, Image]:
    """``clean``: closed, all in SST files. ``crashed``: copied while running, tail in the WAL."""
    directory = tmp_path / "clean"
    format_storage(directory, IDENTITY)
    content = b""
    for first in (0, END // 2):
        store = open_rocks(directory)
        store.recover()
        for base in range(first, first + END // 2, 2):
            chunk = make_chunk(base, 1, 1, body=b"x" * 200)
            store.append(chunk, base, base + 2)
            content += chunk
            await flush(store, inline=True)
        await write_vote(store, VOTE)
        if first:
            shutil.copytree(directory, tmp_path / "crashed")
            without_zeros_ahead(tmp_path / "crashed" / "log")
        store.close()
    return {name: Image(tmp_path / name, content) for name in ("clean", "crashed")}


@pytest.fixture
async def images(tmp_path: Path) -> dict[str, Image]:
    return await make_images(tmp_path)


def outcome(directory: Path) -> tuple[bytes, VoteState] | str:
    """Return the content that a node finds in ``directory``, or the kind of its error."""
    store = None
    try:
        store = open_rocks(directory, probe_timeout_s=20.0)
        found = store.recover()
        return whole(store, found.end_offset), found.vote
    except (FatalError, ConfigError) as error:
        return type(error).__name__
    finally:
        if store is not None:
            store.close()


async def test_flipped_wal_header_is_detected(tmp_path: Path, images: dict[str, Image]) -> None:
    """Without our own check one flipped bit in a length silently drops every later record."""
    image = images["crashed"]
    (wal,) = (image.directory / "log").glob("*.log")
    good = wal.read_bytes()
    headers = []
    position = 0
    while position < len(good):
        headers.append(position)
        position += 7 + struct.unpack_from("<H", good, position + 4)[0]
    assert len(headers) == 1 + END // 4, "the first is a mark alone"
    for header in (headers[0], headers[len(headers) // 2], headers[-1]):
        for byte in (4, 5):
            for bit in range(8):
                wal.write_bytes(_flipped(good, header + byte, bit))
                assert _refused(image.directory), (
                    f"length byte {byte} bit {bit} of the record at {header}"
                )
        wal.write_bytes(_flipped(good, header + 6, 2))
        with pytest.raises(CorruptLogError, match="unknown record type 5"):
            check_tails(image.directory / "log")
    wal.write_bytes(good)
    assert outcome(image.directory) == (image.content, VOTE)


def _flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def _refused(directory: Path) -> bool:
    """Assert that our check refuses it, or RocksDB's checksum (a length within the file)."""
    try:
        check_tails(directory / "log")
        RocksLog(directory / "log", read_only=True).close()
    except CorruptLogError:
        return True
    return False


async def test_torn_tail_is_not_damage(tmp_path: Path, images: dict[str, Image]) -> None:
    image = images["crashed"]
    (wal,) = (image.directory / "log").glob("*.log")
    good = wal.read_bytes()
    mark = 7 + struct.unpack_from("<H", good, 4)[0]
    record = 7 + struct.unpack_from("<H", good, mark + 4)[0]
    for missing in (1, record - 8, record - 3, record):
        wal.write_bytes(good[:-missing])
        scratch = tmp_path / "scratch"
        shutil.copytree(image.directory, scratch)
        seen = outcome(scratch)
        shutil.rmtree(scratch)
        assert isinstance(seen, tuple), f"{missing} bytes missing: {seen}"
        content, _ = seen
        assert image.content.startswith(content)
        assert 0 < len(image.content) - len(content) <= record


def test_scan_does_not_end_silently_at_a_corrupt_block(tmp_path: Path) -> None:
    rocks = RocksLog(tmp_path / "log", create=True)
    for base in range(500):
        rocks.put(base, make_batch(base, body=b"x" * 300), NO_END)
    rocks.close()
    (table,) = (tmp_path / "log").glob("*.sst")
    content = table.read_bytes()
    table.write_bytes(_flipped(content, len(content) // 2, 0))
    rocks = RocksLog(tmp_path / "log", read_only=True)
    scan = rocks.scan(0)
    assert [next(scan)[0] for _ in range(100)] == list(range(100)), (
        "what lies before the damage can be read"
    )
    with pytest.raises(CorruptLogError, match="read failed: Corruption"):
        list(scan)
    rocks.close()


@pytest.mark.parametrize("name", ["log", "log/CURRENT", "log-state.json"])
async def test_missing_files_are_detected(images: dict[str, Image], name: str) -> None:
    path = images["clean"].directory / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert isinstance(outcome(images["clean"].directory), str)


@pytest.mark.parametrize("how", ["delete", "directory", "empty"])
@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
async def test_missing_rocksdb_files_are_reported_as_damage_in_one_line(
    images: dict[str, Image], pattern: str, how: str
) -> None:
    """Not as a failing disk: freeing space does not help. RocksDB's own message has several lines."""
    rocks = images["clean"].directory / "log"
    victim = sorted(rocks.glob(pattern))[0]
    victim.unlink()
    if how == "directory":
        victim.mkdir()
    elif how == "empty":
        victim.touch()
    for opened in (open_rocks, open_read_only):
        with pytest.raises(CorruptLogError) as caught:
            opened(images["clean"].directory)
        assert str(rocks) in str(caught.value)
        assert "\n" not in str(caught.value)


async def test_dropped_torn_record_is_reported(images: dict[str, Image]) -> None:
    """RocksDB drops it silently; a node and a reader say where."""
    directory = images["crashed"].directory
    with open_read_only(directory) as reader:
        assert reader.left_out == ()
    (wal,) = (directory / "log").glob("*.log")
    for cut in (3, 200):
        content = wal.read_bytes()[:-cut]
        wal.write_bytes(content)
        with open_read_only(directory) as reader:
            (said,) = reader.left_out
        assert said.startswith(f"{wal}: the record at byte ")
        assert said.endswith(f" of {len(content)} is incomplete")
    with capture_logs() as logs:
        store = open_rocks(directory)
    assert [one["detail"] for one in logs if "ends within a record" in one["event"]] == [said]
    assert store.recover().end_offset < END
    store.close()


async def test_crashing_probe_is_an_error(
    images: dict[str, Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.node.storage.opening._CHILD", "import os; os.abort()")
    with pytest.raises(StorageError, match="exited with status -6"):
        open_rocks(images["crashed"].directory)


async def test_log_that_does_not_begin_at_its_start_is_refused(images: dict[str, Image]) -> None:
    directory = images["clean"].directory
    rocks = RocksLog(directory / "log")
    rocks.replace_tail(0, (2, make_batch(2)), NO_END)
    rocks.close()
    write_log_state(directory, LogState(clean=True, end_offset_at_least=0))
    assert outcome(directory) == "CorruptLogError"


async def test_damage_found_by_a_read_is_not_served(
    images: dict[str, Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_rocks(images["clean"].directory)
    store.recover()
    bad = _flipped(make_batch(0), len(make_batch(0)) - 1, 0)
    for chunks in ([(0, bad)], [(0, make_batch(0)), (2, make_batch(2))], [(0, make_batch(0))], []):
        monkeypatch.setattr(RocksLog, "scan", lambda *_, chunks=chunks: (chunk for chunk in chunks))
        with pytest.raises(CorruptLogError, match="offset") as caught:
            read_between(RocksLog.__new__(RocksLog), 0, until=4, max_bytes=1 << 20, start=0, end=4)
        assert caught.value.offset == (0 if chunks in ([(0, bad)], []) else 1)
    with pytest.raises(CorruptLogError) as first:
        store.read(0, until=4, max_bytes=1 << 20)
    with pytest.raises(CorruptLogError) as again:
        store.append(make_batch(END), END, END + 1)
    assert again.value is first.value
    store.close()


def test_file_that_rocksdb_deletes_meanwhile_has_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[A background deletion during a size measurement was taken for a disk error.]"""
    rocks, gone = RocksLog(tmp_path, create=True), tmp_path / "000999.log"
    size = rocks.size_bytes()
    gone.write_bytes(b"x" * 100)
    entries = list(os.scandir(tmp_path))
    gone.unlink()
    monkeypatch.setattr(os, "scandir", lambda _: entries)
    assert size > 0
    assert rocks.size_bytes() == size
    rocks.close()


def test_log_whose_opening_fails_halfway_holds_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rejoining node formats the directory in the same process."""
    RocksLog(tmp_path / "log", create=True).close()

    def fail(*_: object) -> None:
        raise CorruptLogError("write failed: block checksum mismatch")

    with monkeypatch.context() as broken:
        broken.setattr(RocksLog, "_write", fail)
        with pytest.raises(CorruptLogError, match="write failed") as raised:
            RocksLog(tmp_path / "log")
    # The error, which holds the frames that it went through, is kept, as the node keeps it.
    assert raised.value.__traceback__ is not None
    RocksLog(tmp_path / "log").close()


# --- Of a log, and of partition replicas ---------------------------------------------------------


class Victim(NamedTuple):
    """A directory with a log or replicas in RocksDB, closed in order or as a crash leaves it."""

    clean: Path
    crashed: Path
    rocks: str
    """Subdirectory of RocksDB."""
    open: Callable[..., Any]
    adapter: Callable[[Path], Any]
    place: tuple[bytes, ...]
    """Arguments of ``put`` before the offset: the name of the replica."""
    end: int
    named: str
    """Name of the log in an error."""

    def wal(self) -> Path:
        (wal,) = (self.crashed / self.rocks).glob("*.log")
        return wal


@pytest.fixture(params=["log", "partitions"])
async def victim(request: pytest.FixtureRequest, tmp_path: Path) -> Victim:
    if request.param == "log":
        images = await make_images(tmp_path)
        clean, crashed = images["clean"].directory, images["crashed"].directory
        return Victim(clean, crashed, "log", open_rocks, RocksLog, (), END, "")
    clean, crashed = tmp_path / "clean", tmp_path / "crashed"
    store = await fill(clean)
    shutil.copytree(clean, crashed)
    store.close()
    name, where = A1[0] + A1[1].to_bytes(4, "big"), f"partition 1 of topic {A1[0].hex()}: .*"
    return Victim(
        clean, crashed, PARTITIONS_DIRECTORY, open_rocks_partitions, RocksPartitions, (name,),
        RECORDS, where,
    )  # fmt: skip


async def test_only_unclean_end_is_probed(victim: Victim, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[Path] = []
    monkeypatch.setattr(
        "raftlog.node.storage.opening.probe_open", lambda path, _: probed.append(path)
    )
    for directory in (victim.clean, victim.crashed):
        store = victim.open(directory)
        found = store.recover()
        assert {one.end_offset for one in (found if victim.place else [found])} == {victim.end}
        store.close()
    assert probed == [victim.crashed / victim.rocks]


async def test_tail_on_which_rocksdb_spins_ends_in_time(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = victim.wal()
    wal.write_bytes(wal.read_bytes() + b"\xaa" * 4 + b"\x10\x00" + b"\x05" + b"g" * 40)
    with pytest.raises(CorruptLogError, match="unknown record type 5"):
        victim.open(victim.crashed)
    monkeypatch.setattr("raftlog.node.storage.opening.check_tails", lambda _: ())
    with pytest.raises(StorageError, match="could not be opened within 1 s"):
        victim.open(victim.crashed, probe_timeout_s=1.0)


async def test_damage_within_the_wal_names_the_record(victim: Victim) -> None:
    wal = victim.wal()
    content = bytearray(wal.read_bytes())
    content[len(content) // 2] ^= 4
    wal.write_bytes(content)
    damaged = rf"the record at byte \d+ of {wal.name} does not match its checksum"
    with pytest.raises(CorruptLogError, match=damaged):
        victim.open(victim.crashed)


def _wrong_crc(end: int) -> bytes:
    batch = bytearray(make_batch(end))
    batch[-1] ^= 1
    return bytes(batch)


def _no_records(end: int) -> bytes:
    batch = make_batch(end)
    content = batch[8:12] + bytes(4) + batch[16:]
    return batch[:4] + struct.pack(">I", google_crc32c.value(content)) + content


@pytest.mark.parametrize(
    ("gap", "damaged"),
    [
        (5, lambda end: make_batch(end + 5)),
        (0, _wrong_crc),
        (0, lambda end: make_batch(end + 1)),
        (0, lambda end: make_batch(end, epoch=0)),
        (0, lambda end: make_batch(end)[:-1]),
        (0, lambda end: b""),
        (0, _no_records),
    ],
    ids=["gap", "crc", "base", "epoch back", "cut short", "empty", "no records"],
)
async def test_recovery_names_the_offset_of_bytes_with_a_valid_rocksdb_checksum(
    victim: Victim, gap: int, damaged: Callable[[int], bytes]
) -> None:
    rocks = victim.adapter(victim.clean / victim.rocks)
    chunk = damaged(victim.end)
    if isinstance(rocks, RocksLog):
        rocks.put(victim.end + gap, chunk, NO_END)
    else:
        rocks.put(*victim.place, victim.end + gap, chunk)
    rocks.close()
    store = victim.open(victim.clean)
    with pytest.raises(CorruptLogError, match=f"{victim.named}{victim.end}") as caught:
        store.recover()
    assert caught.value.offset == victim.end
    with pytest.raises(CorruptLogError) as again:
        store.append(*(A0 for _ in victim.place), make_batch(0), 0, 1)
    assert again.value is caught.value
    store.close()

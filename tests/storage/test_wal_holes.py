"""Power loss takes unsynced sectors: the log is a prefix with all synced, or damage is named."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from storage_kit import flush, format_with_vote, make_chunk, open_rocks, whole, written_bytes
from structlog.testing import capture_logs

from raftlog.errors import CorruptLogError
from raftlog.node.storage.reader import open_read_only
from raftlog.node.storage.rocks_adapter import RocksLog
from raftlog.node.storage.wal import BLOCK, FULL, HEADER, LAST, NO_END, marked_size, pieces, wals
from raftlog.node.storage.wal_repair import (
    SECTOR_BYTES,
    WalStream,
    find_torn_tails,
    marked,
    truncate_file,
)

PAGE_BYTES = 4096
SMALL, LARGE = b"body" * 60, bytes(range(1, 250)) * 300
"""The second is larger than a block of the WAL."""


class Running:
    """A store, and copies of its directory made while it runs."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.directory = root / "running"
        format_with_vote(self.directory)
        self.store = open_rocks(self.directory)
        self.end = self.store.recover().end_offset
        self.logs: list[bytes] = [b""]
        """Content of the log after each write."""

    def append(self, body: bytes) -> None:
        chunk = make_chunk(self.end, 1, 1, body=body)
        self.store.append(chunk, self.end, self.end + 2)
        self.end += 2
        self.logs.append(self.logs[-1] + chunk)

    def truncate(self, by: int) -> None:
        self.end -= by
        self.store.truncate(self.end)
        self.logs.append(whole(self.store, self.end))

    def copy(self, name: str) -> Path:
        return Path(shutil.copytree(self.directory, self._root / name))


@pytest.fixture
async def running(tmp_path: Path) -> Running:
    return Running(tmp_path)


def wal_of(directory: Path) -> Path:
    (wal,) = (directory / "log").glob("*.log")
    return wal


def mixed(old: bytes, new: bytes, unit: int, rng: Random) -> bytes:
    """Yield files in which each sector or page has its old or its new content."""
    size, lost = max(len(old), len(new)), rng.choice((0.5, 0.05, 0.005))
    old, new = old.ljust(size, b"\0"), new.ljust(size, b"\0")
    return b"".join(
        (old if rng.random() < lost else new)[at : at + unit] for at in range(0, size, unit)
    )


def opened(directory: Path) -> bytes:
    """Return the log that a node finds; a reader finds the same."""
    with open_read_only(directory) as log:
        read = log.read(0, log.end_offset, 1 << 30)
    store = open_rocks(directory, probe_timeout_s=20.0)
    found = whole(store, store.recover().end_offset)
    store.close()
    assert found == read
    return found


@pytest.mark.parametrize(
    ("unit", "truncates", "times"),
    [
        (SECTOR_BYTES, True, 12),
        (PAGE_BYTES, False, 12),
        pytest.param(SECTOR_BYTES, False, 200, marks=pytest.mark.nightly),
        pytest.param(PAGE_BYTES, True, 200, marks=pytest.mark.nightly),
    ],
)
async def test_any_unsynced_sectors_may_be_lost(
    running: Running, tmp_path: Path, unit: int, truncates: bool, times: int
) -> None:
    rng = Random(f"{unit} {truncates}")
    for body in (SMALL, LARGE, SMALL):
        running.append(body)
        await flush(running.store)
    synced, promised = running.copy("synced"), len(running.logs) - 1
    for body in rng.choices((SMALL, SMALL * 8, LARGE, b"x"), k=8):
        running.append(body)
    if truncates:
        running.truncate(5)
        running.append(SMALL)
    lost = running.copy("lost")
    running.store.close()
    old, new = wal_of(synced).read_bytes(), wal_of(lost).read_bytes()
    found_ends, holes = set(), 0
    for _ in range(times):
        scratch = Path(shutil.copytree(lost, tmp_path / "scratch"))
        wal_of(scratch).write_bytes(mixed(old, new, unit, rng))
        with capture_logs() as logs:
            found = opened(scratch)
        holes += any("a hole at byte" in one.get("detail", "") for one in logs)
        assert found in running.logs[promised:]
        found_ends.add(len(found))
        shutil.rmtree(scratch)
    assert len(found_ends) > 2, "not always all or nothing"
    assert holes > times / 4


async def test_log_continues_after_a_power_failure(running: Running, tmp_path: Path) -> None:
    running.append(SMALL)
    await flush(running.store)
    old = wal_of(running.copy("synced")).read_bytes()
    for _ in range(4):
        running.append(LARGE)
    lost = running.copy("lost")
    running.store.close()
    position = written_bytes(wal_of(tmp_path / "synced")) // SECTOR_BYTES * SECTOR_BYTES
    data = wal_of(lost).read_bytes()
    hole = slice(position + SECTOR_BYTES, position + 5 * SECTOR_BYTES)
    wal_of(lost).write_bytes(data[: hole.start] + old[hole] + data[hole.stop :])
    store = open_rocks(lost)
    end = store.recover().end_offset
    assert whole(store, end) == running.logs[1]
    chunk = make_chunk(end, 1, body=LARGE)
    store.append(chunk, end, end + 1)
    await flush(store)
    store.close()
    assert opened(lost) == running.logs[1] + chunk


def _zeroed(begin: int, size: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:begin] + bytes(size) + data[begin + size :]


async def synced_one_by_one(running: Running, bodies: list[bytes]) -> list[int]:
    """Return the positions of writes that were synced one by one."""
    wal = wal_of(running.directory)
    begins = []
    for body in bodies:
        begins.append(written_bytes(wal))
        running.append(body)
        await flush(running.store)
    return begins


@pytest.mark.parametrize("body", [SMALL * 8, LARGE], ids=["small", "in pieces"])
async def test_gap_in_synced_data_is_damage(running: Running, body: bytes) -> None:
    """Any zeroed part of a synced write is damage if two later writes are whole: the last one shows
    that the others were synced.
    """
    begins = await synced_one_by_one(running, [body] * 8)
    crashed = running.copy("crashed")
    running.store.close()
    wal = wal_of(crashed)
    good = wal.read_bytes()
    first = -(-begins[1] // SECTOR_BYTES) * SECTOR_BYTES
    rng = Random(3)
    for begin in (first, *rng.sample(range(first, begins[6] - BLOCK // 2, SECTOR_BYTES), 4)):
        for size in (SECTOR_BYTES, PAGE_BYTES):
            wal.write_bytes(_zeroed(begin, size)(good))
            if wal.read_bytes() == good:
                continue
            with pytest.raises(CorruptLogError, match="is not the one that was synced there"):
                open_rocks(crashed)
            with pytest.raises(CorruptLogError, match="is not the one that was synced there"):
                open_read_only(crashed)
    wal.write_bytes(good)
    assert opened(crashed) == running.logs[-1]


async def test_gap_in_the_last_synced_write_looks_like_a_tear(running: Running) -> None:
    begins = await synced_one_by_one(running, [SMALL * 8] * 4)
    crashed = running.copy("crashed")
    running.store.close()
    wal = wal_of(crashed)
    begin = -(-begins[-1] // SECTOR_BYTES) * SECTOR_BYTES
    wal.write_bytes(_zeroed(begin, SECTOR_BYTES)(wal.read_bytes()))
    assert opened(crashed) == running.logs[-2]


async def test_changed_bytes_are_damage_whatever_was_synced(running: Running) -> None:
    begins = await synced_one_by_one(running, [SMALL] * 3)
    for _ in range(3):
        running.append(SMALL)
    crashed = running.copy("crashed")
    running.store.close()
    wal = wal_of(crashed)
    good = wal.read_bytes()
    at = written_bytes(wal)
    for position in (begins[1] + 60, begins[2] + 4, begins[2] + 5, at - 60, at - 1):
        for bit in (0, 6):
            changed = bytearray(good)
            changed[position] ^= 1 << bit
            wal.write_bytes(changed)
            with pytest.raises(CorruptLogError):
                open_rocks(crashed)


async def test_damage_after_a_truncation_is_reported_at_its_end(running: Running) -> None:
    """The truncation splits a chunk: the rest of it is written again, in the same batch."""
    for _ in range(5):
        running.append(SMALL)
    running.truncate(3)
    end, begin = running.end, written_bytes(wal_of(running.directory))
    running.append(SMALL)
    crashed = running.copy("crashed")
    running.store.close()
    wal = wal_of(crashed)
    data = bytearray(wal.read_bytes())
    data[begin + 40] ^= 0x10
    wal.write_bytes(data)
    with pytest.raises(CorruptLogError) as caught:
        open_rocks(crashed)
    assert caught.value.offset == end


async def test_bit_flipped_in_the_preallocated_zeros_is_harmless(running: Running) -> None:
    await synced_one_by_one(running, [SMALL] * 3)
    crashed = running.copy("crashed")
    running.store.close()
    wal = wal_of(crashed)
    good = wal.read_bytes()
    for position in (written_bytes(wal) + 600, BLOCK + 5, len(good) - 1):
        changed = bytearray(good)
        changed[position] ^= 4
        wal.write_bytes(changed)
        assert opened(crashed) == running.logs[-1]


async def test_each_write_records_what_was_synced_before_it(running: Running) -> None:
    await synced_one_by_one(running, [SMALL] * 2)
    running.append(SMALL)
    running.append(SMALL)
    found = list(marked(wal_of(running.directory).read_bytes(), 0))
    running.store.close()
    first, *writes = found
    assert first.synced == 0
    # The first write is two marks alone; the others have a chunk between them.
    assert [one.sequence for one in found] == [
        first.sequence + 3 * index - (index > 0) for index in range(len(found))
    ]
    assert [one.synced for one in writes] == [
        first.sequence + 1,
        first.sequence + 4,
        first.sequence + 7,
        first.sequence + 7,
    ]


async def test_unsynced_end_of_an_old_wal_may_be_lost(running: Running, tmp_path: Path) -> None:
    """RocksDB begins another WAL before the last writes of the previous one are synced."""
    running.append(SMALL)
    await flush(running.store)
    old = wal_of(running.copy("synced")).read_bytes()
    running.append(SMALL)
    running.append(LARGE)
    running.append(SMALL)
    before = running.copy("before")
    running.store._rocks._db.flush(False)
    running.append(SMALL)
    # The WAL before may be deleted at any moment.
    newest = wals(running.directory / "log")[-1]
    content = newest.read_bytes()
    running.store.close()
    first = wal_of(before)
    assert newest.name != first.name
    assert len(list(marked(content, 0))) == 1
    # What the disk has if neither the flush nor the sync came to an end.
    lost = Path(shutil.copytree(before, tmp_path / "lost"))
    data = first.read_bytes()
    position = written_bytes(wal_of(tmp_path / "synced")) // SECTOR_BYTES * SECTOR_BYTES
    hole = slice(position + 2 * SECTOR_BYTES, position + 4 * SECTOR_BYTES)
    (lost / "log" / first.name).write_bytes(data[: hole.start] + old[hole] + data[hole.stop :])
    (lost / "log" / newest.name).write_bytes(content)
    assert opened(lost) in running.logs[1:3]


WRITE_BYTES = 1 << 20
"""Number of bytes that RocksDB passes to the file system at a time."""


def with_last_piece(
    path: Path, size: int, tail: bytes = b"", blocks: int = 2 * WRITE_BYTES // BLOCK
) -> tuple[Path, int, int]:
    """A log whose last write alone has this many blocks, and a last piece of this size: the end of
    its chunk, which ends in ``tail``, and the mark. Return the WAL as a kill leaves it, and where
    that write and the piece begin.
    """
    rocks = RocksLog(path / "log", create=True)
    (wal,) = (path / "log").glob("*.log")
    rocks.put(0, b"first" * 50, NO_END)
    rocks.sync()
    begin = written_bytes(wal)
    # The length of a chunk of this size takes two bytes more than that of an empty one.
    frame = marked_size((bytes(8), b"")) + 2
    room = blocks * (BLOCK - HEADER.size) - begin % BLOCK
    rocks.put(1, Random(size).randbytes(room + size - frame - len(tail)) + tail, NO_END)
    copy = path / "killed"
    shutil.copytree(path / "log", copy)
    rocks.close()
    (wal,) = copy.glob("*.log")
    data = wal.read_bytes()
    at = next(at for at, type_, _ in reversed(list(pieces(data))) if type_ == LAST)
    assert at == begin // BLOCK * BLOCK + blocks * BLOCK
    assert HEADER.unpack_from(data, at)[1] == size
    return wal, begin, at


@pytest.mark.parametrize("size", [8, 60, 504, 505, 506, 512])
def test_kill_within_a_large_write_leaves_its_last_header(tmp_path: Path, size: int) -> None:
    wal, begin, at = with_last_piece(tmp_path, size)
    good = wal.read_bytes()
    wal.write_bytes(good[: at + HEADER.size].ljust(len(good), b"\0"))
    (tail,) = find_torn_tails(wal.parent)
    assert (tail.path, tail.new_end, tail.zeros_from) == (wal, begin, at)
    truncate_file(tail)
    found = RocksLog(wal.parent)
    assert [base for base, _ in found.scan(0)] == [0]
    found.close()


def test_impossible_remains_of_a_large_write_are_damage(tmp_path: Path) -> None:
    """Zeros in part of the piece, after a header elsewhere, or before anything else."""
    wal, _, at = with_last_piece(tmp_path, 200)
    good = wal.read_bytes()
    behind = at + HEADER.size
    killed = good[:behind].ljust(len(good), b"\0")
    assert 0 not in (good[behind], good[behind + 199])
    for changed in (
        good[: behind + 1].ljust(len(good), b"\0"),
        _zeroed(behind, 199)(good),
        _zeroed(behind, 200)(good)[:-1] + b"x",
        _zeroed(at + 4, 2)(killed),
        killed[: at + 4] + (3).to_bytes(2, "little") + killed[at + 6 :],
        killed[: at + 6] + bytes([FULL]) + killed[at + 7 :],
    ):
        assert len(changed) == len(good)
        wal.write_bytes(changed)
        assert find_torn_tails(wal.parent) == ()
    wal.write_bytes(killed)
    (wal.parent / "999999.log").write_bytes(b"x" * 600)
    assert find_torn_tails(wal.parent) == (), "a kill ends the last WAL, no other one"


def test_no_kill_ends_a_large_write_between_two_of_its_writes(tmp_path: Path) -> None:
    wal, _, at = with_last_piece(tmp_path, 200, blocks=63)
    good = wal.read_bytes()
    wal.write_bytes(good[: at + HEADER.size].ljust(len(good), b"\0"))
    assert find_torn_tails(wal.parent) == ()


@pytest.mark.parametrize(
    ("size", "tail"),
    [(92, bytes(59) + b"\x10"), (92, bytes(60)), (33, bytes(1)), (8, b"")],
    ids=["zeros but for one bit", "zeros", "one zero", "the end of the mark"],
)
def test_flipped_bit_in_synced_data_is_damage(tmp_path: Path, size: int, tail: bytes) -> None:
    """Whatever the chunk ends in, the mark after it is not zeros."""
    wal, _, at = with_last_piece(tmp_path, size, tail)
    good = wal.read_bytes()
    assert find_torn_tails(wal.parent) == ()
    header = 8 * HEADER.size
    the_one = header + 8 * max(len(tail) - 1, 0) + 4
    for bit in (*range(header), *range(header, header + 8 * size, 61), the_one):
        changed = bytearray(good)
        changed[at + bit // 8] ^= 1 << bit % 8
        wal.write_bytes(changed)
        assert find_torn_tails(wal.parent) == (), bit
        if bit in {3, 41, the_one}:
            with pytest.raises(CorruptLogError):
                RocksLog(wal.parent)


def test_write_may_begin_at_the_end_of_a_block(tmp_path: Path) -> None:
    """Its first piece may be too short for its number, or for its mark, by any number of bytes."""
    rocks = RocksLog(tmp_path / "log", create=True)
    (wal,) = (tmp_path / "log").glob("*.log")
    base = 0

    def put(size: int) -> int:
        nonlocal base
        rocks.put(base, b"x" * size, NO_END)
        rocks.sync()
        base += 1
        return written_bytes(wal)

    # What a write takes beside a chunk of some hundred bytes.
    frame = -put(500) + put(500) - 500
    begins = set()
    lefts = range(HEADER.size, 56)
    for left in lefts:
        begin = written_bytes(wal)
        while (room := -begin % BLOCK - left - frame) > 15_000 or room < 130:
            begin = put(10_000 if room > 15_000 else 700)
        begin = put(room)
        begins.add(-begin % BLOCK)
        put(300)
    assert begins == set(lefts)
    assert WalStream([wal.read_bytes()]).first_break is None, "all of it is whole"
    assert find_torn_tails(tmp_path / "log") == (), "and synced"
    found = list(marked(wal.read_bytes(), 0))
    rocks.close()
    assert all(one.synced < one.sequence for one in found)
    assert base - len(begins) < len(found) <= base + 1


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(150), marks=pytest.mark.nightly)])
def test_long_random_logs_survive_power_loss(tmp_path: Path, seeds: range) -> None:
    """Records at every position in a block: what was synced is present, of the rest a prefix; and a
    gap in synced data is refused.
    """
    holes = refused = 0
    for seed in seeds:
        rng, root = Random(seed), tmp_path / str(seed)
        rocks, chunks = RocksLog(root / "log", create=True), list[bytes]()
        (wal,) = (root / "log").glob("*.log")

        def put(rocks: RocksLog, chunks: list[bytes], rng: Random) -> None:
            most = rng.choice((60, 600, 600, 600, 70_000))
            chunks.append(rng.randbytes(rng.randrange(1, most)))
            rocks.put(len(chunks) - 1, chunks[-1], NO_END)

        for _ in range(rng.randrange(200, 2_000)):
            put(rocks, chunks, rng)
            if rng.random() < 0.05:
                rocks.sync()
        rocks.sync()
        synced, old = len(chunks), wal.read_bytes()
        for _ in range(rng.randrange(2, 60)):
            put(rocks, chunks, rng)
        new, written = wal.read_bytes(), written_bytes(wal)
        rocks.close()
        lost = root / "lost"
        lost.mkdir()
        unit = rng.choice((SECTOR_BYTES, PAGE_BYTES))
        (lost / wal.name).write_bytes(mixed(old, new, unit, rng))
        tails = find_torn_tails(lost)
        holes += any(tail.is_hole for tail in tails)
        kept = (lost / wal.name).read_bytes()[: min((one.new_end for one in tails), default=None)]
        stream = WalStream([kept])
        assert stream.first_break is None
        # A write has a mark, its chunk and the mark again, the first one the marks alone.
        writes, rest = divmod(stream.expected - 3, 3)
        assert rest == 0
        assert synced <= writes <= len(chunks)
        assert kept[:written].rstrip(b"\0") == new[: len(kept[:written].rstrip(b"\0"))]
        hole = rng.randrange(0, len(old.rstrip(b"\0")) // 2 // SECTOR_BYTES) * SECTOR_BYTES
        (lost / wal.name).write_bytes(_zeroed(hole, SECTOR_BYTES)(new))
        with pytest.raises(CorruptLogError, match="is not the one that was synced there"):
            find_torn_tails(lost)
        refused += 1
    assert holes > len(seeds) / 4
    assert refused == len(seeds)


def copied(source: Path, target: Path) -> Path:
    """Copy a directory at a moment when RocksDB neither merges nor removes files."""
    for _ in range(20):
        before = sorted(source.iterdir())
        with suppress(shutil.Error):
            shutil.copytree(source, target)
            if sorted(source.iterdir()) == before:
                return target
        shutil.rmtree(target)
    pytest.fail(f"{source} does not come to rest")


def test_preallocated_zeros_never_overwrite(tmp_path: Path) -> None:
    """The zeros stay ahead for any write, and for any change to a new WAL."""
    rng = Random(5)
    rocks = RocksLog(tmp_path / "log", create=True)
    sizes = []
    for base in range(400):
        sizes.append(rng.choice((10, 500, 5_000, 40_000, 300_000 if base % 50 == 7 else 90)))
        rocks.put(base, bytes([base % 251 + 1]) * sizes[-1], NO_END)
        if rng.random() < 0.2:
            rocks.sync()
        if base % 97 == 13:
            rocks._db.flush(False)
    rocks.sync()
    copy = copied(tmp_path / "log", tmp_path / "copy")
    rocks.close()
    found = RocksLog(copy)
    assert [(base, len(chunk), set(chunk)) for base, chunk in found.scan(0)] == [
        (base, size, {base % 251 + 1}) for base, size in enumerate(sizes)
    ]
    found.close()

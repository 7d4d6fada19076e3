"""Torn tails of RocksDB's files, and damage."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import google_crc32c
import pytest
from storage_kit import (
    flush,
    format_with_vote,
    make_chunk,
    open_rocks,
    whole,
    without_zeros_ahead,
    written_bytes,
)

from raftlog import batch
from raftlog.batch import RecordData
from raftlog.errors import CorruptLogError
from raftlog.node.storage.reader import open_read_only
from raftlog.node.storage.wal import BLOCK, HEADER, MARK_HEAD, masked_crc
from raftlog.node.storage.wal_repair import (
    CRC_BYTES,
    MARKED_ZEROS_MIN_BYTES,
    SECTOR_BYTES,
    ZEROS_MIN_BYTES,
    can_complete,
    find_torn_tails,
    is_one_bit,
)

TRIES = 4_000


def records(rng: Random, missing: int) -> list[tuple[int, bytes]]:
    """The checksums of random records, and what is left of these."""
    found = []
    for _ in range(TRIES):
        record = rng.randbytes(missing + rng.randrange(1, 600))
        found.append((google_crc32c.value(record), record[:-missing]))
    return found


@pytest.mark.parametrize("missing", range(1, CRC_BYTES))
def test_write_without_its_end_can_be_completed(missing: int) -> None:
    assert all(
        can_complete(crc, known, missing) for crc, known in records(Random(missing), missing)
    )


@pytest.mark.parametrize("missing", range(1, CRC_BYTES))
def test_changed_write_cannot_be_completed(missing: int) -> None:
    """Except by chance: one in 256 if three bytes are missing, one in 65,536 if two are."""
    rng = Random(missing)
    by_chance = 0
    for crc, known in records(rng, missing):
        changed = bytearray(known)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        by_chance += can_complete(crc, bytes(changed), missing)
    expected = TRIES / 256 if missing == CRC_BYTES - 1 else 0
    assert expected / 3 <= by_chance <= expected * 3


def test_checksum_solver_handles_zero_and_four_bytes() -> None:
    rng = Random(1)
    for _ in range(200):
        known, crc = rng.randbytes(rng.randrange(20)), rng.getrandbits(32)
        assert can_complete(google_crc32c.value(known), known, 0)
        assert not can_complete(crc, known, 0)
        assert can_complete(crc, known, CRC_BYTES)


@pytest.mark.parametrize("missing", [1, 8, 60, 500])
def test_single_bit_among_zeros_is_detected(missing: int) -> None:
    for bit in range(8 * missing):
        tail = (1 << bit).to_bytes(missing, "big")
        assert is_one_bit(google_crc32c.value(b"known" + tail), b"known", missing)


def test_other_bytes_are_not_a_single_bit() -> None:
    rng = Random(1)
    assert not is_one_bit(google_crc32c.value(b"known" + bytes(8)), b"known", 8)
    for _ in range(200):
        missing = rng.randrange(8, 500)
        two = (1 << rng.randrange(8, 8 * missing) | 1).to_bytes(missing, "big")
        assert not is_one_bit(google_crc32c.value(b"known" + two), b"known", missing)


CHUNKS = 12
BODIES = {"small": b"body" * 200, "in pieces": bytes(range(1, 250)) * 300}
"""The second is larger than a block of the WAL."""


class Crashed:
    """A copy of a running store's directory, all in the WAL, one chunk of two records a write."""

    def __init__(self, directory: Path, sizes: list[int], chunks: list[bytes]) -> None:
        self.directory, self.sizes, self.chunks = directory, sizes, chunks
        self.wal = without_zeros_ahead(directory / "log")
        self.good = self.wal.read_bytes()

    def outcome(self, data: bytes) -> bytes | CorruptLogError:
        """Return the log that a node finds with this WAL, as must an offline reader."""
        scratch = self.directory.with_name("scratch")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(self.directory, scratch)
        (scratch / "log" / self.wal.name).write_bytes(data)
        try:
            with open_read_only(scratch) as log:
                read = log.read(0, log.end_offset, 1 << 30)
            assert (scratch / "log" / self.wal.name).read_bytes() == data, "reading changes nothing"
        except CorruptLogError:
            read = None
        try:
            store = open_rocks(scratch)
        except CorruptLogError as error:
            assert read is None
            return error
        found = whole(store, store.recover().end_offset)
        store.close()
        assert found == read
        return found


@pytest.fixture(params=BODIES)
async def crashed(request: pytest.FixtureRequest, tmp_path: Path) -> Crashed:
    return await crashed_with(tmp_path, BODIES[request.param])


async def crashed_with(
    tmp_path: Path, body: bytes, *, beyond: int = 0, ending: bytes = b"end"
) -> Crashed:
    """``beyond``: the last record has this many bytes beyond a sector boundary, and ends in
    ``ending``. The same directory is at ``running``, closed in order.
    """
    format_with_vote(tmp_path / "running")
    store = open_rocks(tmp_path / "running")
    store.recover()
    (wal,) = (tmp_path / "running" / "log").glob("*.log")
    sizes, chunks = [written_bytes(wal)], []

    async def append(chunk: bytes, base: int, end: int) -> None:
        store.append(chunk, base, end)
        await flush(store)
        chunks.append(chunk)
        sizes.append(written_bytes(wal))

    for base in range(0, 2 * CHUNKS, 2):
        await append(make_chunk(base, 1, 1, body=body), base, base + 2)
    base, padding = 2 * CHUNKS, 0
    # One that lies in more pieces than the one before is longer than expected: then once more.
    while beyond and sizes[-1] % SECTOR_BYTES != beyond:
        record = RecordData(1, 0, body + b"x" * padding + ending)
        await append(
            batch.encode([record], base_offset=base, epoch=1, timestamp_ms=1_000), base, base + 1
        )
        base, unpadded = base + 1, sizes[-1] - sizes[-2] - padding
        padding = (beyond - sizes[-1] - unpadded) % SECTOR_BYTES
    shutil.copytree(tmp_path / "running", tmp_path / "crashed")
    store.close()
    return Crashed(tmp_path / "crashed", sizes, chunks)


async def test_tail_of_zeros_is_cut_off_and_nothing_else(crashed: Crashed) -> None:
    good, rng = crashed.good, Random(1)
    begin = -(-(crashed.sizes[-2] + 1) // 512) * 512
    in_the_last = range(begin, len(good) - ZEROS_MIN_BYTES, 512)
    anywhere = range(-(-crashed.sizes[1] // 512) * 512, begin, 512)
    for zeros_from in (*rng.sample(anywhere, 5), *rng.sample(in_the_last, 1), in_the_last[-1]):
        more = rng.choice((0, 70_000))
        found = crashed.outcome(good[:zeros_from] + bytes(len(good) - zeros_from + more))
        assert isinstance(found, bytes), f"zeros from {zeros_from}, {more} more: {found}"
        whole_chunks = sum(size <= zeros_from for size in crashed.sizes[1:])
        assert found == b"".join(crashed.chunks[:whole_chunks])


async def test_zeros_after_the_last_record_are_not_damage(crashed: Crashed) -> None:
    for more in (1, 600, 100_000):
        assert crashed.outcome(crashed.good + bytes(more)) == b"".join(crashed.chunks)


def _changed(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


def _payload_of_the_last(crashed: Crashed) -> bytes:
    return _changed(crashed.good, crashed.sizes[-2] + 60, crashed.good[crashed.sizes[-2] + 60] ^ 4)


def _payload_and_zeros(crashed: Crashed) -> bytes:
    return _payload_of_the_last(crashed) + bytes(5_000)


def _zeros_in_the_middle(crashed: Crashed) -> bytes:
    begin = -(-crashed.sizes[3] // 512) * 512
    return crashed.good[:begin] + bytes(512) + crashed.good[begin + 512 :]


def _longer_length(data: bytes, header: int) -> bytes:
    value = data[header + 5]
    return _changed(
        data,
        header + 5,
        value | next(bit for bit in (0x40, 0x20, 0x10, 8, 4, 2, 1) if not value & bit),
    )


def _longer_length_hides_records(crashed: Crashed) -> bytes:
    return _longer_length(crashed.good, crashed.sizes[-4]) + bytes(40_000)


def _longer_length_of_the_last(crashed: Crashed) -> bytes:
    return _longer_length(crashed.good, crashed.sizes[-2]) + bytes(40_000)


def _few_zeros_of_its_own(crashed: Crashed) -> bytes:
    return _payload_of_the_last(crashed)[: -(ZEROS_MIN_BYTES - 1)] + bytes(ZEROS_MIN_BYTES - 1)


@pytest.mark.parametrize(
    "damage",
    [
        _payload_of_the_last,
        _payload_and_zeros,
        _zeros_in_the_middle,
        _longer_length_hides_records,
        _longer_length_of_the_last,
        _few_zeros_of_its_own,
    ],
)
async def test_damaged_wal_is_refused(crashed: Crashed, damage: Callable[[Crashed], bytes]) -> None:
    data = damage(crashed)
    assert data != crashed.good
    found = crashed.outcome(data)
    assert isinstance(found, CorruptLogError), (
        f"served {len(found)} of {sum(map(len, crashed.chunks))} bytes"
    )
    assert crashed.wal.name in str(found)


async def test_log_before_the_damage_is_reported(crashed: Crashed) -> None:
    for step in (1, CHUNKS // 2, CHUNKS - 1):
        begin = crashed.sizes[step]
        # Behind the header of the record, in what it holds.
        error = crashed.outcome(_changed(crashed.good, begin + 40, crashed.good[begin + 40] ^ 0x10))
        assert isinstance(error, CorruptLogError)
        assert error.offset == 2 * step
        assert f"intact up to offset {2 * step}" in str(error)
        if len(crashed.chunks[step]) < BLOCK:
            assert f"the record at byte {begin} of {crashed.wal.name} " in str(error)


async def test_damage_in_the_first_record_has_no_log_before_it(crashed: Crashed) -> None:
    error = crashed.outcome(_changed(crashed.good, 20, crashed.good[20] ^ 0x10))
    assert isinstance(error, CorruptLogError)
    assert error.offset == -1
    assert f"the record at byte 0 of {crashed.wal.name} does not match its checksum" in str(error)


def physical_record(payload: bytes) -> bytes:
    """Return a record that fits a block, as RocksDB writes it."""
    return HEADER.pack(masked_crc(b"\x01" + payload), len(payload), 1) + payload


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("missing", range(1, ZEROS_MIN_BYTES))
async def test_few_unwritten_bytes_are_a_tear(tmp_path: Path, body: bytes, missing: int) -> None:
    """Up to three: the checksum decides. From four on, the checksum of the mark is not zero."""
    crashed = await crashed_with(tmp_path, body, beyond=missing)
    boundary = len(crashed.good) - missing
    torn = crashed.good[:boundary] + bytes(missing)
    assert crashed.outcome(torn) == b"".join(crashed.chunks[:-1])
    changed = crashed.outcome(_changed(torn, boundary - 1, torn[boundary - 1] ^ 4))
    assert isinstance(changed, CorruptLogError) is (missing < CRC_BYTES)


@pytest.mark.parametrize("zeros", range(1, CRC_BYTES))
async def test_damage_before_zeros_of_a_record_is_refused(tmp_path: Path, zeros: int) -> None:
    mark_bytes = len(MARK_HEAD) + MARK_HEAD[-1]
    crashed = await crashed_with(
        tmp_path, BODIES["small"], beyond=zeros + mark_bytes, ending=bytes(zeros)
    )
    begin = crashed.sizes[-2]
    # Without the mark at its end.
    sequence, count = struct.unpack_from("<QI", crashed.good, begin + HEADER.size)
    entries = crashed.good[begin + HEADER.size + 12 : -mark_bytes]
    last = physical_record(struct.pack("<QI", sequence, count - 1) + entries)
    good = crashed.good[:begin] + last
    boundary = len(good) - zeros
    assert good.endswith(bytes(zeros))
    assert crashed.outcome(good) == b"".join(crashed.chunks)
    # Three zeros hide one change in 256: none of these.
    in_its_header = range(begin, begin + HEADER.size)
    for position in (*in_its_header, begin + 20, begin + 60, begin + 300, boundary - 1):
        found = crashed.outcome(_changed(good, position, good[position] ^ 4))
        assert isinstance(found, CorruptLogError), (
            f"byte {position - begin} of the last record has changed"
        )


def put(rocks: Path, name: str, data: bytes) -> bool:
    """Return whether a tear is found in this file."""
    (rocks / name).write_bytes(data)
    if name.startswith("MANIFEST"):
        (rocks / "CURRENT").write_text(f"{name}\n")
    return any(tail.path.name == name for tail in find_torn_tails(rocks))


@pytest.mark.parametrize(
    ("name", "enough"),
    [("000007.log", ZEROS_MIN_BYTES), ("MANIFEST-000007", MARKED_ZEROS_MIN_BYTES)],
)
def test_few_zeros_may_belong_to_a_record(tmp_path: Path, name: str, enough: int) -> None:
    for zeros in range(1, ZEROS_MIN_BYTES + 1):
        torn = physical_record(b"x" * (1024 - HEADER.size + zeros))[:1024] + bytes(zeros)
        assert put(tmp_path, name, torn) is (zeros < CRC_BYTES or zeros >= enough)
        assert put(tmp_path, name, _changed(torn, 1023, 0x7C)) is (zeros >= enough)


@pytest.mark.parametrize("name", ["000007.log", "MANIFEST-000007"])
def test_few_zeros_that_do_not_end_with_the_record_are_not_a_torn_write(
    tmp_path: Path, name: str
) -> None:
    for missing in range(1, CRC_BYTES):
        for zeros in range(1, CRC_BYTES):
            torn = physical_record(b"x" * (1024 - HEADER.size + missing))[:1024] + bytes(zeros)
            assert put(tmp_path, name, torn) is (zeros == missing)


def test_few_zeros_that_begin_within_a_header_are_decided_by_their_count(tmp_path: Path) -> None:
    """No checksum can be trusted then, and the length is unknown."""
    before = physical_record(b"x" * (SECTOR_BYTES - 6 - HEADER.size))
    for zeros in range(1, ZEROS_MIN_BYTES):
        data = (before + physical_record(b"x" * (zeros - 1)))[:SECTOR_BYTES] + bytes(zeros)
        assert not put(tmp_path, "000007.log", data)
        assert put(tmp_path, "MANIFEST-000007", data) is (zeros >= MARKED_ZEROS_MIN_BYTES)


def test_header_of_zeros_between_two_pieces_of_a_record_is_a_tear(tmp_path: Path) -> None:
    payload = b"x" * (BLOCK - HEADER.size)
    first = HEADER.pack(masked_crc(b"\x02" + payload), len(payload), 2) + payload
    assert put(tmp_path, "000007.log", first + bytes(HEADER.size))


async def test_record_that_ends_in_zeros_from_a_piece_boundary_on_is_torn(tmp_path: Path) -> None:
    crashed = await crashed_with(tmp_path, BODIES["in pieces"])
    block = -(-(crashed.sizes[-2] + 1) // BLOCK) * BLOCK
    found = crashed.outcome(crashed.good[:block] + bytes(len(crashed.good) - block))
    assert found == b"".join(crashed.chunks[:-1])


def test_zeros_that_begin_within_a_sector_and_end_with_it_are_not_a_torn_write(
    tmp_path: Path,
) -> None:
    """No disk stops there: only from the next sector on."""
    record = physical_record(b"x" * 600)
    wal = tmp_path / "000007.log"
    for zeros_from, found in ((1150, False), (1024, True), (1000, True), (620, True)):
        wal.write_bytes((record + record)[:zeros_from] + bytes(2 * len(record) - zeros_from))
        tails = find_torn_tails(tmp_path)
        assert bool(tails) is found
        assert all((tail.new_end, tail.zeros_from) == (len(record), zeros_from) for tail in tails)


def test_only_the_last_wal_is_examined(tmp_path: Path) -> None:
    record = physical_record(b"x" * 600)
    (tmp_path / "000009.log").write_bytes(record[:512] + bytes(100))
    assert find_torn_tails(tmp_path)
    (tmp_path / "000010.log").write_bytes(record)
    assert not find_torn_tails(tmp_path)


async def test_cleanly_closed_log_is_left_unchanged(crashed: Crashed) -> None:
    store = open_rocks(crashed.directory)
    store.recover()
    store.close()
    assert not find_torn_tails(crashed.directory / "log")


async def test_zeros_in_the_last_record_of_the_manifest_are_cut_off(crashed: Crashed) -> None:
    """A record lost by a MANIFEST in this way was never synced, and its WAL still exists."""
    rocks = crashed.directory / "log"
    manifest = rocks / (rocks / "CURRENT").read_text().strip()
    good = manifest.read_bytes()
    # Any record will do: it is the last one, and goes over the end of a sector.
    torn = physical_record(b"x" * 700)
    manifest.write_bytes(
        good + torn[: 512 - len(good) % 512] + bytes(len(torn) - 512 + len(good) % 512)
    )
    assert [(tail.path, tail.new_end) for tail in find_torn_tails(rocks)] == [(manifest, len(good))]
    assert crashed.outcome(crashed.good) == b"".join(crashed.chunks)


def _ignored_by_rocksdb(size: int) -> bytes:
    """Return a record of a MANIFEST of this size, with an unknown tag that may be skipped."""
    left = size - HEADER.size - 4
    return physical_record(b"\xe4\x40" + bytes([left & 0x7F | 0x80, left >> 7]) + b"x" * left)


@pytest.mark.parametrize("last", ["the flush", "the WALs to keep"])
@pytest.mark.parametrize("missing", range(1, ZEROS_MIN_BYTES))
async def test_unwritten_manifest_bytes_are_a_tear(tmp_path: Path, last: str, missing: int) -> None:
    """The two records for a flushed memory table, before RocksDB deletes the WAL."""
    crashed = await crashed_with(tmp_path, BODIES["small"])
    rocks = crashed.directory / "log"
    manifest = rocks / (rocks / "CURRENT").read_text().strip()
    before, after = (
        manifest.read_bytes(),
        (tmp_path / "running" / "log" / manifest.name).read_bytes(),
    )
    assert after.startswith(before)
    flushed_at = len(before) + HEADER.size + HEADER.unpack_from(after, len(before))[1]
    if last == "the flush":
        kept, record = before, after[len(before) : flushed_at]
    else:
        kept, record = after[:flushed_at], after[flushed_at:]
        shutil.rmtree(rocks)
        shutil.copytree(tmp_path / "running" / "log", rocks)
    kept += _ignored_by_rocksdb(SECTOR_BYTES + (missing - len(kept) - len(record)) % SECTOR_BYTES)
    torn = kept + record[:-missing] + bytes(missing)
    boundary = len(torn) - missing
    assert boundary % SECTOR_BYTES == 0
    if missing < CRC_BYTES:
        manifest.write_bytes(_changed(torn, boundary - 1, torn[boundary - 1] ^ 4))
        assert not find_torn_tails(rocks)
        with pytest.raises(CorruptLogError):
            open_rocks(crashed.directory)
    manifest.write_bytes(torn)
    assert [(tail.path, tail.new_end) for tail in find_torn_tails(rocks)] == [(manifest, len(kept))]
    store = open_rocks(crashed.directory)
    assert whole(store, store.recover().end_offset) == b"".join(crashed.chunks)
    store.close()


async def test_damage_to_the_manifest_is_still_refused(crashed: Crashed) -> None:
    rocks = crashed.directory / "log"
    manifest = rocks / (rocks / "CURRENT").read_text().strip()
    good = manifest.read_bytes()
    for damage in (
        _changed(good, len(good) - 20, good[-20] ^ 4),
        _changed(good, 20, good[20] ^ 4) + bytes(5_000),
    ):
        manifest.write_bytes(damage)
        assert not find_torn_tails(rocks)
        assert isinstance(crashed.outcome(crashed.good), CorruptLogError)
    (rocks / "CURRENT").write_text("../../MANIFEST-000001\n")
    assert not find_torn_tails(rocks)

"""Truncate a WAL or MANIFEST that power loss left longer than its data: the file had grown, but
some of its blocks were never written.

Unwritten data reads as zeros, from a sector boundary to the end of the file. RocksDB considers
zeros the end of the file where a record could begin, and refuses them within a record. That record
was never synced, so nothing in it was acknowledged, and it is removed here. Nothing else is: a
record that ends before the zeros begin, one without zeros after it, and anything with data after it
is damage, which RocksDB or wal.py refuses.

A few zeros may be the last bytes of a synced record that is damaged elsewhere. Up to three zeros
count as a tear if other bytes in their place would give the record its checksum. For four or more,
such bytes always exist, so the number of zeros decides. Four to seven zeros are refused in the WAL
of a broker's partitions, where a record with an empty body ends in four. In the WAL of a log and in
a MANIFEST they count as a tear, as a mark ends in its checksum, and no record of a MANIFEST ends in
zeros.

RocksDB deletes a WAL only after the MANIFEST record that makes it unnecessary is synced, so data
that is removed from the MANIFEST is still in a WAL.

The WAL of a log has zeros ahead of its end, so power loss leaves holes in it (``find_hole``) rather
than a longer file.

Later, ``recover`` checks that the log still has everything that was durable (log-state.json).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from raftlog.errors import CorruptLogError, StorageError
from raftlog.node.storage.wal import (
    BLOCK,
    FIRST,
    FULL,
    HEADER,
    LAST,
    MARK_HEAD,
    end_of_piece,
    length_changed,
    masked_crc,
    pieces,
    records_behind,
    unmasked,
    wals,
)

CRC_BYTES = 4
"""Number of unknown bytes that can produce any checksum."""
_MASK = 0xFFFFFFFF
_POLYNOMIAL = 0x82F63B78
"""Castagnoli's polynomial, reflected: the lowest bit is the highest power."""


def _entry(state: int) -> int:
    for _ in range(8):
        state = (state >> 1) ^ (_POLYNOMIAL if state & 1 else 0)
    return state


_ENTRY_BY_TOP_BYTE = {entry >> 24: entry for entry in map(_entry, range(256))}


def can_complete(crc: int, known: bytes, missing: int) -> bool:
    """Return whether ``missing`` more bytes exist such that ``known``, followed by them, has this
    checksum.

    If ``known`` has been changed, such bytes exist by chance, with a probability of ``2 ** (8 *
    missing - 32)``.
    """
    before: int = google_crc32c.value(known) ^ _MASK
    wanted = crc ^ _MASK
    for _ in range(missing):
        wanted = ((wanted ^ _ENTRY_BY_TOP_BYTE[wanted >> 24]) << 8) & _MASK
    return (wanted ^ before) >> (8 * missing) == 0


def is_one_bit(crc: int, known: bytes, missing: int) -> bool:
    """Return whether ``known``, followed by ``missing`` bytes with exactly one bit set, has this
    checksum.
    """
    difference: int = google_crc32c.value(known + bytes(missing)) ^ crc
    one = _POLYNOMIAL
    for _ in range(8 * missing):
        if one == difference:
            return True
        one = (one >> 1) ^ (_POLYNOMIAL if one & 1 else 0)
    return False


SECTOR_BYTES = 512
"""Unit that a disk writes whole, in bytes."""
ZEROS_MIN_BYTES = 8
"""Minimum number of zeros at the end of a record without a mark that count as unwritten."""
MARKED_ZEROS_MIN_BYTES = 4
"""The same for a write that ends in a mark, and for a record of a MANIFEST.

The last four bytes of a mark are its checksum. A VersionEdit ends in a varint, a terminating tag or
text, never in that many zeros, except with round-robin compaction, which is not used.
"""
BUFFER_BYTES = 1 << 20
"""Bytes that RocksDB passes to the file system at a time (``writable_file_max_buffer_size``)."""
_WRITE = struct.Struct("<QI")
"""Start of a write: its first sequence number, and the count of its numbers."""
_MARK_AT = HEADER.size + _WRITE.size
_SYNCED_BYTES = 8


class Marked(NamedTuple):
    """A write of which at least the first piece, with the whole mark, exists."""

    position: int
    sequence: int
    synced: int


class Break(NamedTuple):
    """The new end of a WAL, and the position of its break, in bytes from the start of the file."""

    wal: int
    new_end: int
    broken_at: int
    is_gap: bool
    """Whether the write at the break is whole, but does not continue the previous one."""
    begin: int = -1
    """Start of the write that breaks after its first piece, or -1."""


class WalStream:
    """The WALs of a log, read up to the first break."""

    def __init__(self, wals: Sequence[bytes]) -> None:
        self.expected = -1
        """Sequence number of the first missing write, or -1 if unknown."""
        self.first_break: Break | None = None
        """Break of the WALs, or None if they are whole, with only zeros after the last write."""
        for index, data in enumerate(wals):
            self.first_break = self._read(index, data)
            if self.first_break is not None:
                return

    def _read(self, wal: int, data: bytes) -> Break | None:
        """Return the break of this WAL, or None if only zeros follow its last write."""
        whole_to, begin, within, head = 0, 0, False, b""
        for position, type_, behind in pieces(data):
            if behind < 0:
                only_zeros = not data[position:].strip(b"\0")
                is_end = only_zeros and not within
                if is_end:
                    return None
                return Break(wal, whole_to, position, is_gap=False, begin=begin if within else -1)
            if type_ in {FULL, FIRST}:
                begin, head = position, b""
            if len(head) < _WRITE.size:
                # At the end of a block a piece may be too short for the start of a write.
                head += data[position + HEADER.size : behind][: _WRITE.size]
            within = type_ not in {FULL, LAST}
            if not within:
                if len(head) < _WRITE.size:
                    return Break(wal, whole_to, begin, is_gap=False)
                sequence, count = _WRITE.unpack_from(head)
                if self.expected not in {-1, sequence}:
                    return Break(wal, whole_to, begin, is_gap=True)
                whole_to, self.expected = behind, sequence + count
        return None


def find_hole(stream: WalStream, paths: Sequence[Path], wals: Sequence[bytes]) -> Break | None:
    """Return the hole that power loss left in the WALs of a log, or None if they have no break, or
    a break that is not such a hole.

    Everything after it must be removed, including later WALs. Raises CorruptLogError if the last
    WAL proves that the hole had been synced.
    """
    hole = stream.first_break
    if hole is None or stream.expected < 0:
        return None
    data = wals[hole.wal]
    is_torn = hole.is_gap or _is_torn(data, hole.broken_at)
    if not is_torn and (hole.wal < len(wals) - 1 or not _ends_at_a_header(data, hole)):
        return None
    left = [(hole.wal, one) for one in marked(data, hole.broken_at)]
    for index in range(hole.wal + 1, len(wals)):
        left += [(index, one) for one in marked(wals[index], 0)]
    if not left and not any(marked(data, 0)):
        # Not the WAL of a log, or written by an older build: it had no zeros ahead.
        return None
    for index, one in left:
        if one.synced < stream.expected:
            continue
        if hole.is_gap or hole.wal < len(wals) - 1:
            # RocksDB may no longer have needed the previous WAL.
            return None
        raise CorruptLogError(
            f"{paths[hole.wal]} is corrupt: the record at byte {hole.broken_at} is not the one"
            f" that was synced there: the record at byte {one.position} of {paths[index].name}"
            " proves this"
        )
    return hole


def marked(data: bytes, begin: int) -> Iterator[Marked]:
    """Yield the writes with a mark whose first piece is whole, at any position after ``begin``."""
    at = data.find(MARK_HEAD, begin + _MARK_AT)
    while at >= 0:
        position = at - _MARK_AT
        end = at + len(MARK_HEAD) + _SYNCED_BYTES
        if (
            data[position + HEADER.size - 1] in {FULL, FIRST}
            and end_of_piece(data, position) >= end
        ):
            sequence, _ = _WRITE.unpack_from(data, position + HEADER.size)
            yield Marked(position, sequence, int.from_bytes(data[end - _SYNCED_BYTES : end], "big"))
        at = data.find(MARK_HEAD, at + 1)


def _is_torn(data: bytes, position: int) -> bool:
    """Return whether an unwritten sector explains the missing record at ``position``."""
    header = data[position : position + HEADER.size]
    boundary = _next_sector(position)
    if boundary < position + len(header):
        before, after = header[: boundary - position], header[boundary - position :]
        if not any(before) or not any(after):
            return True
    elif not any(header):
        return True
    block_end = min(len(data), position // BLOCK * BLOCK + BLOCK)
    length = HEADER.unpack_from(header)[1] if len(header) == HEADER.size else 0
    end = position + HEADER.size + length
    if end > block_end:
        return False
    return any(_unwritten(data, position, end)) and not _hides_records(data, position, end)


def _ends_at_a_header(data: bytes, hole: Break) -> bool:
    """Return whether a killed process explains that the last piece of a write has only zeros after
    its header.

    Returns False if one changed bit of the payload, checksum or length would also explain it.
    """
    position, behind = hole.broken_at, hole.broken_at + HEADER.size
    written = position - hole.begin // BLOCK * BLOCK
    if hole.begin < 0 or not written or written % BUFFER_BYTES or len(data) < behind:
        return False
    masked, length, type_ = HEADER.unpack_from(data, position)
    if type_ != LAST or length < MARKED_ZEROS_MIN_BYTES or data[behind:].strip(b"\0"):
        return False
    # With zeros ahead, the file extends past the piece.
    if behind + length > min(len(data), position + BLOCK):
        return False
    known = bytes([type_])
    changed = masked ^ masked_crc(known + bytes(length))
    return not (
        changed.bit_count() == 1
        or length_changed(data, position)
        or is_one_bit(unmasked(masked), known, length)
    )


def _unwritten(data: bytes, position: int, end: int) -> Iterator[int]:
    """Yield the sectors of a marked write's piece that contain only zeros, unless they may be its
    own.
    """
    at = _next_sector(position)
    while at < end:
        until = min(at + SECTOR_BYTES, end)
        missing = until - at
        if not any(data[at:until]) and (
            missing >= MARKED_ZEROS_MIN_BYTES or lacks_its_end(data[position:end], at - position)
        ):
            yield at
        at = until


def lacks_its_end(record: bytes, written: int) -> bool:
    """Return whether a record may lack only the few bytes after the first ``written`` ones."""
    missing = len(record) - written
    if written < HEADER.size or missing >= CRC_BYTES:
        return False
    return can_complete(
        unmasked(HEADER.unpack_from(record)[0]), record[HEADER.size - 1 : written], missing
    )


def _hides_records(data: bytes, position: int, end: int) -> bool:
    """Return whether the record's length must be wrong, because it hides a whole record, perhaps
    the record itself.
    """
    start = position // BLOCK * BLOCK
    written = position + len(data[position:end].rstrip(b"\0"))
    return length_changed(data, position) or any(
        records_behind(data[start:until], position - start)
        for until in {end, max(written, position + HEADER.size)}
    )


def _next_sector(position: int) -> int:
    return (position // SECTOR_BYTES + 1) * SECTOR_BYTES


_MANIFEST = re.compile(r"MANIFEST-\d+")


class TornTail(NamedTuple):
    """The new end of a file, and the start of its zeros, in bytes from the start of the file."""

    path: Path
    new_end: int
    zeros_from: int
    size: int
    is_hole: bool = False
    """Whether data other than zeros is also removed."""

    def __str__(self) -> str:
        if self.is_hole:
            return (
                f"{self.path}: power loss left a hole at byte {self.zeros_from}; no data from there"
                f" to the end at {self.size} was ever synced, so the file is truncated to"
                f" {self.new_end} bytes"
            )
        return (
            f"{self.path}: power loss left zeros from byte {self.zeros_from} to the end at"
            f" {self.size}; the record that they interrupt was never synced, so the file is"
            f" truncated to {self.new_end} bytes"
        )


def find_torn_tails(rocks: Path) -> tuple[TornTail, ...]:
    """Return the zeros at the end of the last WAL and of the current MANIFEST that interrupt a
    record, and the first hole in a log's WALs, with everything after it.

    Raises StorageError, and CorruptLogError if the hole had been synced.
    """
    try:
        paths = wals(rocks)
        contents = [path.read_bytes() for path in paths]
        stream = WalStream(contents)
        tails = list(_holes(stream, paths, contents))
        grown = []
        if stream.first_break is not None and not tails:
            # Not a hole: the last WAL may have grown, as those of older builds do.
            grown.append((paths[-1], contents[-1]))
        if (manifest := _manifest_in_force(rocks)) is not None:
            grown.append((manifest, manifest.read_bytes()))
    except OSError as error:
        raise StorageError(f"cannot read the WAL in {rocks}: {error}") from error
    found = (_find(path, data) for path, data in grown if data.endswith(b"\0"))
    return (*tails, *(tail for tail in found if tail is not None))


def _holes(
    stream: WalStream, paths: Sequence[Path], contents: Sequence[bytes]
) -> Iterator[TornTail]:
    hole = find_hole(stream, paths, contents)
    if hole is None:
        return
    size = len(contents[hole.wal])
    yield TornTail(paths[hole.wal], hole.new_end, hole.broken_at, size, is_hole=True)
    for path, content in zip(paths[hole.wal + 1 :], contents[hole.wal + 1 :], strict=True):
        yield TornTail(path, 0, 0, len(content), is_hole=True)


def _manifest_in_force(rocks: Path) -> Path | None:
    current = rocks / "CURRENT"
    in_force = current.read_text(errors="replace").rstrip("\n") if current.is_file() else ""
    manifest = rocks / in_force
    return manifest if _MANIFEST.fullmatch(in_force) and manifest.is_file() else None


def truncate_file(tail: TornTail) -> None:
    """Durably truncate the file. Raises StorageError."""
    try:
        with tail.path.open("r+b") as file:
            file.truncate(tail.new_end)
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"cannot truncate the torn tail of {tail.path}: {error}") from error


def _find(path: Path, data: bytes) -> TornTail | None:
    zeros_from, size = len(data.rstrip(b"\0")), len(data)
    new_end, broken_at = _whole(data)
    if broken_at < 0:
        return None
    tail = TornTail(path, new_end, zeros_from, size)
    if zeros_from <= broken_at:
        # Only zeros follow, which are not a header: harmless where a record could begin, and a
        # tear between two pieces of a record.
        return tail if new_end < broken_at else None
    torn_at = -(-zeros_from // SECTOR_BYTES) * SECTOR_BYTES
    behind = broken_at + HEADER.size
    if behind <= zeros_from:
        behind += HEADER.unpack_from(data, broken_at)[1]
    if torn_at >= min(behind, size):
        return None
    enough = MARKED_ZEROS_MIN_BYTES if _MANIFEST.fullmatch(path.name) else ZEROS_MIN_BYTES
    if size - torn_at < enough and not (
        behind == size and lacks_its_end(data[broken_at:], torn_at - broken_at)
    ):
        return None
    return None if _something_behind(data, broken_at, behind, zeros_from) else tail


def _something_behind(data: bytes, broken_at: int, behind: int, zeros_from: int) -> bool:
    """Return whether the length of the incomplete record must be wrong, because it runs past its
    block or hides a whole record, perhaps the record itself.
    """
    start = broken_at // BLOCK * BLOCK
    if broken_at + HEADER.size <= len(data) and length_changed(data, broken_at):
        return True
    ends = [start + BLOCK, zeros_from] if zeros_from - broken_at >= HEADER.size else [start + BLOCK]
    return behind > start + BLOCK or any(
        records_behind(data[start:end], broken_at - start) for end in ends
    )


def _whole(data: bytes) -> tuple[int, int]:
    """Return the end of the last whole record, and the position of the first incomplete piece, or
    -1 if none.
    """
    whole_to = 0
    for position, type_, behind in pieces(data):
        if behind < 0:
            return whole_to, position
        if type_ in {FULL, LAST}:
            whole_to = behind
    return whole_to, -1

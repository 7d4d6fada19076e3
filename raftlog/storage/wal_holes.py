"""A WAL that power loss left with holes: zeros where something had been written, and later bytes
behind them.

There are zeros ahead of a log's WAL (:mod:`raftlog.storage.wal_ahead`). What was written into them
since the last sync reaches the disk sector by sector, in any order: of two unsynced writes the
second may be there, and of the first a part. All from the first hole on was never acknowledged, and
is cut off here. RocksDB itself must not see it: it takes zeros for the end of a block, goes on
with the next one, and the log would have lost something in its midst.

Damage to what *was* synced looks the same. The marks tell: each write says up to which of RocksDB's
sequence numbers everything had been synced before it. If a whole write that is left behind the
hole says that of a number which the hole has swallowed, bytes were lost that a disk had confirmed,
and the start is refused.

A kill leaves something else of a large write. RocksDB hands it to the file system a mebibyte at a
time, and each time but the first ends behind the header of a piece. If that piece is the last one,
and small, its header is there and no sector is missing.

Two things cannot be told from a tear. [The last writes of a log lose a whole sector after they were
synced: nothing behind says so. The same was true of zeros at the end of a file that grew.] [A bit
changes in the last write, and that write holds a sector of zeros of its own.]

The format of the file is in :mod:`raftlog.storage.wal_tail`, that of writes in
:mod:`raftlog.storage.wal_damage`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from raftlog.errors import CorruptLogError
from raftlog.storage.crc_completion import CRC_BYTES, can_complete, is_one_bit
from raftlog.storage.wal_tail import (
    BLOCK,
    FIRST,
    FULL,
    HEADER,
    LAST,
    end_of_piece,
    length_changed,
    masked_crc,
    pieces,
    records_behind,
    unmasked,
)

SECTOR_BYTES = 512
"""The unit that a disk writes whole."""
ZEROS_MIN_BYTES = 8
"""Fewer zeros of a sector may be a record's own."""
BUFFER_BYTES = 1 << 20
"""What RocksDB hands to the file system at a time (``writable_file_max_buffer_size``)."""
_WRITE = struct.Struct("<QI")
"""What a write begins with: its first sequence number, and how many it takes."""
_MARK = b"\x01\x01\x00\x08"
"""How the mark begins, the first entry of a write: a put, a key of one byte, zero, a value of
eight.
"""
_MARK_AT = HEADER.size + _WRITE.size
_SYNCED_BYTES = 8


class Marked(NamedTuple):
    """A whole write that is there: the first piece of it, at least, with the mark whole in it."""

    position: int
    sequence: int
    synced: int


class Cut(NamedTuple):
    """Where a WAL is to end, and where it is broken. Bytes from the file's beginning."""

    wal: int
    cut_at: int
    broken_at: int
    is_gap: bool
    """The write there is whole, but does not follow the one before."""
    begin: int = -1
    """Where the write begins that breaks behind its first piece; -1: it does not."""


class WalStream:
    """The WALs of a log, read up to where they break."""

    def __init__(self, wals: Sequence[bytes]) -> None:
        self.expected = -1
        """The sequence number of the first write that is missing; -1: unknown."""
        self.cut: Cut | None = None
        """None: they are whole, and nothing but zeros is behind their last write."""
        for index, data in enumerate(wals):
            self.cut = self._read(index, data)
            if self.cut is not None:
                return

    def _read(self, wal: int, data: bytes) -> Cut | None:
        """Where this one breaks; None: only zeros follow its last write."""
        whole_to, begin, within, head = 0, 0, False, b""
        for position, type_, behind in pieces(data):
            if behind < 0:
                only_zeros = not data[position:].strip(b"\0")
                is_end = only_zeros and not within
                if is_end:
                    return None
                return Cut(wal, whole_to, position, is_gap=False, begin=begin if within else -1)
            if type_ in {FULL, FIRST}:
                begin, head = position, b""
            if len(head) < _WRITE.size:
                # At the end of a block a piece may be too short for what a write begins with.
                head += data[position + HEADER.size : behind][: _WRITE.size]
            within = type_ not in {FULL, LAST}
            if not within:
                if len(head) < _WRITE.size:
                    return Cut(wal, whole_to, begin, is_gap=False)
                sequence, count = _WRITE.unpack_from(head)
                if self.expected not in {-1, sequence}:
                    return Cut(wal, whole_to, begin, is_gap=True)
                whole_to, self.expected = behind, sequence + count
        return None


def find_hole(stream: WalStream, paths: Sequence[Path], wals: Sequence[bytes]) -> Cut | None:
    """Whether it is a hole of power loss in which the WALs of a log break; None: they do not, or it
    is nothing of the kind.

    All behind it is to be cut off, later WALs too. Raises CorruptLogError if what is in the last
    WAL says that the hole had been synced.
    """
    cut = stream.cut
    if cut is None or stream.expected < 0:
        return None
    data = wals[cut.wal]
    is_torn = cut.is_gap or _is_torn(data, cut.broken_at)
    if not is_torn and (cut.wal < len(wals) - 1 or not _ends_at_a_header(data, cut)):
        return None
    left = [(cut.wal, one) for one in marked(data, cut.broken_at)]
    for index in range(cut.wal + 1, len(wals)):
        left += [(index, one) for one in marked(wals[index], 0)]
    if not left and not any(marked(data, 0)):
        # No log's WAL, or an older build's: no zeros were ahead of it.
        return None
    for index, one in left:
        if one.synced < stream.expected:
            continue
        if cut.is_gap or cut.wal < len(wals) - 1:
            # Perhaps RocksDB had no more use for the WAL before.
            return None
        raise CorruptLogError(
            f"{paths[cut.wal]} is corrupt: the record at byte {cut.broken_at} is not what was"
            f" synced there, as the one at byte {one.position} of {paths[index].name} says"
        )
    return cut


def marked(data: bytes, begin: int) -> Iterator[Marked]:
    """The writes with a mark whose first piece lies whole behind ``begin``, wherever it is."""
    at = data.find(_MARK, begin + _MARK_AT)
    while at >= 0:
        position = at - _MARK_AT
        end = at + len(_MARK) + _SYNCED_BYTES
        if (
            data[position + HEADER.size - 1] in {FULL, FIRST}
            and end_of_piece(data, position) >= end
        ):
            sequence, _ = _WRITE.unpack_from(data, position + HEADER.size)
            yield Marked(position, sequence, int.from_bytes(data[end - _SYNCED_BYTES : end], "big"))
        at = data.find(_MARK, at + 1)


def _is_torn(data: bytes, position: int) -> bool:
    """Whether a sector that was never written explains why there is no record at ``position``."""
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


def _ends_at_a_header(data: bytes, cut: Cut) -> bool:
    """Whether a kill explains why the last piece of a write has zeros alone behind its header.

    It does not if one changed bit explains it, too [of the payload, the checksum or the length].
    """
    position, behind = cut.broken_at, cut.broken_at + HEADER.size
    written = position - cut.begin // BLOCK * BLOCK
    if cut.begin < 0 or not written or written % BUFFER_BYTES or len(data) < behind:
        return False
    masked, length, type_ = HEADER.unpack_from(data, position)
    if type_ != LAST or length < ZEROS_MIN_BYTES or data[behind:].strip(b"\0"):
        return False
    # With zeros ahead of it the file has more than the piece.
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
    """The sectors of a record that have zeros alone, where that is no chance."""
    at = _next_sector(position)
    while at < end:
        until = min(at + SECTOR_BYTES, end)
        missing = until - at
        if not any(data[at:until]) and (
            missing >= ZEROS_MIN_BYTES or lacks_its_end(data[position:end], at - position)
        ):
            yield at
        at = until


def lacks_its_end(record: bytes, written: int) -> bool:
    """Whether all that is wrong with a record may be the few bytes behind those that were
    written.
    """
    missing = len(record) - written
    if written < HEADER.size or missing >= CRC_BYTES:
        return False
    return can_complete(
        unmasked(HEADER.unpack_from(record)[0]), record[HEADER.size - 1 : written], missing
    )


def _hides_records(data: bytes, position: int, end: int) -> bool:
    """Whether the record's length is what is wrong: it hides a whole record, perhaps its own."""
    start = position // BLOCK * BLOCK
    written = position + len(data[position:end].rstrip(b"\0"))
    return length_changed(data, position) or any(
        records_behind(data[start:until], position - start)
        for until in {end, max(written, position + HEADER.size)}
    )


def _next_sector(position: int) -> int:
    return (position // SECTOR_BYTES + 1) * SECTOR_BYTES

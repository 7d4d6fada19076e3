"""Damage at the end of RocksDB's WAL and MANIFEST that RocksDB itself takes for a crash, or spins
on.

A record whose length runs past the end of the file looks torn, and recovery drops it. One flipped
bit in a length makes it so for *every* record of the last block, up to 32 KB of them, synced or
not. But a torn write has nothing behind it: if a whole record with a right checksum lies behind the
place where recovery would stop, or the last record's checksum is right once its length is ignored,
then bytes have changed. Record types that our options never write make RocksDB spin or skip
(facebook/rocksdb#13333), and are refused here by name.

The format: blocks of 32 KB; records of u32 masked CRC32C (of type and payload), u16 length
(little-endian), u8 type, payload; a block's last bytes are zero if a header does not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from raftlog.errors import CorruptLogError, StorageError

BLOCK = 32 << 10
HEADER = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = range(1, 5)
"""Types of physical records: a whole write, and the pieces of one that lies in several."""
_PLAIN_TYPES = range(1, 5)
_KNOWN_TYPES = frozenset({0, 1, 2, 3, 4, 9, 10})
_IGNORABLE = 0x80


def check_tails(rocks: Path) -> tuple[str, ...]:
    """Check every WAL and MANIFEST of a closed RocksDB.

    Raises CorruptLogError naming the file, StorageError.

    Returns, for people, which of them end within a record: RocksDB drops that one in silence.
    """
    torn: list[str] = []
    try:
        for path in sorted((*rocks.glob("*.log"), *rocks.glob("MANIFEST-*"))):
            torn += _check(path, path.read_bytes())
        return tuple(torn)
    except IsADirectoryError as error:
        raise CorruptLogError(f"{error.filename} is corrupt: it is a directory") from error
    except OSError as error:
        raise StorageError(f"can't read {rocks}: {error}") from error


def _check(path: Path, data: bytes) -> Iterator[str]:
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        position = _walk(path, block, start)
        left = len(block) - position
        if not block[position:].strip(b"\0"):
            continue
        # A record whose own length is wrong may reach into the zeros ahead.
        ends = {len(block), max(position + HEADER.size, len(block.rstrip(b"\0")))}
        if left >= HEADER.size and any(records_behind(block[:end], position) for end in ends):
            raise CorruptLogError(
                f"{path} is corrupt: whole records lie behind a broken one at byte"
                f" {start + position}"
            )
        # What is left of a full block, and too short for a header, is padding.
        if left >= HEADER.size or len(block) < BLOCK:
            yield f"{path}: the record at byte {start + position} of {len(data)} is cut short"


def _walk(path: Path, block: bytes, start: int) -> int:
    """Follow the lengths; return where they stop making sense, or the end."""
    position, total = 0, len(block)
    unpack = HEADER.unpack_from
    while total - position >= HEADER.size:
        _, length, type_ = unpack(block, position)
        if type_ not in _KNOWN_TYPES and not type_ & _IGNORABLE:
            raise CorruptLogError(
                f"{path} is corrupt: unknown record type {type_} at byte {start + position}"
            )
        behind = position + HEADER.size + length
        if behind > total or (type_ == 0 and length == 0):
            return position
        position = behind
    return position


def records_behind(block: bytes, position: int) -> bool:
    """Whether a whole record begins behind ``position`` of a block, or at it if its length is
    ignored.
    """
    total = len(block)
    crc, _, type_ = HEADER.unpack_from(block, position)
    if type_ in _PLAIN_TYPES and masked_crc(block[position + 6 :]) == crc:
        return True
    for at in range(position + 1, total - HEADER.size + 1):
        if block[at + 6] not in _PLAIN_TYPES:
            continue
        crc, length, _ = HEADER.unpack_from(block, at)
        end = at + HEADER.size + length
        if end <= total and masked_crc(block[at + 6 : end]) == crc:
            return True
    return False


def length_changed(data: bytes, position: int) -> bool:
    """Whether one bit of the length makes the physical record at ``position`` of a file whole: one
    that ends in zeros, with zeros behind it, does not show where it ends.
    """
    crc, length, _ = HEADER.unpack_from(data, position)
    behind = position + HEADER.size
    file_or_block_end = min(len(data), position // BLOCK * BLOCK + BLOCK)
    ends = (behind + (length ^ (1 << bit)) for bit in range(16))
    return any(
        end <= file_or_block_end and masked_crc(data[behind - 1 : end]) == crc for end in ends
    )


def pieces(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(position, type, end) of each physical record of a file; at the first that is none, its end
    is -1 and nothing follows.
    """
    for start in range(0, len(data), BLOCK):
        position, end = start, min(start + BLOCK, len(data))
        while end - position >= HEADER.size:
            behind = end_of_piece(data, position)
            yield position, data[position + HEADER.size - 1], behind
            if behind < 0:
                return
            position = behind


def end_of_piece(data: bytes, position: int) -> int:
    """Where the physical record at ``position`` of a file ends; -1: its checksum is wrong, or it
    overruns its block.
    """
    crc, length, _ = HEADER.unpack_from(data, position)
    behind = position + HEADER.size + length
    if behind > min(len(data), position // BLOCK * BLOCK + BLOCK):
        return -1
    return behind if masked_crc(data[position + HEADER.size - 1 : behind]) == crc else -1


def masked_crc(data: bytes) -> int:
    """The checksum of a record's type and payload, as RocksDB writes it."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def unmasked(masked: int) -> int:
    """The CRC32C that RocksDB wrote as this checksum."""
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF

"""Where a WAL is damaged, in the log's own terms: RocksDB refuses to open it, and says neither the
file nor the offset.

The format of the file is in :mod:`raftlog.storage.wal_tail`. Whole records are write batches: u64
sequence, u32 count, then entries of a tag and length-prefixed key and value; a put of ours is a log
offset and the chunk that begins there, or the mark (:mod:`raftlog.storage.wal_holes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raftlog.errors import CorruptLogError
from raftlog.storage.chunks import walk
from raftlog.storage.wal_tail import BLOCK, FIRST, FULL, HEADER, LAST, end_of_piece

_BATCH_HEADER_BYTES = 12
_PUT, _DELETE_RANGE = 1, 15


def damaged_record(rocks: Path, error: CorruptLogError) -> CorruptLogError:
    """The error with which RocksDB refused to open, with file and byte of the first damaged WAL
    record if there is one.
    """
    for path in sorted(rocks.glob("*.log")):
        for position, _, payload in _records(path.read_bytes()):
            if payload is None:
                return CorruptLogError(f"{error}: {_mismatch(position, path)}")
    return error


def locate_damage(rocks: Path, error: CorruptLogError) -> CorruptLogError:
    """The error with which RocksDB refused to open, with the place of the first damaged WAL record
    if there is one.
    """
    end = -1
    for path in sorted(rocks.glob("*.log")):
        parts = b""
        for position, type_, payload in _records(path.read_bytes()):
            if payload is None:
                whole = f"; the log before it is whole up to offset {end}" if end >= 0 else ""
                found = f"{error}: {_mismatch(position, path)}{whole}"
                return CorruptLogError(found, offset=end)
            parts = payload if type_ in {FULL, FIRST} else parts + payload
            if type_ in {FULL, LAST}:
                end = _end_of(parts, end)
    return error


def _mismatch(position: int, path: Path) -> str:
    return f"the record at byte {position} of {path.name} does not match its checksum"


def _records(data: bytes) -> Iterator[tuple[int, int, bytes | None]]:
    """(position, type, payload, None if damaged) of each physical record, up to the first damaged
    one.
    """
    for start in range(0, len(data), BLOCK):
        position, end = start, min(start + BLOCK, len(data))
        while end - position >= HEADER.size:
            _, length, type_ = HEADER.unpack_from(data, position)
            if type_ == 0 and length == 0:
                break
            behind = end_of_piece(data, position)
            if behind < 0:
                yield position, type_, None
                return
            if FULL <= type_ <= LAST:
                yield position, type_, data[position + HEADER.size : behind]
            position = behind


def _end_of(batch: bytes, end: int) -> int:
    """The log's end after a write batch: behind the last chunk that it puts, or where it drops all
    that follows.
    """
    position = _BATCH_HEADER_BYTES
    while position < len(batch) and batch[position] in {_PUT, _DELETE_RANGE}:
        puts = batch[position] == _PUT
        key, position = _prefixed(batch, position + 1)
        value, position = _prefixed(batch, position)
        if not any(key) and (not puts or len(key) == 1):
            continue  # The log start has moved, or the mark: nothing about its end.
        end = int.from_bytes(key, "big")
        for _, behind, *_ in walk(value, end) if puts else ():
            end = behind
    return end


def _prefixed(data: bytes, position: int) -> tuple[bytes, int]:
    """Bytes behind their length, a varint; and where the next thing begins."""
    length = shift = 0
    while True:
        byte = data[position]
        position += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return data[position : position + length], position + length

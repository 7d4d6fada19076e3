"""Detect damage at the end of RocksDB's WAL and MANIFEST that RocksDB mistakes for a crash, or
hangs on.

Recovery considers a record torn, and drops it, if its length runs past the end of the file. One
flipped bit in a length has this effect on *every* following record of the last block, up to 32 KB,
synced or not. But nothing follows a torn write. So if a whole record with a correct checksum
follows the place where recovery would stop, or if the last record's checksum is correct once its
length is ignored, then bytes have changed. Record types that our options never write make RocksDB
hang or skip (facebook/rocksdb#13333), and are refused here by name.

The format: blocks of 32 KB; records of u32 masked CRC32C (of type and payload), u16 length
(little-endian), u8 type, payload; the last bytes of a block are zero if a header does not fit.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from raftlog.errors import CorruptLogError, StorageError
from raftlog.node.storage.chunks import walk

BLOCK = 32 << 10
HEADER = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = range(1, 5)
"""Types of physical records: a whole write, and the pieces of a divided write."""
_PLAIN_TYPES = range(1, 5)
_KNOWN_TYPES = frozenset({0, 1, 2, 3, 4, 9, 10})
_IGNORABLE = 0x80


def check_tails(rocks: Path) -> tuple[str, ...]:
    """Check every WAL and MANIFEST of a closed RocksDB.

    Returns descriptions of the files that end within a record, which RocksDB drops silently. Raises
    CorruptLogError with the file, StorageError.
    """
    torn: list[str] = []
    try:
        for path in sorted((*rocks.glob("*.log"), *rocks.glob("MANIFEST-*"))):
            torn += _check(path, path.read_bytes())
        return tuple(torn)
    except IsADirectoryError as error:
        raise CorruptLogError(f"{error.filename} is corrupt: it is a directory") from error
    except OSError as error:
        raise StorageError(f"cannot read {rocks}: {error}") from error


def _check(path: Path, data: bytes) -> Iterator[str]:
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK]
        position = _walk(path, block, start)
        left = len(block) - position
        if not block[position:].strip(b"\0"):
            continue
        # A record with a wrong length may extend into the zeros ahead.
        ends = {len(block), max(position + HEADER.size, len(block.rstrip(b"\0")))}
        if left >= HEADER.size and any(records_behind(block[:end], position) for end in ends):
            raise CorruptLogError(
                f"{path} is corrupt: intact records follow a damaged one at byte {start + position}"
            )
        # Bytes at the end of a full block that are too few for a header are padding.
        if left >= HEADER.size or len(block) < BLOCK:
            yield f"{path}: the record at byte {start + position} of {len(data)} is incomplete"


def _walk(path: Path, block: bytes, start: int) -> int:
    """Follow the lengths of a block's records; return the position at which they are invalid, or
    the end.
    """
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
    """Return whether a whole record begins after ``position`` of a block, or at ``position`` if its
    length is ignored.
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
    """Return whether changing one bit of its length makes the physical record at ``position`` of a
    file whole.

    The end of a record that ends in zeros, with zeros after it, cannot be determined.
    """
    crc, length, _ = HEADER.unpack_from(data, position)
    behind = position + HEADER.size
    file_or_block_end = min(len(data), position // BLOCK * BLOCK + BLOCK)
    ends = (behind + (length ^ (1 << bit)) for bit in range(16))
    return any(
        end <= file_or_block_end and masked_crc(data[behind - 1 : end]) == crc for end in ends
    )


def pieces(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (position, type, end) of each physical record of a file; stop after an invalid one,
    whose end is -1.
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
    """Return the end of the physical record at ``position`` of a file, or -1 if its checksum is
    wrong or it runs past the end of its block.
    """
    crc, length, _ = HEADER.unpack_from(data, position)
    behind = position + HEADER.size + length
    if behind > min(len(data), position // BLOCK * BLOCK + BLOCK):
        return -1
    return behind if masked_crc(data[position + HEADER.size - 1 : behind]) == crc else -1


def masked_crc(data: bytes) -> int:
    """Return the checksum of a record's type and payload, as RocksDB writes it."""
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def unmasked(masked: int) -> int:
    """Return the CRC32C of a masked RocksDB checksum."""
    rotated = (masked - 0xA282EAD8) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


STEP_MIN_BYTES, STEP_MAX_BYTES = 64 << 10, 256 << 10
"""First and later extensions of a WAL, in bytes; the first is short, so that the log of a small
cluster stays small.
"""
LOW_BYTES = 16 << 10
"""Bytes that RocksDB may add to a write: record headers, and the end of a block."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors that prevent writing zeros but perhaps not the log, as RocksDB reserves file system blocks
in advance.
"""


class WalAhead:
    """The zeros ahead of the end of the newest WAL of one RocksDB."""

    def __init__(self, rocks: Path) -> None:
        self._rocks = rocks
        self._wal: Path | None = None
        self._room_bytes = 0
        """Estimated bytes of zeros left. RocksDB may have begun another WAL, which then grows with
        its records.
        """

    def before(self, size: int) -> None:
        """Add zeros if needed before a write of ``size`` bytes. Raises StorageError."""
        self._room_bytes -= size
        if self._room_bytes < LOW_BYTES:
            self._extend(size)

    def _extend(self, size: int) -> None:
        wal = _newest(self._rocks)
        step = size + (STEP_MAX_BYTES if wal == self._wal else STEP_MIN_BYTES)
        self._wal = wal
        self._room_bytes = max(0, self._room_bytes) + step
        if wal is None:
            return
        try:
            fd = os.open(wal, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # RocksDB has deleted this WAL: the next one is found when this step is used up.
            return
        except OSError as error:
            raise _failed(wal, error) from error
        try:
            os.pwrite(fd, bytes(step), os.fstat(fd).st_size)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise _failed(wal, error) from error
        finally:
            os.close(fd)


def wals(rocks: Path) -> list[Path]:
    """Return the WALs of a RocksDB in the order of their writes. Raises OSError."""
    found = (path for path in rocks.glob("*.log") if path.stem.isdigit())
    return sorted(found, key=lambda path: int(path.stem))


def _newest(rocks: Path) -> Path | None:
    try:
        return next(reversed(wals(rocks)), None)
    except OSError as error:
        raise _failed(rocks, error) from error


def _failed(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot extend {path}: {error}")


_BATCH_HEAD = struct.Struct("<QI")
_BATCH_HEADER_BYTES = _BATCH_HEAD.size
_PUT, _DELETE_RANGE = 1, 15
_KEY_BYTES = 8


class LogEnd(NamedTuple):
    """The end of a log (exclusive), and the epoch of the record before it."""

    offset: int
    epoch: int


NO_END = LogEnd(-1, 0)
"""Placeholder for an unknown end."""


class Mark(NamedTuple):
    """The mark of a write, stored as its first and its last entry, as damage to one may leave the
    other intact.
    """

    synced: int
    """RocksDB's sequence number up to which every write was durable before this one."""
    end: LogEnd
    """End of the log after the write."""
    size: int
    """Size of the write, in bytes."""


_MARK = struct.Struct(">QqiI")
_MARK_BYTES = _MARK.size + 4
MARK_KEY = b"\0"
"""Key of the mark; it sorts before all offsets, where no scan reads."""
MARK_HEAD = b"\x01\x01\x00" + bytes([_MARK_BYTES])
"""Start of a mark's entry: a put, a key of one byte, zero, and the size of the value."""
_MARK_ENTRY_BYTES = len(MARK_HEAD) + _MARK_BYTES


def marked_size(*entries: tuple[bytes, bytes]) -> int:
    """Return the size in bytes of a write of these keys and values, including its marks."""
    size = _BATCH_HEADER_BYTES + 2 * _MARK_ENTRY_BYTES
    for key, value in entries:
        # One byte for the kind, one for the key's length; the value's length is a varint.
        length = len(value)
        size += 2 + len(key) + length + ((length | 1).bit_length() + 6) // 7
    return size


def encode_mark(synced: int, end: LogEnd, size: int) -> bytes:
    """Return the encoded value of a :class:`Mark`."""
    offset, epoch = end
    plain = _MARK.pack(synced, offset, epoch, size)
    crc: int = google_crc32c.value(plain)
    return plain + crc.to_bytes(4, "big")


def decode_mark(value: bytes) -> Mark | None:
    """Return the mark with this encoded value, or None if the value is not valid."""
    if len(value) != _MARK_BYTES:
        return None
    synced, offset, epoch, size = _MARK.unpack_from(value)
    mark = Mark(synced, LogEnd(offset, epoch), size)
    return mark if encode_mark(*mark) == value else None


def _mark_at(payload: bytes, position: int) -> Mark | None:
    entry = payload[position : position + _MARK_ENTRY_BYTES]
    return decode_mark(entry[len(MARK_HEAD) :]) if entry.startswith(MARK_HEAD) else None


class WholeWrite(NamedTuple):
    """A whole write in a WAL: its first sequence number, and how many numbers it has."""

    sequence: int
    numbers: int
    payload: bytes

    @property
    def end(self) -> LogEnd:
        """End of the log after the write."""
        mark = _mark_at(self.payload, _BATCH_HEADER_BYTES)
        return NO_END if mark is None else mark.end


class DamagedWrite(NamedTuple):
    """Damage to one or more writes in a WAL; ``end`` is the end of the log after them if a mark has
    it, or NO_END.
    """

    end: LogEnd


class Put(NamedTuple):
    """A chunk that a write puts at its base offset."""

    offset: int
    chunk: bytes


class Drop(NamedTuple):
    """The chunks from ``begin`` to ``end`` (exclusive), which a write deletes."""

    begin: int
    end: int


def read_writes(data: bytes) -> Iterator[WholeWrite | DamagedWrite]:
    """Yield the whole writes of a WAL in order, and the damage between them.

    After a damaged piece, reading continues after the whole write if a mark has its size. Otherwise
    it continues where the piece's length leads, or at the next block, and nowhere else, as the
    value of a record may contain data that looks like a piece.
    """
    parts: list[bytes] | None = None
    """Pieces of the write in progress, or None between two writes."""
    begin = position = 0
    while position < len(data):
        end = min(position // BLOCK * BLOCK + BLOCK, len(data))
        if end - position < HEADER.size:
            if end == len(data) and any(data[position:]):
                yield DamagedWrite(NO_END)
            position = end
            continue
        if not any(data[position : position + HEADER.size]) and not data[position:].strip(b"\0"):
            break
        behind, type_ = end_of_piece(data, position), data[position + HEADER.size - 1]
        if behind < 0 or not FULL <= type_ <= LAST:
            write_end, log_end = _of_damaged(data, position if parts is None else begin)
            parts = None
            position = write_end if write_end > position else _next_piece(data, position, end)
            yield DamagedWrite(log_end if write_end == position else NO_END)
            continue
        if (type_ in {FULL, FIRST}) is (parts is not None):
            yield DamagedWrite(NO_END)
            parts = None
        if type_ in {FULL, FIRST}:
            begin, parts = position, []
        if parts is not None:
            parts.append(data[position + HEADER.size : behind])
            if type_ in {FULL, LAST}:
                payload = b"".join(parts)
                parts = None
                if len(payload) < _BATCH_HEAD.size:
                    yield DamagedWrite(NO_END)
                else:
                    sequence, numbers = _BATCH_HEAD.unpack_from(payload)
                    yield WholeWrite(sequence, numbers, payload)
        position = behind
    if parts is not None:
        yield DamagedWrite(_of_damaged(data, begin)[1])


def _of_damaged(data: bytes, begin: int) -> tuple[int, LogEnd]:
    """Return the end of the damaged write at ``begin`` of a file, and the end of the log after it,
    from a mark that is whole; (-1, NO_END) if neither mark is.
    """
    head, _ = _payload(data, begin, _BATCH_HEADER_BYTES + _MARK_ENTRY_BYTES)
    mark = _mark_at(head, _BATCH_HEADER_BYTES)
    if mark is None:
        size = _size_by_lengths(data, begin)
        payload, _ = _payload(data, begin, size)
        mark = _mark_at(payload, size - _MARK_ENTRY_BYTES) if size >= len(head) else None
        if mark is None or mark.size != size:
            return -1, NO_END
    payload, behind = _payload(data, begin, mark.size)
    return (behind, mark.end) if len(payload) == mark.size else (-1, NO_END)


def _payload(data: bytes, begin: int, size: int) -> tuple[bytes, int]:
    """Return up to ``size`` payload bytes of the write at ``begin`` of a file, and their end
    position, whatever the headers of its pieces are.
    """
    parts: list[bytes] = []
    position = begin
    while size and position < len(data):
        left = BLOCK - position % BLOCK - HEADER.size
        if left < 0:
            position += left + HEADER.size
            continue
        position += HEADER.size
        part = data[position : position + min(size, left)]
        parts.append(part)
        size -= len(part)
        position += len(part)
    return b"".join(parts), position


def _size_by_lengths(data: bytes, begin: int) -> int:
    """Return the size of the write at ``begin`` of a file according to the headers of its pieces,
    or 0.
    """
    size, position = 0, begin
    while len(data) - position >= HEADER.size:
        left = BLOCK - position % BLOCK
        if left < HEADER.size:
            position += left
            continue
        _, length, type_ = HEADER.unpack_from(data, position)
        if type_ not in _PLAIN_TYPES or HEADER.size + length > left:
            break
        size += length
        if type_ in {FULL, LAST}:
            return size
        position += HEADER.size + length
    return 0


def _next_piece(data: bytes, position: int, block_end: int) -> int:
    """Return where to continue after the damaged piece at ``position``: at the next whole piece to
    which lengths lead, or at the end of the block.
    """
    while block_end - position >= HEADER.size:
        _, length, type_ = HEADER.unpack_from(data, position)
        if type_ not in _PLAIN_TYPES:
            break
        position += HEADER.size + length
        if block_end - position < HEADER.size:
            break
        if position < block_end and end_of_piece(data, position) >= 0:
            return position
        if not data[position:block_end].strip(b"\0"):
            return position
    return block_end


def operations(payload: bytes) -> Iterator[Put | Drop]:
    """Yield the effects of a whole write on the chunks of a log, in order.

    Raises CorruptLogError for an entry that no log writes.
    """
    position = _BATCH_HEADER_BYTES
    while position < len(payload):
        kind = payload[position]
        if kind not in {_PUT, _DELETE_RANGE}:
            raise CorruptLogError(f"a write to the log has an entry of unexpected type {kind}")
        key, position = _prefixed(payload, position + 1)
        value, position = _prefixed(payload, position)
        if kind == _DELETE_RANGE:
            yield Drop(
                int.from_bytes(key, "big"),
                int.from_bytes(value[:_KEY_BYTES], "big") + (len(value) > _KEY_BYTES),
            )
        elif len(key) == _KEY_BYTES:
            yield Put(int.from_bytes(key, "big"), value)


def damaged_record(rocks: Path, error: CorruptLogError) -> CorruptLogError:
    """Return RocksDB's error with the file and position of the first damaged WAL record, if there
    is one.
    """
    for path in sorted(rocks.glob("*.log")):
        for position, _, payload in _records(path.read_bytes()):
            if payload is None:
                return CorruptLogError(f"{error}: {_mismatch(position, path)}")
    return error


def locate_damage(rocks: Path, error: CorruptLogError) -> CorruptLogError:
    """Return RocksDB's error with the place of the first damaged WAL record, and the end offset of
    the log before it.
    """
    end = -1
    for path in sorted(rocks.glob("*.log")):
        parts = b""
        for position, type_, payload in _records(path.read_bytes()):
            if payload is None:
                whole = f"; the log before it is intact up to offset {end}" if end >= 0 else ""
                found = f"{error}: {_mismatch(position, path)}{whole}"
                return CorruptLogError(found, offset=end)
            parts = payload if type_ in {FULL, FIRST} else parts + payload
            if type_ in {FULL, LAST}:
                end = _end_of(parts, end)
    return error


def _mismatch(position: int, path: Path) -> str:
    return f"the record at byte {position} of {path.name} does not match its checksum"


def _records(data: bytes) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (position, type, payload) of each physical record, up to the first damaged one, whose
    payload is None.
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
    """Return the end of the log after a write batch: after the last chunk that it puts, or where it
    deletes the tail.
    """
    position = _BATCH_HEADER_BYTES
    while position < len(batch) and batch[position] in {_PUT, _DELETE_RANGE}:
        puts = batch[position] == _PUT
        key, position = _prefixed(batch, position + 1)
        value, position = _prefixed(batch, position)
        if not any(key) and (not puts or len(key) == 1):
            continue  # A move of the log start, or the mark: the end is unchanged.
        end = int.from_bytes(key, "big")
        for _, behind, *_ in walk(value, end) if puts else ():
            end = behind
    return end


def _prefixed(data: bytes, position: int) -> tuple[bytes, int]:
    """Return the bytes after their length, a varint, and the position of the next field."""
    length = shift = 0
    while True:
        byte = data[position]
        position += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return data[position : position + length], position + length

"""The only module that uses rocksdict and handles its pitfalls.

It provides a sorted map from log offset to chunk, for one log or for many. Keys are big-endian, so
that RocksDB's order is that of the log. The pitfalls:

* ``set_iterate_lower_bound`` sets the *upper* bound, and the upper bound keeps a raw pointer to a
  key that Python may have collected: this module uses seek, and no bounds.
* ``items()``, ``keys()`` and ``values()`` stop silently at a corrupt block: this module uses only
  ``iter()``, with ``status()`` at the end.
* The default WAL recovery (point_in_time) drops everything after a corrupt record;
  tolerate_corrupted_tail_records refuses to open instead. It still considers a record torn if its
  length runs past the end of the file: see wal.py.
* Opening can loop forever on a damaged tail, holding the GIL: see opening.py.
* ``close()`` leaves RocksDB open, and its LOCK held, while an iterator exists: no iterator leaves
  this module.
* ``put`` and ``write`` hold the GIL, ``flush_wal`` does not: write on the event loop, sync in a
  thread.
* A read-only open rewrites ``rocksdict-config.json``: see reader.py.

The WAL of a log contains two additions: zeros ahead of its end (wal.py), and in each write a
*mark*, twice. The mark has RocksDB's sequence number up to which everything had been synced before,
which distinguishes data that was never synced from damage to synced data (wal_repair.py). It also
has the end of the log, so that this is known even if the last write is damaged (salvage.py).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
)
from typing_extensions import override

from raftlog.bounds import ROCKSDB_BLOCK_CACHE_BYTES, ROCKSDB_WRITE_BUFFER_BYTES
from raftlog.errors import CorruptLogError, FatalError, StorageError
from raftlog.node.storage.wal import (
    MARK_KEY,
    NO_END,
    LogEnd,
    WalAhead,
    decode_mark,
    encode_mark,
    marked_size,
)

_KEY = struct.Struct(">Q")
_BEHIND_ALL = b"\xff" * 9
START = -1
"""Placeholder for a base offset; the log's start offset follows instead of a chunk."""
_DAMAGED = ("Corruption", "No such file or directory", "does not exist", "Is a directory")
"""Texts of RocksDB errors that mean damage.

A file that RocksDB expects but does not find, or that is not a file, is damage, as the disk does
not lose synced files.
"""


def _options(*, create: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_write_buffer_size(ROCKSDB_WRITE_BUFFER_BYTES)
    # Most reads come from the replica's memory, and writes are synced at once: compression would
    # only add latency.
    options.set_compression_type(DBCompressionType.none())
    blocks = BlockBasedOptions()
    blocks.set_block_size(32 << 10)
    blocks.set_block_cache(Cache(ROCKSDB_BLOCK_CACHE_BYTES))
    options.set_block_based_table_factory(blocks)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


class _RocksMap:
    """A map of one RocksDB.

    All methods raise StorageError, or CorruptLogError if RocksDB detects damage.
    """

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        self._path = path
        try:
            self._db = Rdict(str(path), _options(create=create), None, access)
        except Exception as error:
            raise _translated(f"cannot open {path}", error, path) from error

    def sync(self) -> None:
        """Make every write so far durable.

        Releases the GIL, and may run in a thread during writes.
        """
        try:
            self._db.flush_wal(True)
        except Exception as error:
            raise _translated("sync of the log failed", error, self._path) from error

    def size_bytes(self) -> int:
        """Return the size of the files on disk, in bytes."""
        size = 0
        try:
            for entry in os.scandir(self._path):
                with suppress(FileNotFoundError):  # RocksDB deletes files in the background.
                    size += entry.stat().st_size if entry.is_file() else 0
            return size
        except OSError as error:
            raise StorageError(f"cannot read the file sizes in {self._path}: {error}") from error

    def close(self) -> None:
        """Close the files. RocksDB durably writes its memory to disk first."""
        try:
            self._db.close()
        except Exception as error:
            # Deleting the last reference closes what a failed close leaves open, including the
            # lock of the directory, which the node may be about to format anew.
            del self._db
            raise _translated("close failed", error, self._path) from error

    def _cut(self, name: bytes, end_offset: int, last: tuple[int, bytes] | None) -> None:
        tail = (name + _KEY.pack(last[0]), last[1]) if last is not None else None
        self._drop(name + _KEY.pack(end_offset), name + _BEHIND_ALL, tail, "truncate")

    def _drop(self, begin: bytes, end: bytes, last: tuple[bytes, bytes] | None, what: str) -> None:
        """Delete the keys of [begin, end) and put ``last``, in one atomic write that is not
        durable.
        """
        self._write(what, () if last is None else (last,), (begin, end))

    def _write(
        self, what: str, puts: Sequence[tuple[bytes, bytes]], drops: tuple[bytes, bytes] | None
    ) -> None:
        batch = WriteBatch(raw_mode=True)
        mark = self._mark(puts, drops)
        if mark:
            batch.put(MARK_KEY, mark)
        if drops is not None:
            batch.delete_range(*drops)
        for key, value in puts:
            batch.put(key, value)
        if mark:
            batch.put(MARK_KEY, mark)
        try:
            self._db.write(batch)
        except Exception as error:
            raise _translated(f"{what} failed", error, self._path) from error

    def _mark(
        self, puts: Sequence[tuple[bytes, bytes]], drops: tuple[bytes, bytes] | None
    ) -> bytes:
        """Return the mark of a write, or empty bytes if this map has no marks."""
        del puts, drops
        return b""

    def _compact(self, begin: bytes, end: bytes) -> None:
        try:
            self._db.flush()
            self._db.compact_range(begin, end)
        except Exception as error:
            raise _translated("compaction failed", error, self._path) from error

    def _entries(self, key: bytes, first: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """Yield keys and values in order, from the last key at or before ``key``, but not before
        ``first``.
        """
        iterator = self._db.iter()
        try:
            iterator.seek_for_prev(key)
            if not iterator.valid() or iterator.key() < first:
                iterator.status()
                iterator.seek(first)
            while iterator.valid():
                yield iterator.key(), iterator.value()
                iterator.next()
            iterator.status()
        except Exception as error:
            raise _translated("read failed", error, self._path) from error
        finally:
            del iterator  # An error's traceback would keep it, and with it RocksDB, alive.


class RocksLog(_RocksMap):
    """The chunks of one log by base offset."""

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        super().__init__(path, create=create, read_only=read_only)
        self._ahead = WalAhead(path)
        self._synced_sequence = 0
        """RocksDB's sequence number up to which every write is durable."""
        self.end = NO_END
        """End of the log after the last write."""
        if not read_only:
            # The WAL begins with a durable mark, so that lost writes can be recognized by number.
            try:
                self.end = LogEnd(0, 0) if create else self.marked_end()
                self._write("write", (), None)
                self.sync()
            except FatalError:
                with suppress(FatalError):
                    self.close()
                raise

    def sync(self) -> None:
        """See ``_RocksMap``."""
        sequence: int = self._db.latest_sequence_number()
        super().sync()
        self._synced_sequence = sequence

    def marked_end(self) -> LogEnd:
        """Return the end of the log according to the mark of the last write."""
        try:
            value = self._db.get(MARK_KEY)
        except Exception as error:
            raise _translated("read failed", error, self._path) from error
        mark = decode_mark(value or b"")
        return NO_END if mark is None else mark.end

    def put(self, base_offset: int, chunk: bytes, end: LogEnd) -> None:
        """Write one chunk: readable at once, not durable. ``end`` is the end of the log
        after it.
        """
        self.end = end
        self._write("append", ((_KEY.pack(base_offset), chunk),), None)

    def replace_tail(self, end_offset: int, last: tuple[int, bytes] | None, end: LogEnd) -> None:
        """Delete all chunks that begin at or above ``end_offset`` and put ``last``, in one atomic
        write that is not durable.

        ``end`` is the end of the log afterwards.
        """
        self.end = end
        self._cut(b"", end_offset, last)

    def delete_below(self, base_offset: int) -> None:
        """Delete all chunks that begin below ``base_offset``; not durable. ``compact_below`` frees
        their space.
        """
        self._drop(_KEY.pack(0), _KEY.pack(base_offset), None, "advance of the log start")

    def compact_below(self, base_offset: int) -> None:
        """Free the space of the chunks that were deleted below ``base_offset``. Slow: run it in a
        thread.
        """
        self._compact(_KEY.pack(0), _KEY.pack(base_offset))

    def scan(self, offset: int) -> Generator[tuple[int, bytes], None, None]:
        """Yield chunks in order, from the one that contains ``offset``, or from the first if none
        does.

        The generator must be closed or deleted before ``close``.
        """
        unpack = _KEY.unpack
        with closing(self._entries(_KEY.pack(offset), _KEY.pack(0))) as entries:
            for key, chunk in entries:
                yield unpack(key)[0], chunk

    def readable(self) -> Iterator[tuple[int, bytes]]:
        """Yield all chunks in order, except those in damaged blocks. Raises StorageError."""
        at: int | None = 0
        while at is not None:
            try:
                for base, chunk in self._from(at):
                    yield base, chunk
                    at = base + 1
                return
            except CorruptLogError:
                at = self._behind_damage(at)

    def _behind_damage(self, offset: int) -> int | None:
        """Return an offset after the damage at ``offset`` from which chunks can be read, or
        None.
        """
        low, step = offset, 1
        while not self._can_seek(offset + step):
            low, step = offset + step, 2 * step
            if offset + step >= 2**63:
                return None
        high = offset + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._can_seek(middle) else (middle, high)
        return high

    def _can_seek(self, offset: int) -> bool:
        try:
            next(self._from(offset), None)
        except CorruptLogError:
            return False
        return True

    def _from(self, offset: int) -> Generator[tuple[int, bytes], None, None]:
        """Yield the chunks that begin at or above ``offset``."""
        iterator = self._db.iter()
        try:
            iterator.seek(_KEY.pack(offset))
            while iterator.valid():
                yield _KEY.unpack(iterator.key())[0], iterator.value()
                iterator.next()
            iterator.status()
        except Exception as error:
            raise _translated("read failed", error, self._path) from error
        finally:
            del iterator

    def last_sequence(self) -> int:
        """Return RocksDB's sequence number of the last write."""
        sequence: int = self._db.latest_sequence_number()
        return sequence

    def first_offset(self) -> int:
        """Return the lowest base offset, or 2**64 if there is no chunk."""
        return next(self.scan(0), (2**64, b""))[0]

    def last(self) -> tuple[int, bytes] | None:
        """Return the chunk with the highest base offset, or None if there is no chunk."""
        return next(self.scan(2**64 - 1), None)

    @override
    def _mark(
        self, puts: Sequence[tuple[bytes, bytes]], drops: tuple[bytes, bytes] | None
    ) -> bytes:
        size = marked_size(*puts, *(() if drops is None else (drops,)))
        self._ahead.before(size)
        return encode_mark(self._synced_sequence, self.end, size)


class RocksPartitions(_RocksMap):
    """The chunks of many logs, by log name (``NAME_BYTES`` long) and base offset.

    The start offset of a log that does not begin at 0 is stored under its name alone, before its
    chunks.
    """

    NAME_BYTES = 20

    def put(self, name: bytes, base_offset: int, chunk: bytes) -> None:
        """Write one chunk: readable at once, not durable."""
        try:
            self._db.put(name + _KEY.pack(base_offset), chunk)
        except Exception as error:
            raise _translated("append failed", error, self._path) from error

    def replace_tail(self, name: bytes, end_offset: int, last: tuple[int, bytes] | None) -> None:
        """Delete all chunks of one log that begin at or above ``end_offset`` and put ``last``, in
        one atomic write that is not durable.
        """
        self._cut(name, end_offset, last)

    def advance_start(self, name: bytes, base_offset: int, start_offset: int) -> None:
        """Delete all chunks of one log that begin below ``base_offset`` and record its new start,
        in one atomic write that is not durable.
        """
        first = name + _KEY.pack(0)
        start = name, _KEY.pack(start_offset)
        self._drop(first, name + _KEY.pack(base_offset), start, "advance of the log start")

    def reset(self, name: bytes, start_offset: int) -> None:
        """Delete one whole log, which then begins at ``start_offset``. Atomic; not durable."""
        start = (name, _KEY.pack(start_offset)) if start_offset else None
        self._drop(name, name + _BEHIND_ALL, start, "reset of the log")

    def scan(self, name: bytes, offset: int) -> Generator[tuple[int, bytes], None, None]:
        """Yield the chunks of one log in order, from the one that contains ``offset``.

        The generator must be closed or deleted before ``close``.
        """
        unpack, size = _KEY.unpack_from, self.NAME_BYTES
        first = name + _KEY.pack(0)
        with closing(self._entries(name + _KEY.pack(offset), first)) as entries:
            for key, chunk in entries:
                if not key.startswith(name):
                    return
                yield unpack(key, size)[0], chunk

    def scan_all(self) -> Generator[tuple[bytes, int, bytes], None, None]:
        """Yield (name, base offset, chunk) of all chunks, ordered by name and offset.

        For a log that does not begin at 0, (name, START, encoded start offset) comes first. The
        generator must be closed or deleted before ``close``.
        """
        unpack, size = _KEY.unpack_from, self.NAME_BYTES
        with closing(self._entries(b"", b"")) as entries:
            for key, chunk in entries:
                if len(key) == size and len(chunk) == _KEY.size:
                    yield key, START, chunk
                    continue
                if len(key) != size + _KEY.size:
                    raise CorruptLogError(f"{self._path} has a key of {len(key)} bytes")
                yield key[:size], unpack(key, size)[0], chunk

    def compact_below(self, name: bytes, offset: int) -> None:
        """Free the space of the chunks of one log that were deleted below ``offset``. Slow: run it
        in a thread.
        """
        self._compact(name + _KEY.pack(0), name + _KEY.pack(offset))

    def compact(self, first: bytes, last: bytes) -> None:
        """Free the space of deleted chunks in the logs from ``first`` to ``last``. Slow: run it in
        a thread.
        """
        self._compact(first, last + _BEHIND_ALL)


def _translated(what: str, error: Exception, path: Path) -> FatalError:
    """Translate an error of RocksDB.

    rocksdict raises plain Exceptions with RocksDB's status as text, on several lines, with or
    without a file.
    """
    status = " ".join(str(error).split())
    where = "" if str(path) in status or str(path) in what else f" in {path}"
    text = f"{what}{where}: {status}"
    damaged = any(words in status for words in _DAMAGED)
    return CorruptLogError(text) if damaged else StorageError(text)

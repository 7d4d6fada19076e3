"""Zeros ahead of what RocksDB writes into its WAL: a sync need not wait for the file system then.

A write that makes a file longer changes its length, and an fdatasync has to wait for the file
system's journal. One into blocks that exist does not: half the time on an idle disk, a tenth on one
whose journal is busy. RocksDB opens a WAL without O_APPEND and writes at its own position; so
zeros that somebody else puts behind the end of the file are simply overwritten. At its next start
RocksDB takes the zeros that are left for the end.

Zeros are always written *from the end of the file on, by the thread that writes the log, before it
writes*: where RocksDB is need not be known, and no record can be overwritten. If RocksDB has gone
past our zeros, the end of the file is its own position.

What power loss does to such a file: :mod:`raftlog.storage.wal_holes`.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from raftlog.errors import StorageError

STEP_MIN_BYTES, STEP_MAX_BYTES = 64 << 10, 256 << 10
"""The first extension of a WAL, and the later ones: the log of a small cluster stays small."""
LOW_BYTES = 16 << 10
"""Room for what RocksDB adds to a write: headers of records, and the end of a block."""
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What keeps zeros from being written, but perhaps not the log: RocksDB asks the file system for
blocks of its own beforehand.
"""


class WalAhead:
    """The zeros ahead in the newest WAL of one RocksDB."""

    def __init__(self, rocks: Path) -> None:
        self._rocks = rocks
        self._wal: Path | None = None
        self._room_bytes = 0
        """An estimate: RocksDB may have begun another WAL, which is longer by its records then."""

    def before(self, size: int) -> None:
        """So many bytes are about to be written. Raises StorageError."""
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
            # RocksDB has no more use for it: the next one is found when this step is used up.
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
    """The WALs of a RocksDB in the order in which they were written. Raises OSError."""
    found = (path for path in rocks.glob("*.log") if path.stem.isdigit())
    return sorted(found, key=lambda path: int(path.stem))


def _newest(rocks: Path) -> Path | None:
    try:
        return next(reversed(wals(rocks)), None)
    except OSError as error:
        raise _failed(rocks, error) from error


def _failed(path: Path, error: OSError) -> StorageError:
    return StorageError(f"can't extend {path}: {error}")

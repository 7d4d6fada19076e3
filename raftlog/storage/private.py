"""Who may read a data directory: its owner alone, as principals, configs and partition records lie
in it in the clear.

The directory's mode decides: what it does not let in cannot reach the files, also those that an
older program made. A directory that is open to others is closed when a node or a command that
writes opens it. Where that is not allowed (a mounted volume that somebody else owns), a warning
says so, and the node goes on: access is then the business of whoever owns the volume.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raftlog.errors import StorageError
from raftlog.logger import get_logger

log = get_logger(__name__)

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077
_OTHERS = 0o077


def close_to_others(directory: Path) -> None:
    """Take the access of group and others from a data directory. Raises StorageError."""
    try:
        mode = stat.S_IMODE(directory.stat().st_mode)
    except OSError as error:
        raise StorageError(f"can't look at {directory}: {error}") from error
    if not mode & _OTHERS:
        return
    try:
        directory.chmod(mode & ~_OTHERS)
    except PermissionError as error:
        log.warning(
            "others can read the data directory",
            directory=str(directory),
            mode=oct(mode),
            error=str(error),
        )
    except OSError as error:
        raise StorageError(f"can't change the mode of {directory}: {error}") from error
    else:
        log.warning(
            "the data directory was open to others, and is its owner's alone now",
            directory=str(directory),
            mode=oct(mode),
        )


@contextmanager
def private_files() -> Iterator[None]:
    """What this process creates meanwhile is its user's alone: RocksDB asks nobody for a mode."""
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


def private_opener(path: str, flags: int) -> int:
    """For ``open``: a file that is created is its owner's alone."""
    return os.open(path, flags, FILE_MODE)

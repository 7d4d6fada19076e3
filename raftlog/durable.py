"""Making names durable: a directory's entry for a file is on the disk when the directory was
synced, whatever of the file is.
"""

from __future__ import annotations

import os
from pathlib import Path


def fsync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable. Raises OSError."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(directory: Path, mode: int = 0o777) -> None:
    """Make ``directory`` with what is missing above it, all durable when this returns.

    Raises OSError.

    A power cut takes an unsynced directory away with everything in it, synced or not. So the names
    above one that is there already are synced too, up to the mount point: a process that was killed
    may have made them. What may not be read is passed over unless something was made in it.
    """
    missing = {one.parent.resolve() for one in (directory, *directory.parents) if not one.exists()}
    directory.mkdir(mode, parents=True, exist_ok=True)
    path = directory.resolve()
    device = path.stat().st_dev
    for above in path.parents:
        if above.stat().st_dev != device:
            return
        try:
            fsync_directory(above)
        except PermissionError:
            if above in missing:
                raise

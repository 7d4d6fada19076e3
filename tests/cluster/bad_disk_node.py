"""``raftlog`` on a disk that fails with EIO while the file ``BROKEN_FILE`` exists, and whose syncs
hang while ``HANG_FILE`` exists. Its exit code is written to ``ENDED_FILE``.
"""

import errno
import os
import time
from pathlib import Path
from typing import Any

from raftlog.cli.main import main
from raftlog.errors import StorageError
from raftlog.node.storage import files, rocks_adapter

POLL_S = 0.02


def _is(variable: str) -> bool:
    return os.access(os.environ[variable], os.F_OK)


def break_disk() -> None:
    """Let RocksDB's writes, and the calls on the small files, fail."""
    for name in ("_write", "sync", "close"):
        real = getattr(rocks_adapter._RocksMap, name)

        def fail(self: Any, *arguments: Any, real: Any = real) -> Any:
            if _is("BROKEN_FILE"):
                raise StorageError(
                    f"append failed: IO error: While appending to file: {self._path}/7.log: I/O"
                    " error"
                )
            return real(self, *arguments)

        setattr(rocks_adapter._RocksMap, name, fail)
    for name in ("ftruncate", "fsync", "pwrite"):
        call = getattr(os, name)

        def refuse(*arguments: Any, call: Any = call) -> Any:
            if _is("BROKEN_FILE"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*arguments)

        setattr(os, name, refuse)


def hang() -> None:
    """Let syncs of logs and replacements of small files wait for the disk."""

    def slow(call: Any) -> Any:
        def waiting(*arguments: Any) -> Any:
            _wait_for_disk()
            result = call(*arguments)
            _wait_for_disk()
            return result

        return waiting

    for kind in (rocks_adapter.RocksLog, rocks_adapter.RocksPartitions):
        kind.sync = slow(kind.sync)  # type: ignore[method-assign]
    files.stage_checked = slow(files.stage_checked)


def _wait_for_disk() -> None:
    while _is("HANG_FILE"):
        time.sleep(POLL_S)


if __name__ == "__main__":
    break_disk()
    hang()
    try:
        main()
    except SystemExit as ended:
        Path(os.environ["ENDED_FILE"]).write_text(f"{ended.code}")
        raise

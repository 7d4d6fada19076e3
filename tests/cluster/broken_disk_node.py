"""``raftlog`` on a disk that fails with EIO while the file ``BROKEN_FILE`` exists. Its exit code is
written to ``ENDED_FILE``.
"""

import errno
import os
from pathlib import Path
from typing import Any

from raftlog.cli.main import main
from raftlog.errors import StorageError
from raftlog.node.storage import rocks_adapter


def _broken() -> bool:
    return os.access(os.environ["BROKEN_FILE"], os.F_OK)


def break_disk() -> None:
    """Let RocksDB's writes, and the calls on the small files, fail."""
    for name in ("_write", "sync", "close"):
        real = getattr(rocks_adapter._RocksMap, name)

        def fail(self: Any, *arguments: Any, real: Any = real) -> Any:
            if _broken():
                raise StorageError(
                    f"append failed: IO error: While appending to file: {self._path}/7.log: I/O"
                    " error"
                )
            return real(self, *arguments)

        setattr(rocks_adapter._RocksMap, name, fail)
    for name in ("ftruncate", "fsync", "pwrite"):
        call = getattr(os, name)

        def refuse(*arguments: Any, call: Any = call) -> Any:
            if _broken():
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*arguments)

        setattr(os, name, refuse)


if __name__ == "__main__":
    break_disk()
    try:
        main()
    except SystemExit as ended:
        Path(os.environ["ENDED_FILE"]).write_text(f"{ended.code}")
        raise

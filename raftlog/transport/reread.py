"""What is made of files, and made again when they have changed: certificates are renewed while a
node runs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from raftlog.errors import ConfigError
from raftlog.logger import get_logger

log = get_logger(__name__)

T = TypeVar("T")

LOOK_AGAIN_S = 1.0
"""How often the files are looked at, at most: a storm of handshakes must not become one of the
disk.
"""

Stamp = tuple[int, int, int] | None
"""What changes when a file is replaced or written; None: it is not there."""
_Seen = tuple[Stamp, ...]


class Reread(Generic[T]):
    """The newest that could be made of the files. Any thread may ask.

    ``make`` raises ConfigError for files that do not go together, as when only some of them are
    replaced yet: then what was made before stays, it is logged once, and they are looked at again.
    Raises ConfigError if they are wrong at the beginning. ``what`` the files hold, for the log.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        make: Callable[[], T],
        *,
        what: str = "certificate",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths, self._make, self._what, self._clock = tuple(paths), make, what, clock
        self._lock = threading.Lock()
        self._seen = self._look()
        self._made = make()
        self._looked_at = clock()
        self.version = 0
        """How often it was made again."""

    def current(self) -> T:
        """What is valid now."""
        with self._lock:
            now = self._clock()
            if now - self._looked_at >= LOOK_AGAIN_S:
                self._looked_at = now
                self._look_again()
            return self._made

    def _look_again(self) -> None:
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        names = [str(path) for path in self._paths]
        try:
            self._made = self._make()
        except ConfigError as error:
            log.warning(f"changed {self._what} files are not used", files=names, error=str(error))
            return
        self.version += 1
        log.info(f"changed {self._what} files are used from here on", files=names)

    def _look(self) -> _Seen:
        return tuple(stamp(path) for path in self._paths)


def stamp(path: Path) -> Stamp:
    """Of a file as it is now."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns

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

    Files of which ``make`` makes nothing, as when only some of them are replaced yet, or cannot be
    read just now, are tried again at each look: meanwhile what was made before stays, and each
    reason is logged once. Raises what ``make`` raises at the beginning: ConfigError. ``what`` the
    files hold, for the log.
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
        self._failure = ""
        """Why nothing could be made of the files at the last look."""
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
            self._failure = ""
            return
        names = [str(path) for path in self._paths]
        try:
            self._made = self._make()
        # Whatever it is: who asks wants what is valid, and has no part in it.
        except Exception as error:
            expected = isinstance(error, ConfigError)
            why = str(error) if expected else f"{type(error).__name__}: {error}"
            if why != self._failure:
                self._failure = why
                log.warning(f"changed {self._what} files are not used", files=names, error=why)
            return
        self._seen, self._failure = seen, ""
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

"""The audit log as a file: one JSON object a line, rotated by size, written by a thread of its own.

A client must not be able to fill the disk or to stall the node: events wait in a bounded queue, and
what fails is limited to a rate. What has no line is counted, and the next line says how many.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec

from raftlog.errors import ConfigError
from raftlog.logger import get_logger
from raftlog.printable import printable_json
from raftlog.security.audit_event import Event

log = get_logger(__name__)

QUEUE_EVENTS = 10_000
REFUSALS_PER_S, REFUSALS_BURST = 100, 1_000
FILE_MODE = 0o600
_END = None


class AuditLog:
    """Writes events to ``path``; above ``max_bytes`` it becomes ``path.1``, and so on up to
    ``max_backups``.

    Raises ConfigError if the file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_backups: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._max_bytes, self._max_backups = path, max_bytes, max_backups
        self._clock = clock
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._encode = msgspec.json.Encoder().encode
        self._tokens, self._refilled_at = float(REFUSALS_BURST), clock()
        self._left_out = 0
        self.dropped = 0
        """Events without a line since the start: for the metric."""
        self.failed = ""
        """Why nothing can be written, if so."""
        try:
            self._fd = self._open()
        except OSError as error:
            raise ConfigError(f"audit.log.file: {error.strerror}: {path}") from error
        self._size = os.fstat(self._fd).st_size
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)
        self._thread.start()

    def add(self, event: Event) -> None:
        """One event; returns at once. Of the event loop's thread."""
        if self._queue.qsize() >= QUEUE_EVENTS or (event.failed and not self._admit()):
            self._left_out += 1
            self.dropped += 1
            return
        left_out, self._left_out = self._left_out, 0
        self._queue.put(event._replace(left_out=left_out) if left_out else event)

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._queue.put(_END)
        self._thread.join(timeout=5.0)

    def _admit(self) -> bool:
        now = self._clock()
        refill = (now - self._refilled_at) * REFUSALS_PER_S
        self._tokens = min(REFUSALS_BURST, self._tokens + refill)
        self._refilled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        while (event := self._queue.get()) is not _END:
            line = printable_json(self._encode(event.document()).decode()).encode() + b"\n"
            try:
                self._write(line)
            except OSError as error:
                self._lost(error)
            else:
                if self.failed:
                    log.info("the audit log is written again", file=str(self._path))
                    self.failed = ""
        os.close(self._fd)

    def _write(self, line: bytes) -> None:
        if self._size and self._size + len(line) > self._max_bytes:
            self._rotate()
        # All of it or, on a full disk, a part: the rest makes the next line unreadable, so it is
        # taken back.
        written = os.write(self._fd, line)
        if written < len(line):
            os.ftruncate(self._fd, self._size)
            raise OSError(28, os.strerror(28))
        self._size += written

    def _rotate(self) -> None:
        names = [self._path, *(self._backup(n) for n in range(1, self._max_backups + 1))]
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                os.replace(newer, older)
        if not self._max_backups:
            self._path.unlink(missing_ok=True)
        fresh = self._open()
        os.close(self._fd)
        self._fd, self._size = fresh, 0

    def _lost(self, error: OSError) -> None:
        self.dropped += 1
        reason = error.strerror or str(error)
        if reason != self.failed:
            self.failed = reason
            log.error("the audit log cannot be written", file=str(self._path), error=reason)

    def _backup(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)

"""A thread that writes log lines a moment later.

Formatting a line takes as long as sending a message to a follower, and an election logs several
lines before the first write.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import deque
from collections.abc import Sequence

from typing_extensions import override

from raftlog.logger import get_logger

log = get_logger(__name__)

LATER_S = 0.02
"""Delay of the writes, in seconds: by then a group of lines is complete, and the work that caused
them is done.
"""
WAITING_LINES_MAX = 10_000
"""Maximum number of queued lines: if the reader of the log hangs, lines are dropped, and the node
continues.
"""
FLUSH_S = 1.0


class LogWriter(logging.Handler):
    """A log handler that passes records to other handlers, in order, on a separate thread, as their
    outputs may hang.

    An error and all lines before it are written before the caller continues, as is a library's
    line, because it is formatted in the context of its caller. When the process ends, ``logging``
    flushes the queued lines.
    """

    def __init__(self, targets: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._targets = targets
        self._waiting: deque[tuple[logging.LogRecord, contextvars.Context | None]] = deque()
        self._wanted, self._hurry = threading.Event(), threading.Event()
        self._written = threading.Condition()
        self._taken = self._done = 0
        """Numbers of accepted and of written lines."""
        self._left_out = 0
        self.hangs = False
        """Whether a flush has timed out, and no line was written since."""
        self._thread: threading.Thread | None = None

    @override
    def handle(self, record: logging.LogRecord) -> bool:
        """Queue a line, and wait until it is written if it is urgent."""
        taken = super().handle(record)
        if taken and _is_urgent(record):
            self.flush()  # Without this handler's lock: the thread logs, too.
        return taken

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, or drop it if too many are queued."""
        if len(self._waiting) >= WAITING_LINES_MAX:
            self._left_out += 1
            return
        context = contextvars.copy_context() if _is_urgent(record) else None
        self._waiting.append((record, context))
        self._taken += 1
        if not self._wanted.is_set():
            self._wake()

    @override
    def flush(self) -> None:
        """Wait until the queued lines are written, but at most FLUSH_S; wait only once for an
        output that hangs.
        """
        taken = self._taken
        if self._done >= taken or threading.current_thread() is self._thread:
            return
        self._hurry.set()
        self._wake()
        with self._written:
            self.hangs = not self._written.wait_for(
                lambda: self._done >= taken, 0 if self.hangs else FLUSH_S
            )

    def _wake(self) -> None:
        self._wanted.set()
        if self._thread is None:
            # In a context that contains the node's id.
            run = contextvars.copy_context().run
            self._thread = threading.Thread(target=run, args=(self._run,), name="log", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._hurry.wait(LATER_S)
            self._wanted.clear()
            self._hurry.clear()
            self._write()
            if self._left_out:
                left_out, self._left_out = self._left_out, 0
                log.warning("log lines were dropped", lines=left_out)

    def _write(self) -> None:
        while self._waiting:
            record, context = self._waiting.popleft()
            for target in self._targets:
                if context is None:
                    target.handle(record)
                else:
                    context.run(target.handle, record)
            with self._written:
                self._done += 1
                self.hangs = False
                self._written.notify_all()


def _is_urgent(record: logging.LogRecord) -> bool:
    """Return whether a record is an error, is from a library, or has an exception, whose traceback
    is available only now.
    """
    line = record.msg
    return record.levelno >= logging.ERROR or not isinstance(line, dict) or "exc_info" in line

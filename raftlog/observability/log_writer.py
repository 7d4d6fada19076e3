"""Log lines are written by a thread, a moment later: to make a line takes as long as a message to a
follower takes, and an election logs several of them on its way to the first write.
"""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from typing_extensions import override

from raftlog.logger import get_logger

log = get_logger(__name__)

LATER_S = 0.02
"""What is logged in one go, and what comes of it, is over by then."""
WAITING_LINES_MAX = 10_000
"""The reader of the lines may hang: then lines are left out, and the node goes on."""
FLUSH_S = 1.0


class LogWriter(logging.Handler):
    """Hands records to other handlers, in order.

    An error is written before the caller goes on, with all that was logged before it; so is the
    line of a library, which is put together in the context of its caller. When the process ends,
    ``logging`` flushes what waits.
    """

    def __init__(self, targets: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._targets = targets
        self._waiting: deque[logging.LogRecord] = deque()
        self._wanted = threading.Event()
        self._writing = threading.Lock()
        self._left_out = 0
        self.hangs = False
        """A flush has waited in vain, and nothing was written since."""
        self._thread: threading.Thread | None = None

    @override
    def emit(self, record: logging.LogRecord) -> None:
        """Have a line written soon, or now if it is urgent; left out if too many wait already."""
        if len(self._waiting) >= WAITING_LINES_MAX:
            self._left_out += 1
            return
        self._waiting.append(record)
        if _is_urgent(record):
            self.flush()
        elif not self._wanted.is_set():
            self._wanted.set()
            if self._thread is None:
                # In a context that says which node this is.
                run = contextvars.copy_context().run
                self._thread = threading.Thread(
                    target=run, args=(self._run,), name="log", daemon=True
                )
                self._thread.start()

    @override
    def flush(self) -> None:
        """Write what waits, unless a write of before hangs: that is waited for once."""
        if self._writing.acquire(timeout=0 if self.hangs else FLUSH_S):
            try:
                self._write()
            finally:
                self._writing.release()
        else:
            self.hangs = True

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            time.sleep(LATER_S)
            self._wanted.clear()
            with self._writing:
                self._write()
            if self._left_out:
                left_out, self._left_out = self._left_out, 0
                log.warning("log lines were left out", lines=left_out)

    def _write(self) -> None:
        while self._waiting:
            record = self._waiting.popleft()
            for target in self._targets:
                target.handle(record)
            self.hangs = False


def _is_urgent(record: logging.LogRecord) -> bool:
    """Whether a line is of an error, of a library, or has an exception, which is told only here."""
    line = record.msg
    return record.levelno >= logging.ERROR or not isinstance(line, dict) or "exc_info" in line

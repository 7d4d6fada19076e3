"""Write the audit log to a file: one JSON object per line, rotated by size, in a dedicated thread.

A client must not be able to fill the disk or stall the node: events wait in a bounded queue, and
reports of failures are rate-limited. Events that are left out are counted, and the next line states
their number.

The thread writes all queued events, then pauses: a thread that woke up for each event would take
the interpreter from the event loop each time, which halved the number of writes per second.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from raftlog.errors import ConfigError
from raftlog.files import RotatedFile
from raftlog.logger import get_logger
from raftlog.node.security.audit_event import Event, Source, Touched, resource_document
from raftlog.text import printable_json

log = get_logger(__name__)

QUEUE_EVENTS = 10_000
REFUSALS_PER_S, REFUSALS_BURST = 100, 1_000
REST_S = 0.02
"""Pause between two writes to the file, in seconds."""
_NO_RESOURCES = b'"resources":[]'
_BEGIN, _END = b'{"time":%d', b'"offset":%d,"epoch":%d}}\n'
WRITE_MAX_EVENTS = 500
"""Maximum number of lines encoded at once: the event loop then gets the interpreter back before it
has to request it.
"""


class AuditLog:
    """A writer of events to ``path``.

    A file above ``max_bytes`` is renamed to ``path.1``, and so on up to ``max_backups``. The
    constructor raises ConfigError if the file cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_backups: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._clock = path, clock
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._encode = msgspec.json.Encoder().encode
        self._source: Source | None = None
        """Source of the last plain event."""
        self._touched: tuple[Touched, ...] = ()
        self._head = self._between = self._tail = b""
        """Encoded line of that event: the part before the resources, the part between the time and
        the offset, and the part after the resources.
        """
        self._tokens, self._refilled_at = float(REFUSALS_BURST), clock()
        self._left_out = 0
        self.dropped = 0
        """Number of events since the start that were not written."""
        self.failed = ""
        """Reason why events cannot be written; empty while they can."""
        self._not_rotated = ""
        """Reason last logged for a failed rotation; empty if the last rotation succeeded."""
        try:
            self._file = RotatedFile(path, max_bytes=max_bytes, max_backups=max_backups)
        except OSError as error:
            raise ConfigError(f"audit.log.file: {error.strerror}: {path}") from error
        self._thread = threading.Thread(target=self._run, name="audit-log", daemon=True)
        self._thread.start()

    def add(self, event: Event) -> None:
        """Queue an event without blocking. Call it on the event loop's thread only."""
        if self._queue.qsize() >= QUEUE_EVENTS or (event.failed and not self._admit()):
            self._left_out += 1
            self.dropped += 1
            return
        left_out, self._left_out = self._left_out, 0
        self._queue.put(msgspec.structs.replace(event, left_out=left_out) if left_out else event)

    def close(self) -> None:
        """Write the queued events, and close the file."""
        self._closing.set()
        self._queue.put(None)
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
        while not self._closing.is_set():
            if (first := self._queue.get()) is not None:
                self._write_with(first)
            self._closing.wait(REST_S)
        while self._queue.qsize():
            if (first := self._queue.get()) is not None:
                self._write_with(first)
        self._file.close()

    def _write_with(self, first: Event) -> None:
        """Write ``first`` and the events queued after it, at most WRITE_MAX_EVENTS."""
        events = [first]
        while len(events) < WRITE_MAX_EVENTS and self._queue.qsize():
            if (event := self._queue.get()) is not None:
                events.append(event)
        lines = [self._line(event) for event in events]
        try:
            self._write(lines)
        except OSError as error:
            self._lost(error)
        else:
            if self.failed:
                log.info("the audit log can be written again", file=str(self._path))
                self.failed = ""
            if self._file.rotation_failure != self._not_rotated:
                self._not_rotated = self._file.rotation_failure
                if self._not_rotated:
                    log.error(
                        "the audit log cannot be rotated and keeps growing",
                        file=str(self._path),
                        error=self._not_rotated,
                    )

    def _line(self, event: Event) -> bytes:
        if not event.is_plain:
            return self._whole_line(event)
        # Reuse the encoded parts that this event shares with the previous one.
        if event.source is not self._source:
            self._source, self._touched = event.source, ()
            line = self._whole_line(msgspec.structs.replace(event, touched=()))
            begin, end = len(_BEGIN % event.time_ms), len(_END % (event.offset, event.epoch))
            # Matches only the field: quotation marks within a text are escaped.
            head, _, self._tail = line[begin:-end].partition(_NO_RESOURCES)
            self._head = self._between = head + _NO_RESOURCES[:-2]
            self._between += b"[]" + self._tail
        if event.touched != self._touched:
            self._touched = event.touched
            resources = self._printable([resource_document(one) for one in event.touched])
            self._between = b"".join((self._head, resources, self._tail))
        return b"".join((_BEGIN % event.time_ms, self._between, _END % (event.offset, event.epoch)))

    def _whole_line(self, event: Event) -> bytes:
        return self._printable(event.document()) + b"\n"

    def _printable(self, document: Any) -> bytes:
        return printable_json(self._encode(document).decode()).encode()

    def _write(self, lines: Sequence[bytes]) -> None:
        """Append whole lines. Raises OSError; lines that were not written count as dropped."""
        written = [0]
        try:
            self._file.append(lines, written)
        except OSError:
            self.dropped += len(lines) - written[0]
            raise

    def _lost(self, error: OSError) -> None:
        reason = error.strerror or str(error)
        if reason != self.failed:
            self.failed = reason
            log.error("the audit log cannot be written", file=str(self._path), error=reason)

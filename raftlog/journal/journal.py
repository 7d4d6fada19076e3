"""Takes events from the event loop, keeps the newest in memory, and has them written by a thread.

Nobody waits for it: an event is a line in a queue. A disk that is full, broken or hung costs lines,
and nothing else; what that disk means for the log is the log's business.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from raftlog.journal.event import Kind, NodeEvent, Value, checked_details
from raftlog.journal.files import (
    MAX_BACKUPS,
    MAX_BYTES,
    end_last_line,
    journal_file,
    read_journal,
)
from raftlog.logger import get_logger
from raftlog.printable import printable_json
from raftlog.rotated_file import RotatedFile

log = get_logger(__name__)

KEPT_EVENTS = 10_000
"""In memory, for who asks the node."""
QUEUE_EVENTS = 1_000
TEXT_MAX_CHARS = 500
SAME_MS = 60_000
"""How long the newest event is only counted when it happens again, with nothing in between."""
PER_S, BURST = 5, 200
"""A node that flaps must not push what began it out of the ring."""
CLOSE_S = 2.0


class Journal(Protocol):
    """Where a node tells of itself."""

    def note(self, kind: Kind, **details: Value) -> None:
        """Something has happened; returns at once. The details are those of the kind."""


class NoJournal:
    """Forgets all."""

    def note(self, kind: Kind, **details: Value) -> None:
        """Nothing is kept."""


NO_JOURNAL = NoJournal()


class RecentEvents:
    """The newest events of one node, each noted once: without I/O.

    ``written``: called with each event that has a line.
    """

    def __init__(
        self,
        node_id: int,
        role: str,
        *,
        wall_clock_ms: Callable[[], int],
        written: Callable[[NodeEvent], None] = lambda event: None,
        before: list[NodeEvent] | None = None,
    ) -> None:
        """``before``: what the directory has, oldest first."""
        self._node_id, self._role = node_id, role
        self.time_ms, self._written = wall_clock_ms, written
        """What time it is: the own clock until the quorum's time is known."""
        self._events = deque(before or [], maxlen=KEPT_EVENTS)
        self._seq = self._events[-1].seq + 1 if self._events else 1
        self._newest: tuple[Kind, dict[str, Value], int] | None = None
        self._repeats: dict[Kind, int] = {}
        self._tokens, self._refilled_ms = float(BURST), wall_clock_ms()
        self._left_out = 0

    def note(self, kind: Kind, **details: Value) -> None:
        """See ``Journal``."""
        found = {name: _bounded(value) for name, value in checked_details(kind, details).items()}
        now = self.time_ms()
        # Only what directly follows itself is a repetition [a controller is found, lost, and found
        # again: without the second finding it seems to be lost for good].
        if self._newest is not None:
            *same, at_ms = self._newest
            if same == [kind, found] and 0 <= now - at_ms < SAME_MS:
                self._repeats[kind] = self._repeats.get(kind, 0) + 1
                return
        if not self._admit(now):
            self._left_out += 1
            return
        repeats = self._repeats.pop(kind, 0)
        event = NodeEvent(
            self._seq, now, self._node_id, self._role, kind.value, found, repeats, self._left_out
        )
        self._newest = (kind, found, now)
        self._seq, self._left_out = self._seq + 1, 0
        self._events.append(event)
        self._written(event)

    def since(self, at_ms: int, after_seq: int, limit: int) -> tuple[list[NodeEvent], bool]:
        """At most ``limit`` events from then on whose number is higher, oldest first; and whether
        there are more.
        """
        found = [one for one in self._events if one.at_ms >= at_ms and one.seq > after_seq]
        return found[:limit], len(found) > limit

    def _admit(self, now: int) -> bool:
        passed_s = max(0, now - self._refilled_ms) / 1000
        self._tokens = min(float(BURST), self._tokens + passed_s * PER_S)
        self._refilled_ms = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class NodeJournal:
    """The journal of one data directory. Never raises for its files."""

    def __init__(
        self,
        directory: Path,
        node_id: int,
        role: str,
        *,
        wall_clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._path = journal_file(directory)
        self._queue: queue.SimpleQueue[NodeEvent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._encode = msgspec.json.Encoder().encode
        self.dropped = 0
        """Events since the start that are in no file."""
        before: list[NodeEvent] = []
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            before = read_journal(directory)
            end_last_line(self._path)
        except OSError as error:
            self._say(error)
        self.recent = RecentEvents(
            node_id, role, wall_clock_ms=wall_clock_ms, written=self._put, before=before
        )
        self.after = _after(before)
        """How the life before this one ended, as ``Kind.STARTED`` says it."""

    def note(self, kind: Kind, **details: Value) -> None:
        """See ``Journal``."""
        self.recent.note(kind, **details)

    def close(self) -> None:
        """Write what waits; a disk that hangs is waited for no longer than ``CLOSE_S``."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout=CLOSE_S)

    def _put(self, event: NodeEvent) -> None:
        if self._queue.qsize() >= QUEUE_EVENTS:
            self.dropped += 1
            return
        self._queue.put(event)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        file: RotatedFile | None = None
        while (event := self._queue.get()) is not None:
            line = printable_json(self._encode(event).decode()).encode() + b"\n"
            try:
                if file is None:
                    file = RotatedFile(self._path, max_bytes=MAX_BYTES, max_backups=MAX_BACKUPS)
                file.append([line], [0])
            except OSError as error:
                self.dropped += 1
                if self.dropped == 1:
                    self._say(error)
        if file is not None:
            file.close()

    def _say(self, error: OSError) -> None:
        log.error(
            "the journal of this node cannot be written or read",
            file=str(self._path),
            error=error.strerror or str(error),
        )


def _after(before: list[NodeEvent]) -> str:
    if not before:
        return "format"
    last = before[-1]
    if last.kind != Kind.STOPPED:
        return "crash"
    return "stop" if last.details.get("clean") is True else "error"


def _bounded(value: Any) -> Value:
    """Reasons may quote what a stranger sends."""
    if isinstance(value, str) and len(value) > TEXT_MAX_CHARS:
        return value[: TEXT_MAX_CHARS - 3] + "..."
    kept: Value = value
    return kept

"""The journal of one node: events in memory and in files, which a thread writes.

The event loop never waits: an event is added to a queue. A full, broken or hung disk costs only
lines of the journal; the storage of the log handles such a disk separately.

The files are JSON lines, and can be read while the node runs. A crash may tear the last line, and a
reader may open files between two renames: readers skip anything that is not an event, and use each
number once.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from raftlog.files import RotatedFile, backup_of
from raftlog.logger import get_logger
from raftlog.node.storage.directory import JOURNAL_DIRECTORY
from raftlog.text import printable_json

Value = str | int | bool


class Kind(StrEnum):
    """The kind of an event. A name never changes its meaning."""

    STARTED = "started"
    STOPPED = "stopped"
    DIRECTORY_REPLACED = "directory_replaced"
    LOG_MENDED = "log_mended"
    CAMPAIGN_BEGAN = "campaign_began"
    BECAME_LEADER = "became_leader"
    ACTIVE_CONTROLLER = "active_controller"
    LOST_LEADERSHIP = "lost_leadership"
    LEADER_CHANGED = "leader_changed"
    NO_LEADER = "no_leader"
    PEER_LOST = "peer_lost"
    PEER_REGAINED = "peer_regained"
    SLOW_FLUSH = "slow_flush"
    DISK_STALL = "disk_stall"
    LOOP_STALL = "loop_stall"
    CLOCK_OVERRULED = "clock_overruled"
    CLOCK_AGREES = "clock_agrees"
    SNAPSHOT_TAKEN = "snapshot_taken"
    SNAPSHOT_LOADED = "snapshot_loaded"
    LOG_START_ADVANCED = "log_start_advanced"
    SPACE_LOW = "space_low"
    SPACE_REGAINED = "space_regained"
    WRITES_REFUSED = "writes_refused"
    WRITES_RESUMED = "writes_resumed"
    LAO_STALLED = "lao_stalled"
    LAO_RESUMED = "lao_resumed"
    REGISTERED = "registered"
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLER_LOST = "controller_lost"
    CONTROLLER_FOUND = "controller_found"
    LEASE_GRANTED = "lease_granted"
    LEASE_LOST = "lease_lost"


class About(NamedTuple):
    """The description of a kind of event: the types of its details, and its meaning."""

    details: Mapping[str, type[str] | type[int] | type[bool]]
    meaning: str


KINDS: Mapping[Kind, About] = {
    Kind.STARTED: About(
        {"after": str},
        "The process serves. `after`: how the previous process ended: `stop` (orderly), `error` (it"
        " stopped itself), `crash`; or `format` if there was none.",
    ),
    Kind.STOPPED: About(
        {"reason": str, "clean": bool},
        "The process ends, orderly (`clean`) or because of an error.",
    ),
    Kind.DIRECTORY_REPLACED: About(
        {"set_aside": str},
        "The controller's log was damaged, the quorum continued without it, and the node starts"
        " over as another replica. `set_aside`: where the damaged data is.",
    ),
    Kind.LOG_MENDED: About(
        {"set_aside": str},
        "The controller's log was damaged, and was repaired with exactly the records that it"
        " had held. `set_aside`: where the damaged log is.",
    ),
    Kind.CAMPAIGN_BEGAN: About(
        {"epoch": int, "reason": str, "last_leader_id": int},
        "The voter campaigns; `reason`: why.",
    ),
    Kind.BECAME_LEADER: About(
        {"epoch": int, "reason": str, "start_offset": int},
        "The voter has won the election; `reason`: why it campaigned.",
    ),
    Kind.ACTIVE_CONTROLLER: About(
        {"epoch": int, "offset": int}, "The leader has folded its log, and decides requests."
    ),
    Kind.LOST_LEADERSHIP: About(
        {"epoch": int, "reason": str, "handed_over": bool},
        "The node no longer leads. `handed_over`: because of a completed leadership transfer.",
    ),
    Kind.LEADER_CHANGED: About(
        {"epoch": int, "leader_id": int}, "The node follows another leader."
    ),
    Kind.NO_LEADER: About(
        {"epoch": int, "reason": str}, "The node has known no leader for a second."
    ),
    Kind.PEER_LOST: About(
        {"peer_id": int, "reason": str}, "Another node has not answered for a second."
    ),
    Kind.PEER_REGAINED: About({"peer_id": int, "after_ms": int}, "That node answers again."),
    Kind.SLOW_FLUSH: About(
        {"above_ms": int, "count": int}, "Syncs of the log took longer than `above_ms`."
    ),
    Kind.DISK_STALL: About(
        {"busy_ms": int}, "One call to the log's disk has not returned for this long."
    ),
    Kind.LOOP_STALL: About(
        {"gap_ms": int}, "The process did not run: it was stopped, swapped out, or busy."
    ),
    Kind.CLOCK_OVERRULED: About(
        {"ahead_ms": int},
        "The node's wall clock differs from those of a majority of the voters, whose time it uses"
        " instead. `ahead_ms`: by how much; negative if the node's clock is behind.",
    ),
    Kind.CLOCK_AGREES: About({}, "The node's wall clock agrees with the majority's again."),
    Kind.SNAPSHOT_TAKEN: About({"end_offset": int, "bytes": int}, "The node took a snapshot."),
    Kind.SNAPSHOT_LOADED: About(
        {"end_offset": int}, "The node started from a snapshot, or installed one from the leader."
    ),
    Kind.LOG_START_ADVANCED: About({"offset": int}, "The log below `offset` was dropped."),
    Kind.SPACE_LOW: About({"free_bytes": int}, "The disk fell below its free-space reserve."),
    Kind.SPACE_REGAINED: About({"free_bytes": int}, "The disk is above its reserve again."),
    Kind.WRITES_REFUSED: About({"reason": str}, "The active controller refuses writes."),
    Kind.WRITES_RESUMED: About({}, "The active controller accepts writes again."),
    Kind.LAO_STALLED: About(
        {"offset": int, "brokers": str, "reason": str},
        "The lowest acknowledged offset has not advanced for a second; `brokers` hold it back.",
    ),
    Kind.LAO_RESUMED: About(
        {"offset": int, "stood_ms": int}, "The lowest acknowledged offset advances again."
    ),
    Kind.REGISTERED: About({"broker_epoch": int}, "The broker has registered."),
    Kind.FENCED: About({"reason": str}, "The broker learned that it is fenced, or fenced itself."),
    Kind.UNFENCED: About({"broker_epoch": int}, "The broker learned that it is unfenced."),
    Kind.CONTROLLER_LOST: About(
        {"controller_id": int}, "The broker no longer follows an active controller."
    ),
    Kind.CONTROLLER_FOUND: About(
        {"controller_id": int, "epoch": int}, "The broker follows this active controller."
    ),
    Kind.LEASE_GRANTED: About({}, "The broker has a read lease, and answers strict reads."),
    Kind.LEASE_LOST: About({"reason": str}, "The broker no longer has a read lease."),
}
"""The details and the meaning of every kind."""


class NodeEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of one node.

    ``seq`` grows by one with each event of a data directory, across restarts. ``at_ms``: the node's
    time, which is quorum time if the node knows that. ``repeats``: number of equal events since the
    last line of this kind that have no line of their own. ``left_out``: number of earlier events
    without a line, because there were too many.
    """

    seq: int
    at_ms: int
    node_id: int
    role: str
    kind: str
    details: dict[str, Value] = {}
    repeats: int = 0
    left_out: int = 0

    def text(self, name: str) -> str:
        """Return a detail as text, or empty if none with this name."""
        return str(self.details.get(name, ""))

    def number(self, name: str, default: int = -1) -> int:
        """Return a detail that is a number."""
        value = self.details.get(name, default)
        return value if isinstance(value, int) else default


def checked_details(kind: Kind, details: Mapping[str, Any]) -> dict[str, Value]:
    """Return the details if they match this kind. Raises TypeError."""
    wanted = KINDS[kind].details
    if details.keys() != wanted.keys():
        raise TypeError(f"{kind} has the details {sorted(wanted)}, not {sorted(details)}")
    for name, type_ in wanted.items():
        if type(details[name]) is not type_:
            raise TypeError(f"{kind}.{name} is not of type {type_.__name__}: {details[name]!r}")
    return dict(details)


def typed_details(kind: str, texts: Mapping[str, str]) -> dict[str, Value]:
    """Convert details that were sent as text to their types; those of an unknown kind stay text."""
    about = KINDS[Kind(kind)].details if kind in list(Kind) else {}
    found: dict[str, Value] = {}
    for name, text in texts.items():
        type_ = about.get(name, str)
        if type_ is bool:
            found[name] = text == "true"
        elif type_ is int and text.removeprefix("-").isdigit():
            found[name] = int(text)
        else:
            found[name] = text
    return found


def as_text(value: Value) -> str:
    """Return a detail as the text that is sent."""
    return str(value).lower() if isinstance(value, bool) else str(value)


FILE = "events.jsonl"
MAX_BYTES = 1 << 20
MAX_BACKUPS = 3
"""Number of older files: four of a megabyte contain about twenty thousand events."""
LINE_MAX_BYTES = 4_096
_DECODE = msgspec.json.Decoder(NodeEvent).decode


def journal_file(directory: Path) -> Path:
    """Return the path of the file to which a node appends."""
    return directory / JOURNAL_DIRECTORY / FILE


def read_journal(directory: Path) -> list[NodeEvent]:
    """Return all events of a data directory, oldest first; none if it has no journal.

    Raises OSError for files that cannot be read.
    """
    found: dict[int, NodeEvent] = {}
    for number in range(MAX_BACKUPS, -1, -1):
        for event in _events(backup_of(journal_file(directory), number)):
            found[event.seq] = event
    return [found[seq] for seq in sorted(found)]


def end_last_line(path: Path) -> None:
    """End a line that a crash has torn, so that the next one can be read. Raises OSError."""
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def _events(path: Path) -> Iterator[NodeEvent]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(LINE_MAX_BYTES):
            try:
                yield _DECODE(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue


log = get_logger(__name__)

KEPT_EVENTS = 10_000
"""Maximum number of events in memory."""
QUEUE_EVENTS = 1_000
TEXT_MAX_CHARS = 500
SAME_MS = 60_000
"""Time within which a repetition of the newest event is only counted, in ms."""
PER_S, BURST = 5, 200
"""Limits on events per second and in a burst: a flapping node must not push the original cause out
of the buffer.
"""
CLOSE_S = 2.0


class Journal(Protocol):
    """The interface through which a node records events."""

    def note(self, kind: Kind, **details: Value) -> None:
        """Record an event, and return at once. ``details``: the details that the kind requires."""


class NoJournal:
    """A journal that records nothing."""

    def note(self, kind: Kind, **details: Value) -> None:
        """Do nothing."""


NO_JOURNAL = NoJournal()


class RecentEvents:
    """The newest events of one node, without I/O; repetitions are only counted.

    ``written``: called with each event that gets a line of its own.
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
        """``before``: earlier events of the directory, oldest first."""
        self._node_id, self._role = node_id, role
        self.time_ms, self._written = wall_clock_ms, written
        """Function that returns the time: the node's own until quorum time is known."""
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
        # Only an event that equals the newest one is a repetition [a controller is found, lost, and
        # found again: without the last event it seems to be lost for good].
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
        """Return at most ``limit`` events, oldest first, from a time onwards with numbers above
        ``after_seq``, and whether there are more.
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
    """The journal of one data directory. Never raises because of its files."""

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
        """Number of events since startup that were not written to a file."""
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
        """How the previous process stopped, as in ``Kind.STARTED``."""

    def note(self, kind: Kind, **details: Value) -> None:
        """See ``Journal``."""
        self.recent.note(kind, **details)

    def close(self) -> None:
        """Write the queued events, in at most ``CLOSE_S``, as a disk may hang."""
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
            "this node's journal cannot be written or read",
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
    """Return a detail, shortened if it is a long text: a reason may quote a stranger's text."""
    if isinstance(value, str) and len(value) > TEXT_MAX_CHARS:
        return value[: TEXT_MAX_CHARS - 3] + "..."
    kept: Value = value
    return kept

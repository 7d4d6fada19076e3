"""The generations of a log: they distinguish two logs, and show which of them descends from the
other.

The first leader of a new log chooses a generation, a random number, and writes it into its
LeaderChangeRecord; every later leader repeats it. An unsafe recovery or a restore ends it (a
RecoveryRecord), and the next leader chooses another one. Two generations are compared for equality
alone. One log descends from another only if it names the other's generation as one of its own
earlier ones.

Why: docs/decisions/033-log-generations.md
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from raftlog import batch
from raftlog.metadata.records import RecordType, parse

RECOVERED, RESTORED = "unsafe recovery", "restore"
"""The kinds of a RecoveryRecord."""

NO_GENERATION = 0
"""No leader has chosen one yet, or it is not known."""
GENERATION_BITS = 53
"""Bits of a generation: readers of JSON keep a number of this size exactly."""
SNAPSHOT = -1
"""The offset of a generation that a snapshot's header names: no truncation reaches it."""


class GenerationAt(NamedTuple):
    """A generation that begins at ``offset``; NO_GENERATION: a recovery ends the one before."""

    offset: int
    generation: int


def new_generation(*origin: object) -> int:
    """Return a number that no other log has.

    ``origin``: the leader's directory id, which is random; and the epoch, the offset and the time,
    which distinguish two leaders with copies of one directory.
    """
    digest = hashlib.sha256("\n".join(map(str, origin)).encode()).digest()
    return max(1, int.from_bytes(digest[:8], "big") >> (64 - GENERATION_BITS))


def generations_in(chunk: bytes, control_at: Iterable[int]) -> tuple[GenerationAt, ...]:
    """Return the generations in the control batches of a checked chunk, in order.

    ``control_at``: as of ``batch.Scan``. Raises UnknownRecordError, CorruptLogError.
    """
    found: list[GenerationAt] = []
    for position in control_at:
        header = batch.header_at(chunk, position)
        for data in batch.records(chunk, header):
            if data.type == RecordType.RECOVERY:
                found.append(GenerationAt(header.base_offset, NO_GENERATION))
            elif data.type == RecordType.LEADER_CHANGE:
                found.append(GenerationAt(header.base_offset, parse(data).generation))
    return tuple(found)


class Lineage:
    """The generations of one log, oldest first."""

    def __init__(self, entries: Iterable[GenerationAt] = ()) -> None:
        self._entries: list[GenerationAt] = []
        self.current = NO_GENERATION
        """The generation at the log's end; NO_GENERATION: its next leader chooses one."""
        self.append(entries)

    def append(self, entries: Iterable[GenerationAt]) -> None:
        """Process appended records that name generations. A repeated one changes nothing."""
        for entry in entries:
            if entry.generation != self.current:
                self._entries.append(entry)
                self.current = entry.generation

    def truncate(self, end_offset: int) -> None:
        """Drop the generations above ``end_offset``, at which the log was cut."""
        while self._entries and self._entries[-1].offset >= end_offset:
            self._entries.pop()
        self._take_last()

    def reset(self, generations: Sequence[int]) -> None:
        """Begin anew with the generations of a snapshot that has replaced the log."""
        self._entries = [GenerationAt(SNAPSHOT, generation) for generation in generations]
        self._take_last()

    def _take_last(self) -> None:
        self.current = self._entries[-1].generation if self._entries else NO_GENERATION

    def below(self, end_offset: int) -> tuple[int, ...]:
        """Return the generations of the log below ``end_offset``, oldest first."""
        return tuple(
            entry.generation
            for entry in self._entries
            if entry.offset < end_offset and entry.generation != NO_GENERATION
        )

    def at(self, end_offset: int) -> int:
        """Return the generation of the record before ``end_offset``."""
        below = [entry.generation for entry in self._entries if entry.offset < end_offset]
        return below[-1] if below else NO_GENERATION

    @property
    def ended(self) -> bool:
        """True after a recovery or restore, until a leader has chosen the next generation."""
        return bool(self._entries) and self.current == NO_GENERATION

    def __contains__(self, generation: object) -> bool:
        return any(entry.generation == generation for entry in self._entries)

    @property
    def recoveries(self) -> int:
        """Number of times that the log was recovered or restored."""
        generations = sum(entry.generation != NO_GENERATION for entry in self._entries)
        return generations - (self.current != NO_GENERATION)

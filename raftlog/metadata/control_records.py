"""What the control records of a log say of it: generations, voter sets, and the leader epochs that
may be led.

The first leader of a new log chooses a *generation*, a random number, and writes it into its
LeaderChangeRecord; every later leader repeats it. An unsafe recovery or a restore ends it (a
RecoveryRecord), and the next leader chooses another one. Two generations are compared for equality
alone. One log descends from another only if it names the other's generation as one of its own
earlier ones (docs/decisions/033-log-generations.md).

Each recovery also begins a new range of partitions' *leader epochs*, so that no leader epoch has
two histories. A restore or an unsafe recovery takes the metadata back, and brokers keep their logs:
with records of leader epochs that the metadata has lost. If these epochs were led again, records of
two histories would have one (offset, epoch), and no comparison of logs could tell them apart.
Brokers' reports do not help: a broker may return an hour later. So no epoch below the range of the
newest recovery is led, whichever brokers are there (docs/decisions/016-leader-epoch-ranges.md).

Voter sets (KIP-853) are encoded by the leader, and decoded by every replica as it appends them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from raftlog import batch
from raftlog.endpoint import Voter, VotersAt
from raftlog.metadata.records import RecordType, parse
from raftlog.wire.records.v1 import records_pb2 as pb

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


def to_entries(voters: Iterable[Voter]) -> list[pb.VoterEntry]:
    """Return voters as a record holds them."""
    return [
        pb.VoterEntry(
            voter_id=voter.node_id, voter_directory_id=voter.directory_id, endpoint=voter.endpoint
        )
        for voter in voters
    ]


def from_entries(entries: Iterable[pb.VoterEntry]) -> tuple[Voter, ...]:
    """Return the voters of a record."""
    return tuple(
        Voter(entry.voter_id, entry.endpoint, entry.voter_directory_id) for entry in entries
    )


def voters_in(chunk: bytes, control_at: Iterable[int]) -> tuple[VotersAt, ...]:
    """Return the VotersRecords in a checked chunk, in order.

    ``control_at``: its control batches (``batch.Scan.control_at``).

    Raises UnknownRecordError, CorruptLogError.
    """
    found: list[VotersAt] = []
    for position in control_at:
        header = batch.header_at(chunk, position)
        found.extend(
            VotersAt(header.base_offset, from_entries(parse(data).voters))
            for data in batch.records(chunk, header)
            if data.type == RecordType.VOTERS
        )
    return tuple(found)


EPOCHS_PER_RECOVERY = 1 << 22
"""Size of a range: more elections than one partition ever has between two recoveries: one a second
for seven weeks.
"""
MAX_RECOVERIES = (1 << 31) // EPOCHS_PER_RECOVERY - 1
"""Most recoveries that have a range: leader epochs are int32."""


def first_leader_epoch(recoveries: int) -> int:
    """Return the lowest leader epoch that may be led in a log after this number of recoveries."""
    return max(0, min(recoveries, MAX_RECOVERIES)) * EPOCHS_PER_RECOVERY

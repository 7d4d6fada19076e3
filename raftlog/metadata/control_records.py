"""The control records of a log: generations, voter sets, and the leader epochs that may be led.

The first leader of a new log chooses a *generation*, a random number, and writes it into its
LeaderChangeRecord; every later leader repeats it. An unsafe recovery or a restore ends the
generation (a RecoveryRecord), and the next leader chooses another one. Two generations can only be
compared for equality. One log descends from another only if it names the other's generation as one
of its own earlier ones (docs/decisions/033-log-generations.md).

Each recovery also starts a new range of partitions' *leader epochs*, so that no leader epoch has
two histories. A restore or an unsafe recovery sets the metadata back, but brokers keep their logs,
with records of leader epochs that the metadata has lost. If these epochs were led again, records of
two histories would share an (offset, epoch), and no comparison of logs could tell them apart.
Brokers' reports do not help: a broker may return an hour later. So no epoch below the range of the
newest recovery is led, whichever brokers are present (docs/decisions/016-leader-epoch-ranges.md).

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

NO_GENERATION = 0
"""The generation if no leader has chosen one yet, or it is unknown."""
GENERATION_BITS = 53
"""Number of bits in a generation: JSON readers represent numbers of this size exactly."""
SNAPSHOT = -1
"""The offset of a generation named in a snapshot's header, which no truncation reaches."""


class GenerationAt(NamedTuple):
    """A generation that begins at ``offset``; NO_GENERATION if a recovery ends the previous one
    there.
    """

    offset: int
    generation: int


def new_generation(*origin: object) -> int:
    """Return a number that no other log has.

    ``origin``: the leader's directory id, which is random. The epoch, the offset and the time
    distinguish two leaders with copies of one directory.
    """
    digest = hashlib.sha256("\n".join(map(str, origin)).encode()).digest()
    return max(1, int.from_bytes(digest[:8], "big") >> (64 - GENERATION_BITS))


def generations_in(chunk: bytes, control_at: Iterable[int]) -> tuple[GenerationAt, ...]:
    """Return the generations in the control batches of a checked chunk, in order. Raises
    UnknownRecordError, CorruptLogError.

    ``control_at``: see ``batch.Scan``.
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
        """The generation at the log end; NO_GENERATION if the next leader will choose one."""
        self.append(entries)

    def append(self, entries: Iterable[GenerationAt]) -> None:
        """Process appended records that name generations. A repeated generation changes nothing."""
        for entry in entries:
            if entry.generation != self.current:
                self._entries.append(entry)
                self.current = entry.generation

    def truncate(self, end_offset: int) -> None:
        """Remove the generations above ``end_offset``, to which the log was truncated."""
        while self._entries and self._entries[-1].offset >= end_offset:
            self._entries.pop()
        self._take_last()

    def reset(self, generations: Sequence[int]) -> None:
        """Start again with the generations in a snapshot that has replaced the log."""
        self._entries = [GenerationAt(SNAPSHOT, generation) for generation in generations]
        self._take_last()

    def _take_last(self) -> None:
        self.current = self._entries[-1].generation if self._entries else NO_GENERATION

    def below(self, end_offset: int) -> tuple[int, ...]:
        """Return the log's generations below ``end_offset``, oldest first."""
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
        """Whether a recovery or restore has ended the last generation, and no leader has chosen
        another one yet.
        """
        return bool(self._entries) and self.current == NO_GENERATION

    def __contains__(self, generation: object) -> bool:
        return any(entry.generation == generation for entry in self._entries)

    @property
    def recoveries(self) -> int:
        """Number of times that the log was recovered or restored."""
        generations = sum(entry.generation != NO_GENERATION for entry in self._entries)
        return generations - (self.current != NO_GENERATION)


def to_entries(voters: Iterable[Voter]) -> list[pb.VoterEntry]:
    """Return voters in the form that records contain."""
    return [
        pb.VoterEntry(
            voter_id=voter.node_id, voter_directory_id=voter.directory_id, endpoint=voter.endpoint
        )
        for voter in voters
    ]


def from_entries(entries: Iterable[pb.VoterEntry]) -> tuple[Voter, ...]:
    """Return the voters in a record."""
    return tuple(
        Voter(entry.voter_id, entry.endpoint, entry.voter_directory_id) for entry in entries
    )


def voters_in(chunk: bytes, control_at: Iterable[int]) -> tuple[VotersAt, ...]:
    """Return the VotersRecords in a checked chunk, in order. Raises UnknownRecordError,
    CorruptLogError.

    ``control_at``: its control batches (``batch.Scan.control_at``).
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
"""Size of a range: more elections than a partition ever has between two recoveries (one per second
for seven weeks).
"""
MAX_RECOVERIES = (1 << 31) // EPOCHS_PER_RECOVERY - 1
"""Maximum number of recoveries that have a range, as leader epochs are int32."""


def first_leader_epoch(recoveries: int) -> int:
    """Return the lowest leader epoch that may be led in a log after this number of recoveries."""
    return max(0, min(recoveries, MAX_RECOVERIES)) * EPOCHS_PER_RECOVERY

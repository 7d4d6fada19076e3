"""The log of one node as the checkers keep it: batches with a hash chain, so that comparing two
logs is comparing two numbers.

:class:`LogMatching` knows all nodes' batches: the chain at (end offset, epoch) covers every byte
below, so one look-up per append checks Raft's Log Matching (I4). The log hash at every committed
offset is computed again from decoded records by the rules of ``raftlog/metadata/log_hash.py``, and
compared with progress records.
"""

import hashlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

from raftlog import batch
from raftlog.batch import BatchHeader
from raftlog.endpoint import VotersAt
from raftlog.metadata.control_records import voters_in
from raftlog.metadata.log_hash import LogHash
from raftlog.metadata.records import Record, RecordType
from simulation.checks.api import fail
from simulation.twins.disk import SimDisk

PARSED_MAX = 512
"""Number of parsed chunks that are kept: other nodes append the same bytes a little later."""


class Logged(NamedTuple):
    """A batch in some log. ``chain``: of all bytes from offset 0 to its end."""

    header: BatchHeader
    """``position`` is 0."""
    data: bytes
    chain: int
    voters: VotersAt | None

    @property
    def end_offset(self) -> int:
        return self.header.end_offset


class LogMatching:
    """Every batch that any node ever had, by (end offset, epoch)."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Logged] = {}
        self._parsed: dict[bytes, list[BatchHeader]] = {}

    def headers(self, chunk: bytes) -> list[BatchHeader]:
        parsed = self._parsed.get(chunk)
        if parsed is None:
            if len(self._parsed) >= PARSED_MAX:
                self._parsed.clear()
            parsed = self._parsed[chunk] = list(batch.headers(chunk, verify=False))
        return parsed

    def logged(self, who: str, chain: int, chunk: bytes, header: BatchHeader) -> Logged:
        """Return the batch after a hash ``chain``. Raises CheckFailedError (I4)."""
        data = chunk[header.position : header.position + header.size]
        chain = xxhash.xxh3_64_intdigest(data, chain)
        known = self._known.get((header.end_offset, header.epoch))
        if known is None:
            voters = voters_in(data, [0]) if header.control else ()
            known = Logged(header._replace(position=0), data, chain, voters[0] if voters else None)
            self._known[header.end_offset, header.epoch] = known
        elif known.chain != chain:
            end = f"({header.end_offset}, epoch {header.epoch})"
            fail(f"I4 log matching: {who} has another log below {end} than was seen before")
        return known


class NodeLog:
    """One node's log with unflushed batches. Begins at ``start``, with the chain below."""

    def __init__(
        self, who: str, matching: LogMatching, start: int, start_epoch: int, start_chain: int
    ) -> None:
        self.who = who
        self._matching = matching
        self._base = (start_epoch, start_chain)
        self.start = start
        self._ends: list[int] = []
        self.batches: list[Logged] = []
        self.voter_sets: list[VotersAt] = []

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else self.start

    @property
    def last_epoch(self) -> int:
        """Return the epoch of the last record, or of the one below the start."""
        return self.batches[-1].header.epoch if self.batches else self._base[0]

    def append(self, base_offset: int, chunk: bytes) -> None:
        if base_offset != self.end:
            fail(f"{self.who} appends at {base_offset} to a log that ends at {self.end}")
        chain = self.batches[-1].chain if self.batches else self._base[1]
        for header in self._matching.headers(chunk):
            if header.base_offset != self.end:
                fail(f"{self.who} has a batch of {header.base_offset} at offset {self.end}")
            logged = self._matching.logged(self.who, chain, chunk, header)
            chain = logged.chain
            self.batches.append(logged)
            self._ends.append(logged.end_offset)
            if logged.voters is not None:
                self.voter_sets.append(logged.voters)

    def truncate(self, end_offset: int) -> list[Logged]:
        """Drop the records at or above an offset, and return them. Raises CheckFailedError."""
        kept = bisect_left(self._ends, end_offset + 1)
        if end_offset < self.start or end_offset not in (self.start, *self._ends[kept - 1 : kept]):
            fail(f"{self.who} truncates to {end_offset}, where no batch of its log ends")
        dropped = self.batches[kept:]
        del self.batches[kept:], self._ends[kept:]
        while self.voter_sets and self.voter_sets[-1].offset >= end_offset:
            self.voter_sets.pop()
        return dropped

    def at(self, end_offset: int) -> tuple[int, int] | None:
        """Return (epoch, hash chain) of the log below an offset; None if no batch ends there."""
        if end_offset == self.start:
            return self._base
        index = bisect_left(self._ends, end_offset)
        if index == len(self._ends) or self._ends[index] != end_offset:
            return None
        found = self.batches[index]
        return found.header.epoch, found.chain

    def between(self, start: int, end: int) -> Iterable[Logged]:
        """Return the batches in [start, end), both of them ends of batches."""
        first = bisect_left(self._ends, start + 1)
        return self.batches[first : bisect_left(self._ends, end + 1)]


class LogHashes:
    """Hashes of the whole committed log, seen from offset 0 on."""

    def __init__(self) -> None:
        self._digest = self._seeded(0)
        self._at: dict[int, tuple[int, bytes]] = {0: (0, self._digest)}
        """End offset -> where the hash chain begins, and its digest."""
        self.compared = self.recorded = 0
        """Numbers of compared hashes of nodes, and of hashes in progress records."""

    @staticmethod
    def _seeded(begin: int) -> bytes:
        return hashlib.sha256(b"raftlog log hash 1\0" + struct.pack(">q", begin)).digest()

    def append(self, logged: Logged, records: list[Record]) -> None:
        header = logged.header
        for record in records:
            message = record.message
            if record.type == RecordType.PROGRESS and message.log_hash:
                self._claimed(message, header.base_offset)
        data = logged.data[header.position : header.position + header.size]
        self._digest = hashlib.sha256(self._digest + data).digest()
        self._at[header.end_offset] = 0, self._digest

    def _claimed(self, message: object, offset: int) -> None:
        begin, end = message.log_hash_begin_offset, message.log_hash_end_offset  # type: ignore[attr-defined]
        digest = message.log_hash  # type: ignore[attr-defined]
        if end > offset or self._at.get(end) != (begin, digest):
            fail(
                f"the progress record at {offset} says that the log from {begin} to {end} has the"
                f" hash {digest.hex()}; it is {self._at.get(end)}"
            )
        self.recorded += 1

    def at(self, end_offset: int) -> LogHash:
        """Return the hash of the committed log below a batch end. Raises KeyError."""
        begin, digest = self._at[end_offset]
        return LogHash(begin, end_offset, digest)

    def require(self, who: str, found: LogHash) -> None:
        """Require that a node's log hash is that of the committed log. Raises CheckFailedError."""
        expected = self._at.get(found.end_offset)
        if (found.begin_offset, found.digest) != expected:
            fail(f"{who} has the log hash {found}, it must be {expected}")
        self.compared += 1


def holds_durably(disk: SimDisk, matching: LogMatching, end_offset: int, epoch: int) -> bool:
    """Return whether a batch of ``epoch`` ending at ``end_offset``, or a snapshot that covers it,
    would survive a crash now. By Log Matching it stands for everything below it.
    """
    if end_offset == 0:
        return True
    chunks = disk.durable
    index = bisect_right(chunks.bases, end_offset - 1) - 1
    if index >= 0:
        if chunks.bases[index] in getattr(disk, "flipped", ()):
            # It was there; that it is damaged now is found when it is read.
            return True
        for header in reversed(matching.headers(chunks.chunks[index])):
            if header.end_offset == end_offset:
                return header.epoch == epoch
    return any(snapshot.end_offset >= end_offset for snapshot in getattr(disk, "snapshots", ()))

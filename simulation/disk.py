"""The simulated disk: a LogStore in memory that keeps what is durable and what is not apart.

A :class:`SimDisk` outlives the node that uses it. A crash keeps what was synced and a random prefix of what was not: the
write that was torn is the first that is lost. Completions come from the running event loop after a latency drawn from
the disk's own random source; nothing completes at once.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Literal, NamedTuple

from raftlog.errors import ConfigError, FatalError, StorageError
from raftlog.storage.api import NodeIdentity, RecoveredLog, VoteState
from raftlog.storage.chunks import cut, read_span, scan_log
from raftlog.storage.group_commit import FlushDone, GroupCommit

Operation = Literal["append", "flush", "write_vote"]
VoteDone = Callable[[StorageError | None], None]


class _Write(NamedTuple):
    """One write to the log that may be lost: a chunk at ``offset``, or (None) a truncation to it."""

    offset: int
    chunk: bytes | None


class _Chunks:
    """Chunks in order of their base offsets."""

    def __init__(self, bases: list[int], chunks: list[bytes]) -> None:
        self.bases = bases
        self.chunks = chunks

    def copy(self) -> _Chunks:
        return _Chunks(self.bases.copy(), self.chunks.copy())

    def carry_out(self, write: _Write) -> None:
        if write.chunk is not None:
            self.bases.append(write.offset)
            self.chunks.append(write.chunk)
            return
        kept = bisect_left(self.bases, write.offset)
        # Cut first: it may raise, and then nothing has changed.
        last = [cut(self.chunks[kept - 1], self.bases[kept - 1], write.offset)] if kept else []
        del self.bases[kept:]
        self.chunks[max(kept - 1, 0) :] = last

    def scan(self, offset: int) -> Iterator[tuple[int, bytes]]:
        for i in range(max(bisect_right(self.bases, offset) - 1, 0), len(self.bases)):
            yield self.bases[i], self.chunks[i]


class SimDisk:
    """One node's disk. ``rng`` draws latencies only, uniformly between the two given."""

    def __init__(
        self, identity: NodeIdentity, rng: Random, *, latency_min_s: float = 0.0001, latency_max_s: float = 0.002
    ) -> None:
        self.identity = identity
        self._rng = rng
        self._latency_s = (latency_min_s, latency_max_s)
        self._failures: dict[Operation, StorageError] = {}
        self._store: SimLogStore | None = None
        self.durable = _Chunks([], [])
        self.live = _Chunks([], [])
        self.unflushed: list[_Write] = []
        self.vote = VoteState()
        self.unwritten_votes: list[VoteState] = []

    def open(self) -> SimLogStore:
        """Mount the disk. Raises ConfigError if a store that was neither closed nor crashed has it."""
        if self._store is not None:
            raise ConfigError(f"the disk of node {self.identity.node_id} is in use")
        self._store = SimLogStore(self)
        return self._store

    def crash(self, rng: Random) -> None:
        """Lose power: keep what is durable and a prefix, drawn from ``rng``, of the writes (and of the votes) that are not."""
        for write in islice(self.unflushed, rng.randint(0, len(self.unflushed))):
            self.durable.carry_out(write)
        kept_votes = rng.randint(0, len(self.unwritten_votes))
        if kept_votes:
            self.vote = self.unwritten_votes[kept_votes - 1]
        self.live = self.durable.copy()
        self.unflushed = []
        self.unwritten_votes = []
        if self._store is not None:
            self._store.drop("the node crashed")

    def fail_next(self, operation: Operation, message: str = "injected disk failure") -> None:
        """Make the next such operation fail; the store is broken from then on, until the disk is opened anew."""
        self._failures[operation] = StorageError(f"{operation}: {message}")

    def take_failure(self, operation: Operation) -> StorageError | None:
        """The failure that was ordered for ``operation``, once."""
        return self._failures.pop(operation, None)

    def latency_s(self) -> float:
        """How long the next sync takes."""
        return self._rng.uniform(*self._latency_s)

    def write(self, write: _Write) -> None:
        """Carry out a write, visible at once and not durable."""
        self.live.carry_out(write)
        self.unflushed.append(write)

    def sync(self, count: int) -> None:
        """Make the oldest ``count`` writes durable."""
        for write in self.unflushed[:count]:
            self.durable.carry_out(write)
        del self.unflushed[:count]

    def released(self) -> None:
        """The store gave the disk back."""
        self._store = None


class SimLogStore:
    """See ``raftlog.storage.api.LogStore``. A closed or crashed store calls nobody back, and raises StorageError."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._commit = GroupCommit(self._start_sync)
        self._timers: dict[Operation, asyncio.TimerHandle] = {}
        self._vote_dones: list[VoteDone] = []
        self._recovered = False
        self._gone: StorageError | None = None

    @property
    def identity(self) -> NodeIdentity:
        """Who this disk belongs to."""
        return self._disk.identity

    def recover(self) -> RecoveredLog:
        """Check and describe what is stored, all of it durable."""
        self._check(recovered=False)
        self._disk.sync(len(self._disk.unflushed))
        try:
            found = scan_log(self._disk.live.scan(0), 0)
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._commit.recovered(found.end_offset)
        self._recovered = True
        return RecoveredLog(self._disk.vote, 0, found.end_offset, found.epochs, found.last_timestamp_ms)

    def append(self, chunk: bytes, base_offset: int, end_offset: int) -> None:
        """Write a chunk at the log end. Raises StorageError; ValueError if it does not begin there."""
        self._check()
        end = self._commit.end_offset
        if base_offset != end or end_offset <= base_offset:
            raise ValueError(f"append of [{base_offset}, {end_offset}) to a log that ends at {end}")
        if (failure := self._disk.take_failure("append")) is not None:
            raise self._commit.fail(failure)
        self._disk.write(_Write(base_offset, chunk))
        self._commit.end_offset = end_offset

    def flush(self, done: FlushDone, *, inline: bool) -> None:
        """Make durable what was appended so far, then call ``done``, always from the loop."""
        self._check()
        self._commit.flush(done, inline=inline)

    def _start_sync(self, inline: bool) -> None:
        # Whatever the caller hopes for, a sync takes its time here.
        del inline
        count = len(self._disk.unflushed)
        self._later("flush", lambda: self._synced(count))

    def _synced(self, count: int) -> None:
        failure = self._disk.take_failure("flush")
        if failure is None:
            self._disk.sync(count)
        self._commit.sync_finished(failure)

    def truncate(self, end_offset: int) -> None:
        """Drop everything at or above ``end_offset``. Raises ValueError if that is no batch boundary of the log."""
        self._check()
        end = self._commit.end_offset
        if not 0 <= end_offset <= end:
            raise ValueError(f"truncate to {end_offset}: the log is [0, {end})")
        if end_offset == end:
            return
        self._disk.write(_Write(end_offset, None))
        self._commit.truncated(end_offset)

    def read(self, offset: int, *, until: int, max_bytes: int) -> bytes:
        """Whole verified batches; see the protocol. Raises CorruptLogError, ValueError."""
        self._check()
        end = self._commit.end_offset
        if not 0 <= offset <= until <= end:
            raise ValueError(f"read of [{offset}, {until}): the log is [0, {end})")
        if offset == until:
            return b""
        try:
            return read_span(self._disk.live.scan(offset), offset, until, max_bytes)
        except FatalError as error:
            raise self._commit.fail(error) from None

    def write_vote(self, vote: VoteState, done: VoteDone) -> None:
        """Replace the vote durably, then call ``done`` from the loop; one after the other, each after its latency."""
        self._check()
        self._disk.unwritten_votes.append(vote)
        self._vote_dones.append(done)
        if len(self._vote_dones) == 1:
            self._later("write_vote", self._vote_written)

    def _vote_written(self) -> None:
        failure = self._disk.take_failure("write_vote")
        if failure is not None:
            self._commit.fail(failure)
        if self._commit.failure is None:
            self._disk.vote = self._disk.unwritten_votes.pop(0)
        done = self._vote_dones.pop(0)
        if self._vote_dones:
            self._later("write_vote", self._vote_written)
        done(self._commit.outcome())

    def close(self) -> None:
        """Give the disk back. Writes under way are carried to their end, as the operating system would; nobody is told."""
        if self._gone is not None:
            return
        if self._disk.unwritten_votes and self._commit.failure is None:
            self._disk.vote = self._disk.unwritten_votes[-1]
        self._disk.unwritten_votes = []
        self.drop("the store is closed")

    def drop(self, reason: str) -> None:
        """End this store: no callback comes any more, every call raises."""
        self._gone = StorageError(reason)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._disk.released()

    def _later(self, operation: Operation, call: Callable[[], None]) -> None:
        self._timers[operation] = asyncio.get_running_loop().call_later(self._disk.latency_s(), call)

    def _check(self, *, recovered: bool = True) -> None:
        if self._gone is not None:
            raise self._gone
        if self._commit.failure is not None:
            raise self._commit.failure
        if self._recovered is not recovered:
            raise ValueError("recover() comes first, and once")

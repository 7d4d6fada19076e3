"""The simulated disk of a broker's replicas: a PartitionStore in memory, like
:mod:`simulation.twins.disk`. All replicas share one order of writes, as in RocksDB's WAL: a crash
keeps what was synced and a prefix of the rest over all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import NamedTuple

from raftlog.errors import CorruptLogError, FatalError, StorageError
from raftlog.node.storage.chunks import read_span
from raftlog.node.storage.log_bounds import PartitionEnds, damage_in, scan_partition
from raftlog.node.storage.partition_api import PartitionKey, RecoveredPartition
from simulation.twins.disk import LATENCY_S
from simulation.twins.disk_hardware import (
    Chunks,
    DiskHardware,
    SimStore,
    Write,
    flipped,
    still_there,
)


class Begin(NamedTuple):
    """A write that drops what is below ``start``, or (``resets``) everything."""

    start: int
    resets: bool


class ReplicaChunks(Chunks):
    """The chunks of a replica, whose log need not begin at 0."""

    def __init__(self, bases: list[int], chunks: list[bytes], start: int = 0) -> None:
        super().__init__(bases, chunks)
        self.start = start

    def copy(self) -> ReplicaChunks:
        return ReplicaChunks(self.bases.copy(), self.chunks.copy(), self.start)

    def begin(self, begin: Begin) -> None:
        if begin.resets:
            self.clear()
        else:
            self.drop_below(begin.start)
        self.start = begin.start


class SimPartitionDisk(DiskHardware):
    """The disk of one broker's partition replicas, which outlives the broker's processes."""

    def __init__(
        self, directory_id: str, rng: Random, *, latency_s: tuple[float, float] = LATENCY_S
    ) -> None:
        super().__init__(rng, latency_s)
        self.directory_id = directory_id
        self.durable: dict[PartitionKey, ReplicaChunks] = {}
        self.live: dict[PartitionKey, ReplicaChunks] = {}
        self.unflushed: list[tuple[PartitionKey, Write | Begin]] = []
        self.flipped: dict[tuple[PartitionKey, int], bytes] = {}
        """Chunks with a flipped bit, by base offset, as they are now."""

    def open(self) -> SimPartitionStore:
        self.require_closed()
        return self._opened(SimPartitionStore(self))

    def crash(self, rng: Random) -> None:
        """Lose power: keep durable data and a random prefix of the other writes."""
        self._lose_power(rng)
        self.live = {key: chunks.copy() for key, chunks in self.durable.items()}
        self._end_store()

    def replace(self, directory_id: str) -> None:
        self.require_closed()
        self.directory_id = directory_id
        self.durable, self.live, self.unflushed, self.flipped = {}, {}, [], {}
        self.forget_failures()
        self.hung, self.latency_factor = False, 1.0
        self.happened("disk_replaced")

    def flip_bit(self, rng: Random) -> bool:
        held = sorted(key for key, chunks in self.durable.items() if chunks.bases)
        if not held:
            return False
        key = rng.choice(held)
        durable, live = self.durable[key], self.live.get(key)
        at = rng.randrange(len(durable.bases))
        base = durable.bases[at]
        changed = durable.chunks[at] = flipped(durable.chunks[at], rng)
        self.flipped[key, base] = changed
        alive = bisect_left(live.bases, base) if live is not None else 0
        if live is not None and alive < len(live.bases) and live.bases[alive] == base:
            live.chunks[alive] = changed[: len(live.chunks[alive])]
        self.happened("bit_flip_partition")
        return True

    def is_damaged(self) -> bool:
        return any(
            still_there(held[key], base, damaged)
            for (key, base), damaged in self.flipped.items()
            for held in (self.durable, self.live)
            if key in held
        )

    def used_bytes(self) -> int:
        return sum(chunks.size() for chunks in self.live.values())

    def write(self, key: PartitionKey, write: Write | Begin) -> None:
        _carry_out(self.live, key, write)
        self.unflushed.append((key, write))

    def sync(self, count: int) -> None:
        for key, write in self.unflushed[:count]:
            # Damaged since it was cut in memory: it stays whole, and is found when it is read.
            with suppress(CorruptLogError):
                _carry_out(self.durable, key, write)
        del self.unflushed[:count]


def _carry_out(
    replicas: dict[PartitionKey, ReplicaChunks], key: PartitionKey, write: Write | Begin
) -> None:
    chunks = replicas.get(key)
    if chunks is None:
        chunks = replicas[key] = ReplicaChunks([], [])
    if isinstance(write, Begin):
        chunks.begin(write)
    elif write.chunk is None and chunks.start == write.offset:
        # The first chunk may begin below the start.
        chunks.clear()
    else:
        chunks.carry_out(write)
    if not chunks.bases and not chunks.start:
        del replicas[key]


class SimPartitionStore(SimStore):
    """A ``PartitionStore``. Closed or crashed: no callbacks, StorageError."""

    def __init__(self, disk: SimPartitionDisk) -> None:
        super().__init__(disk)
        self._disk = disk
        self._ends = PartitionEnds()

    def recover(self) -> tuple[RecoveredPartition, ...]:
        self._check(recovered=False)
        disk = self._disk
        disk.sync(len(disk.unflushed))
        try:
            found = tuple(
                scan_partition(key, disk.live[key].scan(0), disk.live[key].start)
                for key in sorted(disk.live)
            )
        except FatalError as error:
            raise self._commit.fail(self._disk.met(error)) from None
        self._ends.recovered(found)
        self._recovered = True
        return found

    def append(self, key: PartitionKey, chunk: bytes, base_offset: int, end_offset: int) -> None:
        self._check()
        self._ends.check_append(key, base_offset, end_offset)
        self._before("append")
        if (failure := self._disk.take_failure("append") or self._disk.room_for(chunk)) is not None:
            raise self._commit.fail(failure)
        self._disk.write(key, Write(base_offset, chunk))
        self._ends.appended(key, end_offset)

    def flush(self, done: Callable[[StorageError | None], None], *, inline: bool) -> None:
        self._check()
        self._commit.flush(
            lambda outcome: done(outcome if isinstance(outcome, StorageError) else None),
            inline=inline,
        )

    def truncate(self, key: PartitionKey, end_offset: int) -> None:
        self._check()
        if self._ends.check_truncate(key, end_offset):
            with self._damage_of(key):
                self._disk.write(key, Write(end_offset, None))
            self._ends.truncated(key, end_offset)

    def advance_start(self, key: PartitionKey, start_offset: int, *, dropped_bytes: int) -> None:
        self._check()
        if self._ends.check_advance(key, start_offset):
            with self._damage_of(key):
                self._disk.write(key, Begin(start_offset, resets=False))
            self._ends.advanced(key, start_offset)

    def reset(self, key: PartitionKey, start_offset: int) -> None:
        self._check()
        self._disk.write(key, Begin(start_offset, resets=True))
        self._ends.reset(key, start_offset)

    def read(self, key: PartitionKey, offset: int, *, until: int, max_bytes: int) -> bytes:
        self._check()
        if not self._ends.check_read(key, offset, until):
            return b""
        with self._damage_of(key):
            chunks = self._disk.live[key].scan(offset)
            return read_span(chunks, offset, until, max_bytes, inside=True)

    @contextmanager
    def _damage_of(self, key: PartitionKey) -> Iterator[None]:
        try:
            yield
        except CorruptLogError as error:
            raise self._commit.fail(self._disk.met(damage_in(key, error))) from error

    def delete(self, key: PartitionKey) -> None:
        self._check()
        if key in self._ends:
            self._disk.write(key, Begin(0, resets=True))
            self._ends.reset(key, 0)

    def close(self) -> None:
        """Close the store. Written data stays, but nothing is called back."""
        if self._gone is None:
            self.drop("the store is closed")

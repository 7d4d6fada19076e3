"""Common parts of simulated disks: chunks, latency, ordered faults, and a crashing store."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Literal, NamedTuple, TypeVar

from raftlog.errors import ConfigError, CorruptLogError, FatalError, StorageError
from raftlog.node.storage.chunks import batches_below, batches_from
from raftlog.node.storage.rocks_store import GroupCommit

Operation = Literal["append", "flush", "write_vote", "snapshot"]
T = TypeVar("T")

AMPLE_BYTES = 1 << 40


class Write(NamedTuple):
    """A write to a log, which may be lost: a chunk at ``offset``, or (None) a truncation to it."""

    offset: int
    chunk: bytes | None


class Chunks:
    """Chunks of a log in order of their base offsets."""

    def __init__(self, bases: list[int], chunks: list[bytes]) -> None:
        self.bases = bases
        self.chunks = chunks

    def copy(self) -> Chunks:
        return Chunks(self.bases.copy(), self.chunks.copy())

    def carry_out(self, write: Write) -> None:
        """Append or truncate. Raises ValueError for a truncation inside a batch, without effect."""
        if write.chunk is not None:
            self.bases.append(write.offset)
            self.chunks.append(write.chunk)
            return
        kept = bisect_left(self.bases, write.offset)
        last = []
        if kept:
            # First: if this raises, nothing has changed.
            last = [batches_below(self.chunks[kept - 1], self.bases[kept - 1], write.offset)]
        del self.bases[kept:]
        self.chunks[max(kept - 1, 0) :] = last

    def drop_below(self, offset: int) -> None:
        """Drop the chunks that end at or below ``offset``; one that contains it stays whole."""
        first = max(bisect_right(self.bases, offset) - 1, 0)
        if (
            first < len(self.bases)
            and self.bases[first] < offset
            and not batches_from(self.chunks[first], self.bases[first], offset)
        ):
            first += 1
        del self.bases[:first], self.chunks[:first]

    def clear(self) -> None:
        self.bases.clear()
        self.chunks.clear()

    def size(self) -> int:
        return sum(map(len, self.chunks))

    def scan(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield the chunks, starting with the one that contains ``offset``."""
        for i in range(max(bisect_right(self.bases, offset) - 1, 0), len(self.bases)):
            yield self.bases[i], self.chunks[i]


class DiskHardware:
    """The faults and the latency of a disk.

    Latencies are uniform between the two of ``latency_s``; ``rng`` is used for nothing else.
    """

    def __init__(self, rng: Random, latency_s: tuple[float, float]) -> None:
        self._rng = rng
        self._latency_s = latency_s
        self._failures: dict[Operation, StorageError] = {}
        self._held: list[Callable[[], None]] = []
        self.hung = False
        self.latency_factor = 1.0
        self.capacity_bytes: int | None = None
        """Size above which writes fail (ENOSPC), or None for no limit."""
        self.before: Callable[[Operation], None] | None = None
        """Called before each operation; may crash the node."""
        self._store: Any = None
        """The open store; None if the disk is not in use."""
        self.unflushed: list[Any] = []
        """Writes that a crash may lose, oldest first."""
        self.faults: Counter[str] = Counter()
        """Number of times that each fault had an effect on this disk, by name."""
        self._injected: list[FatalError] = []
        """Errors of injected faults since the disk was opened that have excused no stop yet."""

    def fail_next(self, operation: Operation, message: str = "injected disk failure") -> None:
        """Let the next such operation fail; the store fails until the disk is reopened."""
        self._failures[operation] = StorageError(f"{operation}: {message}")

    def take_failure(self, operation: Operation) -> StorageError | None:
        failure = self._failures.pop(operation, None)
        if failure is not None:
            self.happened(f"eio_{operation}")
            self._injected.append(failure)
        return failure

    def met(self, error: FatalError) -> FatalError:
        """Return a read error, after recording it as injected if the disk is damaged."""
        if isinstance(error, CorruptLogError) and self.is_damaged():
            self._injected.append(error)
        return error

    def is_damaged(self) -> bool:
        raise NotImplementedError

    def excuses(self, error: BaseException) -> bool:
        """Return whether an injected fault explains the error with which a process stopped. A fault
        excuses one stop; while the disk is damaged, every CorruptLogError is excused.
        """
        for given in self._injected:
            if given is error or (isinstance(given, CorruptLogError) and str(given) == str(error)):
                self._injected.remove(given)
                return True
        return isinstance(error, CorruptLogError) and self.is_damaged()

    @property
    def failure(self) -> Exception | None:
        failure: Exception | None = self._store.failure if self._store is not None else None
        return failure

    def require_closed(self) -> None:
        if self._store is not None:
            raise ConfigError("the disk is in use")

    def _opened(self, store: T) -> T:
        self._injected.clear()
        self._store = store
        return store

    def _lose_power(self, rng: Random) -> None:
        """Sync a random prefix of the unflushed writes, and lose the others."""
        self.sync(rng.randint(0, len(self.unflushed)))
        if self.unflushed:
            self.happened("unsynced_loss")
        self._held = []

    def _end_store(self) -> None:
        self.unflushed = []
        if self._store is not None:
            self._store.drop("the node crashed")

    def forget_failures(self) -> None:
        self._failures.clear()

    def happened(self, fault: str) -> None:
        self.faults[fault] += 1

    def hang(self) -> None:
        self.hung = True
        self.happened("disk_hang")

    def resume(self) -> None:
        self.hung = False
        held, self._held = self._held, []
        for call in held:
            call()

    def complete(self, call: Callable[[], None]) -> None:
        """Complete an operation, or hold its completion while the disk hangs."""
        if self.hung:
            self._held.append(call)
        else:
            call()

    def latency_s(self) -> float:
        return self._rng.uniform(*self._latency_s) * self.latency_factor

    def used_bytes(self) -> int:
        raise NotImplementedError

    def sync(self, count: int) -> None:
        raise NotImplementedError

    def free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return AMPLE_BYTES
        return max(0, self.capacity_bytes - self.used_bytes())

    def room_for(self, data: bytes) -> StorageError | None:
        """Return an ENOSPC error if there is no room to write ``data``, else None."""
        if self.capacity_bytes is None or len(data) <= self.free_bytes():
            return None
        self.happened("enospc")
        failure = StorageError("append: no space left on device")
        self._injected.append(failure)
        return failure

    def released(self) -> None:
        self._store = None


class SimStore:
    """An open disk with asynchronous completions. Closed or crashed: no callbacks, StorageError."""

    def __init__(self, hardware: DiskHardware) -> None:
        self._hardware = hardware
        self._commit = GroupCommit(self._start_sync)
        self._timers: dict[Operation, list[asyncio.TimerHandle]] = {}
        self._recovered = False
        self._gone: StorageError | None = None
        self._sync_began: float | None = None
        self.last_sync_s = 0.0

    @property
    def busy_s(self) -> float:
        began = self._sync_began
        return 0.0 if began is None else asyncio.get_running_loop().time() - began

    @property
    def failure(self) -> Exception | None:
        return self._commit.failure

    def free_bytes(self) -> int:
        return self._hardware.free_bytes()

    def used_bytes(self) -> int:
        return self._hardware.used_bytes()

    def _start_sync(self, inline: bool) -> None:
        # A simulated sync is never done inline.
        del inline
        self._before("flush")
        count = len(self._hardware.unflushed)
        self._sync_began = asyncio.get_running_loop().time()
        self._later("flush", lambda: self._synced(count))

    def _synced(self, count: int) -> None:
        self.last_sync_s, self._sync_began = self.busy_s, None
        failure = self._hardware.take_failure("flush")
        if failure is None:
            self._hardware.sync(count)
        self._commit.sync_finished(failure)

    def drop(self, reason: str) -> None:
        """End this store: it calls no more callbacks, and every call raises."""
        self._gone = StorageError(reason)
        for timers in self._timers.values():
            for timer in timers:
                timer.cancel()
        self._timers.clear()
        self._hardware.released()

    def _later(self, operation: Operation, call: Callable[[], None]) -> None:
        def due() -> None:
            if self._gone is None:
                call()

        loop = asyncio.get_running_loop()
        timers = self._timers.setdefault(operation, [])
        timers.append(loop.call_later(self._hardware.latency_s(), self._hardware.complete, due))
        if len(timers) > 8:
            timers[:] = [timer for timer in timers if timer.when() >= loop.time()]

    def _before(self, operation: Operation) -> None:
        if self._hardware.before is not None:
            self._hardware.before(operation)
            self._check()

    def _check(self, *, recovered: bool = True) -> None:
        if self._gone is not None:
            raise self._gone
        if self._commit.failure is not None:
            raise self._commit.failure
        if self._recovered is not recovered:
            raise ValueError("recover() must be called first, and only once")


def still_there(chunks: Chunks, base: int, damaged: bytes) -> bool:
    """Return whether the chunk at ``base`` is this damaged one, or its truncated rest."""
    index = bisect_left(chunks.bases, base)
    return (
        index < len(chunks.bases)
        and chunks.bases[index] == base
        and damaged.startswith(chunks.chunks[index])
    )


def flipped(content: bytes, rng: Random) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)

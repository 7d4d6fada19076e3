"""The simulated disk: a LogStore in memory with durable and unflushed bytes, and faults on command.

A :class:`SimDisk` outlives its node. A crash keeps what was synced and a random prefix of the rest:
one write is one WAL record, whole or cut off, so torn, zeroed and missing tails are the same fault
(``unsynced_loss``). Completions are called from the event loop after a random latency. ``faults``
counts the faults that had an effect.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Literal

from raftlog.errors import CorruptLogError, FatalError, StorageError
from raftlog.metadata import snapshot_file
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.node.recovery.mending import DamagedLog
from raftlog.node.recovery.salvage import Salvage, stretches
from raftlog.node.storage import api, log_bounds
from raftlog.node.storage.chunks import (
    LogScan,
    batch_before,
    batches_below,
    end_of,
    epoch_at,
    read_span,
    scan_log,
)
from raftlog.node.storage.directory import LogState
from raftlog.node.storage.rocks_store import FlushDone
from raftlog.node.storage.wal import LogEnd
from simulation.twins import disk_hardware

LATENCY_S = (0.0001, 0.002)
Place = Literal["log", "snapshot", "vote"]
VoteDone = Callable[[StorageError | None], None]
FreezeDone = Callable[[FatalError | None], None]


class SimDisk(disk_hardware.DiskHardware):
    """The disk of one controller. Arguments as :class:`disk_hardware.DiskHardware` has them."""

    def __init__(
        self, identity: api.NodeIdentity, rng: Random, *, latency_s: tuple[float, float] = LATENCY_S
    ) -> None:
        self.identity = identity
        super().__init__(rng, latency_s)
        self.flipped: dict[int, bytes] = {}
        """Chunks of the log with a flipped bit, by base offset, as they are now."""
        self._flipped_snapshots: dict[api.SnapshotId, bytes] = {}
        self.between_steps: Callable[[], None] = lambda: None
        """Called between the steps of the real store's operations; may crash the node."""
        self.durable = disk_hardware.Chunks([], [])
        self.live = disk_hardware.Chunks([], [])
        self.unflushed: list[disk_hardware.Write] = []
        self.written: list[disk_hardware.Write] = []
        """All durable writes to the log, oldest first: its write-ahead log."""
        self.vote = api.VoteState()
        self.vote_is_corrupt = False
        self.unwritten_votes: list[api.VoteState] = []
        self.starts = api.DirectoryStarts()
        self.was_set_back = False
        """True if the directory is an older copy of what was on this disk."""
        self.nonces_drawn = 0
        """Number of starts, including those that an older copy of the directory has forgotten."""
        self.state = LogState(clean=False, end_offset_at_least=0)
        """Durable: written by a separate call, like the real one."""
        self.snapshots: dict[api.SnapshotId, bytes] = {}
        self.parts: dict[api.SnapshotId, bytearray] = {}
        """Parts of unfinished snapshots: lost by a crash."""
        self.freezing: list[tuple[api.SnapshotId, bytes]] = []
        """Complete snapshots that are not durable yet: a crash may keep or lose each."""

    def open(self) -> SimLogStore:
        self.require_closed()
        return self._opened(SimLogStore(self))

    def crash(self, rng: Random) -> None:
        """Lose power: keep what is durable, and random prefixes of the other writes and votes."""
        self._lose_power(rng)
        for snapshot_id, content in self.freezing:
            # The rename may have reached the disk, and nothing after it.
            if rng.random() < 0.5 and _is_sound(content, snapshot_id):
                self.snapshots[snapshot_id] = content
                self.happened("half_installed_snapshot")
        if self.parts:
            self.happened("snapshot_part_lost")
        self.parts, self.freezing = {}, []
        if kept_votes := rng.randint(0, len(self.unwritten_votes)):
            self.vote = self.unwritten_votes[kept_votes - 1]
        self.live = self.durable.copy()
        self.unwritten_votes = []
        self._end_store()

    def flip_bit(self, rng: Random, place: Place) -> bool:
        """Flip one durable bit of the data in ``place``. Return False if there is none."""
        if place == "vote":
            self.vote_is_corrupt = True
        elif place == "snapshot":
            if not self.snapshots:
                return False
            snapshot_id = rng.choice(sorted(self.snapshots))
            self.snapshots[snapshot_id] = disk_hardware.flipped(self.snapshots[snapshot_id], rng)
            self._flipped_snapshots[snapshot_id] = self.snapshots[snapshot_id]
        else:
            if not self.durable.chunks:
                return False
            base = rng.choice(self.durable.bases)
            at = bisect_left(self.durable.bases, base)
            changed = self.durable.chunks[at] = disk_hardware.flipped(self.durable.chunks[at], rng)
            self.flipped[base] = changed
            alive = bisect_left(self.live.bases, base)
            if alive < len(self.live.bases) and self.live.bases[alive] == base:
                self.live.chunks[alive] = changed[: len(self.live.chunks[alive])]
        self.happened(f"bit_flip_{place}")
        return True

    def is_damaged(self) -> bool:
        """A dropped snapshot that was damaged counts while the log begins at its end."""
        return (
            self.was_set_back
            or self.vote_is_corrupt
            or any(
                disk_hardware.still_there(chunks, *one)
                for one in self.flipped.items()
                for chunks in (self.durable, self.live)
            )
            or any(
                (
                    self.snapshots[one] == damaged
                    if one in self.snapshots
                    else one == log_bounds.log_start_of(self.state)
                )
                for one, damaged in self._flipped_snapshots.items()
            )
        )

    def copied(self) -> SimDisk:
        """Return a copy of the durable contents: the same directory on another disk."""
        rng = Random(self._rng.getrandbits(64))
        copy = SimDisk(self.identity, rng, latency_s=self._latency_s)
        copy.nonces_drawn = self.nonces_drawn + (1 << 32)
        copy.put_back(self)
        copy.was_set_back = False
        return copy

    def put_back(self, older: SimDisk) -> None:
        self.was_set_back = True
        self.identity, self.state, self.vote = older.identity, older.state, older.vote
        self.starts, self.snapshots = older.starts, dict(older.snapshots)
        self.vote_is_corrupt = older.vote_is_corrupt
        self.durable, self.written = older.durable.copy(), older.written.copy()
        self.live = self.durable.copy()

    def without_write(self, number: int, *, snapshots: bool = True) -> Salvage:
        """Return what remains if one durable write, and without ``snapshots`` all snapshots, are
        damaged.
        """
        before, behind = self.written[:number], self.written[number + 1 :]
        contents = [stretches(sorted(_carried_out(one).items())) for one in (before, behind)]
        whole = self.sound_snapshots() if snapshots else {}
        sizes = {one: len(content) for one, content in whole.items()}

        def read(one: api.SnapshotId, position: int, size: int) -> bytes:
            return whole[one][position : position + size]

        return Salvage(self.identity, self.state, contents, self.log_end(), sizes, read)

    def log_end(self) -> LogEnd:
        """Return the end of the durable log, as recorded with the last write."""
        state = self.state
        scanned = scan_log(self.durable.scan(state.start_offset), state.start_offset)
        epoch = scanned.epochs[-1][0] if scanned.epochs else state.start_epoch
        return LogEnd(scanned.end_offset, epoch)

    def store(self, snapshot_id: api.SnapshotId, position: int, data: bytes) -> None:
        if position == 0:
            self.parts[snapshot_id] = bytearray()
        self.parts[snapshot_id] += data

    def keep(self, snapshot_id: api.SnapshotId) -> None:
        """Keep a snapshot that is fetched to mend the log, durably. Raises CorruptLogError."""
        content, own = bytes(self.parts.pop(snapshot_id, b"")), self.identity

        def accept(header: SnapshotHeader) -> None:
            log_bounds.require_header(header, own.cluster_id, own.generation)

        if (flaw := _flaw(content, snapshot_id, accept)) is not None:
            raise flaw
        if self.vote.epoch < snapshot_id.epoch:
            self.vote = api.VoteState(epoch=snapshot_id.epoch)
        self.snapshots[snapshot_id] = content

    def replace_log(self, log: DamagedLog, records: Iterable[bytes]) -> None:
        """Durably replace the damaged log by the mended one."""
        end = log.start_offset
        self.durable = disk_hardware.Chunks([], [])
        for chunk in records:
            self.durable.carry_out(disk_hardware.Write(end, chunk))
            end = end_of(chunk, end)
        self.written = [
            disk_hardware.Write(base, chunk)
            for base, chunk in zip(self.durable.bases, self.durable.chunks, strict=True)
        ]
        if log.start_offset > self.state.start_offset:
            self.state = replace(
                log_bounds.started_at(self.state, log.starts_behind), end_offset_at_least=0
            )
        self.live = self.durable.copy()

    def sound_snapshots(self) -> dict[api.SnapshotId, bytes]:
        return {
            one: content
            for one, content in self.snapshots.items()
            if self._flipped_snapshots.get(one) != content
        }

    def used_bytes(self) -> int:
        frozen = (content for _, content in self.freezing)
        others = (*self.snapshots.values(), *self.parts.values(), *frozen)
        return self.live.size() + sum(map(len, others))

    def write(self, write: disk_hardware.Write) -> None:
        self.live.carry_out(write)
        self.unflushed.append(write)

    def sync(self, count: int) -> None:
        for write in self.unflushed[:count]:
            self.durable.carry_out(write)
        self.written += self.unflushed[:count]
        del self.unflushed[:count]


def _carried_out(writes: Iterable[disk_hardware.Write]) -> dict[int, bytes]:
    """Return the chunks that remain after these writes, some of which may be missing."""
    chunks: dict[int, bytes] = {}
    for write in writes:
        if write.chunk is not None:
            chunks[write.offset] = write.chunk
            continue
        for base, chunk in sorted(chunks.items()):
            if base >= write.offset:
                del chunks[base]
            elif base == max(one for one in chunks if one < write.offset):
                with suppress(ValueError):
                    # The last one below may end before, if what followed is missing.
                    chunks[base] = batches_below(chunk, base, write.offset)
    return chunks


class SimLogStore(disk_hardware.SimStore):
    """See ``raftlog.node.storage.api.LogStore``. Closed or crashed: no callbacks, StorageError."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(disk)
        self._disk = disk
        self._vote_dones: list[VoteDone] = []

    @property
    def identity(self) -> api.NodeIdentity:
        return self._disk.identity

    def bind_generation(self, generation: int) -> None:
        self._check()
        self._disk.identity = replace(self._disk.identity, generation=generation)

    @property
    def starts(self) -> api.DirectoryStarts:
        return self._disk.starts

    def begin_start(self) -> None:
        """Count this start, with a nonce that no other start from this disk has."""
        if self.starts.refused:
            return
        self._disk.nonces_drawn += 1
        own = self.starts.own.next(self._disk.nonces_drawn)
        self.keep_starts(replace(self.starts, count=own.count, nonces=own.nonces))

    def keep_starts(self, starts: api.DirectoryStarts) -> None:
        self._check()
        self._disk.starts = starts

    def batch_before(self, end_offset: int) -> tuple[int, int] | None:
        self._check()
        if end_offset <= self._disk.state.start_offset:
            return None
        return batch_before(self._disk.live.scan(end_offset - 1), end_offset)

    def recover(self) -> api.RecoveredLog:
        """Check what is stored, which then is durable, and describe it."""
        self._check(recovered=False)
        disk = self._disk
        disk.sync(len(disk.unflushed))
        try:
            if disk.vote_is_corrupt:
                raise CorruptLogError("the vote is corrupt: this node might vote twice in an epoch")
            newest = self._newest_sound()
            log_bounds.require_snapshot("the simulated disk", disk.state, newest)
            found = self._scan()
            if newest is not None and not self._is_part(newest[0]):
                self._empty_at(newest[0])
                found = self._scan()
            last_epoch = found.epochs[-1][0] if found.epochs else disk.state.start_epoch
            log_bounds.require_vote("the vote file", disk.vote, last_epoch)
            disk.live.drop_below(disk.state.start_offset)
            disk.durable.drop_below(disk.state.start_offset)
            self._delete_before(log_bounds.log_start_of(disk.state))
        except FatalError as error:
            raise self._commit.fail(self._disk.met(error)) from None
        self._commit.recovered(found.end_offset)
        self._recovered = True
        snapshots, generation = tuple(sorted(disk.snapshots)), disk.identity.generation
        return log_bounds.recovered(disk.vote, disk.state, found, snapshots, newest, generation)

    def _newest_sound(self) -> tuple[api.SnapshotId, SnapshotHeader] | None:
        snapshots = self._disk.snapshots
        for snapshot_id in sorted(snapshots, reverse=True):
            header = _sound_header(snapshots[snapshot_id], snapshot_id)
            if header is not None:
                return snapshot_id, header
            del snapshots[snapshot_id]
        return None

    def _scan(self) -> LogScan:
        state = self._disk.state
        return scan_log(
            self._disk.live.scan(state.start_offset), state.start_offset, state.start_epoch
        )

    def _is_part(self, snapshot_id: api.SnapshotId) -> bool:
        disk, last = self._disk, snapshot_id.end_offset - 1
        return log_bounds.is_part(snapshot_id, disk.state, epoch_at(disk.live.scan(last), last))

    def _empty_at(self, snapshot_id: api.SnapshotId) -> None:
        """Empty the log as the real store does: log, then start, then older snapshots."""
        disk = self._disk
        disk.write(disk_hardware.Write(0, None))
        disk.between_steps()
        disk.sync(len(disk.unflushed))
        disk.between_steps()
        disk.state = log_bounds.emptied_at(disk.state, snapshot_id)
        self._delete_before(snapshot_id)

    def _delete_before(self, snapshot_id: api.SnapshotId) -> None:
        for one in sorted(one for one in self._disk.snapshots if one < snapshot_id):
            self._disk.between_steps()
            del self._disk.snapshots[one]

    def append(self, chunk: bytes, base_offset: int, end_offset: int) -> None:
        self._check()
        end = self._commit.end_offset
        if base_offset != end or end_offset <= base_offset:
            raise ValueError(
                f"cannot append [{base_offset}, {end_offset}) to a log that ends at {end}"
            )
        self._before("append")
        if (failure := self._disk.take_failure("append") or self._disk.room_for(chunk)) is not None:
            raise self._commit.fail(failure)
        self._disk.write(disk_hardware.Write(base_offset, chunk))
        self._commit.end_offset = end_offset

    def flush(self, done: FlushDone, *, inline: bool) -> None:
        self._check()
        self._commit.flush(done, inline=inline)

    def truncate(self, end_offset: int) -> None:
        self._check()
        end = self._commit.end_offset
        start = self._disk.state.start_offset
        if not start <= end_offset <= end:
            raise ValueError(f"cannot truncate the log to {end_offset}: it has [{start}, {end})")
        if end_offset == end:
            return
        self._disk.write(disk_hardware.Write(end_offset, None))
        self._commit.truncated(end_offset)

    def read(self, offset: int, *, until: int, max_bytes: int) -> bytes:
        self._check()
        end = self._commit.end_offset
        start = self._disk.state.start_offset
        if not start <= offset <= until <= end:
            raise ValueError(f"cannot read [{offset}, {until}) of the log: it has [{start}, {end})")
        if offset == until:
            return b""
        try:
            return read_span(self._disk.live.scan(offset), offset, until, max_bytes)
        except FatalError as error:
            raise self._commit.fail(self._disk.met(error)) from None

    def write_vote(self, vote: api.VoteState, done: VoteDone, *, inline: bool = False) -> None:
        """Replace the vote durably, then call ``done`` from the loop; in order, with latency."""
        self._check()
        self._before("write_vote")
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

    def store_snapshot(self, snapshot_id: api.SnapshotId, position: int, data: bytes) -> None:
        self._check()
        self._before("snapshot")
        disk = self._disk
        if (failure := disk.take_failure("snapshot") or disk.room_for(data)) is not None:
            raise self._commit.fail(failure)
        if position == 0:
            disk.parts[snapshot_id] = bytearray()
        part = disk.parts.get(snapshot_id)
        if part is None or len(part) != position:
            raise ValueError(
                f"a part of {snapshot_id} for {position}, the last one ended elsewhere"
            )
        part += data

    def freeze_snapshot(
        self, snapshot_id: api.SnapshotId, done: FreezeDone, accept: api.AcceptHeader | None = None
    ) -> None:
        self._check()
        self._before("snapshot")
        # From here on it is no more what a part at position 0 begins anew.
        one = snapshot_id, bytes(self._disk.parts.pop(snapshot_id, b""))
        self._disk.freezing.append(one)
        self._later("snapshot", lambda: self._frozen(one, done, accept))

    def _frozen(
        self, one: tuple[api.SnapshotId, bytes], done: FreezeDone, accept: api.AcceptHeader | None
    ) -> None:
        disk = self._disk
        disk.freezing.remove(one)
        snapshot_id, content = one
        if (failure := disk.take_failure("snapshot")) is not None:
            self._commit.fail(failure)
        if (broken := self._commit.outcome()) is not None:
            done(broken)
        elif (flaw := _flaw(content, snapshot_id, accept)) is not None:
            done(flaw)
        else:
            disk.snapshots[snapshot_id] = content
            done(None)

    def drop_snapshot(self, snapshot_id: api.SnapshotId) -> None:
        self._check()
        self._disk.parts.pop(snapshot_id, None)

    def snapshot_size(self, snapshot_id: api.SnapshotId) -> int:
        return len(self._disk.snapshots[snapshot_id])

    def snapshot_header(self, snapshot_id: api.SnapshotId) -> SnapshotHeader:
        self._check()
        try:
            return snapshot_file.read_header(self._disk.snapshots[snapshot_id])
        except FatalError as error:
            raise self._commit.fail(self._disk.met(error)) from None

    def read_snapshot(self, snapshot_id: api.SnapshotId, position: int, max_bytes: int) -> bytes:
        self._check()
        content = self._disk.snapshots[snapshot_id]
        if not 0 <= position <= len(content):
            raise ValueError(
                f"position {position} is outside the snapshot, which has {len(content)} bytes"
            )
        return content[position : position + max_bytes]

    def install_snapshot(self, snapshot_id: api.SnapshotId) -> None:
        self._check()
        self.snapshot_size(snapshot_id)
        self._empty_at(snapshot_id)
        self._commit.truncated(snapshot_id.end_offset)

    def advance_log_start(self, snapshot_id: api.SnapshotId) -> None:
        self._check()
        self.snapshot_size(snapshot_id)
        disk, start = self._disk, snapshot_id.end_offset
        if not disk.state.start_offset <= start <= self._commit.end_offset:
            raise ValueError(
                f"cannot move the log start to {start}: the log has [{disk.state.start_offset},"
                f" {self._commit.end_offset})"
            )
        # As the real one: first the start, durably, then older snapshots, then the log, whose
        # deletion a crash may take back.
        disk.state = replace(log_bounds.started_at(disk.state, snapshot_id), end_offset_at_least=0)
        self._delete_before(snapshot_id)
        disk.between_steps()
        disk.live.drop_below(start)
        disk.durable.drop_below(start)

    def close(self) -> None:
        """Close the store. Writes in progress complete, but call nothing back."""
        if self._gone is not None:
            return
        if self._disk.unwritten_votes and self._commit.failure is None:
            self._disk.vote = self._disk.unwritten_votes[-1]
        self._disk.unwritten_votes = []
        for snapshot_id, content in self._disk.freezing:
            if self._commit.failure is None and _is_sound(content, snapshot_id):
                self._disk.snapshots[snapshot_id] = content
        self._disk.parts, self._disk.freezing = {}, []
        self.drop("the store is closed")


def _sound_header(content: bytes, snapshot_id: api.SnapshotId) -> SnapshotHeader | None:
    try:
        header = snapshot_file.verify([content])
    except CorruptLogError:
        return None
    return header if api.SnapshotId(header.end_offset, header.epoch) == snapshot_id else None


def _flaw(
    content: bytes, snapshot_id: api.SnapshotId, accept: api.AcceptHeader | None
) -> CorruptLogError | None:
    header = _sound_header(content, snapshot_id)
    if header is None:
        return CorruptLogError(f"{snapshot_id} is not sound")
    try:
        if accept is not None:
            accept(header)
    except CorruptLogError as error:
        return error
    return None


def _is_sound(content: bytes, snapshot_id: api.SnapshotId) -> bool:
    return _sound_header(content, snapshot_id) is not None

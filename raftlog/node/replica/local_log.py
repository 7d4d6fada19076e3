"""The log of one node: all of it in the store, its end also in memory, with the newest chunks about
to be written.

*Overlap*: when the leader appends, it answers the parked fetches at once, from memory, and writes
to its own disk one iteration of the loop later, so that the followers' disks work in parallel with
its own.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable

from raftlog import batch
from raftlog.bounds import TAIL_CACHE_BYTES
from raftlog.errors import StorageError
from raftlog.metadata.control_records import generations_in, voters_in
from raftlog.metadata.records import RecordType, parse
from raftlog.metadata.snapshot_file import SnapshotHeader
from raftlog.node.observability.figures import Latency
from raftlog.node.storage.api import LogStore, RecoveredLog, SnapshotId
from raftlog.node.storage.chunks import batch_before
from raftlog.quorum import events as ev


class TailCache:
    """The newest chunks of a log in memory, up to a size limit, so that up-to-date replicas and
    observers need no disk.

    The start offset is inclusive, the end exclusive.
    """

    def __init__(self, end_offset: int, max_bytes: int) -> None:
        self._bases: list[int] = []
        self._chunks: list[bytes] = []
        # Chunks before this index were dropped; the lists are compacted occasionally, not at each
        # drop.
        self._first = 0
        self._max_bytes = max_bytes
        self._bytes = 0
        self.start_offset = end_offset
        self.end_offset = end_offset

    @property
    def bytes_kept(self) -> int:
        """Size of all chunks, in bytes; a single chunk may exceed the limit."""
        return self._bytes

    def append(self, chunk: bytes, base_offset: int, end_offset: int) -> None:
        """Add a chunk at the end, and drop the oldest ones above the limit."""
        self._bases.append(base_offset)
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        self.end_offset = end_offset
        while self._bytes > self._max_bytes and self._first < len(self._chunks) - 1:
            self._bytes -= len(self._chunks[self._first])
            self._chunks[self._first] = b""
            self._first += 1
            self.start_offset = self._bases[self._first]
        if self._first > 1024 and self._first * 2 > len(self._chunks):
            del self._bases[: self._first], self._chunks[: self._first]
            self._first = 0

    def newest(self, count: int) -> list[bytes]:
        """Return at most ``count`` of the newest chunks, ascending."""
        return self._chunks[max(self._first, len(self._chunks) - count) :]

    def reset(self, end_offset: int) -> None:
        """Drop all chunks, because the log was truncated to ``end_offset``."""
        self._bases, self._chunks, self._first, self._bytes = [], [], 0, 0
        self.start_offset = self.end_offset = end_offset

    def forget_below(self, offset: int) -> None:
        """Drop the chunks that end at or below the new log start."""
        while self._first < len(self._chunks):
            index = self._first + 1
            end = self._bases[index] if index < len(self._bases) else self.end_offset
            if end > offset:
                break
            self._bytes -= len(self._chunks[self._first])
            self._chunks[self._first] = b""
            self._first = index
        self.start_offset = max(self.start_offset, offset)

    def read(self, offset: int, until: int, max_bytes: int) -> bytes | None:
        """Return whole batches from ``offset`` to ``until``: at least one, as many as fit; None if
        ``offset`` is not cached.

        Both offsets must be batch boundaries, with ``offset`` below ``until``. Raises ValueError if
        ``offset`` is not one.
        """
        if offset < self.start_offset or offset >= self.end_offset:
            return None
        newest = self._chunks[-1]
        if self._bases[-1] == offset and until >= self.end_offset and len(newest) <= max_bytes:
            # Every follower that keeps up takes this path.
            return newest
        index = bisect_right(self._bases, offset, lo=self._first) - 1
        if self._bases[index] != offset:
            return cut(self._chunks[index], offset, until, max_bytes)
        parts: list[bytes] = []
        size = 0
        while index < len(self._chunks):
            chunk = self._chunks[index]
            index += 1
            end = self._bases[index] if index < len(self._bases) else self.end_offset
            if end > until or size + len(chunk) > max_bytes:
                if not parts:
                    return cut(chunk, offset, until, max_bytes)
                break
            parts.append(chunk)
            size += len(chunk)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def cut(chunk: bytes, offset: int, until: int, max_bytes: int) -> bytes:
    """Return whole batches of a chunk from ``offset`` to ``until``: at least one, as many as fit
    into ``max_bytes``.

    Raises ValueError if no batch begins at ``offset``.
    """
    start = end = -1
    for header in batch.headers(chunk, verify=False):
        if header.base_offset < offset:
            continue
        if start < 0:
            if header.base_offset != offset:
                break
            start = header.position
        elif header.position + header.size - start > max_bytes:
            break
        if header.end_offset > until:
            break
        end = header.position + header.size
    if start < 0:
        raise ValueError(f"offset {offset} is not a batch boundary")
    return chunk[start:end] if end >= 0 else b""


READ_BYTES = 1 << 20
PROOF_MAX_BYTES = 16 << 20
"""Maximum number of bytes that are read from records about to be dropped."""


class LocalLog:
    """The log of one node. Start offsets are inclusive, ends exclusive.

    The log must not be used after an error of the store.
    """

    def __init__(
        self,
        store: LogStore,
        *,
        step: Callable[[ev.Event], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._store, self._step, self._fail = store, step, fail
        self._loop = asyncio.get_running_loop()
        self._tail = TailCache(0, TAIL_CACHE_BYTES)
        # Appended, but not yet written to the store.
        self._unwritten: list[ev.LogSpan] = []
        self._disk_turn: asyncio.Handle | None = None
        self._inline = self._is_put_off = False
        self.start_offset = 0
        self.durable_end_offset = 0
        """End of the synced part, as last reported by the store."""
        self.last_timestamp_ms = 0
        self.sync_latency = Latency()
        """Durations of the disk's syncs."""

    def recovered(self, found: RecoveredLog) -> None:
        """Start with the store's recovered log."""
        self._tail.reset(found.end_offset)
        self.start_offset, self.durable_end_offset = found.start_offset, found.end_offset
        self.last_timestamp_ms = found.last_timestamp_ms

    @property
    def end_offset(self) -> int:
        """End of the log: the offset of the next append."""
        return self._tail.end_offset

    @property
    def cached_bytes(self) -> int:
        """Size of the newest chunks in memory, in bytes."""
        return self._tail.bytes_kept

    def check(self, chunk: bytes) -> ev.LogSpan:
        """Return fetched batches as the span that follows the end. Raises CorruptLogError,
        UnknownRecordError.
        """
        end_offset = self._tail.end_offset
        checked = batch.scan(chunk, expect_offset=end_offset)
        voters = voters_in(chunk, checked.control_at) if checked.control_at else ()
        generations = generations_in(chunk, checked.control_at) if checked.control_at else ()
        return ev.LogSpan(
            end_offset,
            checked.end_offset,
            checked.epochs,
            chunk,
            checked.last_timestamp_ms,
            voters,
            generations,
        )

    def append(self, span: ev.LogSpan) -> None:
        """Append a span in memory."""
        self._tail.append(span.data, span.base_offset, span.end_offset)
        self._unwritten.append(span)
        self.last_timestamp_ms = span.last_timestamp_ms

    def batch_before(self, end_offset: int) -> tuple[int, int] | None:
        """Return (base offset, CRC-32C) of the batch that ends at ``end_offset``, or None.

        Raises CorruptLogError.
        """
        if self._unwritten and end_offset > self._unwritten[0].base_offset:
            chunks = ((span.base_offset, span.data) for span in self._unwritten)
            return batch_before(chunks, end_offset)
        return self._store.batch_before(end_offset)

    def committed_above(self, end_offset: int) -> int:
        """Return the highest committed offset (exclusive) that records at or above ``end_offset``
        report, or ``end_offset`` if they report none above it.

        Reads at most PROOF_MAX_BYTES of the log. Raises CorruptLogError.
        """
        proven, offset, read_bytes = end_offset, end_offset, 0
        while offset < self._tail.end_offset and read_bytes < PROOF_MAX_BYTES:
            chunk = self.read(offset, READ_BYTES)
            read_bytes += len(chunk)
            for header in batch.headers(chunk, verify=False):
                offset = header.end_offset
                for data in batch.records(chunk, header):
                    if data.type == RecordType.PROGRESS:
                        proven = max(proven, parse(data).high_watermark)
        return proven

    def truncate(self, end_offset: int) -> None:
        """Drop all records at or above ``end_offset``. Raises StorageError, CorruptLogError."""
        self._write()
        before = self._store.batch_before(end_offset)
        if before is not None:
            last = self._store.read(before[0], until=end_offset, max_bytes=1)
            self.last_timestamp_ms = next(batch.headers(last, verify=False)).timestamp_ms
        self._store.truncate(end_offset)
        self.durable_end_offset = min(self.durable_end_offset, end_offset)
        self._tail.reset(end_offset)

    def install(self, snapshot_id: SnapshotId, header: SnapshotHeader) -> None:
        """Replace the whole log by a complete snapshot: the log is then empty and begins at the
        snapshot's end. Raises StorageError.
        """
        self._write()
        self._store.install_snapshot(snapshot_id)
        self._tail.reset(snapshot_id.end_offset)
        self.start_offset = snapshot_id.end_offset
        self.last_timestamp_ms = header.last_timestamp_ms

    def advance_start(self, snapshot_id: SnapshotId) -> None:
        """Drop the records below the end of a complete snapshot; they must be durable. Raises
        StorageError.
        """
        self._store.advance_log_start(snapshot_id)
        self.start_offset = snapshot_id.end_offset
        self._tail.forget_below(snapshot_id.end_offset)

    def read(self, offset: int, max_bytes: int, *, until: int | None = None) -> bytes:
        """Return whole batches from ``offset`` to ``until`` (boundaries; None for the end): at
        least one, as many as fit; no bytes at the end.

        Raises CorruptLogError.
        """
        tail = self._tail
        if until is None:
            until = tail.end_offset
        if offset >= until:
            return b""
        cached = tail.read(offset, until, max_bytes)
        if cached is not None:
            return cached
        if self._unwritten:
            # The unwritten spans are cached, and not in the store yet: ``offset`` lies before them.
            until = min(until, self._unwritten[0].base_offset)
        return self._store.read(offset, until=until, max_bytes=max_bytes)

    def newest(self, count: int) -> list[bytes]:
        """Return at most ``count`` of the newest chunks in memory, ascending."""
        return self._tail.newest(count)

    # --- the disk --------------------------------------------------------------------------------

    def flush_soon(self, *, inline: bool, within_s: float = 0.0) -> None:
        """Flush in the next iteration of the loop or, with ``within_s``, after that time or with
        the next call.

        The last of several calls decides the time, and ``inline``.
        """
        self._inline = inline
        if self._disk_turn is not None and self._is_put_off:
            self.cancel_flush()
        if self._disk_turn is None:
            self._is_put_off = within_s > 0
            if self._is_put_off:
                self._disk_turn = self._loop.call_later(within_s, self._flush_now)
            else:
                self._disk_turn = self._loop.call_soon(self._flush_now)

    def flush(self, *, inline: bool) -> None:
        """Make the log durable, then step Flushed. ``inline``: as in the store. Raises
        StorageError.
        """
        if self._disk_turn is not None:
            self.cancel_flush()
        self._write()
        self._store.flush(self._flushed, inline=inline)

    def cancel_flush(self) -> None:
        """Cancel the scheduled flush."""
        if self._disk_turn is not None:
            self._disk_turn.cancel()
            self._disk_turn = None

    def _flush_now(self) -> None:
        self._disk_turn = None
        try:
            self.flush(inline=self._inline)
        except Exception as error:
            self._fail(error)

    def _write(self) -> None:
        spans, self._unwritten = self._unwritten, []
        for span in spans:
            self._store.append(span.data, span.base_offset, span.end_offset)

    def _flushed(self, result: int | StorageError) -> None:
        if isinstance(result, StorageError):
            self._fail(result)
            return
        self.sync_latency.observe(self._store.last_sync_s)
        self.durable_end_offset = result
        self._step(ev.Flushed(result))

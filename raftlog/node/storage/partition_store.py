"""The production PartitionStore: the chunks of all partition replicas of a broker in one RocksDB,
synced together.

Keys in RocksDB begin with the topic id and the partition index, so the chunks of a replica are
adjacent, as are the replicas of a topic.

Why: docs/decisions/024-data-plane-group-flush.md
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, groupby
from pathlib import Path

from typing_extensions import override

from raftlog.errors import CorruptLogError, FatalError, StorageError
from raftlog.node.storage.chunks import batches_from, read_span, shortened
from raftlog.node.storage.directory import PartitionsState, write_partitions_state
from raftlog.node.storage.log_bounds import PartitionEnds, damage_in, scan_partition
from raftlog.node.storage.partition_api import PartitionKey, RecoveredPartition
from raftlog.node.storage.rocks_adapter import START, RocksPartitions
from raftlog.node.storage.rocks_store import RocksStore

TOPIC_ID_BYTES = 16
_INDEX = struct.Struct(">I")
COMPACT_MIN_BYTES = 16 << 20
"""Deleted bytes of one log below which a compaction costs more than it frees."""


class RocksPartitionStore(RocksStore):
    """A ``PartitionStore`` on RocksDB, created by ``open_partition_store``. Owns ``rocks``."""

    def __init__(
        self,
        directory: Path,
        left: PartitionsState,
        rocks: RocksPartitions,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(directory, rocks, loop=loop, clock=clock)
        self._left = left
        self._rocks = rocks
        self._to_compact: dict[bytes, tuple[bytes, bytes]] = {}
        self._dropped_bytes: dict[bytes, int] = {}
        """Bytes of each log below its start that have not been compacted yet."""
        self._compact_below: dict[bytes, int] = {}
        self._compacting = False
        self._ends = PartitionEnds()

    def recover(self) -> tuple[RecoveredPartition, ...]:
        """Check every replica, in one pass.

        Raises CorruptLogError with the replica and offset, StorageError.
        """
        self._check(recovered=False)
        try:
            # RocksDB has made durable what it replayed from its WAL; this syncs what it may have
            # left in the WAL.
            self._rocks.sync()
            found = tuple(self._scan())
            self._ends.recovered(found)
            self._left.require(self._directory, len(found), self._ends.records())
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._recovered = True
        return found

    def _scan(self) -> Iterator[RecoveredPartition]:
        with closing(self._rocks.scan_all()) as entries:
            for name, group in groupby(entries, lambda entry: entry[0]):
                chunks = ((base, chunk) for _, base, chunk in group)
                first = next(chunks)
                if first[0] == START:
                    yield scan_partition(_key(name), chunks, int.from_bytes(first[1], "big"))
                else:
                    yield scan_partition(_key(name), chain((first,), chunks))

    def append(self, key: PartitionKey, chunk: bytes, base_offset: int, end_offset: int) -> None:
        """Write a chunk at a replica's end.

        Raises StorageError, and ValueError if the chunk does not begin there.
        """
        self._check()
        self._ends.check_append(key, base_offset, end_offset)
        try:
            self._rocks.put(_name(key), base_offset, chunk)
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._ends.appended(key, end_offset)

    def flush(self, done: Callable[[StorageError | None], None], *, inline: bool) -> None:
        """See ``PartitionStore``. Raises the earlier error of a broken store."""
        self._check()
        self._commit.flush(
            lambda outcome: done(outcome if isinstance(outcome, StorageError) else None),
            inline=inline,
        )

    def truncate(self, key: PartitionKey, end_offset: int) -> None:
        """Delete everything at or above ``end_offset``.

        Raises StorageError, and ValueError if ``end_offset`` is not a batch boundary of the
        replica.
        """
        self._check()
        if not self._ends.check_truncate(key, end_offset):
            return
        name = _name(key)
        at_start = end_offset == self._ends.start(key)
        try:
            self._rocks.replace_tail(
                # The first chunk may begin below the start.
                name,
                0 if at_start else end_offset,
                None if at_start else self._last_chunk_below(name, end_offset),
            )
        except CorruptLogError as error:
            raise self._commit.fail(damage_in(key, error)) from error
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._ends.truncated(key, end_offset)

    def _last_chunk_below(self, name: bytes, end_offset: int) -> tuple[int, bytes] | None:
        with closing(self._rocks.scan(name, end_offset - 1)) as chunks:
            return shortened(chunks, end_offset)

    def advance_start(self, key: PartitionKey, start_offset: int, *, dropped_bytes: int) -> None:
        """Delete everything below ``start_offset``.

        Raises CorruptLogError, StorageError, and ValueError if ``start_offset`` is not a batch
        boundary of the replica.
        """
        self._check()
        if not self._ends.check_advance(key, start_offset):
            return
        name = _name(key)
        try:
            with closing(self._rocks.scan(name, start_offset)) as chunks:
                base, chunk = next(chunks)
            batches_from(chunk, base, start_offset)
            self._rocks.advance_start(name, base, start_offset)
        except CorruptLogError as error:
            raise self._commit.fail(damage_in(key, error)) from error
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._ends.advanced(key, start_offset)
        self._dropped_bytes[name] = dropped = self._dropped_bytes.get(name, 0) + dropped_bytes
        if dropped >= COMPACT_MIN_BYTES:
            del self._dropped_bytes[name]
            self._compact_below[name] = start_offset
            self._compact_next()

    def reset(self, key: PartitionKey, start_offset: int) -> None:
        """See ``PartitionStore``. Raises StorageError."""
        self._check()
        try:
            self._rocks.reset(_name(key), start_offset)
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._ends.reset(key, start_offset)

    def read(self, key: PartitionKey, offset: int, *, until: int, max_bytes: int) -> bytes:
        """See ``PartitionStore``. Raises CorruptLogError, StorageError, ValueError."""
        self._check()
        if not self._ends.check_read(key, offset, until):
            return b""
        try:
            with closing(self._rocks.scan(_name(key), offset)) as chunks:
                return read_span(chunks, offset, until, max_bytes, inside=True)
        except CorruptLogError as error:
            raise self._commit.fail(damage_in(key, error)) from error
        except FatalError as error:
            raise self._commit.fail(error) from None

    def delete(self, key: PartitionKey) -> None:
        """Delete a replica, and free its space in the background. Raises StorageError."""
        self._check()
        if key not in self._ends:
            return
        name = _name(key)
        try:
            self._rocks.reset(name, 0)
        except FatalError as error:
            raise self._commit.fail(error) from None
        self._ends.reset(key, 0)
        self._dropped_bytes.pop(name, None)
        self._compact_below.pop(name, None)
        first, last = self._to_compact.get(key[0], (name, name))
        self._to_compact[key[0]] = min(first, name), max(last, name)
        self._compact_next()

    def _compact_next(self) -> None:
        """Compact one topic after the other; deletions in the meantime are compacted together."""
        if self._compacting or not (self._to_compact or self._compact_below):
            return
        self._compacting = True
        if self._to_compact:
            first, last = self._to_compact.pop(next(iter(self._to_compact)))
            work = partial(self._rocks.compact, first, last)
        else:
            work = partial(self._rocks.compact_below, *self._compact_below.popitem())
        self._compaction.run(work, self._compacted, inline=False)

    def _compacted(self, error: FatalError | None) -> None:
        self._compacting = False
        if error is not None:
            self._commit.fail(error)
        else:
            self._compact_next()

    @override
    def free_bytes(self) -> int:
        """Return the free space in bytes. Raises StorageError, also for an earlier failure in the
        background.
        """
        if self._commit.failure is not None:
            raise self._commit.failure
        return super().free_bytes()

    def used_bytes(self) -> int:
        """Return the size of the replicas' files in bytes, including deleted data that is not
        compacted yet.

        Raises StorageError.
        """
        return self._rocks.size_bytes()

    @override
    def _mark_closed(self, *, in_order: bool) -> None:
        if in_order:
            left = PartitionsState(
                clean=True, partitions=len(self._ends), records=self._ends.records()
            )
            write_partitions_state(self._directory, left)

    @override
    def _release(self) -> None:
        """Release nothing, as the broker holds the lock on the data directory."""


def _name(key: PartitionKey) -> bytes:
    """Return the prefix of the replica's keys in RocksDB. Raises ValueError for a topic id of
    another size.
    """
    topic_id, index = key
    if len(topic_id) != TOPIC_ID_BYTES:
        raise ValueError(f"a topic id must have {TOPIC_ID_BYTES} bytes, not {len(topic_id)}")
    return topic_id + _INDEX.pack(index)


def _key(name: bytes) -> PartitionKey:
    return name[:TOPIC_ID_BYTES], _INDEX.unpack_from(name, TOPIC_ID_BYTES)[0]

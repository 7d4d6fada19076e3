"""The consumer: committed records of topics, read from the partitions' leaders in order within each
partition.

There are no groups and no stored positions: a reader names the position to start from, and stores
it itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from google.protobuf.message import DecodeError
from typing_extensions import override

from raftlog import batch
from raftlog.bounds import DATA_REQUEST_MAX_PARTITIONS
from raftlog.client.arguments import checked
from raftlog.client.endpoints import Endpoints, with_reasons
from raftlog.client.leaders import (
    STALE_LEADER,
    PartitionClient,
    PartitionKey,
    TopicView,
    no_partition,
)
from raftlog.client.requests import item_error, pause_after, require_success
from raftlog.client.streams import AsyncStream
from raftlog.client.values import OFFSET_MAX
from raftlog.errors import ApiError, CorruptLogError, ErrorCode, RaftlogError
from raftlog.transport.api import Transport
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.data.v1 import data_pb2

if TYPE_CHECKING:
    from raftlog.client.core import Core

DATA_RECORD = 1
"""Type of a partition's records in a batch."""


class Record(NamedTuple):
    """One committed record.

    ``leader_epoch``: the epoch in which it was written. ``timestamp_ms``: set by its producer, or
    else by its leader.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def records_from(topic: str, partition: int, chunk: bytes, offset: int) -> Iterator[Record]:
    """Yield the records of whole batches from ``offset`` onwards. Raises ApiError
    CORRUPT_MESSAGE.
    """
    try:
        for header in batch.headers(chunk, verify=True):
            at = header.base_offset
            for type_, _, body in batch.bodies(chunk, header):
                if at >= offset and type_ == DATA_RECORD:
                    yield _record(topic, partition, at, header, body)
                at += 1
    except (CorruptLogError, DecodeError) as error:
        raise ApiError(
            ErrorCode.CORRUPT_MESSAGE, f"{topic}-{partition} at offset {offset}: {error}"
        ) from error


def end_of(chunk: bytes) -> int:
    """Return the offset after a chunk of whole batches. Raises ApiError CORRUPT_MESSAGE."""
    end = -1
    try:
        for header in batch.headers(chunk, verify=False):
            end = header.end_offset
    except CorruptLogError as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
    return end


def _record(
    topic: str, partition: int, offset: int, header: batch.BatchHeader, body: bytes
) -> Record:
    record = data_pb2.DataRecord.FromString(body)
    return Record(
        topic,
        partition,
        offset,
        header.epoch,
        record.timestamp_ms or header.timestamp_ms,
        record.key if record.HasField("key") else None,
        record.value if record.HasField("value") else None,
        tuple((one.key, one.value if one.HasField("value") else None) for one in record.headers),
    )


LATEST, EARLIEST = -1, -2
"""Symbolic offsets: after the last committed record, and the first record of the log."""
METADATA_MAX_AGE_MS = 30_000
"""Interval in ms at which the library and the command look for added partitions."""
RETRY_BACKOFF_S = 0.1
_NO_LEADER = ApiError(ErrorCode.LEADER_NOT_AVAILABLE, "no reachable leader is known")
RETRIABLE = STALE_LEADER | {ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.THROTTLING_QUOTA_EXCEEDED}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Settings of a consumer, with Kafka's names and meanings.

    ``offset_reset``: the offset to continue from when the position is out of range, or None to
    raise an error. ``metadata_max_age_ms``: interval at which to look for added partitions of
    topics that are read as a whole, or None for never.
    """

    fetch_max_wait_ms: int = 500
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 4 << 20
    max_partition_fetch_bytes: int = 1 << 20
    buffer_bytes: int = 16 << 20
    """Size in bytes of the fetched but unpolled records at which fetching pauses."""
    request_timeout_ms: int = 10_000
    offset_reset: int | None = None
    metadata_max_age_ms: int | None = None


class _Position:
    """The read position in one partition. A negative offset is an unresolved LATEST or EARLIEST."""

    __slots__ = (
        "busy",
        "error",
        "failing_since",
        "high_watermark",
        "key",
        "next_offset",
        "not_before",
        "topic",
    )

    def __init__(self, topic: str, key: PartitionKey, offset: int) -> None:
        self.topic, self.key, self.next_offset = topic, key, offset
        self.busy = False
        self.not_before = 0.0
        self.high_watermark = -1
        self.error: ApiError | None = None
        self.failing_since = 0.0

    def failing(self, error: ApiError | None, now: float) -> None:
        """Record the error in the last answer, or None if it had none."""
        if self.error is None:
            self.failing_since = now
        self.error = error


class Consumer(PartitionClient):
    """A client that reads records."""

    def __init__(
        self,
        transport: Transport,
        bootstrap: Endpoints,
        *,
        rng: random.Random,
        settings: ConsumerSettings | None = None,
        cluster_id: str = "",
    ) -> None:
        super().__init__(transport, bootstrap, rng, cluster_id)
        self._settings = settings or ConsumerSettings()
        # Topics whose partitions are unknown so far: partition (-1 for all) -> offset.
        self._wanted: dict[str, dict[int, int]] = {}
        self._positions: dict[PartitionKey, _Position] = {}
        # Topics that are read as a whole, as of the last look for added partitions.
        self._whole: dict[str, TopicView] = {}
        self._look_at = 0.0
        self._parts_asked = 0
        self._busy: dict[int, None] = {}
        self._buffer: deque[tuple[_Position, list[Record], int]] = deque()
        self._buffered_bytes = 0
        self._consumed: dict[tuple[str, int], int] = {}
        self._failure: ApiError | None = None
        self._news = asyncio.Event()
        """Set when a caller of ``poll`` has to check again."""

    # --- assignment ------------------------------------------------------------------------------

    def assign(self, topic: str, partition: int = -1, offset: int = EARLIEST) -> None:
        """Read a partition (-1: all of the topic) from an offset, EARLIEST or LATEST."""
        self._wanted.setdefault(topic, {})[partition] = offset
        self._schedule()

    async def locate(self, timeout_s: float) -> None:
        """Wait until each start offset is known or has failed, or until the timeout. Only records
        after these offsets are read.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (self._closed or self._failure) and (
                    self._wanted or any(one.next_offset < 0 for one in self._positions.values())
                ):
                    self._news.clear()
                    await self._news.wait()

    def position(self, topic: str, partition: int) -> int:
        """Return the offset of the next record that ``poll`` will return from a partition, or -1
        before the first.
        """
        return self._consumed.get((topic, partition), -1)

    def high_watermark(self, topic: str, partition: int) -> int:
        """High watermark of the last fetch, or -1 if there was none."""
        found = (
            one for one in self._positions.values() if (one.topic, one.key[1]) == (topic, partition)
        )
        return next((one.high_watermark for one in found), -1)

    async def poll(self, timeout_s: float) -> list[Record]:
        """Return the next records from any of the partitions; empty if none arrived in time or the
        consumer was closed.

        Raises ApiError OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID,
        CORRUPT_MESSAGE and any other error for which retrying does not help.
        """
        self._require_open()
        deadline = self._loop.time() + timeout_s
        while not self._buffer and self._failure is None:
            self._schedule()
            self._news.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                return []
            if self._closed:
                return []
        if not self._buffer:
            assert self._failure is not None
            failure = self._failure
            if self._positions or self._wanted:
                self._failure = None  # Reading the other partitions continues.
            raise failure
        position, records, size = self._buffer.popleft()
        self._buffered_bytes -= size
        self._schedule()
        self._consumed[position.topic, position.key[1]] = records[-1].offset + 1
        return records

    def _require_open(self) -> None:
        if self._closed:
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, "the consumer was closed")

    @property
    def unknown_topics(self) -> list[str]:
        """Return the assigned topics whose partitions are unknown so far."""
        return sorted(self._wanted)

    @property
    def failure(self) -> str:
        """Return why metadata could not be read last time, so that no records may arrive; or ""."""
        return self._leaders.failure

    def failing(self, for_s: float = 0.0) -> dict[tuple[str, int], ApiError]:
        """Return the last errors of partitions that have returned only errors for this many
        seconds.
        """
        now = self._loop.time()
        return {
            (one.topic, one.key[1]): one.error
            for one in self._positions.values()
            if one.error is not None and now - one.failing_since >= for_s
        }

    @property
    def answered(self) -> bool:
        """Whether the leader of any partition has answered."""
        return any(one.high_watermark >= 0 for one in self._positions.values())

    def unread(self, *, unanswered: bool = False) -> ApiError | None:
        """Return why ``poll`` may not have returned all records, or None if it has.

        ``unanswered``: consider only partitions whose leader has never answered.
        """
        if self._wanted:
            if failure := self._leaders.failure:
                return ApiError(ErrorCode.REQUEST_TIMED_OUT, failure)
            message = f"there is no topic {self.unknown_topics[0]}"
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
        unread = [
            one
            for one in self._positions.values()
            if one.high_watermark < 0 or (one.high_watermark > one.next_offset and not unanswered)
        ]
        if not unread:
            return None
        reasons = {
            f"{one.topic}-{one.key[1]}": str(one.error or self._leaders.trouble(one.key))
            for one in unread
        }
        error = next((one.error for one in unread if one.error is not None), None)
        code = ErrorCode.REQUEST_TIMED_OUT if error is None else error.code
        return ApiError(code, f"no records arrived in time from {with_reasons(reasons)}")

    @override
    def close(self) -> None:
        super().close()
        self._news.set()

    # --- fetching --------------------------------------------------------------------------------

    @override
    def _work(self, now: float) -> None:
        self._find_wanted()
        ready: dict[int, list[tuple[_Position, int]]] = {}
        earliest = self._find_added(now)
        for key, position in self._positions.items():
            if position.busy or position.not_before > now:
                earliest = earliest if position.busy else min(earliest, position.not_before)
                continue
            leader = self._leaders.leader(key)
            if leader is None:
                position.failing(_NO_LEADER, now)
                self._leaders.refresh()
            elif leader.leader_id not in self._busy:
                ready.setdefault(leader.leader_id, []).append((position, leader.leader_epoch))
        for leader_id, positions in ready.items():
            self._ask(leader_id, positions)
        self._timer.arm(earliest)

    def _find_wanted(self) -> None:
        for topic, wanted in list(self._wanted.items()):
            view = self._leaders.want(topic)
            if view is None:
                continue
            del self._wanted[topic]
            if -1 in wanted:
                self._whole[topic] = view
            for index, offset in sorted(wanted.items()):
                if index >= view.partition_count:
                    self._fail(no_partition(topic, index, view.partition_count))
                for one in range(view.partition_count) if index < 0 else [index]:
                    self._positions.setdefault(
                        (view.id, one), _Position(topic, (view.id, one), offset)
                    )

    def _find_added(self, now: float) -> float:
        """Start to read added partitions from their first record; return the time of the
        next look.
        """
        max_age_ms = self._settings.metadata_max_age_ms
        if max_age_ms is None or not self._whole:
            return float("inf")
        for topic, known in self._whole.items():
            view = self._leaders.want(topic)
            if view is not None and view.id == known.id:
                for index in range(known.partition_count, view.partition_count):
                    key = (view.id, index)
                    self._positions[key] = _Position(topic, key, EARLIEST)
                self._whole[topic] = view
        if now >= self._look_at:
            if self._look_at:  # Once they are found, they are no longer unknown.
                self._leaders.refresh()
            self._look_at = now + max_age_ms / 1000
        return self._look_at

    def _ask(self, leader_id: int, positions: list[tuple[_Position, int]]) -> None:
        """Send a leader requests, one at a time: first for unknown offsets, then for records."""
        unknown = [one for one in positions if one[0].next_offset < 0]
        if unknown:
            self._list_offsets(leader_id, unknown[:DATA_REQUEST_MAX_PARTITIONS])
        elif self._buffered_bytes < self._settings.buffer_bytes:
            self._fetch(leader_id, self._next_of(positions))

    def _next_of(self, positions: list[tuple[_Position, int]]) -> list[tuple[_Position, int]]:
        """Return the positions for the next request: all, or the next part of them in turn."""
        if len(positions) <= DATA_REQUEST_MAX_PARTITIONS:
            return positions
        self._parts_asked += 1
        begin = self._parts_asked * DATA_REQUEST_MAX_PARTITIONS % len(positions)
        return (positions[begin:] + positions[:begin])[:DATA_REQUEST_MAX_PARTITIONS]

    def _list_offsets(self, leader_id: int, positions: list[tuple[_Position, int]]) -> None:
        body = data_pb2.ListOffsetsRequest()
        for position, epoch in positions:
            body.partitions.add(
                topic_id=position.key[0],
                partition_index=position.key[1],
                current_leader_epoch=epoch,
                timestamp=position.next_offset,
            )
        self._call(leader_id, body, positions, self._settings.request_timeout_ms / 1000)

    def _fetch(self, leader_id: int, positions: list[tuple[_Position, int]]) -> None:
        settings = self._settings
        body = data_pb2.FetchRequest(
            max_wait_ms=settings.fetch_max_wait_ms,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
        )
        for position, epoch in positions:
            body.partitions.add(
                topic_id=position.key[0],
                partition_index=position.key[1],
                current_leader_epoch=epoch,
                fetch_offset=position.next_offset,
                partition_max_bytes=settings.max_partition_fetch_bytes,
            )
        self._call(
            leader_id,
            body,
            positions,
            (settings.fetch_max_wait_ms + settings.request_timeout_ms) / 1000,
        )

    def _call(
        self, leader_id: int, body: Any, positions: list[tuple[_Position, int]], timeout_s: float
    ) -> None:
        asked = [position for position, _ in positions]
        for position in asked:
            position.busy = True
        self._busy[leader_id] = None
        self._leaders.call(leader_id, body, timeout_s).add_done_callback(
            partial(self._answered, leader_id, asked)
        )

    # --- answers ---------------------------------------------------------------------------------

    def _answered(
        self,
        leader_id: int,
        asked: list[_Position],
        future: asyncio.Future[broker_pb2.BrokerResponse],
    ) -> None:
        if self._closed:
            future.exception()  # Retrieved to avoid a warning: no caller is left.
            return
        del self._busy[leader_id]
        for position in asked:
            position.busy = False
        try:
            response = require_success(future.result())
        except ApiError as error:
            self._refused(asked, error)
        else:
            by_key = {position.key: position for position in asked}
            results: Sequence[Any] = (
                response.fetch.partitions
                if response.HasField("fetch")
                else response.list_offsets.partitions
            )
            for result in results:
                position_ = by_key.get((result.topic_id, result.partition_index))
                if position_ is not None:
                    self._take(position_, result)
        self._schedule()

    def _take(self, position: _Position, result: Any) -> None:
        if result.error_code:
            if isinstance(result, data_pb2.FetchPartitionResult) and result.HasField(
                "current_leader"
            ):
                self._leaders.learn(position.key, result.current_leader)
            field = "offset" if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE else ""
            error = item_error(result, f"{position.topic}-{position.key[1]}", field=field)
            assert error is not None
            self._refused([position], error)
            return
        self._leaders.settled()
        position.failing(None, self._loop.time())
        if isinstance(result, data_pb2.ListOffsetsPartitionResult):
            position.next_offset = result.offset
            self._news.set()
            return
        position.high_watermark = result.high_watermark
        if result.records:
            self._take_records(position, result.records)

    def _take_records(self, position: _Position, chunk: bytes) -> None:
        try:
            end = end_of(chunk)
            records = list(
                records_from(position.topic, position.key[1], chunk, position.next_offset)
            )
        except ApiError as error:
            self._fail(error)
            position.not_before = self._loop.time() + RETRY_BACKOFF_S
            return
        position.next_offset = max(position.next_offset, end)
        if position.key in self._positions:
            # To the end of the next request: one answer may not have room for all, and the first
            # ones are served first.
            self._positions[position.key] = self._positions.pop(position.key)
        if records:
            self._buffer.append((position, records, len(chunk)))
            self._buffered_bytes += len(chunk)
            self._news.set()

    def _refused(self, positions: list[_Position], error: ApiError) -> None:
        """After a retriable error, look up the leader again and retry later. The next poll raises
        any other error.
        """
        if error.code in STALE_LEADER:
            self._leaders.refresh()
        for position in positions:
            position.not_before = self._loop.time() + pause_after(error, RETRY_BACKOFF_S)
            position.failing(error, self._loop.time())
            view = self._leaders.want(position.topic)
            if view is None or view.id != position.key[0]:
                # The topic was known before, and the brokers asked since do not have it.
                self._positions.pop(position.key, None)
                self._whole.pop(position.topic, None)
                code, other = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""
                if view is not None:
                    code, other = ErrorCode.UNKNOWN_TOPIC_ID, ", and a new topic has taken its name"
                self._fail(ApiError(code, f"topic {position.topic} was deleted{other}"))
            elif (
                error.code is ErrorCode.OFFSET_OUT_OF_RANGE
                and self._settings.offset_reset is not None
            ):
                position.next_offset = self._settings.offset_reset
            elif error.code not in RETRIABLE:
                self._fail(error)

    def _fail(self, error: ApiError) -> None:
        self._failure = error
        self._news.set()


Offset = int | Literal["earliest", "latest"]
POLL_TIMEOUT_S = 1.0
_LOOK_AGAIN_S = 0.05
"""Seconds between two checks whether everything has been read."""


class AsyncRecords(AsyncStream[Record]):
    """The stream returned by :meth:`AsyncClient.consume`; an asynchronous context manager and
    iterable.
    """

    what = "consumer"

    def __init__(self, core: Core, consumer: Consumer, idle_timeout_s: float | None) -> None:
        super().__init__(core, consumer)
        self._consumer = consumer
        self.idle_timeout_s = idle_timeout_s
        self._ready: deque[Record] = deque()
        self._timeout_s = core.options.timeout_s
        self._answers_by = self._loop.time() + self._timeout_s

    @classmethod
    async def begin(
        cls,
        core: Core,
        topic: str,
        partition: int | None,
        offset: Offset,
        idle_timeout_s: float | None,
    ) -> Self:
        """Return a stream once its start offsets are known. Raises UnknownTopicOrPartitionError,
        ValueError.
        """
        position = {"earliest": EARLIEST, "latest": LATEST}.get(str(offset), offset)
        if (
            not isinstance(position, int)
            or isinstance(offset, bool)
            or (position < 0 and isinstance(offset, int))
            or position > OFFSET_MAX
        ):
            raise ValueError(
                f"offset={offset!r:.80}: must be a number of at least 0, 'earliest' or 'latest'"
            )
        response = await core.read(broker_pb2.MetadataRequest(topics=[topic]))
        (found,) = response.metadata.topics
        error = item_error(found, f"there is no topic {topic!r}", field="topic")
        if error is None and not -1 < (partition or 0) < len(found.partitions):
            error = no_partition(topic, partition, len(found.partitions))
        if error is not None:
            raise error
        # Records that existed at the start may be deleted before they are read.
        reset = EARLIEST if position == EARLIEST else None
        consumer = core.consumer(
            ConsumerSettings(offset_reset=reset, metadata_max_age_ms=METADATA_MAX_AGE_MS)
        )
        consumer.assign(topic, -1 if partition is None else partition, position)
        records = cls(core, consumer, idle_timeout_s)
        if position == LATEST:
            try:
                await consumer.locate(core.options.timeout_s)
            except BaseException:
                await records.close()
                raise
        return records

    @checked
    async def poll(self, timeout_s: float = POLL_TIMEOUT_S) -> list[Record]:
        """Return records that are buffered or arrive within the time: several from one partition,
        or none. Raises RaftlogError once the consumer is closed.
        """
        if self.closed:
            raise RaftlogError("this consumer was closed")
        with self.reader:
            if self._ready:
                records = [*self._ready]
                self._ready.clear()
                return records
            return await self._poll(timeout_s)

    async def _poll(self, timeout_s: float) -> list[Record]:
        """Poll. If a partition has never answered, raise the reason, once."""
        left_s = max(0.0, self._answers_by - self._loop.time())
        if timeout_s < left_s:
            return await self._consumer.poll(timeout_s)
        records = await self._consumer.poll(left_s)
        if records or self.closed:
            return records
        self._answers_by = math.inf
        if error := self._consumer.unread(unanswered=True):
            raise error
        return await self._consumer.poll(timeout_s - left_s)

    async def next_batch(self) -> list[Record]:
        """Return the next records, without a time limit; empty once the stream has ended."""
        with self.reader:
            return await self._next_batch()

    async def _next_batch(self) -> list[Record]:
        idle_timeout_s = self.idle_timeout_s
        wait_s = POLL_TIMEOUT_S if idle_timeout_s is None else idle_timeout_s
        begun_at = self._loop.time()
        while not self.closed:
            if records := await self._poll(wait_s):
                return records
            if idle_timeout_s is None:
                continue
            # A stream is idle once it has read all records: not before its first answer, nor while
            # the next records are in flight.
            wait_s = _LOOK_AGAIN_S
            error = self._consumer.unread()
            if error is None:
                await self.close()
            elif self._loop.time() - begun_at >= max(idle_timeout_s, self._timeout_s):
                raise error
        return []

    @override
    async def _next(self) -> Record:
        if not self._ready:
            self._ready.extend(await self._next_batch())
        if not self._ready or self.closed:
            raise StopAsyncIteration
        return self._ready.popleft()

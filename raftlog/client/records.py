"""The records of a topic, one after the other."""

from __future__ import annotations

import math
from collections import deque
from typing import Literal, Self

from typing_extensions import override

from raftlog.client.arguments import checked
from raftlog.client.conditions import OFFSET_MAX
from raftlog.client.consumer import (
    EARLIEST,
    LATEST,
    METADATA_MAX_AGE_MS,
    Consumer,
    ConsumerSettings,
)
from raftlog.client.core import Core
from raftlog.client.data_records import ConsumedRecord
from raftlog.client.streams import AsyncStream
from raftlog.client.wire import item_error
from raftlog.errors import ApiError, ErrorCode, RaftlogError
from raftlog.wire.broker.v1 import broker_pb2

Record = ConsumedRecord
Offset = int | Literal["earliest", "latest"]
POLL_TIMEOUT_S = 1.0
_LOOK_AGAIN_S = 0.05
"""Time between two looks whether everything has been read, in seconds."""


class AsyncRecords(AsyncStream[Record]):
    """What :meth:`AsyncClient.consume` returns, for ``async with`` and ``async for``."""

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
        """Return once it is known where the records begin. Raises UnknownTopicOrPartitionError, and
        ValueError for an offset that is none.
        """
        position = {"earliest": EARLIEST, "latest": LATEST}.get(str(offset), offset)
        if (
            not isinstance(position, int)
            or isinstance(offset, bool)
            or (position < 0 and isinstance(offset, int))
            or position > OFFSET_MAX
        ):
            raise ValueError(f"offset={offset!r:.80}: a number from 0 on, 'earliest' or 'latest'")
        response = await core.read(broker_pb2.MetadataRequest(topics=[topic]))
        (found,) = response.metadata.topics
        error = item_error(found.error_code, f"there is no topic {topic!r}", "topic")
        if error is None and not -1 < (partition or 0) < len(found.partitions):
            message = (
                f"topic {topic} has no partition {partition}: it has"
                f" {len(found.partitions)}, from 0 on"
            )
            error = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message, field="partition")
        if error is not None:
            raise error
        # What was there when it began to read may be dropped before it is read.
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
        """Return the records that are there or arrive within the time: several of one partition, or
        none. Raises RaftlogError once the consumer is closed.
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
        """Poll, and raise once why a partition has not answered since the beginning."""
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
        """Return the next records, however long it takes; empty once they have ended."""
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
            # It is idle once it has read all there is: not before its first answer, nor while the
            # next records are on their way.
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

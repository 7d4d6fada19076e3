"""The records of a topic, one after the other."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Literal, Self

from raftlog.client.consumer import EARLIEST, LATEST, Consumer, ConsumerSettings
from raftlog.client.data_records import ConsumedRecord
from raftlog.errors import ApiError, ErrorCode
from raftlog.library.core import Core
from raftlog.library.wire import item_error
from raftlog.wire.broker.v1 import broker_pb2

Record = ConsumedRecord
Offset = int | Literal["earliest", "latest"]
_WAIT_S = 1.0


class AsyncRecords:
    """What :meth:`AsyncClient.consume` gives: ``async for`` and ``async with``."""

    def __init__(self, consumer: Consumer, idle_timeout_s: float | None) -> None:
        self._consumer = consumer
        self._idle_timeout_s = idle_timeout_s
        self._ready: deque[Record] = deque()
        self._closed = False

    @classmethod
    async def begin(
        cls,
        core: Core,
        topic: str,
        partition: int | None,
        offset: Offset,
        idle_timeout_s: float | None,
    ) -> Self:
        """Raises UnknownTopicOrPartitionError, and ValueError for an offset that is none."""
        position = {"earliest": EARLIEST, "latest": LATEST}.get(str(offset), offset)
        if not isinstance(position, int) or (position < 0 and isinstance(offset, int)):
            raise ValueError(f"offset={offset!r}: a number from 0 on, 'earliest' or 'latest'")
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
        consumer = core.consumer(ConsumerSettings(offset_reset=reset))
        consumer.assign(topic, -1 if partition is None else partition, position)
        return cls(consumer, idle_timeout_s)

    async def poll(self, timeout_s: float = _WAIT_S) -> list[Record]:
        """What has come, or comes within the time: several records of one partition, or none."""
        if self._ready:
            records = [*self._ready]
            self._ready.clear()
            return records
        return await self._consumer.poll(timeout_s)

    async def next_batch(self) -> list[Record]:
        """The next records, however long it takes; empty: they have ended."""
        if self._closed:
            return []
        if self._idle_timeout_s is not None:
            records = await self.poll(self._idle_timeout_s)
            if not records:
                await self.close()
            return records
        while not (records := await self.poll()):
            pass
        return records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        if not self._ready:
            self._ready.extend(await self.next_batch())
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading. Idempotent."""
        self._closed = True
        self._consumer.close()

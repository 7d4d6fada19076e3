"""The producer: batches to the partitions' leaders, in order within a partition, without duplicates
by default.

A batch is retried if it was definitely not executed: refused by a broker that does not lead or is
fenced, refused for too few in-sync replicas, or never sent. An unknown outcome is reported as such;
``retry_unknown`` retries those, too, at the price of duplicates.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import xxhash
from typing_extensions import override

from raftlog import tracing
from raftlog.bounds import DATA_REQUEST_MAX_PARTITIONS, PRODUCE_MAX_RECORDS
from raftlog.client.endpoints import Endpoints
from raftlog.client.leaders import STALE_LEADER, PartitionClient, PartitionKey, no_partition
from raftlog.client.requests import item_error, pause_after, require_success
from raftlog.errors import ApiError, ErrorCode
from raftlog.transport.api import Transport
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.data.v1 import data_pb2


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The position of a record; with acks 0, the position that it has unless it is lost."""

    topic: str
    partition: int
    offset: int


class Waiting:
    """A record to be sent. ``deadline``: time after which it is no longer sent."""

    __slots__ = ("caller", "data", "deadline", "future", "unknown")

    def __init__(
        self, data: bytes, deadline: float, future: asyncio.Future[RecordMetadata]
    ) -> None:
        self.data = data
        self.deadline = deadline
        self.future = future
        self.caller: Any = None
        """The span in which the record was written, if calls are traced."""
        self.unknown = False
        """Whether an attempt had an unknown outcome, so that no later error is definite."""

    def fail(self, error: ApiError) -> None:
        """Report an error to the caller; the error also says if an earlier attempt may have
        succeeded.
        """
        if self.future.done():
            return
        if self.unknown and not error.outcome_unknown:
            error = ApiError(
                error.code,
                f"{error.message}; an earlier attempt may have been executed",
                field=error.field,
                outcome_unknown=True,
            )
        self.future.set_exception(error)


class PartitionQueue:
    """A partition's queue, with one batch in flight at a time, so that records stay in order across
    retries; records that arrive meanwhile share the next batch.
    """

    def __init__(self, topic: str, index: int) -> None:
        self.topic, self.index = topic, index
        self.in_flight: list[Waiting] = []
        self.not_before = 0.0
        """Earliest time of the retry after a definite refusal."""
        self.last_error: ApiError | None = None
        self.max_bytes = 1 << 62
        """Largest batch that the leader accepts, in bytes."""
        self._waiting: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + len(self.in_flight)

    @property
    def next_deadline(self) -> float:
        """Deadline of the oldest waiting record, or infinity if none."""
        return self._waiting[0].deadline if self._waiting else float("inf")

    def add(self, record: Waiting) -> None:
        """Append a record."""
        self._waiting.append(record)

    def ready(self, now: float) -> bool:
        """Return whether a batch could be sent."""
        return bool(self._waiting) and not self.in_flight and now >= self.not_before

    def waiting(self) -> list[Waiting]:
        """Return the records that are not in flight, in order."""
        return list(self._waiting)

    def take(self, max_bytes: int) -> list[Waiting]:
        """Make the next batch the one ``in_flight``; return the cancelled records."""
        size, limit = 0, min(max_bytes, self.max_bytes)
        waiting, batch = self._waiting, self.in_flight
        cancelled: list[Waiting] = []
        while waiting and (not batch or size + len(waiting[0].data) <= limit):
            record = waiting.popleft()
            if record.future.done():
                cancelled.append(record)
            else:
                batch.append(record)
                size += len(record.data)
        return cancelled

    def halve(self) -> bool:
        """Halve the maximum batch size, after the leader has refused a batch; return False if the
        batch had only one record.
        """
        if len(self.in_flight) < 2:
            return False
        self.max_bytes = sum(len(record.data) for record in self.in_flight) // 2
        return True

    def stored(self, base_offset: int) -> list[Waiting]:
        """Complete the batch in flight, which begins at ``base_offset``, and return its records."""
        done, self.in_flight = self.in_flight, []
        self.last_error = None
        for number, record in enumerate(done):
            if not record.future.done():
                offset = base_offset + number if base_offset >= 0 else -1
                record.future.set_result(RecordMetadata(self.topic, self.index, offset))
        return done

    def failed(self, error: ApiError) -> list[Waiting]:
        """Fail the batch in flight, and return its records."""
        done, self.in_flight = self.in_flight, []
        for record in done:
            record.fail(error)
        return done

    def again(self, error: ApiError, not_before: float) -> None:
        """Return the batch to the front of the queue, as it was not executed or duplicates are
        allowed.
        """
        for record in self.in_flight:
            record.unknown = record.unknown or error.outcome_unknown
        self._waiting.extendleft(reversed(self.in_flight))
        self.in_flight = []
        self.last_error, self.not_before = error, not_before

    def expire(self, now: float, why: str) -> list[Waiting]:
        """Remove, fail and return the records past their deadline."""
        gone: list[Waiting] = []
        while self._waiting and (
            self._waiting[0].deadline <= now or self._waiting[0].future.done()
        ):
            gone.append(self._waiting.popleft())
        last = self.last_error
        for record in gone:
            if last is not None:
                message = f"gave up at the deadline: {last.message}"
                record.fail(ApiError(last.code, message, field=last.field))
            else:
                record.fail(ApiError(ErrorCode.REQUEST_TIMED_OUT, f"not sent in time: {why}"))
        return gone

    def give_up(self, error: ApiError) -> list[Waiting]:
        """Fail all waiting records, and return them; records in flight are not affected."""
        gone, self._waiting = list(self._waiting), deque()
        for record in gone:
            record.fail(error)
        return gone


ACKS_ALL, ACKS_LEADER, ACKS_NONE = -1, 1, 0
RETRY_BACKOFF_S = 0.1
"""Pause before a retry, in seconds: retry.backoff.ms."""
RECORD_OVERHEAD_BYTES = 16
_FIELD = re.compile(r"(.*) \(field ([^ ()]+)\)", re.DOTALL)
"""Pattern of a message that ends with the field: a partition's result has no separate place
for it.
"""
RETRIABLE = STALE_LEADER | {
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of a producer, with Kafka's names. ``retry_unknown``: retry unknown outcomes."""

    acks: int = ACKS_ALL
    batch_bytes: int = 256 << 10
    """batch.size: largest total size of one partition's records in one request, in bytes."""
    request_bytes: int = 4 << 20
    """max.request.size: largest size of one request, and of one record, in bytes."""
    buffer_bytes: int = 32 << 20
    """buffer.memory: largest total size of unfinished records, in bytes; more are refused."""
    request_timeout_ms: int = 10_000
    delivery_timeout_ms: int = 30_000
    retry_unknown: bool = False


class Producer(PartitionClient):
    """A client that writes records."""

    def __init__(
        self,
        transport: Transport,
        bootstrap: Endpoints,
        *,
        rng: random.Random,
        settings: ProducerSettings | None = None,
        cluster_id: str = "",
    ) -> None:
        super().__init__(transport, bootstrap, rng, cluster_id)
        self._settings = settings or ProducerSettings()
        if self._settings.acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
            raise ApiError(
                ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1 (all), 1 or 0", field="acks"
            )
        # Records of unknown topics, with the input for choosing their partition.
        self._unrouted: dict[str, list[tuple[Waiting, bytes | None, int]]] = {}
        self._queues: dict[PartitionKey, PartitionQueue] = {}
        self._sticky: dict[str, int] = {}
        self._bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """Total size of the records that are waiting or in flight, in bytes."""
        return self._bytes

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int = -1,
        timestamp_ms: int = 0,
    ) -> RecordMetadata:
        """Write one record and wait until it is acknowledged. Raises ApiError."""
        return await self.post(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms
        )

    def post(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int = -1,
        timestamp_ms: int = 0,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> asyncio.Future[RecordMetadata]:
        """Queue a record; the future completes as :meth:`send` does, within the delivery timeout.

        ``partition``: -1 chooses it by the key's hash; records without a key that share a batch go
        to the same partition. Raises ApiError THROTTLING_QUOTA_EXCEEDED when the buffer is
        full, or MESSAGE_TOO_LARGE; nothing is sent then.
        """
        record = data_pb2.DataRecord(key=key, value=value, timestamp_ms=timestamp_ms)
        for name, content in headers:
            record.headers.add(key=name, value=content)
        data = record.SerializeToString()
        size = len(data) + RECORD_OVERHEAD_BYTES
        self._admit(size)
        deadline = self._loop.time() + self._settings.delivery_timeout_ms / 1000
        waiting = Waiting(data, deadline, self._loop.create_future())
        if tracing.active is not None:
            waiting.caller = tracing.active.caller()
        self._bytes += size
        self._route(topic, waiting, key, partition)
        self._schedule()
        return waiting.future

    async def flush(self) -> None:
        """Wait until all records posted so far have succeeded or failed."""
        pending = [one.future for one in self._all()]
        if pending:
            await asyncio.wait(pending)

    @override
    def close(self) -> None:
        """Fail all unfinished records; those in flight have an unknown outcome. Idempotent."""
        if self._closed:
            return
        super().close()
        error = ApiError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed")
        unknown = ApiError(
            ErrorCode.NETWORK_EXCEPTION, "the producer was closed", outcome_unknown=True
        )
        for topic in list(self._unrouted):
            self._release([waiting for waiting, _, _ in self._unrouted.pop(topic)], error)
        for queue in self._queues.values():
            self._ended(queue.failed(unknown))
            self._ended(queue.give_up(error))

    # --- the queue -------------------------------------------------------------------------------

    def _admit(self, size: int) -> None:
        settings = self._settings
        if self._closed:
            raise ApiError(ErrorCode.NETWORK_EXCEPTION, "the producer was closed")
        if size > settings.request_bytes:
            message = (
                f"the record has {size} bytes, but max.request.size is {settings.request_bytes}"
            )
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, message, field="value")
        if self._bytes + size > settings.buffer_bytes:
            message = (
                f"{self._bytes} bytes of records are waiting or in flight, but buffer.memory is"
                f" {settings.buffer_bytes}"
            )
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)

    def _route(self, topic: str, waiting: Waiting, key: bytes | None, partition: int) -> None:
        view = self._leaders.want(topic)
        if view is None or topic in self._unrouted:
            self._unrouted.setdefault(topic, []).append((waiting, key, partition))
            return
        if partition >= view.partition_count:
            self._release([waiting], no_partition(topic, partition, view.partition_count))
            return
        index = partition if partition >= 0 else self._choose(topic, key, view.partition_count)
        queue = self._queues.get((view.id, index))
        if queue is None:
            queue = self._queues[view.id, index] = PartitionQueue(topic, index)
        queue.add(waiting)

    def _choose(self, topic: str, key: bytes | None, count: int) -> int:
        """Return the partition of a record; the hash is not Kafka's."""
        if key is not None:
            return xxhash.xxh3_64_intdigest(key) % count
        if topic not in self._sticky:
            self._sticky[topic] = self._rng.randrange(count)
        return self._sticky[topic] % count

    def _all(self) -> list[Waiting]:
        unrouted = [waiting for records in self._unrouted.values() for waiting, _, _ in records]
        return unrouted + [
            one for queue in self._queues.values() for one in (*queue.in_flight, *queue.waiting())
        ]

    def _release(self, records: list[Waiting], error: ApiError) -> None:
        for record in records:
            record.fail(error)
        self._ended(records)

    def _ended(self, records: list[Waiting]) -> None:
        self._bytes -= sum(len(record.data) + RECORD_OVERHEAD_BYTES for record in records)

    # --- sending ---------------------------------------------------------------------------------

    @override
    def _work(self, now: float) -> None:
        self._route_waiting()
        self._expire(now)
        ready: dict[int, list[tuple[PartitionKey, PartitionQueue, int]]] = {}
        for key, queue in self._queues.items():
            self._check_topic(key, queue)
            if queue.ready(now):
                leader = self._leaders.leader(key)
                if leader is None:
                    self._leaders.refresh()
                else:
                    ready.setdefault(leader.leader_id, []).append((key, queue, leader.leader_epoch))
        for leader_id, queues in ready.items():
            self._send(leader_id, queues)
        self._queues = {
            key: queue
            for key, queue in self._queues.items()
            if len(queue) or queue.not_before > now
        }
        self._arm(now)

    def _route_waiting(self) -> None:
        for topic in list(self._unrouted):
            if self._leaders.want(topic) is not None:
                for waiting, key, partition in self._unrouted.pop(topic):
                    self._route(topic, waiting, key, partition)

    def _check_topic(self, key: PartitionKey, queue: PartitionQueue) -> None:
        """Fail the waiting records of a deleted topic whose name a new topic has taken."""
        view = self._leaders.want(queue.topic)
        if view is not None and view.id != key[0]:
            message = f"topic {queue.topic} was deleted, and a new topic has taken its name"
            self._ended(queue.give_up(ApiError(ErrorCode.UNKNOWN_TOPIC_ID, message)))

    def _send(self, leader_id: int, queues: list[tuple[PartitionKey, PartitionQueue, int]]) -> None:
        """Send one request to one broker; partitions that do not fit are sent in another
        request.
        """
        settings = self._settings
        size = count = 0
        body = data_pb2.ProduceRequest(acks=settings.acks, timeout_ms=settings.request_timeout_ms)
        sent: list[tuple[PartitionKey, PartitionQueue]] = []
        for key, queue, epoch in queues:
            if sent and (
                size + settings.batch_bytes > settings.request_bytes
                or count >= PRODUCE_MAX_RECORDS // 2
                or len(sent) == DATA_REQUEST_MAX_PARTITIONS
            ):
                self._call(leader_id, body, sent)
                body = data_pb2.ProduceRequest(
                    acks=settings.acks, timeout_ms=settings.request_timeout_ms
                )
                size, count, sent = 0, 0, []
            self._ended(queue.take(settings.batch_bytes))
            self._sticky.pop(queue.topic, None)
            records = [one.data for one in queue.in_flight]
            if records:
                body.partitions.add(
                    topic_id=key[0],
                    partition_index=key[1],
                    current_leader_epoch=epoch,
                    records=records,
                )
                size += sum(map(len, records))
                count += len(records)
                sent.append((key, queue))
        if sent:
            self._call(leader_id, body, sent)

    def _call(
        self,
        leader_id: int,
        body: data_pb2.ProduceRequest,
        sent: list[tuple[PartitionKey, PartitionQueue]],
    ) -> None:
        callers: list[Any] = []
        if tracing.active is not None:
            callers = [one.caller for _, queue in sent for one in queue.in_flight]
        timeout_s = self._settings.request_timeout_ms / 1000
        future = self._leaders.call(leader_id, body, timeout_s, callers)
        future.add_done_callback(partial(self._answered, sent))

    # --- results ---------------------------------------------------------------------------------

    def _answered(
        self,
        sent: list[tuple[PartitionKey, PartitionQueue]],
        future: asyncio.Future[broker_pb2.BrokerResponse],
    ) -> None:
        if self._closed:
            future.exception()  # Retrieved to avoid a warning: the records have their outcome.
            return
        failure: ApiError | None = None
        results: Sequence[data_pb2.ProducePartitionResult] = ()
        try:
            results = require_success(future.result()).produce.partitions
        except ApiError as error:
            failure = error
        if failure is None and len(results) != len(sent):
            message = f"{len(results)} results for {len(sent)} partitions"
            failure = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, message, outcome_unknown=True)
        if failure is not None:
            for _, queue in sent:
                self._failed(queue, failure)
        else:
            for (key, queue), result in zip(sent, results, strict=True):
                self._take(key, queue, result)
        self._schedule()

    def _take(
        self, key: PartitionKey, queue: PartitionQueue, result: data_pb2.ProducePartitionResult
    ) -> None:
        error = item_error(result, f"{queue.topic}-{queue.index}")
        if error is None:
            self._leaders.settled()
            self._ended(queue.stored(result.base_offset))
            return
        if result.HasField("current_leader"):
            self._leaders.learn(key, result.current_leader)
        if named := _FIELD.fullmatch(error.message):
            error.message, error.field = named.groups()
        self._failed(queue, error)

    def _failed(self, queue: PartitionQueue, error: ApiError) -> None:
        if error.code in STALE_LEADER:
            self._leaders.refresh()
        retriable = error.code in RETRIABLE and (
            not error.outcome_unknown or self._settings.retry_unknown
        )
        if (
            error.code is ErrorCode.MESSAGE_TOO_LARGE
            and not error.outcome_unknown
            and queue.halve()
        ):
            queue.again(error, 0.0)
        elif retriable:
            queue.again(error, self._loop.time() + pause_after(error, RETRY_BACKOFF_S))
        else:
            self._ended(queue.failed(error))

    # --- deadlines -------------------------------------------------------------------------------

    def _expire(self, now: float) -> None:
        why = self._leaders.failure or "no leader is known"
        for queue in self._queues.values():
            if queue.next_deadline <= now:
                self._ended(queue.expire(now, why))
        for topic, records in list(self._unrouted.items()):
            late = [
                waiting
                for waiting, _, _ in records
                if self._leaders.turned_away or waiting.deadline <= now or waiting.future.done()
            ]
            if late:
                left = [one for one in records if one[0] not in late]
                self._unrouted[topic] = left
                if not left:
                    del self._unrouted[topic]
                self._release(late, self._why_unrouted(topic))
            if topic in self._unrouted:
                self._leaders.refresh()

    def _why_unrouted(self, topic: str) -> ApiError:
        """Return why a topic's partitions are unknown: no broker answers, or it does not exist."""
        if self._leaders.turned_away is not None:
            return self._leaders.turned_away
        if self._leaders.failure:
            return ApiError(
                ErrorCode.REQUEST_TIMED_OUT, f"not sent in time: {self._leaders.failure}"
            )
        return ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"not sent in time: there is no topic {topic}"
        )

    def _arm(self, now: float) -> None:
        """Set the single timer to the earliest deadline or end of a back-off."""
        at = min(
            (waiting[0][0].deadline for waiting in self._unrouted.values()), default=float("inf")
        )
        for queue in self._queues.values():
            at = min(
                at,
                queue.next_deadline,
                queue.not_before if queue.not_before > now else float("inf"),
            )
        self._timer.arm(max(at, now + 0.001))

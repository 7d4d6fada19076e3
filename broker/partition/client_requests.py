"""Client requests: produce requests, answered at the requested acks level, and consumers' fetches
and offset requests, which see only records below the high watermark.

Each client has a share of the places for waiting requests; when a link closes, its requests are
dropped.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError

from broker.partition.events import (
    AnswerFetch,
    AnswerProduce,
    Client,
    FetchReceived,
    ProduceReceived,
    Read,
)
from broker.partition.host import Host, Timer
from broker.partition.leader import Leader, leader_of
from raftlog.bounds import PRODUCE_MAX_RECORDS, RETRY_AFTER_MS, Shares, bounded_timeout_ms
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.data.v1 import data_pb2 as pb

T = TypeVar("T", bound=Hashable)


class WaitingOfClients(Generic[T]):
    """Waiting items, at most ``max_total``.

    An item without a client counts towards the total, but has no share. All operations are O(1).
    """

    def __init__(self, max_total: int) -> None:
        self._max_total = max_total
        self._shares = Shares(max_total)
        self._of_link: dict[Hashable, dict[T, None]] = {}
        self.count = 0

    def has_room(self, client: Client | None) -> bool:
        """Return whether another item may wait."""
        if self.count >= self._max_total:
            return False
        return client is None or self._shares.has_room(client.peer)

    def add(self, client: Client | None, item: T) -> None:
        """Add an item, for which there must be room."""
        self.count += 1
        if client is not None:
            self._shares.take(client.peer)
            self._of_link.setdefault(client.link, {})[item] = None

    def remove(self, client: Client | None, item: T) -> None:
        """Remove a waiting item, and return its place to its client's share."""
        self.count -= 1
        if client is not None:
            self._shares.give_back(client.peer)
            of_link = self._of_link[client.link]
            del of_link[item]
            if not of_link:
                del self._of_link[client.link]

    def of(self, client: Client) -> list[T]:
        """Return the items that wait for a client's link, in order of arrival."""
        return list(self._of_link.get(client.link, ()))


ALL, LEADER, NOBODY = -1, 1, 0


class Produces:
    """All produce requests of a broker.

    Once records are appended they may stay, whatever the answer is, so later errors have an unknown
    outcome.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.waiting: WaitingOfClients[_Produce] = WaitingOfClients(
            host.settings.max_pending_produces
        )

    def received(self, event: ProduceReceived) -> None:
        """Append the valid partitions, and answer at once or when the request is complete."""
        request = event.request
        produce = _Produce(self, request, event)
        refusal, timeout_ms = None, 0
        try:
            self._check(request, event.client)
            timeout_ms = bounded_timeout_ms(
                request.timeout_ms,
                "timeout_ms",
                default_ms=0,
                max_ms=self.host.settings.request_timeout_max_ms,
            )
        except ApiError as error:
            refusal = error
        for index, data in enumerate(request.partitions):
            try:
                if refusal is not None:
                    raise refusal
                leader = leader_of(
                    self.host, data.topic_id, data.partition_index, data.current_leader_epoch
                )
                self._append(produce, index, leader, data, event)
            except ApiError as error:
                produce.refused(index, error)
        produce.begin(timeout_ms)

    def client_closed(self, client: Client) -> None:
        """Drop the answers to a closed client; appended records stay."""
        for produce in self.waiting.of(client):
            produce.abandon()

    def _check(self, request: pb.ProduceRequest, client: Client | None) -> None:
        """Raise the error that refuses the whole request."""
        if not self.host.serves:
            raise ApiError(ErrorCode.BROKER_FENCED, self.host.why_not_serving())
        if request.acks not in (ALL, LEADER, NOBODY):
            raise ApiError(
                ErrorCode.INVALID_REQUIRED_ACKS,
                f"acks {request.acks} must be -1, 0 or 1",
                field="acks",
            )
        count = sum(len(data.records) for data in request.partitions)
        if count > PRODUCE_MAX_RECORDS:
            message = f"{count} records given; one request may have at most {PRODUCE_MAX_RECORDS}"
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, message, field="partitions")
        if not self.waiting.has_room(client):
            message = f"{self.waiting.count} produce requests are waiting already"
            raise ApiError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, message, throttle_time_ms=RETRY_AFTER_MS
            )

    def _append(
        self,
        produce: _Produce,
        index: int,
        leader: Leader,
        data: pb.ProducePartition,
        event: ProduceReceived,
    ) -> None:
        _check_records(data)
        acks = event.request.acks
        if acks == ALL and not leader.enough_in_sync():
            isr = list(leader.isr.state.committed)
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"the ISR is {isr}, but min.insync.replicas is {leader.min_isr}",
            )
        base, end = leader.append(data.records, event.timestamp_ms)
        pending = produce.appended(index, base, end)
        if acks == NOBODY:
            pending.succeeded()
        else:
            leader.wait(pending, for_commit=acks == ALL)


def _check_records(data: pb.ProducePartition) -> None:
    if not data.records:
        raise ApiError(
            ErrorCode.INVALID_RECORD, "records is empty; give at least one", field="records"
        )
    for position, body in enumerate(data.records):
        try:
            pb.DataRecord.FromString(body)
        except DecodeError as error:
            raise ApiError(
                ErrorCode.INVALID_RECORD,
                "the record is not a DataRecord",
                field=f"records[{position}]",
            ) from error


class Pending:
    """The records appended to one partition for one request."""

    __slots__ = ("_base_offset", "_index", "_produce", "end_offset")

    def __init__(self, produce: _Produce, index: int, base_offset: int, end_offset: int) -> None:
        self._produce, self._index = produce, index
        self._base_offset, self.end_offset = base_offset, end_offset

    @property
    def ended(self) -> bool:
        """See ``PendingAppend``."""
        return self._produce.ended

    def succeeded(self) -> None:
        """See ``PendingAppend``."""
        self._end(pb.ProducePartitionResult(base_offset=self._base_offset))

    def failed(
        self,
        code: ErrorCode,
        message: str,
        *,
        outcome_unknown: bool,
        current_leader: pb.CurrentLeader | None = None,
    ) -> None:
        """See ``PendingAppend``."""
        self._end(
            pb.ProducePartitionResult(
                error_code=code,
                error_message=message,
                base_offset=self._base_offset,
                current_leader=current_leader,
                outcome_unknown=outcome_unknown,
            )
        )

    def _end(self, result: pb.ProducePartitionResult) -> None:
        self._produce.end_partition(self._index, result)


class _Produce:
    """One request under way."""

    def __init__(
        self, produces: Produces, request: pb.ProduceRequest, event: ProduceReceived
    ) -> None:
        self._produces = produces
        # Not the request itself: its records are in the log, and very many requests may wait.
        self._keys = [(data.topic_id, data.partition_index) for data in request.partitions]
        self._reply_to = event.reply_to
        self._client = event.client
        self._results: list[pb.ProducePartitionResult | None] = [None] * len(request.partitions)
        self._left = len(request.partitions)
        self._appended: list[Pending | None] = [None] * len(request.partitions)
        self._timer: Timer | None = None
        self._begun = False
        self.ended = False

    def appended(self, index: int, base_offset: int, end_offset: int) -> Pending:
        pending = self._appended[index] = Pending(self, index, base_offset, end_offset)
        return pending

    def refused(self, index: int, error: ApiError) -> None:
        current = self._produces.host.current_leader(self._keys[index])
        message = f"{error.message} (field {error.field})" if error.field else error.message
        result = pb.ProducePartitionResult(
            error_code=error.code, error_message=message, base_offset=-1, current_leader=current
        )
        self.end_partition(index, result)

    def begin(self, timeout_ms: int) -> None:
        """Begin to wait, unless all partitions have ended already."""
        self._begun = True
        if self._left == 0:
            self._answer()
            return
        self._produces.waiting.add(self._client, self)
        host = self._produces.host
        self._timer = host.deadlines.at(host.now + timeout_ms / 1000, self._timed_out)

    def abandon(self) -> None:
        """End without an answer."""
        self.ended = True
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        self._produces.waiting.remove(self._client, self)
        self._produces.host.deadlines.cancel(self._timer)

    def end_partition(self, index: int, result: pb.ProducePartitionResult) -> None:
        if self.ended or self._results[index] is not None:
            return
        result.topic_id, result.partition_index = self._keys[index]
        self._results[index] = result
        self._left -= 1
        if self._begun and self._left == 0:
            self._stop_waiting()
            self._answer()

    def _timed_out(self) -> None:
        for index, pending in enumerate(self._appended):
            if pending is not None and self._results[index] is None:
                pending.failed(
                    ErrorCode.REQUEST_TIMED_OUT,
                    "the requested acks level was not reached in time",
                    outcome_unknown=True,
                )

    def _answer(self) -> None:
        self.ended = True
        response = pb.ProduceResponse(
            partitions=[result for result in self._results if result is not None]
        )
        self._produces.host.out.append(AnswerProduce(self._reply_to, response))


LATEST, EARLIEST = -1, -2
_NO_LIMIT = 1 << 31


class Fetches:
    """All parked consumer fetches.

    ``min_bytes`` above 1 counts as 1: any record ends the wait.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.waiting: WaitingOfClients[ParkedFetch] = WaitingOfClients(
            host.settings.max_parked_fetches
        )
        self._numbers = 0

    def received(self, event: FetchReceived) -> None:
        """Answer at once if there is data, an error, or no time to wait; otherwise park the
        fetch.
        """
        request = event.request
        self._numbers += 1
        fetch = ParkedFetch(self, event, self._numbers)
        urgent = request.max_wait_ms <= 0 or request.min_bytes <= 0 or not request.partitions
        full = not self.waiting.has_room(event.client)
        if not self.host.serves or urgent or full or fetch.has_news():
            fetch.answer()
        else:
            fetch.park()

    def client_closed(self, client: Client) -> None:
        """End the parked fetches of a closed client."""
        for fetch in self.waiting.of(client):
            fetch.abandon()

    def list_offsets(self, request: pb.ListOffsetsRequest) -> pb.ListOffsetsResponse:
        """Return, for each partition, its first offset or the one after its last committed
        record.
        """
        return pb.ListOffsetsResponse(
            partitions=[self._offset(asked) for asked in request.partitions]
        )

    def _offset(self, asked: pb.ListOffsetsPartition) -> pb.ListOffsetsPartitionResult:
        result = pb.ListOffsetsPartitionResult(
            topic_id=asked.topic_id,
            partition_index=asked.partition_index,
            offset=-1,
            leader_epoch=-1,
        )
        try:
            _check_serving(self.host)
            leader = leader_of(
                self.host, asked.topic_id, asked.partition_index, asked.current_leader_epoch
            )
            result.leader_epoch = leader.epoch
            result.offset = _offset_at(leader, asked.timestamp)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        return result


class ParkedFetch:
    """One fetch: checked on arrival, and once more when it is answered."""

    def __init__(self, fetches: Fetches, event: FetchReceived, number: int) -> None:
        self._fetches, self._event, self._number = fetches, event, number
        self._offsets: dict[Leader, int] = {}
        self._timer: Timer | None = None
        self._answered = False

    def has_news(self) -> bool:
        """Return whether there is anything to send; if not, record the leaders to wait for."""
        for asked in self._event.request.partitions:
            try:
                leader, until = _readable(self._fetches.host, asked)
            except ApiError:
                return True
            if asked.fetch_offset < until:
                return True
            self._offsets[leader] = min(
                asked.fetch_offset, self._offsets.get(leader, asked.fetch_offset)
            )
        return False

    def park(self) -> None:
        """Wait for a high watermark to move, for a leader to resign, or for the timeout."""
        host = self._fetches.host
        self._fetches.waiting.add(self._event.client, self)
        for leader in self._offsets:
            leader.waiting[self._number] = self
        wait_ms = min(self._event.request.max_wait_ms, host.settings.request_timeout_max_ms)
        self._timer = host.deadlines.at(host.now + wait_ms / 1000, self.answer)

    def abandon(self) -> None:
        """End the wait without an answer."""
        if not self._answered:
            self._over()

    def committed(self, leader: Leader, high_watermark: int) -> None:
        """See ``WaitingFetch``."""
        if high_watermark > self._offsets[leader]:
            self.answer()

    def answer(self) -> None:
        """See ``WaitingFetch``."""
        if self._answered:
            return
        self._over()
        host = self._fetches.host
        request, reads = self._event.request, list[Read]()
        response = pb.FetchResponse(
            partitions=[
                self._result(asked, index, reads) for index, asked in enumerate(request.partitions)
            ]
        )
        host.out.append(
            AnswerFetch(
                self._event.reply_to, response, tuple(reads), request.max_bytes or _NO_LIMIT
            )
        )

    def _over(self) -> None:
        self._answered = True
        if self._timer is not None:
            self._fetches.host.deadlines.cancel(self._timer)
            self._fetches.waiting.remove(self._event.client, self)
        for leader in self._offsets:
            leader.waiting.pop(self._number, None)

    def _result(
        self, asked: pb.FetchPartition, index: int, reads: list[Read]
    ) -> pb.FetchPartitionResult:
        host, key = self._fetches.host, (asked.topic_id, asked.partition_index)
        result = pb.FetchPartitionResult(
            topic_id=asked.topic_id,
            partition_index=asked.partition_index,
            high_watermark=-1,
            log_start_offset=-1,
        )
        try:
            if self._timer is None:
                _check_serving(host)  # A parked fetch was accepted before.
            leader, until = _readable(host, asked)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            result.current_leader.CopyFrom(host.current_leader(key))
            return result
        result.high_watermark, result.log_start_offset = until, leader.replica.log.start
        if asked.fetch_offset < until:
            reads.append(
                Read(index, key, asked.fetch_offset, until, asked.partition_max_bytes or _NO_LIMIT)
            )
        return result


def _check_serving(host: Host) -> None:
    if not host.serves:
        raise ApiError(ErrorCode.BROKER_FENCED, host.why_not_serving())


def _offset_at(leader: Leader, timestamp: int) -> int:
    if timestamp == EARLIEST:
        return leader.replica.log.start
    if timestamp == LATEST:
        return _high_watermark(leader)
    raise ApiError(
        ErrorCode.INVALID_REQUEST,
        f"timestamp is {timestamp}; it must be -1 (latest) or -2 (earliest)",
        field="timestamp",
    )


def _high_watermark(leader: Leader) -> int:
    if leader.high_watermark < 0:
        why = "a member of the ISR has not fetched"
        if leader.isr.holds_high_watermark():
            why = "too few replicas are in sync"
        raise ApiError(
            ErrorCode.OFFSET_NOT_AVAILABLE, f"the high watermark is not known yet: {why}"
        )
    return leader.high_watermark


def _readable(host: Host, asked: pb.FetchPartition) -> tuple[Leader, int]:
    """Return this broker's leader of a partition, and the end of what a consumer may read."""
    leader = leader_of(host, asked.topic_id, asked.partition_index, asked.current_leader_epoch)
    log, until = leader.replica.log, _high_watermark(leader)
    if not log.start <= asked.fetch_offset <= log.end:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {asked.fetch_offset} is not in {log.start} .. {until}",
            field="fetch_offset",
        )
    return leader, until

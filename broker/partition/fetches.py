"""Fetches and offset requests of consumers, which see only records below the high watermark."""

from __future__ import annotations

from broker.partition.clients import WaitingOfClients
from broker.partition.deadlines import Timer
from broker.partition.events import AnswerFetch, Client, FetchReceived, Read
from broker.partition.host import Host
from broker.partition.leader import Leader
from broker.partition.produces import leader_of
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.data.v1 import data_pb2 as pb

LATEST, EARLIEST = -1, -2
_NO_LIMIT = 1 << 31


class Fetches:
    """All parked fetches of consumers.

    ``min_bytes`` above 1 counts as 1: any record ends the wait.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.waiting: WaitingOfClients[ParkedFetch] = WaitingOfClients(
            host.settings.max_parked_fetches
        )
        self._numbers = 0

    def received(self, event: FetchReceived) -> None:
        """Answer at once if there is data, an error, or no time to wait; else park."""
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
        """Return the first offset, or the one after the last committed record."""
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
        """Return whether there is anything to send; if not, find the leaders to wait for."""
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
        """Note that a high watermark has moved."""
        if high_watermark > self._offsets[leader]:
            self.answer()

    def answer(self) -> None:
        """Answer with the records available now; at most once."""
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
                _check_serving(host)  # Requests accepted before have ended.
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
        ErrorCode.INVALID_REQUEST, "neither -1 (latest) nor -2 (earliest)", field="timestamp"
    )


def _high_watermark(leader: Leader) -> int:
    if leader.high_watermark < 0:
        raise ApiError(
            ErrorCode.OFFSET_NOT_AVAILABLE,
            "the high watermark is not known yet: a member of the ISR has not fetched",
        )
    return leader.high_watermark


def _readable(host: Host, asked: pb.FetchPartition) -> tuple[Leader, int]:
    """Return the leader here, and the end of what a consumer may read."""
    leader = leader_of(host, asked.topic_id, asked.partition_index, asked.current_leader_epoch)
    log, until = leader.replica.log, _high_watermark(leader)
    if not log.start <= asked.fetch_offset <= log.end:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {asked.fetch_offset} is not in {log.start} .. {until}",
            field="fetch_offset",
        )
    return leader, until

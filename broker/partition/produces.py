"""Produce requests: checked, appended, and answered at the acknowledgement level asked for."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from broker.partition.clients import WaitingOfClients
from broker.partition.deadlines import Timer
from broker.partition.events import AnswerProduce, Client, ProduceReceived
from broker.partition.host import Host
from broker.partition.leader import Leader
from raftlog.bounds import PRODUCE_MAX_RECORDS, RETRY_AFTER_MS
from raftlog.errors import ApiError, ErrorCode
from raftlog.limits.rules import bounded_timeout_ms
from raftlog.wire.data.v1 import data_pb2 as pb

ALL, LEADER, NOBODY = -1, 1, 0


class Produces:
    """All produce requests of a broker.

    Appended records may stay whatever the answer says: later errors have an unknown outcome.
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
                f"acks {request.acks} is none of -1, 0, 1",
                field="acks",
            )
        count = sum(len(data.records) for data in request.partitions)
        if count > PRODUCE_MAX_RECORDS:
            message = f"{count} records are more than the {PRODUCE_MAX_RECORDS} of one request"
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
                f"the ISR is {isr}, min.insync.replicas is {leader.min_isr}",
            )
        base, end = leader.append(data.records, event.timestamp_ms)
        pending = produce.appended(index, base, end)
        if acks == NOBODY:
            pending.succeeded()
        else:
            leader.wait(pending, for_commit=acks == ALL)


def leader_of(host: Host, topic_id: bytes, index: int, current_leader_epoch: int) -> Leader:
    """Return the leader of a partition here, if the requested leader epoch (-1: not known) is its
    own.

    Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, LEADER_NOT_AVAILABLE,
    FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH.
    """
    key = (topic_id, index)
    replica = host.replicas.get(key)
    leader = replica.role if replica is not None else None
    if not isinstance(leader, Leader):
        code, message = host.not_here(key)
        raise ApiError(code, message)
    if current_leader_epoch not in (-1, leader.epoch):
        older = current_leader_epoch < leader.epoch
        raise ApiError(
            ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"leader epoch {current_leader_epoch} is {'over' if older else 'not known here'}: it is"
            f" {leader.epoch}",
            field="current_leader_epoch",
        )
    return leader


def _check_records(data: pb.ProducePartition) -> None:
    if not data.records:
        raise ApiError(ErrorCode.INVALID_RECORD, "there is no record", field="records")
    for position, body in enumerate(data.records):
        try:
            pb.DataRecord.FromString(body)
        except DecodeError as error:
            raise ApiError(
                ErrorCode.INVALID_RECORD, "not a DataRecord", field=f"records[{position}]"
            ) from error


class Pending:
    """The records appended to one partition for one request."""

    __slots__ = ("_base_offset", "_index", "_produce", "end_offset")

    def __init__(self, produce: _Produce, index: int, base_offset: int, end_offset: int) -> None:
        self._produce, self._index = produce, index
        self._base_offset, self.end_offset = base_offset, end_offset

    @property
    def ended(self) -> bool:
        """Whether its request has ended."""
        return self._produce.ended

    def succeeded(self) -> None:
        """Record that it has the level it asked for."""
        self._end(pb.ProducePartitionResult(base_offset=self._base_offset))

    def failed(
        self,
        code: ErrorCode,
        message: str,
        *,
        outcome_unknown: bool,
        current_leader: pb.CurrentLeader | None = None,
    ) -> None:
        """Record that it will not reach the level it asked for."""
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
        self._produce.ended_one(self._index, result)


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
        self.ended_one(index, result)

    def begin(self, timeout_ms: int) -> None:
        """Begin to wait, unless it has ended: all partitions are processed."""
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

    def ended_one(self, index: int, result: pb.ProducePartitionResult) -> None:
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
                    "not on all of the ISR in time",
                    outcome_unknown=True,
                )

    def _answer(self) -> None:
        self.ended = True
        response = pb.ProduceResponse(
            partitions=[result for result in self._results if result is not None]
        )
        self._produces.host.out.append(AnswerProduce(self._reply_to, response))

"""The leader's side of followers' fetch sessions, and the check of their broker epochs (KIP-903).

A link is a session, which keeps the follower's positions (KIP-227). A position in a fetch is
answered with data, an error or a divergence at most once; after that the follower must fetch the
partition again. An answer with only a high watermark or log start leaves the position valid. An
answer includes only partitions that have changed; if none has, it waits until ``max_wait_ms`` or a
newer fetch.

Why: docs/decisions/024-data-plane-group-flush.md
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

from broker.partition.events import AnswerReplicaFetch, Read, ReplicaFetchReceived
from broker.partition.host import NO_EPOCH, Host, Timer
from broker.partition.leader import Leader, leader_of
from broker.partition.throttle import is_being_added
from raftlog.errors import ApiError, ErrorCode
from raftlog.limits import check as check_limits
from raftlog.metadata.versions import supports_replica_epochs
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.data.v1 import data_pb2 as pb


class Position:
    """A follower's position in one partition, on one session."""

    __slots__ = (
        "_bytes_at",
        "awaits",
        "leader",
        "offset",
        "sent_high_watermark",
        "sent_log_start",
        "session",
    )

    def __init__(self, session: Session, leader: Leader, offset: int) -> None:
        self.session = session
        self.leader = leader
        self.offset = offset
        self.awaits = True
        """True from a fetch that includes the position until it is answered with data."""
        self.sent_high_watermark = self.sent_log_start = -1
        log, replica = leader.replica.log, leader.replica
        self._bytes_at = replica.bytes_appended if offset == log.end else -1

    @property
    def key(self) -> PartitionKey:
        """The key of the partition."""
        return self.leader.replica.key

    def bytes_waiting(self, limit: int) -> int:
        """Return how many bytes, at most ``limit``, an answer would take: the exact number if the
        follower was caught up when it fetched the position, else ``limit``.
        """
        if self._bytes_at < 0:
            return limit
        return min(limit, self.leader.replica.bytes_appended - self._bytes_at)

    @property
    def is_throttled(self) -> bool:
        """Whether the follower is being added, and is not in sync yet."""
        leader, replica_id = self.leader, self.session.replica_id
        return is_being_added(leader.partition, replica_id, leader.isr.state.committed)

    def on_append(self) -> None:
        """See ``FollowerPosition``."""
        if self.awaits:
            self.session.has_data(self)

    def high_watermark_moved(self, high_watermark: int) -> None:
        """See ``FollowerPosition``."""
        if self.awaits and high_watermark > self.sent_high_watermark:
            self.session.has_marks(self)

    def log_start_moved(self, start: int) -> None:
        """Handle a new log start; the records to be sent next may have been dropped.

        The new log start is sent even without a record: the follower's disk must be freed even if
        no client writes to this topic any more.
        """
        if self.awaits and self.offset < start:
            self.session.is_out_of_range(self.key, start)
            self.session.forget(self.key)
        elif self.awaits:
            self.session.has_marks(self)

    @property
    def has_unsent_marks(self) -> bool:
        """Whether the leader's high watermark or log start is above the one last sent."""
        leader = self.leader
        return self.awaits and (
            leader.high_watermark > self.sent_high_watermark
            or leader.replica.log.start > self.sent_log_start
        )

    def refused(self, code: ErrorCode, current: pb.CurrentLeader) -> None:
        """See ``FollowerPosition``."""
        if self.awaits:
            self.session.has_result(
                self.key, pb.ReplicaFetchPartitionResult(error_code=code, current_leader=current)
            )
        self.session.forget(self.key)


class Session:
    """The session of one link of one follower."""

    def __init__(self, sessions: Sessions, id_: Hashable, number: int) -> None:
        self._sessions = sessions
        self._host = sessions.host
        self.id = id_
        self.number = number
        self.replica_id = -1
        self.positions: dict[PartitionKey, Position] = {}
        self._data: dict[PartitionKey, Position] = {}
        self._held: dict[PartitionKey, Position] = {}
        """Positions with data that the throttle holds back."""
        self._marks: dict[PartitionKey, Position] = {}
        self._results: dict[PartitionKey, pb.ReplicaFetchPartitionResult] = {}
        self._parked: pb.ReplicaFetchRequest | None = None
        self._timer: Timer | None = None

    # --- news ------------------------------------------------------------------------------------

    def has_data(self, position: Position) -> None:
        """Record that records are available after a position."""
        if not (position.is_throttled and self._hold(position)):
            self._data[position.key] = position
            self._sessions.touched[self.number] = self

    def _hold(self, position: Position) -> bool:
        """Hold a position if the throttle lets no bytes pass now; return whether it is held."""
        host = self._host
        ready_at = host.leader_throttle.ready_at(host.now)
        if ready_at <= host.now:
            return False
        self._data.pop(position.key, None)
        if not self._held:
            host.deadlines.at(ready_at, self._release)
        self._held[position.key] = position
        return True

    def _release(self) -> None:
        held, self._held = self._held, {}
        for position in held.values():
            self.has_data(position)

    def has_result(self, key: PartitionKey, result: pb.ReplicaFetchPartitionResult) -> None:
        """Answer a partition with a result other than data."""
        result.topic_id, result.partition_index = key
        self._results[key] = result
        self._sessions.touched[self.number] = self

    def is_out_of_range(self, key: PartitionKey, log_start_offset: int) -> None:
        """Answer that the leader has no records at a position, and where its log begins."""
        result = pb.ReplicaFetchPartitionResult(
            error_code=ErrorCode.OFFSET_OUT_OF_RANGE,
            log_start_offset=log_start_offset,
            current_leader=self._host.current_leader(key),
        )
        self.has_result(key, result)

    def has_marks(self, position: Position) -> None:
        """Record a new high watermark or log start. It lingers to be sent with data."""
        self._marks[position.key] = position
        host = self._host
        linger_at = host.now + host.settings.high_watermark_linger_ms / 1000
        if self._timer is not None and self._timer.when > linger_at:
            host.deadlines.cancel(self._timer)
            self._timer = host.deadlines.at(linger_at, self._expired)

    def forget(self, key: PartitionKey) -> None:
        """Remove a position from this session."""
        position = self.positions.pop(key, None)
        self._data.pop(key, None)
        self._held.pop(key, None)
        self._marks.pop(key, None)
        if position is not None:
            position.leader.positions.pop(self.number, None)

    def clear(self) -> None:
        """Remove all positions, and their pending answers."""
        for key in list(self.positions):
            self.forget(key)
        self._results.clear()
        self._unpark()

    # --- fetches ---------------------------------------------------------------------------------

    def fetch(self, request: pb.ReplicaFetchRequest) -> None:
        """Process a request that is valid as a whole."""
        self.replica_id = request.replica_state.replica_id
        if self._parked is not None:
            # The follower has news; this answer still counts as outstanding for it.
            self.answer()
        for gone in request.forgotten:
            self.forget((gone.topic_id, gone.partition_index))
            self._results.pop((gone.topic_id, gone.partition_index), None)
        for named in request.partitions:
            self._name(named, request)
        self._parked = request
        wait_s = max(0, request.max_wait_ms) / 1000
        if self._marks:
            wait_s = min(wait_s, self._host.settings.high_watermark_linger_ms / 1000)
        self._timer = self._host.deadlines.at(self._host.now + wait_s, self._expired)
        if wait_s == 0 or self.has_news:
            self._sessions.touched[self.number] = self

    @property
    def has_news(self) -> bool:
        """Whether an answer would have more than high watermarks and log starts."""
        return bool(self._data or self._results)

    def settle(self) -> None:
        """Answer at the end of a step, if an answer is due."""
        if self._parked is not None and (self.has_news or self._parked.max_wait_ms <= 0):
            self.answer()

    def _name(self, named: pb.ReplicaFetchPartition, request: pb.ReplicaFetchRequest) -> None:
        state = request.replica_state
        key = (named.topic_id, named.partition_index)
        self.forget(key)
        self._results.pop(key, None)
        try:
            leader = self._leader_for(named, state.replica_id)
        except ApiError as error:
            current = self._host.current_leader(key)
            self.has_result(
                key, pb.ReplicaFetchPartitionResult(error_code=error.code, current_leader=current)
            )
            return
        log = leader.replica.log
        # A replica without records has no last epoch to compare: it can only begin at this log's
        # start.
        if named.fetch_offset < log.start or (
            named.last_fetched_epoch < 0 and named.fetch_offset != log.start
        ):
            self.is_out_of_range(key, log.start)
            return
        diverging = (
            log.divergence(named.fetch_offset, named.last_fetched_epoch)
            if named.last_fetched_epoch >= 0
            else None
        )
        if diverging is not None:
            epoch, end_offset = diverging
            where = pb.EpochEndOffset(epoch=epoch, end_offset=end_offset)
            self.has_result(
                key, pb.ReplicaFetchPartitionResult(diverging_epoch=where, high_watermark=-1)
            )
            return
        position = self.positions[key] = Position(self, leader, named.fetch_offset)
        leader.positions[self.number] = position
        if named.fetch_offset < log.end:
            self.has_data(position)
        elif leader.high_watermark >= 0:
            self._marks[key] = position
        # Last: the calls that it triggers find the position in place.
        leader.fetched(
            state.replica_id,
            named.fetch_offset,
            state.replica_epoch,
            low_on_space=request.low_on_space,
        )

    def _leader_for(self, named: pb.ReplicaFetchPartition, replica_id: int) -> Leader:
        leader = leader_of(
            self._host, named.topic_id, named.partition_index, named.current_leader_epoch
        )
        if replica_id not in leader.isr.followers:
            # One of the two images is newer than the other; the leader epoch does not show which.
            raise ApiError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {replica_id} has no replica of this partition",
            )
        if named.last_fetched_epoch > leader.epoch:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"last_fetched_epoch is {named.last_fetched_epoch}, above the leader's"
                f" {leader.epoch}",
            )
        return leader

    def _expired(self) -> None:
        self._timer = None
        self.answer()

    def answer(self) -> None:
        """Answer the parked fetch with as many of the pending results, records and marks as fit."""
        request = self._parked
        if request is None:
            return
        self._unpark()
        response = pb.ReplicaFetchResponse(correlation_id=request.correlation_id)
        reads: list[Read] = []
        self._take_results(response)
        limit = min(
            request.max_bytes or (1 << 31), self._host.settings.replica_fetch_response_max_bytes
        )
        self._take_data(limit, response, reads)
        self._take_marks(response)
        self._host.out.append(AnswerReplicaFetch(self.id, response, tuple(reads), limit))

    def refuse(self, request: pb.ReplicaFetchRequest, error: ApiError) -> None:
        """Refuse a whole fetch; the session restarts."""
        self.answer()
        self.clear()
        response = pb.ReplicaFetchResponse(
            correlation_id=request.correlation_id,
            error_code=error.code,
            error_message=error.message,
        )
        self._host.out.append(AnswerReplicaFetch(self.id, response))

    def _unpark(self) -> None:
        self._parked = None
        self._host.deadlines.cancel(self._timer)
        self._timer = None

    # --- the answer ------------------------------------------------------------------------------

    def _take_results(self, response: pb.ReplicaFetchResponse) -> None:
        for key in self._some(self._results, response):
            response.partitions.append(self._results.pop(key))

    def _take_data(self, budget: int, response: pb.ReplicaFetchResponse, reads: list[Read]) -> None:
        host, largest = self._host, self._host.settings.replica_fetch_max_bytes
        for key in self._some(self._data, response):
            position, limit = self._data[key], largest
            charged = -1
            is_throttled = position.is_throttled
            if is_throttled:
                if self._hold(position):
                    continue
                limit = int(max(1, min(limit, host.leader_throttle.left(host.now))))
            size = position.bytes_waiting(limit)
            if reads and size > budget:
                break
            budget -= size
            if is_throttled:
                charged = size
                host.leader_throttle.spend(charged, host.now)
            log = position.leader.replica.log
            reads.append(
                Read(
                    len(response.partitions),
                    key,
                    position.offset,
                    log.end,
                    limit,
                    charged,
                )
            )
            response.partitions.append(self._result(position))
            position.awaits = False
            del self._data[key]

    def _take_marks(self, response: pb.ReplicaFetchResponse) -> None:
        for key in self._some(self._marks, response):
            position = self._marks.pop(key)
            if position.has_unsent_marks:
                response.partitions.append(self._result(position))

    def _result(self, position: Position) -> pb.ReplicaFetchPartitionResult:
        leader = position.leader
        position.sent_high_watermark = leader.high_watermark
        position.sent_log_start = leader.replica.log.start
        return pb.ReplicaFetchPartitionResult(
            topic_id=position.key[0],
            partition_index=position.key[1],
            high_watermark=leader.high_watermark,
            log_start_offset=leader.replica.log.start,
            current_leader=pb.CurrentLeader(
                leader_id=self._host.broker_id, leader_epoch=leader.epoch
            ),
        )

    def _some(
        self, waiting: Mapping[PartitionKey, object], response: pb.ReplicaFetchResponse
    ) -> Iterable[PartitionKey]:
        """Return as many keys as the answer has room for, in order of arrival."""
        room = self._host.settings.max_partitions_per_message - len(response.partitions)
        return [key for key, _ in zip(waiting, range(room), strict=False)]


class Sessions:
    """All fetch sessions of followers at one broker."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.by_id: dict[Hashable, Session] = {}
        self.touched: dict[int, Session] = {}
        """Sessions to process at the end of the step, by number."""
        self._numbers = 0

    def received(self, event: ReplicaFetchReceived) -> None:
        """Process a follower's fetch."""
        session = self.by_id.get(event.session)
        if session is None:
            self._numbers += 1
            session = self.by_id[event.session] = Session(self, event.session, self._numbers)
        try:
            self._check(event.request)
        except ApiError as error:
            session.refuse(event.request, error)
        else:
            session.fetch(event.request)

    def closed(self, id_: Hashable) -> None:
        """End the session of a closed link."""
        session = self.by_id.pop(id_, None)
        if session is not None:
            session.clear()
            self.touched.pop(session.number, None)

    def settle(self) -> None:
        """Send the answers that are due at the end of a step."""
        while self.touched:
            self.touched.pop(next(iter(self.touched))).settle()

    def of_replica(self, replica_id: int) -> list[Leader]:
        """Return the leaders here that have a position of this replica."""
        found: dict[PartitionKey, Leader] = {}
        for session in self.by_id.values():
            if session.replica_id == replica_id:
                found.update((key, position.leader) for key, position in session.positions.items())
        return list(found.values())

    def _check(self, request: pb.ReplicaFetchRequest) -> None:
        host, state = self.host, request.replica_state
        if request.cluster_id != host.settings.cluster_id:
            raise ApiError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"this broker belongs to cluster {host.settings.cluster_id!r}",
            )
        check_limits(request)
        if request.leader_id != host.broker_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this is broker {host.broker_id}")
        if not host.serves:
            raise ApiError(ErrorCode.BROKER_FENCED, host.why_not_serving())
        self._check_epoch(state.replica_id, state.replica_epoch)

    def _check_epoch(self, replica_id: int, epoch: int) -> None:
        """Refuse every epoch except the one that the image shows (KIP-903).

        A fetch proves nothing about an epoch. (If a fetch with an epoch that was never assigned
        counted as the follower's newest, the true follower would be refused from then on.) A true
        follower whose registration this broker has not applied yet retries.
        """
        if epoch == NO_EPOCH and not supports_replica_epochs(self.host.image.features):
            return
        registered = self.host.broker(replica_id)
        known = NO_EPOCH if registered is None else registered.epoch
        if epoch < max(known, 0):
            self.host.counts["StaleReplicaEpochs"] += 1
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"epoch {epoch} of broker {replica_id} is over; this broker knows epoch {known}",
            )
        if epoch > known:
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"this broker does not know epoch {epoch} of broker {replica_id} yet: it knows "
                + ("no registration" if registered is None else f"epoch {known}"),
            )

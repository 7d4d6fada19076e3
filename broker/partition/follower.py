"""The partitions that this broker follows: how a leader's answers change their logs, and the fetch
session with each leader (KIP-227).
"""

from __future__ import annotations

from enum import Enum, auto
from functools import partial

from broker.partition.events import SendReplicaFetch, WantLink
from broker.partition.host import Host, Replica, Role, Timer
from broker.partition.throttle import is_being_added
from raftlog import batch
from raftlog.errors import CorruptLogError, ErrorCode
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.quorum.events import LogSpan
from raftlog.wire.data.v1 import data_pb2 as pb


class Stage(Enum):
    """The stage of a followed partition on its link."""

    DUE = auto()
    """To be included in the next fetch."""
    FETCHING = auto()
    """Included in a fetch that the leader has not answered."""
    WRITING = auto()
    """Written; the new end is acknowledged once it is durable."""
    PAUSED = auto()
    """Refused by the leader, throttled, or without space for its records; waiting to retry."""


class Follower(Role):
    """A replica that follows ``leader_id``, only in leader epoch ``epoch``."""

    __slots__ = (
        "fetching_in",
        "host",
        "leader_id",
        "link",
        "pause_s",
        "replica",
        "stage",
        "timer",
    )

    def __init__(
        self, host: Host, replica: Replica, leader_id: int, epoch: int, link: LeaderLink
    ) -> None:
        self.host, self.replica, self.link = host, replica, link
        self.leader_id, self.epoch = leader_id, epoch
        self.stage = Stage.DUE if replica.durable else Stage.WRITING
        self.fetching_in = 0
        """Correlation id of the last fetch that included this partition; an older answer belongs to
        another position.
        """
        self.pause_s = 0.0
        self.timer: Timer | None = None

    def named(self) -> pb.ReplicaFetchPartition:
        """Return the position to fetch from.

        Its offset acknowledges everything below it, which is durable here.
        """
        replica = self.replica
        return pb.ReplicaFetchPartition(
            topic_id=replica.key[0],
            partition_index=replica.key[1],
            current_leader_epoch=self.epoch,
            fetch_offset=replica.log.flushed_end,
            last_fetched_epoch=replica.last_epoch,
        )

    def take(self, result: pb.ReplicaFetchPartitionResult) -> str:
        """Process a result without an error. Return what is wrong with it, or ""."""
        if result.HasField("diverging_epoch"):
            return self._truncate(result.diverging_epoch.epoch, result.diverging_epoch.end_offset)
        if result.records and (wrong := self._append(result.records)):
            return wrong
        replica = self.replica
        replica.high_watermark = max(
            replica.high_watermark, min(result.high_watermark, replica.log.end)
        )
        self._follow_start(result.log_start_offset)
        return ""

    def _append(self, chunk: bytes) -> str:
        replica = self.replica
        try:
            scan = batch.scan(chunk, expect_offset=replica.log.end)
        except CorruptLogError as error:
            return str(error)
        span = LogSpan(replica.log.end, scan.end_offset, scan.epochs, chunk, scan.last_timestamp_ms)
        if not replica.log.accepts(span, self.epoch):
            return (
                f"epochs {scan.epochs} do not continue the log, whose last epoch is"
                f" {replica.last_epoch}, in leader epoch {self.epoch}"
            )
        self.host.append(replica, span)
        if self.is_being_added:
            self.host.follower_throttle.spend(len(chunk), self.host.now)
        return ""

    @property
    def is_being_added(self) -> bool:
        """Whether this replica is being added, and is not in sync yet."""
        partition = self.host.partition(self.replica.key)
        isr = () if partition is None else partition.isr
        return is_being_added(partition, self.host.broker_id, isr)

    def _follow_start(self, log_start_offset: int) -> None:
        """Follow the leader's log start, up to a batch boundary of this log; batch boundaries may
        differ from the leader's.
        """
        replica = self.replica
        start = replica.runs.boundary(min(log_start_offset, replica.log.end - 1))
        if start > replica.log.start:
            self.host.advance_start(replica, start)

    def begin_at(self, log_start_offset: int) -> bool:
        """Empty this log and begin at the leader's log start, which is above this position.

        Returns False, and changes nothing, if this log has records that must first be compared with
        the leader's.
        """
        replica, log = self.replica, self.replica.log
        is_empty = log.end == log.start
        if not (log_start_offset > log.end or (is_empty and 0 <= log_start_offset < log.end)):
            return False
        self.host.note(
            "restarting at the start of the leader's log",
            partition=replica.key[0].hex(),
            index=replica.key[1],
            leader=self.leader_id,
            leader_epoch=self.epoch,
            end_offset=log.end,
            log_start_offset=log_start_offset,
        )
        self.host.reset(replica, log_start_offset)
        return True

    def _truncate(self, epoch: int, end_offset: int) -> str:
        replica, log = self.replica, self.replica.log
        target = log.truncation_point(epoch, end_offset)
        if target is None:
            return f"cannot truncate to epoch {epoch}, offset {end_offset}: that would drop nothing"
        self.host.counts["Truncations"] += 1
        self.host.note(
            "truncated",
            partition=replica.key[0].hex(),
            index=replica.key[1],
            leader=self.leader_id,
            leader_epoch=self.epoch,
            end_offset=log.end,
            to=target,
        )
        self.host.truncate(replica, max(target, log.start))
        return ""


MAX_OUTSTANDING = 2
"""Maximum number of outstanding fetches: one parked at the leader, and a newer one."""
FIRST_PAUSE_S = 0.020


class LeaderLink:
    """All partitions that this broker follows from one other broker.

    A fetch is sent when no fetched record waits for the disk. A link that must be processed at the
    end of the step adds itself to ``touched_links``.
    """

    def __init__(self, host: Host, leader_id: int, touched_links: dict[int, LeaderLink]) -> None:
        self._host = host
        self._touched_links = touched_links
        self.leader_id = leader_id
        self.endpoint = ""
        self.followers: dict[PartitionKey, Follower] = {}
        self._due: dict[PartitionKey, Follower] = {}
        self._writing: dict[PartitionKey, Follower] = {}
        self._forgotten: dict[PartitionKey, None] = {}
        self._open = False
        self._outstanding: dict[int, None] = {}
        self._pause: Timer | None = None
        self._pause_s = 0.0
        self._refusal = 0
        """Error code that refuses whole fetches; 0 if none."""

    # --- the link --------------------------------------------------------------------------------

    def look_up(self) -> None:
        """Look up the leader's endpoint in the image; the link is requested as soon as that is
        known.
        """
        broker = self._host.broker(self.leader_id)
        name = self._host.settings.inter_broker_listener
        endpoint = broker.endpoint_for_brokers(name) if broker is not None else ""
        if endpoint and endpoint != self.endpoint:
            self.endpoint = endpoint
            self.lost()
            self._host.out.append(WantLink(self.leader_id, endpoint))

    def opened(self) -> None:
        """Begin a new session on a new link: every partition must be fetched again."""
        self._touched()
        self.lost()
        self._open = True

    def lost(self) -> None:
        """Drop the outstanding fetches, as the link is lost."""
        self._touched()
        self._open = False
        self._outstanding.clear()
        self._forgotten.clear()
        self._host.deadlines.cancel(self._pause)
        self._pause = None
        self._name_again()

    def close(self) -> None:
        """Close the link, as no partition is followed from this leader any more."""
        self._host.deadlines.cancel(self._pause)

    def _touched(self) -> None:
        self._touched_links[self.leader_id] = self

    def _name_again(self) -> None:
        for follower in self.followers.values():
            if follower.stage is Stage.FETCHING:
                self._is_due(follower)

    # --- the partitions --------------------------------------------------------------------------

    def add(self, follower: Follower) -> None:
        """Add a partition that this broker fetches over the link."""
        self._touched()
        key = follower.replica.key
        self.followers[key] = follower
        self._forgotten.pop(key, None)
        if follower.stage is Stage.DUE:
            self._due[key] = follower
        else:
            self._writing[key] = follower

    def remove(self, follower: Follower) -> None:
        """Stop following a partition."""
        self._touched()
        key = follower.replica.key
        del self.followers[key]
        self._due.pop(key, None)
        self._writing.pop(key, None)
        self._host.deadlines.cancel(follower.timer)
        self._forgotten[key] = None

    def durable(self, follower: Follower) -> None:
        """Make a follower due if its writes are durable: their end may be acknowledged."""
        if follower.stage is Stage.WRITING and follower.replica.durable:
            self._is_due(follower)

    def _is_due(self, follower: Follower) -> None:
        self._touched()
        key, host = follower.replica.key, self._host
        self._writing.pop(key, None)
        if follower.is_being_added and (at := host.follower_throttle.ready_at(host.now)) > host.now:
            follower.stage = Stage.PAUSED
            follower.timer = host.deadlines.at(at, partial(self._is_due, follower))
            return
        follower.stage = Stage.DUE
        self._due[key] = follower

    def _refused(self, follower: Follower) -> None:
        """Pause a refused follower, twice as long each time."""
        host = self._host
        limit_s = host.settings.replica_fetch_backoff_ms / 1000
        follower.pause_s = min(limit_s, max(FIRST_PAUSE_S, 2 * follower.pause_s))
        follower.stage = Stage.PAUSED
        follower.timer = host.deadlines.at(
            host.now + follower.pause_s, partial(self._is_due, follower)
        )

    # --- fetches ---------------------------------------------------------------------------------

    def pump(self) -> None:
        """At the end of a step, send a fetch if it has news for the leader or if none is
        outstanding.
        """
        if not self._open or self._pause is not None or self._writing or not self.followers:
            return
        if self._outstanding and (
            len(self._outstanding) >= MAX_OUTSTANDING or not (self._due or self._forgotten)
        ):
            return
        self._send()

    def _send(self) -> None:
        host, settings = self._host, self._host.settings
        correlation_id = host.next_correlation_id()
        named = [
            follower
            for follower, _ in zip(
                self._due.values(), range(settings.max_partitions_per_message), strict=False
            )
        ]
        for follower in named:
            del self._due[follower.replica.key]
            follower.stage, follower.fetching_in = Stage.FETCHING, correlation_id
        request = pb.ReplicaFetchRequest(
            correlation_id=correlation_id,
            cluster_id=settings.cluster_id,
            replica_state=pb.ReplicaState(
                replica_id=host.broker_id, replica_epoch=host.broker_epoch
            ),
            leader_id=self.leader_id,
            # With more partitions to fetch, the leader need not wait for news of these.
            max_wait_ms=0 if self._due else settings.replica_fetch_wait_max_ms,
            max_bytes=1 if host.low_on_space else settings.replica_fetch_response_max_bytes,
            low_on_space=host.low_on_space,
            partitions=[follower.named() for follower in named],
            forgotten=[
                pb.PartitionKey(topic_id=key[0], partition_index=key[1]) for key in self._forgotten
            ],
        )
        self._forgotten.clear()
        self._outstanding[correlation_id] = None
        host.out.append(SendReplicaFetch(self.leader_id, request))

    def answered(self, response: pb.ReplicaFetchResponse) -> None:
        """Process an answer; an unexpected one changes nothing."""
        self._touched()
        if response.correlation_id not in self._outstanding:
            return
        del self._outstanding[response.correlation_id]
        if response.error_code:
            self._refused_whole(response)
            return
        self._pause_s, self._refusal = 0.0, 0
        for result in response.partitions:
            follower = self.followers.get((result.topic_id, result.partition_index))
            # An answer for an older position of the follower does not apply to the current one.
            if (
                follower is not None
                and follower.stage is Stage.FETCHING
                and follower.fetching_in <= response.correlation_id
            ):
                self._take(follower, result)

    def _take(self, follower: Follower, result: pb.ReplicaFetchPartitionResult) -> None:
        host, replica = self._host, follower.replica
        if result.error_code:
            begins_anew = result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and follower.begin_at(
                result.log_start_offset
            )
            if begins_anew:
                self._is_written(follower)
                return
            host.counts["FailedReplicaFetches"] += 1
            self._refused(follower)
            return
        if host.low_on_space and result.records:
            self._refused(follower)
            return
        wrong = follower.take(result)
        if wrong:
            host.counts["FailedReplicaFetches"] += 1
            host.note(
                "a replica fetch returned an unusable result",
                partition=replica.key[0].hex(),
                index=replica.key[1],
                leader=self.leader_id,
                why=wrong,
            )
            self._refused(follower)
            return
        follower.pause_s = 0.0
        if not replica.durable:
            self._is_written(follower)

    def _is_written(self, follower: Follower) -> None:
        follower.stage = Stage.WRITING
        self._writing[follower.replica.key] = follower

    def _refused_whole(self, response: pb.ReplicaFetchResponse) -> None:
        """Handle the refusal of a whole fetch (fenced, another broker, another cluster, a past
        epoch), which leaves the session empty at both ends.
        """
        host = self._host
        host.counts["FailedReplicaFetches"] += 1
        limit_s = host.settings.replica_fetch_backoff_ms / 1000
        self._pause_s = min(limit_s, max(FIRST_PAUSE_S, 2 * self._pause_s))
        self._name_again()
        host.deadlines.cancel(self._pause)
        self._pause = host.deadlines.at(host.now + self._pause_s, self._end_pause)
        if response.error_code != self._refusal:
            # Once for each new reason: a leader that stays fenced must not fill the log.
            self._refusal = response.error_code
            host.note(
                "a replica fetch was refused",
                leader=self.leader_id,
                code=response.error_code,
                why=response.error_message,
            )

    def _end_pause(self) -> None:
        self._touched()
        self._pause = None

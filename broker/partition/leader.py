"""The leader of one partition in one leader epoch: its appends, its high watermark, its retention,
and the requests that wait for them.

The leader decides which records its topic no longer retains (Kafka's retention by time and by
size), and moves its log start; its followers learn the log start from the answers to their fetches,
and do the same. Only committed records are dropped, and never the newest batch, so that a nonempty
log shows the epoch at its end.

Why: docs/decisions/029-retention-by-the-leader.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from broker.partition.host import Host, Replica, Role
from broker.partition.isr import IsrUpdates, LeaderIsr
from raftlog import batch
from raftlog.clock import stamp_after
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.config_keys import MIN_INSYNC_REPLICAS, needed_in_sync, topic_value
from raftlog.metadata.entities import Partition
from raftlog.metadata.image import Image
from raftlog.node.storage.partition_api import LogRuns
from raftlog.quorum.events import LogSpan
from raftlog.wire.data.v1 import data_pb2 as pb

CLEANUP_POLICY = "cleanup.policy"
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
MAX_MESSAGE_BYTES = "max.message.bytes"
BATCH_MAX_BYTES = 24 << 20
"""Largest batch in bytes, whatever ``max.message.bytes`` is: it must fit into one message together
with the rest of an answer.
"""


def topic_number(image: Image, topic_id: bytes, name: str) -> int:
    """Return the effective value of an integer config of a topic."""
    return int(topic_value(image, topic_id, name))


_DELETE = "delete"


class Retention(NamedTuple):
    """A topic's retention. Negative values mean unbounded."""

    ms: int
    size: int
    """Size of each partition, in bytes."""


KEEP_ALL = Retention(-1, -1)


def retention_of(image: Image, topic_id: bytes) -> Retention:
    """Return the effective retention of a topic."""
    policy = topic_value(image, topic_id, CLEANUP_POLICY)
    deletes = _DELETE in (item.strip() for item in policy.split(","))
    if not deletes:
        return KEEP_ALL
    return Retention(
        topic_number(image, topic_id, RETENTION_MS),
        topic_number(image, topic_id, RETENTION_BYTES),
    )


def start_to_keep(
    runs: LogRuns, start: int, high_watermark: int, now_ms: int, kept: Retention
) -> int:
    """Return the new start of a log that begins at ``start``: the same offset or a later one.

    A record is kept if it is younger than the retention time, or if the log without it would be
    smaller than the retention size. A batch never counts as younger than the batches after it,
    whatever its own timestamp. (Otherwise records written while a clock was years ahead would stay
    for years.)
    """
    size = runs.size
    stamps = [run.last_timestamp_ms for run in runs.runs]
    youngest = [*accumulate(reversed(stamps), min)][::-1]
    for run, last_ms in zip(runs.runs, youngest, strict=True):
        too_old = 0 <= kept.ms < now_ms - last_ms
        too_much = 0 <= kept.size <= size - run.size
        whole = run.end_offset < high_watermark
        if not (too_old or too_much):
            return start
        if not whole:
            # The whole log is too old or too large except for its end: the newest batch stays.
            if too_old and start < runs.last_base < high_watermark:
                return runs.last_base
            return start
        start, size = run.end_offset, size - run.size
    return start


DATA_RECORD_TYPE = 1
GAUGES = (
    "LeaderCount",
    "UnderReplicatedPartitions",
    "UnderMinIsrPartitionCount",
    "AtMinIsrPartitionCount",
    "ReassigningPartitions",
)
UNKNOWN_HIGH_WATERMARK = "UnknownHighWatermark"
_MEASURED = (*GAUGES, UNKNOWN_HIGH_WATERMARK)


class PendingAppend(Protocol):
    """Appended records whose sender waits for its acks level."""

    end_offset: int

    @property
    def ended(self) -> bool:
        """Whether the request has ended."""

    def succeeded(self) -> None:
        """Record that the requested acks level is reached."""

    def failed(
        self,
        code: ErrorCode,
        message: str,
        *,
        outcome_unknown: bool,
        current_leader: pb.CurrentLeader | None = None,
    ) -> None:
        """Record that the requested acks level will not be reached."""


class WaitingFetch(Protocol):
    """A consumer's fetch that waits for the high watermark."""

    def committed(self, leader: Leader, high_watermark: int) -> None:
        """Answer if a leader's new high watermark lies beyond the offset that is fetched."""

    def answer(self) -> None:
        """Answer with the records available now; at most once."""


class FollowerPosition(Protocol):
    """The position of a follower's fetch session in a led partition."""

    def on_append(self) -> None:
        """Handle growth of the leader's log."""

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Record a high watermark that is to be sent to the follower."""

    def log_start_moved(self, start: int) -> None:
        """Handle the leader's new log start."""

    def refused(self, code: ErrorCode, current: pb.CurrentLeader) -> None:
        """Answer with an error: the leader has resigned."""


class Leader(Role):
    """The leader of one partition.

    ``high_watermark``: -1, unknown, until every member of the ISR has fetched in this epoch. It
    never decreases.
    """

    __slots__ = (
        "_for_commit",
        "_for_flush",
        "_gauges",
        "host",
        "isr",
        "max_message_bytes",
        "partition",
        "positions",
        "replica",
        "waiting",
    )

    def __init__(
        self, host: Host, replica: Replica, partition: Partition, isr_updates: IsrUpdates
    ) -> None:
        self.host = host
        self.replica = replica
        self.epoch = partition.leader_epoch
        self.partition = partition
        self.positions: dict[int, FollowerPosition] = {}
        """Positions of fetch sessions, by the session's number."""
        self.waiting: dict[int, WaitingFetch] = {}
        """Consumer fetches that wait for the high watermark, by number."""
        # Made for the first waiting request: most partitions are idle, and there may be very many.
        self._for_flush: deque[PendingAppend] | None = None
        self._for_commit: deque[PendingAppend] | None = None
        self._gauges = (False,) * len(_MEASURED)
        self.max_message_bytes = 1
        self.isr = LeaderIsr(host, replica, partition, isr_updates, self.isr_changed)
        self.read_configs()

    @property
    def min_isr(self) -> int:
        """Minimum size of the ISR for writes with acks=all."""
        return self.isr.min_isr

    @property
    def high_watermark(self) -> int:
        """End of what is durable on all of the ISR, exclusive; -1 if unknown."""
        return self.isr.high_watermark

    def begin(self) -> None:
        """Start serving as leader, with the ISR that the image shows."""
        isr = self.isr.state.committed
        self.host.note(
            "leads",
            partition=self.replica.key[0].hex(),
            index=self.replica.key[1],
            epoch=self.epoch,
            isr=list(isr),
            start_offset=self.isr.start_offset,
        )
        self.isr.watch_lag()
        self.isr_changed()

    def process_image(self, partition: Partition) -> None:
        """Process an image with another state of this partition in the same leader epoch."""
        self.partition = partition
        self.isr.set_followers(partition)
        self.isr.process_image(partition)
        self.read_configs()
        self.isr.consider()

    def read_configs(self) -> None:
        """Read the relevant configs; they, or the number of replicas, may have changed."""
        image, topic_id = self.host.image, self.replica.key[0]
        wanted = topic_number(image, topic_id, MIN_INSYNC_REPLICAS)
        partition = self.partition
        count = len(partition.replicas) - len(partition.adding_replicas)
        self.isr.min_isr = needed_in_sync(wanted, count)
        largest = topic_number(image, topic_id, MAX_MESSAGE_BYTES)
        self.max_message_bytes = min(largest, BATCH_MAX_BYTES)
        self._set_gauges(self._measure())

    # --- appends ---------------------------------------------------------------------------------

    def append(self, bodies: Sequence[bytes], timestamp_ms: int) -> tuple[int, int]:
        """Append records as one batch, all or none; return (base offset, end offset), the end
        exclusive.

        Raises MESSAGE_TOO_LARGE.
        """
        replica, log = self.replica, self.replica.log
        timestamp_ms = stamp_after(replica.runs.last_timestamp_ms, timestamp_ms, timestamp_ms)
        base = log.end
        chunk = batch.encode(
            [(DATA_RECORD_TYPE, 0, body) for body in bodies],
            base_offset=base,
            epoch=self.epoch,
            timestamp_ms=timestamp_ms,
        )
        if len(chunk) > self.max_message_bytes:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the batch would have {len(chunk)} bytes, but {MAX_MESSAGE_BYTES} is"
                f" {self.max_message_bytes}",
                field="records",
            )
        for follower in self.isr.followers.values():
            follower.leader_moved(base, self.host.now)
        end = base + len(bodies)
        span = LogSpan(base, end, ((self.epoch, base),), chunk, timestamp_ms)
        self.host.append(replica, span)
        self.isr.watch_lag()
        for position in self.positions.values():
            position.on_append()
        return base, end

    def enough_in_sync(self) -> bool:
        """See ``LeaderIsr``."""
        return self.isr.enough_in_sync()

    def wait(self, pending: PendingAppend, *, for_commit: bool) -> None:
        """Notify ``pending`` when its records are durable here, or on all of the ISR."""
        if for_commit:
            queue = self._for_commit = self._for_commit or deque()
        else:
            queue = self._for_flush = self._for_flush or deque()
        while queue and queue[0].ended:
            queue.popleft()  # Timed out: must not accumulate.
        queue.append(pending)

    # --- the high watermark ----------------------------------------------------------------------

    def on_flushed(self) -> None:
        """Answer the produces whose records are now durable here, and advance the high
        watermark.
        """
        queue, end = self._for_flush, self.replica.log.flushed_end
        while queue and queue[0].end_offset <= end:
            queue.popleft().succeeded()
        self.advance()

    def fetched(
        self, replica_id: int, offset: int, broker_epoch: int, *, low_on_space: bool
    ) -> None:
        """Process a follower's valid fetch: everything below ``offset`` is durable on the
        follower.
        """
        follower = self.isr.followers[replica_id]
        follower.low_on_space = low_on_space
        follower.fetched(offset, broker_epoch, self.replica.log.end, self.host.now)
        self.advance()
        if replica_id not in self.isr.state.committed:
            self.isr.consider()
        elif low_on_space and offset < self.replica.log.end:
            self.isr.propose_removal(replica_id)

    def isr_changed(self) -> None:
        """Advance after another ISR was committed, or a proposal was dropped."""
        self._set_gauges(self._measure())
        self.advance()
        self.isr.consider()

    def advance(self) -> None:
        """Raise the high watermark to the end of what is durable on all of the maximal ISR, if that
        is known and enough replicas are in sync.
        """
        durable = min(self.isr.end_offset_of(member) for member in self.isr.state.maximal)
        end = self._held_at(durable) if self.isr.holds_high_watermark() else durable
        if end > self.high_watermark:
            self._raise_high_watermark(end)
        if not self.enough_in_sync():
            self._fail_for_commit(durable)

    def _held_at(self, durable: int) -> int:
        """Return the known high watermark while it must not move; -1 if none. For a new leader it
        is the one that the previous leader sent or, if no replica outside the ISR is eligible, the
        end of the log with which this leader began, as every other possible leader has that part.
        """
        if self.isr.state.elr:
            return min(durable, self.replica.high_watermark)
        return min(durable, self.isr.start_offset)

    def _fail_for_commit(self, durable: int) -> None:
        """Fail the requests whose records are on the whole ISR, which is too small for them."""
        queue = self._for_commit
        while queue and queue[0].end_offset <= durable:
            queue.popleft().failed(
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                f"the ISR is now {list(self.isr.state.committed)}, but"
                f" {MIN_INSYNC_REPLICAS} is {self.min_isr}",
                outcome_unknown=True,
            )

    def _raise_high_watermark(self, end: int) -> None:
        was_unknown = self.high_watermark < 0
        self.isr.high_watermark = self.replica.high_watermark = end
        queue = self._for_commit
        while queue and queue[0].end_offset <= end and self.enough_in_sync():
            queue.popleft().succeeded()
        for parked in list(self.waiting.values()):
            parked.committed(self, end)
        for position in self.positions.values():
            position.high_watermark_moved(end)
        if was_unknown:
            self._set_gauges(self._measure())
            self.isr.consider()

    # --- the log start ---------------------------------------------------------------------------

    def retain(self, time_ms: int) -> None:
        """Drop committed records that the topic does not retain."""
        host, replica = self.host, self.replica
        kept = retention_of(host.image, replica.key[0])
        start = start_to_keep(replica.runs, replica.log.start, self.high_watermark, time_ms, kept)
        if start == replica.log.start:
            return
        host.note(
            "log start advanced",
            partition=replica.key[0].hex(),
            index=replica.key[1],
            log_start_offset=start,
            before=replica.log.start,
        )
        host.advance_start(replica, start)
        for position in list(self.positions.values()):
            position.log_start_moved(start)

    # --- the end of the role ---------------------------------------------------------------------

    def resign(self) -> None:
        """End the role, as this broker no longer leads this epoch. Fails all waiting requests."""
        self.isr.close()
        self._set_gauges((False,) * len(_MEASURED))
        code, message = self.host.not_here(self.replica.key)
        current = self.host.current_leader(self.replica.key)
        if code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE):
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._fail_all(self._for_flush, message, current)
        self._fail_all(self._for_commit, message, current)
        for parked in list(self.waiting.values()):
            parked.answer()
        for position in list(self.positions.values()):
            position.refused(code, current)
        self.positions.clear()

    @staticmethod
    def _fail_all(
        queue: deque[PendingAppend] | None, message: str, current: pb.CurrentLeader
    ) -> None:
        while queue:
            queue.popleft().failed(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                message,
                outcome_unknown=True,
                current_leader=current,
            )

    # --- gauges ----------------------------------------------------------------------------------

    def _measure(self) -> tuple[bool, ...]:
        in_sync, partition = len(self.isr.state.committed), self.partition
        return (
            True,
            in_sync < len(partition.replicas) - len(partition.adding_replicas),
            in_sync < self.min_isr,
            in_sync == self.min_isr,
            bool(partition.adding_replicas or partition.removing_replicas),
            self.high_watermark < 0,
        )

    def _set_gauges(self, measured: tuple[bool, ...]) -> None:
        gauges = self.host.gauges
        for name, old, new in zip(_MEASURED, self._gauges, measured, strict=True):
            gauges[name] += new - old
        self._gauges = measured


def leader_of(host: Host, topic_id: bytes, index: int, current_leader_epoch: int) -> Leader:
    """Return this broker's leader of a partition, if the requested leader epoch is its own or -1
    (unknown).

    Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, LEADER_NOT_AVAILABLE,
    KAFKA_STORAGE_ERROR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH.
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
            f"leader epoch {current_leader_epoch} is"
            f" {'over' if older else 'unknown to this broker'}; the current one is {leader.epoch}",
            field="current_leader_epoch",
        )
    return leader

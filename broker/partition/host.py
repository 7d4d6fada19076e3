"""The state that all parts of a broker's partition replicas share: settings, timers, the broker's
status, its image, its replicas, and the effects of the step under way.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from broker.partition.events import (
    AdvanceStart,
    Append,
    Delete,
    Effect,
    Flush,
    Note,
    Reset,
    Truncate,
)
from broker.partition.throttle import Throttle, rate_of
from raftlog.clock import NEVER
from raftlog.errors import ErrorCode
from raftlog.metadata.config_keys import FOLLOWER_THROTTLE, LEADER_THROTTLE
from raftlog.metadata.entities import Broker, Partition
from raftlog.metadata.image import Image
from raftlog.node.config.settings import Settings
from raftlog.node.storage.partition_api import LogRuns, PartitionKey, RecoveredPartition
from raftlog.quorum.events import LogSpan
from raftlog.quorum.log_state import EpochIndex, LogEnds
from raftlog.wire.data.v1 import data_pb2 as pb

NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Settings of one broker's replicas: configuration keys under their own names, and a few
    others.

    Times are in milliseconds, sizes in bytes.
    """

    broker_id: int
    cluster_id: str
    inter_broker_listener: str = ""
    """Name of the listeners on which brokers fetch from each other; "" for the first of each
    broker.
    """
    replica_lag_time_max_ms: int = Settings.replica_lag_time_max_ms
    replica_fetch_wait_max_ms: int = Settings.replica_fetch_wait_max_ms
    replica_fetch_max_bytes: int = Settings.replica_fetch_max_bytes
    replica_fetch_response_max_bytes: int = Settings.replica_fetch_response_max_bytes
    replica_fetch_backoff_ms: int = Settings.replica_fetch_backoff_ms
    log_segment_delete_delay_ms: int = Settings.log_segment_delete_delay_ms
    high_watermark_linger_ms: int = 20
    """Time for which a new high watermark or log start waits for data that it can be sent with."""
    isr_retry_ms: int = 50
    """Delay before an AlterPartition request that failed as a whole is sent again."""
    ineligible_backoff_ms: int = 500
    """Delay before an ISR change that the controller refused as ineligible is proposed again."""
    max_pending_produces: int = 10_000
    """Maximum number of produce requests that wait for replicas or the disk; others are refused."""
    max_parked_fetches: int = 10_000
    """Maximum number of consumer fetches that wait for records; others are answered at once."""
    request_timeout_max_ms: int = Settings.request_timeout_max_ms
    max_partitions_per_message: int = 5_000
    """Maximum number of partitions in a replica fetch, its answer, or an AlterPartition request;
    the rest goes into the next one.
    """


_COMPACT_ABOVE = 64


class Timer:
    """A call due once.

    ``run`` is None once it has run or was cancelled.
    """

    __slots__ = ("run", "when")

    def __init__(self, when: float, run: Callable[[], None]) -> None:
        self.when = when
        self.run: Callable[[], None] | None = run


class Deadlines:
    """Timers in order of time, then of creation."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._made = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, when: float, run: Callable[[], None]) -> Timer:
        """Call ``run`` once, at ``when`` or later."""
        timer = Timer(when, run)
        self._made += 1
        heapq.heappush(self._heap, (when, self._made, timer))
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Cancel a timer, unless it is None or has run."""
        if timer is None or timer.run is None:
            return
        timer.run = None
        self._cancelled += 1
        if self._cancelled > max(_COMPACT_ABOVE, len(self._heap) // 2):
            self._heap = [entry for entry in self._heap if entry[2].run is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next(self) -> float:
        """Return when the next timer is due."""
        heap = self._heap
        while heap and heap[0][2].run is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else NEVER

    def run_due(self, now: float) -> None:
        """Run the timers that are due, in order."""
        while self.next() <= now:
            timer = heapq.heappop(self._heap)[2]
            run, timer.run = timer.run, None
            assert run is not None
            run()


class PartitionLog(LogEnds):
    """The bounds and epochs of a partition's log. Its epochs are leader epochs, which begin at
    0.
    """

    first_epoch = 0

    @override
    def divergence(self, offset: int, last_epoch: int) -> tuple[int, int] | None:
        """Return where another log diverges from this one.

        In a log that begins above 0, the epochs before its first are unknown. Another log that ends
        in one of them may already diverge below this log's start; then the two share nothing: (0,
        0).
        """
        first_epoch = self.epochs.first_epoch
        if self.start and (last_epoch < first_epoch or first_epoch < 0):
            return 0, 0
        return super().divergence(offset, last_epoch)

    def advance_start(self, offset: int) -> None:
        """Record that the log below ``offset`` was dropped."""
        self.start = offset
        self.epochs.drop_before(offset, self.end)

    def reset(self, offset: int) -> None:
        """Record that the log is empty, and continues at ``offset``."""
        self.start = self.end = self.flushed_end = offset
        self.epochs = EpochIndex()


class Role:
    """The role (leader or follower) of a replica in leader epoch ``epoch`` only."""

    __slots__ = ("epoch",)

    epoch: int


class Replica:
    """One replica.

    ``role``: None if the partition has no leader, or if this broker's image does not show its
    registration yet. ``high_watermark``: the highest that this replica knows, for operators.
    ``truncations``: distinguishes a flush requested before a truncation from one after it.
    ``bytes_appended``: total since the start of the process; a difference of two values is a size.
    """

    __slots__ = (
        "bytes_appended",
        "deleted",
        "high_watermark",
        "key",
        "log",
        "offline",
        "role",
        "runs",
        "truncation_unflushed",
        "truncations",
    )

    def __init__(self, key: PartitionKey, recovered: RecoveredPartition | None = None) -> None:
        self.key = key
        if recovered is None:
            self.log = PartitionLog(0, 0, ())
            self.runs = LogRuns()
        else:
            self.runs = recovered.runs
            self.log = PartitionLog(recovered.start_offset, recovered.end_offset, recovered.epochs)
        self.role: Role | None = None
        self.high_watermark = -1
        self.truncations = 0
        self.truncation_unflushed = False
        self.bytes_appended = 0
        self.deleted = False
        self.offline = ""
        """See ``ReplicaDescription.offline_reason``."""

    @property
    def durable(self) -> bool:
        """Whether the whole log is durable, so that its end may be acknowledged."""
        return self.log.flushed_end == self.log.end and not self.truncation_unflushed

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record; -1 if none."""
        return self.log.last_epoch if self.log.end > self.log.start else -1


class Host:
    """The shared state of one broker.

    ``now`` and ``out`` belong to the step under way.
    """

    def __init__(
        self, settings: PartitionSettings, recovered: tuple[RecoveredPartition, ...], now: float
    ) -> None:
        self.settings = settings
        self.broker_id = settings.broker_id
        self.now = now
        self.out: list[Effect] = []
        self.deadlines = Deadlines()
        self.image = Image()
        self.broker_epoch = -1
        self.shown_from = -1
        self.serve_until = float("-inf")
        self.why_fenced = "not registered yet"
        self.low_on_space = False
        self.registered = False
        """Whether the image shows the current registration: only then is the image newer than
        everything that earlier processes of this broker did.
        """
        self.replicas: dict[PartitionKey, Replica] = {}
        self.by_topic: dict[bytes, dict[int, None]] = {}
        self._aside: dict[PartitionKey, tuple[Replica, Timer]] = {}
        """Replicas that the image does not assign to this broker, to be deleted later."""
        self.leaderless: dict[PartitionKey, None] = {}
        """Partitions of this broker without a leader, the least recently reported first."""
        self.unreported: dict[PartitionKey, None] = {}
        """Partitions of ``leaderless`` that no heartbeat has reported yet."""
        self.not_led: dict[PartitionKey, str] = {}
        """Partitions that are not led here although the image says that they are, with the
        reason.
        """
        self.leader_throttle, self.follower_throttle = Throttle(), Throttle()
        self.gauges: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._dirty: dict[PartitionKey, Replica] = {}
        self._flushes: deque[tuple[int, list[tuple[Replica, int, int]]]] = deque()
        self._token = 0
        self._correlation_id = 0
        for found in recovered:
            self.add(Replica(found.key, found))

    # --- the broker's status ---------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        """Whether new requests may be accepted: registered, unfenced, with a fresh session."""
        return self.registered and self.now < self.serve_until

    def why_not_serving(self) -> str:
        """Return why new requests are not accepted, for the text of BROKER_FENCED."""
        if not self.registered:
            return (
                "this broker is fenced:"
                f" {self.why_fenced or 'its image does not show its registration yet'}"
            )
        return f"this broker is fenced: {self.why_fenced or 'no controller has answered in time'}"

    def broker(self, broker_id: int) -> Broker | None:
        """Return a registration in the image, or None."""
        return self.image.brokers.get(broker_id)

    def partition(self, key: PartitionKey) -> Partition | None:
        """Return a partition in the image, or None."""
        return self.image.partitions.get(key)

    def read_throttles(self) -> None:
        """Read the throttles' rates, which may have changed."""
        for throttle, key in (
            (self.leader_throttle, LEADER_THROTTLE),
            (self.follower_throttle, FOLLOWER_THROTTLE),
        ):
            throttle.set_rate(rate_of(self.image, self.broker_id, key), self.now)

    def not_here(self, key: PartitionKey) -> tuple[ErrorCode, str]:
        """Return the error for a partition that this broker does not lead."""
        partition, replica = self.partition(key), self.replicas.get(key)
        if partition is None:
            return (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {key[0].hex()} has no partition {key[1]}",
            )
        if replica is not None and replica.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR, replica.offline
        if partition.leader < 0:
            return ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no leader"
        return (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"the leader is broker {partition.leader}, as far as this broker knows",
        )

    def current_leader(self, key: PartitionKey) -> pb.CurrentLeader:
        """Return the leader of a partition; -1 if the partition does not exist, or if the image
        names this broker although it does not lead.
        """
        partition, replica = self.partition(key), self.replicas.get(key)
        leads = replica is not None and replica.role is not None
        if partition is None or (partition.leader == self.broker_id and not leads):
            return pb.CurrentLeader(leader_id=-1, leader_epoch=-1)
        return pb.CurrentLeader(leader_id=partition.leader, leader_epoch=partition.leader_epoch)

    # --- replicas and their logs -----------------------------------------------------------------

    def add(self, replica: Replica) -> None:
        """Register a replica under its key and its topic."""
        self.replicas[replica.key] = replica
        self.by_topic.setdefault(replica.key[0], {})[replica.key[1]] = None

    def set_aside(self, replica: Replica) -> None:
        """Set aside a replica that the image no longer assigns to this broker, and whose role has
        ended.

        It is deleted after a delay, in which operators can notice that the image is wrong.
        """
        key, (topic_id, index) = replica.key, replica.key
        del self.replicas[key]
        del self.by_topic[topic_id][index]
        if not self.by_topic[topic_id]:
            del self.by_topic[topic_id]
        delay_ms = self.settings.log_segment_delete_delay_ms
        if delay_ms:
            timer = self.deadlines.at(self.now + delay_ms / 1000, lambda: self._delete_aside(key))
            self._aside[key] = replica, timer
            self.note(
                "replica set aside",
                partition=topic_id.hex(),
                index=index,
                deleted_after_ms=delay_ms,
            )
        else:
            self._delete(replica)

    def take_back(self, key: PartitionKey) -> Replica | None:
        """Return the replica that was set aside, with its records, or None."""
        replica, timer = self._aside.pop(key, (None, None))
        self.deadlines.cancel(timer)
        return replica

    def _delete_aside(self, key: PartitionKey) -> None:
        replica, _ = self._aside.pop(key)
        self._delete(replica)

    def _delete(self, replica: Replica) -> None:
        replica.deleted = True
        self.out.append(Delete(replica.key))
        self._dirty[replica.key] = replica
        self.note("replica deleted", partition=replica.key[0].hex(), index=replica.key[1])

    def append(self, replica: Replica, span: LogSpan) -> None:
        """Write a valid span at the end of a replica's log."""
        replica.log.append(span)
        replica.runs.append(
            span.base_offset, span.end_offset, span.last_timestamp_ms, len(span.data)
        )
        replica.bytes_appended += len(span.data)
        self.out.append(Append(replica.key, span.data, span.base_offset, span.end_offset))
        self._dirty[replica.key] = replica

    def truncate(self, replica: Replica, end_offset: int) -> None:
        """Truncate a replica's log."""
        replica.log.truncate(end_offset)
        if end_offset == replica.log.start:
            replica.runs.clear()
        else:
            replica.runs.truncate(end_offset)
        replica.truncations += 1
        replica.truncation_unflushed = True
        replica.high_watermark = min(replica.high_watermark, end_offset)
        self.out.append(Truncate(replica.key, end_offset))
        self._dirty[replica.key] = replica

    def advance_start(self, replica: Replica, start_offset: int) -> None:
        """Drop a replica's log below a batch boundary, and keep the rest."""
        replica.log.advance_start(start_offset)
        dropped = replica.runs.drop_before(start_offset)
        self.out.append(AdvanceStart(replica.key, start_offset, dropped))
        self._dirty[replica.key] = replica

    def reset(self, replica: Replica, start_offset: int) -> None:
        """Empty a replica's log: its leader's log begins at ``start_offset``."""
        replica.log.reset(start_offset)
        replica.runs.clear()
        replica.truncations += 1
        replica.truncation_unflushed = True
        replica.high_watermark = start_offset
        self.out.append(Reset(replica.key, start_offset))
        self._dirty[replica.key] = replica

    def request_flush(self) -> None:
        """At the end of a step, request one flush of everything that it has written."""
        if self._dirty:
            self._token += 1
            marks = [
                (replica, replica.log.end, replica.truncations) for replica in self._dirty.values()
            ]
            self._dirty = {}
            self._flushes.append((self._token, marks))
            self.out.append(Flush(self._token))

    def flushed(self, token: int) -> list[Replica]:
        """Process a Flushed; return the replicas whose logs are durable further than before."""
        moved: dict[PartitionKey, Replica] = {}
        while self._flushes and self._flushes[0][0] <= token:
            for replica, end, truncations in self._flushes.popleft()[1]:
                # Records truncated meanwhile, and perhaps rewritten, belong to a later flush.
                if replica.truncations == truncations and not replica.deleted:
                    replica.log.flushed(end)
                    replica.truncation_unflushed = False
                    moved[replica.key] = replica
        return list(moved.values())

    def next_correlation_id(self) -> int:
        """Return the correlation id of the next replica fetch, unique over all links."""
        self._correlation_id += 1
        return self._correlation_id

    def note(self, event: str, **fields: Any) -> None:
        """Emit an event for the node's log."""
        self.out.append(Note(event, fields))

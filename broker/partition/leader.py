"""The leader of one partition in one leader epoch: its appends, its high watermark, and the
requests that wait for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from broker.partition import configs
from broker.partition.host import Host
from broker.partition.leader_isr import LeaderIsr
from broker.partition.replica import Replica
from broker.partition.retention import retention_of, start_to_keep
from raftlog import batch
from raftlog.clock import stamp_after
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.config_layers import needed_in_sync
from raftlog.metadata.entities import Partition
from raftlog.quorum.events import LogSpan
from raftlog.wire.data.v1 import data_pb2 as pb

if TYPE_CHECKING:
    from broker.partition.fetches import ParkedFetch
    from broker.partition.isr_updates import IsrUpdates
    from broker.partition.produces import Pending
    from broker.partition.session import Position

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


class Leader:
    """The leader of one partition. ``high_watermark`` -1: unknown, until every member of the ISR
    has fetched in this epoch.

    The high watermark never moves back.
    """

    __slots__ = (
        "_for_commit",
        "_for_flush",
        "_gauges",
        "epoch",
        "high_watermark",
        "host",
        "isr",
        "isr_updates",
        "max_message_bytes",
        "min_isr",
        "partition",
        "positions",
        "replica",
        "start_offset",
        "waiting",
    )

    def __init__(
        self, host: Host, replica: Replica, partition: Partition, isr_updates: IsrUpdates
    ) -> None:
        self.host = host
        self.replica = replica
        self.isr_updates = isr_updates
        self.epoch = partition.leader_epoch
        self.start_offset = replica.log.end
        self.high_watermark = -1
        self.partition = partition
        self.positions: dict[int, Position] = {}
        """Positions of fetch sessions, by the session's number."""
        self.waiting: dict[int, ParkedFetch] = {}
        """Fetches of consumers that wait for the high watermark, by number."""
        # Made for the first waiting request: most partitions are idle, and there may be very many.
        self._for_flush: deque[Pending] | None = None
        self._for_commit: deque[Pending] | None = None
        self._gauges = (False,) * len(_MEASURED)
        self.min_isr = 1
        self.max_message_bytes = 1
        self.isr = LeaderIsr(self, partition)
        self.take_configs()

    def begin(self) -> None:
        """Start serving as leader, with the ISR that the image shows."""
        isr = self.isr.state.committed
        self.host.note(
            "leads",
            partition=self.replica.key[0].hex(),
            index=self.replica.key[1],
            epoch=self.epoch,
            isr=list(isr),
            start_offset=self.start_offset,
        )
        self.isr.watch_lag()
        self.isr_changed()

    def take_image(self, partition: Partition) -> None:
        """Process an image with another state of this partition in the same leader epoch."""
        self.partition = partition
        self.isr.take_replicas(partition)
        self.isr.take_image(partition)
        self.take_configs()
        self.isr.consider()

    def take_configs(self) -> None:
        """Read the configs that matter here; they, or the number of replicas, may have changed."""
        image, topic_id = self.host.image, self.replica.key[0]
        wanted = configs.topic_number(image, topic_id, configs.MIN_INSYNC_REPLICAS)
        self.min_isr = needed_in_sync(self.partition, wanted)
        largest = configs.topic_number(image, topic_id, configs.MAX_MESSAGE_BYTES)
        self.max_message_bytes = min(largest, configs.BATCH_MAX_BYTES)
        self._set_gauges(self._measure())

    # --- appends ---------------------------------------------------------------------------------

    def append(self, bodies: Sequence[bytes], timestamp_ms: int) -> tuple[int, int]:
        """Append records as one batch, all or none; return their offsets, the end exclusive.

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
                f"the batch would have {len(chunk)} bytes, {configs.MAX_MESSAGE_BYTES} allows"
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
            position.data_came()
        return base, end

    def enough_in_sync(self) -> bool:
        """Return whether the committed ISR has at least ``min.insync.replicas`` members."""
        return len(self.isr.state.committed) >= self.min_isr

    def wait(self, pending: Pending, *, for_commit: bool) -> None:
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
        """Note that more of this broker's log is durable."""
        queue, end = self._for_flush, self.replica.log.flushed_end
        while queue and queue[0].end_offset <= end:
            queue.popleft().succeeded()
        self.advance()

    def fetched(self, replica_id: int, offset: int, broker_epoch: int) -> None:
        """Process a follower's valid fetch: everything below ``offset`` is durable there."""
        follower = self.isr.followers[replica_id]
        follower.fetched(offset, broker_epoch, self.replica.log.end, self.host.now)
        self.advance()
        if replica_id not in self.isr.state.committed:
            self.isr.consider()

    def isr_changed(self) -> None:
        """Advance after another ISR was committed, or a proposal was dropped."""
        self._set_gauges(self._measure())
        self.advance()
        self.isr.consider()

    def advance(self) -> None:
        """Raise the high watermark to what is durable on all of the maximal ISR, if known."""
        end = min(self.isr.end_offset_of(member) for member in self.isr.state.maximal)
        if end <= self.high_watermark or end < 0:
            return
        was_unknown = self.high_watermark < 0
        self.high_watermark = self.replica.high_watermark = end
        queue = self._for_commit
        enough = self.enough_in_sync()
        while queue and queue[0].end_offset <= end:
            pending = queue.popleft()
            if enough:
                pending.succeeded()
            else:
                isr = list(self.isr.state.committed)
                pending.failed(
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                    f"the ISR is {isr} meanwhile, {configs.MIN_INSYNC_REPLICAS} is {self.min_isr}",
                    outcome_unknown=True,
                )
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
        """End the role: this broker no longer leads this epoch. Fails all waiting requests."""
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
    def _fail_all(queue: deque[Pending] | None, message: str, current: pb.CurrentLeader) -> None:
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

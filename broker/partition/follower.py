"""The follower of one partition in one leader epoch: how the leader's answers change its log."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from broker.partition.host import Host
from broker.partition.replica import Replica
from raftlog import batch
from raftlog.errors import CorruptLogError
from raftlog.quorum.events import LogSpan
from raftlog.wire.data.v1 import data_pb2 as pb

if TYPE_CHECKING:
    from broker.partition.deadlines import Timer
    from broker.partition.leader_link import LeaderLink


class Stage(Enum):
    """The stage of a followed partition on its link."""

    DUE = auto()
    """Due to be named in the next fetch."""
    NAMED = auto()
    """Waiting for the leader's answer."""
    WRITING = auto()
    """Written; the new end is acknowledged once it is durable."""
    PAUSED = auto()
    """Refused by the leader; waiting to retry."""


class Follower:
    """The follower of ``leader_id`` in leader epoch ``epoch``, and in no other."""

    __slots__ = (
        "epoch",
        "host",
        "leader_id",
        "link",
        "named_in",
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
        self.named_in = 0
        """Correlation id of the fetch that named it: an older answer is for another position."""
        self.pause_s = 0.0
        self.timer: Timer | None = None

    def named(self) -> pb.ReplicaFetchPartition:
        """Return its position. The offset acknowledges: everything below it is durable here."""
        replica = self.replica
        return pb.ReplicaFetchPartition(
            topic_id=replica.key[0],
            partition_index=replica.key[1],
            current_leader_epoch=self.epoch,
            fetch_offset=replica.log.flushed_end,
            last_fetched_epoch=replica.last_epoch,
        )

    def take(self, result: pb.ReplicaFetchPartitionResult) -> str:
        """Process a result without an error; return what is wrong with it, empty if nothing."""
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
                f"epochs {scan.epochs} do not continue the log of epoch {replica.last_epoch} in"
                f" {self.epoch}"
            )
        self.host.append(replica, span)
        return ""

    def _follow_start(self, log_start_offset: int) -> None:
        """Follow the leader's log start, up to a batch boundary of this log: its own may differ."""
        replica = self.replica
        start = replica.runs.boundary(min(log_start_offset, replica.log.end - 1))
        if start > replica.log.start:
            self.host.advance_start(replica, start)

    def begin_at(self, log_start_offset: int) -> bool:
        """Begin at the leader's log start, which is above this position. False if that is no reason
        to drop this log: it has records that the leader should be asked about.
        """
        replica, log = self.replica, self.replica.log
        is_empty = log.end == log.start
        if not (log_start_offset > log.end or (is_empty and 0 <= log_start_offset < log.end)):
            return False
        self.host.note(
            "begins anew where the leader's log begins",
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
            return (
                f"to be cut at epoch {epoch}, offset {end_offset}, where nothing would be dropped"
            )
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

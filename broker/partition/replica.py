"""One partition's replica on this broker: its log, and the part it plays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raftlog.quorum.log_ends import LogEnds
from raftlog.storage.partition_api import PartitionKey, RecoveredPartition

if TYPE_CHECKING:
    from broker.partition.follower import Follower
    from broker.partition.leader import Leader


class PartitionLog(LogEnds):
    """The ends and epochs of a partition's log. Its epochs are leader epochs, which begin at 0."""

    first_epoch = 0


class Replica:
    """``role`` None: the partition has no leader, or this broker is not sure yet that it is itself.

    ``high_watermark``: the highest that this replica knows, for people. ``truncations`` tells a
    flush that was asked for before one from a flush after it. ``bytes_appended``: since the start
    of the process; differences of it are sizes.
    """

    __slots__ = (
        "bytes_appended",
        "deleted",
        "high_watermark",
        "key",
        "last_timestamp_ms",
        "log",
        "offline",
        "role",
        "truncation_unflushed",
        "truncations",
    )

    def __init__(self, key: PartitionKey, recovered: RecoveredPartition | None = None) -> None:
        self.key = key
        if recovered is None:
            self.log = PartitionLog(0, 0, ())
        else:
            self.log = PartitionLog(recovered.start_offset, recovered.end_offset, recovered.epochs)
        self.role: Leader | Follower | None = None
        self.high_watermark = -1
        self.truncations = 0
        self.truncation_unflushed = False
        self.bytes_appended = 0
        self.last_timestamp_ms = 0
        self.deleted = False
        self.offline = ""
        """Why it may not lead though the image says so; empty if nothing is wrong."""

    @property
    def durable(self) -> bool:
        """Whether all of its log is: then its end may be acknowledged."""
        return self.log.flushed_end == self.log.end and not self.truncation_unflushed

    @property
    def last_epoch(self) -> int:
        """Of the last record; -1 if there is none."""
        return self.log.last_epoch if self.log.end > self.log.start else -1

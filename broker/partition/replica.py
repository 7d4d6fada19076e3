"""One partition's replica on this broker: its log and its role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from raftlog.node.storage.partition_api import LogRuns, PartitionKey, RecoveredPartition
from raftlog.quorum.log_state import EpochIndex, LogEnds

if TYPE_CHECKING:
    from broker.partition.follower import Follower
    from broker.partition.leader import Leader


class PartitionLog(LogEnds):
    """The ends and epochs of a partition's log. Its epochs are leader epochs, which begin at 0."""

    first_epoch = 0

    @override
    def divergence(self, offset: int, last_epoch: int) -> tuple[int, int] | None:
        """Return where another log diverges from this one, as for any log.

        In a log that begins above 0, the epochs before its first are unknown. A log that ends in
        one of these may diverge from it below the start already, so that the two share nothing:
        (0, 0).
        """
        first_epoch = self.epochs.first_epoch
        if self.start and (last_epoch < first_epoch or first_epoch < 0):
            return 0, 0
        return super().divergence(offset, last_epoch)

    def advance_start(self, offset: int) -> None:
        """Note that the log below ``offset`` was dropped."""
        self.start = offset
        self.epochs.drop_before(offset, self.end)

    def reset(self, offset: int) -> None:
        """Note that the log is empty, and continues at ``offset``."""
        self.start = self.end = self.flushed_end = offset
        self.epochs = EpochIndex()


class Replica:
    """One replica. ``role`` None: the partition has no leader, or this broker is not sure yet that
    it is itself.

    ``high_watermark``: the highest that this replica knows, for people. ``truncations`` tells a
    flush that was asked for before one from a flush after it. ``bytes_appended``: since the start
    of the process; differences of it are sizes.
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
        self.role: Leader | Follower | None = None
        self.high_watermark = -1
        self.truncations = 0
        self.truncation_unflushed = False
        self.bytes_appended = 0
        self.deleted = False
        self.offline = ""
        """Why this broker may not lead though the image says so; empty if nothing is wrong."""

    @property
    def durable(self) -> bool:
        """Whether the whole log is durable: then its end may be acknowledged."""
        return self.log.flushed_end == self.log.end and not self.truncation_unflushed

    @property
    def last_epoch(self) -> int:
        """Epoch of the last record; -1 if there is none."""
        return self.log.last_epoch if self.log.end > self.log.start else -1

"""What one controller node knows: its image, its leadership, and the quorum as it sees it. The
shell keeps it up to date; others ask.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.decider import Decider
from controller.disk.snapshot_generator import SnapshotLoad
from controller.disk.space import SpaceWatch
from controller.service.directory import Directory
from controller.service.farewell import Farewell
from controller.service.image_loader import CommittedImage
from controller.service.leadership import Leadership
from raftlog.errors import ApiError
from raftlog.metadata.image import Image
from raftlog.quorum.config import QuorumConfig
from raftlog.replica.replica import Replica
from raftlog.storage.api import SnapshotId
from raftlog.voter import Voter
from raftlog.wire.controller.v1 import controller_pb2 as pb

STATE_HASH_MASK = (1 << 64) - 1
"""What observers tell of a state hash."""


class ControllerNode:
    """One node, leader or not."""

    def __init__(
        self,
        quorum: QuorumConfig,
        replica: Replica,
        farewell: Farewell,
        space: SpaceWatch,
        folded: Callable[[int], None],
        now: Callable[[], float],
    ) -> None:
        """``folded``: called with the bytes of the log that the committed image takes in; ``now``:
        seconds of the loop's clock.
        """
        self.quorum = quorum
        self.cluster_id = quorum.cluster_id
        self.replica = replica
        self.space = space
        self.now = now
        self.directory = Directory(quorum.node_id, quorum.voters)
        self.committed = CommittedImage(folded)
        self.load: SnapshotLoad | None = None
        """The snapshot below the log start that is still being loaded."""
        self.committed_end = -1
        """The high watermark, exclusive; -1 unknown."""
        self.leadership: Leadership | None = None
        self.closed = False
        """It has stopped for good: nothing is begun or sent any more."""
        self._farewell = farewell

    # --- this node -------------------------------------------------------------------------------

    @property
    def image(self) -> Image:
        """The committed image; behind the high watermark only while a long log is being folded."""
        return self.committed.image

    @property
    def loading(self) -> bool:
        """Whether the snapshot below the log start is still being loaded."""
        return self.load is not None

    @property
    def log_start_offset(self) -> int:
        """The first offset in this node's log."""
        return self.replica.log_start_offset

    @property
    def newest_snapshot(self) -> SnapshotId | None:
        """The newest snapshot of this node, if any."""
        return self.replica.snapshots.newest

    def read(self, offset: int, until: int, max_bytes: int) -> bytes:
        """Read whole batches of the log."""
        return self.replica.read(offset, until, max_bytes)

    def divergence(self, end_offset: int, applied: pb.AppliedBatch) -> tuple[int, int] | None:
        """Where this log and one that has applied this batch, up to ``end_offset``, part; None: the
        log has the batch, or begins behind it. ``end_offset`` itself: the states part.
        """
        if end_offset < self.log_start_offset:
            return None
        parted = self.replica.divergence(end_offset, applied.epoch)
        if parted is not None:
            return parted
        state_hash = self.committed.recent_state_hash(end_offset - 1)
        if state_hash is not None and state_hash & STATE_HASH_MASK != applied.state_hash:
            return applied.epoch, end_offset
        same = self.replica.may_have_batch(applied.base_offset, end_offset, applied.crc)
        return None if same else (applied.epoch, applied.base_offset)

    def is_broker(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the committed image has this registration."""
        broker = self.committed.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch

    @property
    def quorum_time_ms(self) -> int:
        """What time it is by the quorum, ms since 1970; 0: that is not known."""
        return self.replica.quorum_time_ms or 0

    # --- the quorum ------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation at the log's end: of what a leader proposes."""
        return self.replica.lineage.current

    @property
    def committed_generation(self) -> int:
        """The generation of what is committed; 0: nothing is known to be."""
        return self.replica.generation

    @property
    def previous_generations(self) -> tuple[int, ...]:
        """The generations that what is committed descends from, oldest first."""
        return self.replica.lineage.below(self.replica.high_watermark)[:-1]

    @property
    def voters(self) -> tuple[Voter, ...]:
        """The voter set in force on this node, committed or not."""
        return self.directory.voters

    @property
    def leader_id(self) -> int:
        """The active controller as far as this node knows, -1 if unknown."""
        return self.directory.leader_id

    @property
    def controller_epoch(self) -> int:
        """The newest epoch this node knows."""
        return self.directory.leader_epoch

    def leader_endpoint(self, leader_id: int, listener: str) -> str:
        """host:port of a voter on a listener; empty if it is unknown."""
        return self.directory.endpoint_of(leader_id, listener)

    # --- its leadership --------------------------------------------------------------------------

    @property
    def decider(self) -> Decider | None:
        """Who decides requests; None unless this node leads and has finished claiming."""
        return self.leadership.decider if self.leadership is not None else None

    @property
    def lowest_acknowledged_offset(self) -> int:
        """LAO, inclusive; -1 unknown, also on every node that is not the active controller."""
        return self.leadership.log.lao.lao if self.leadership is not None else -1

    @property
    def lowest_known_lao(self) -> int:
        """The lowest LAO that an LAO member knows, which ``visible`` waits for; -1 unknown, also on
        every node that is not the active controller.
        """
        return self.leadership.log.lao.min_known_lao if self.leadership is not None else -1

    def not_controller(self) -> ApiError | None:
        """Why requests are refused here, None if they are not."""
        if self.leadership is not None and not self._farewell.begun:
            return None
        return self.directory.not_controller()

"""Catch-up, the steps that make a node ready to decide: it loads a snapshot, folds committed
records, and claims, one slice per turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import structlog

from controller.disk.snapshot_generator import SnapshotGenerator, SnapshotLoad
from controller.service.node import ControllerNode
from controller.service.replies import Parked
from controller.service.turns import Leadership
from controller.service.upkeep import Timer
from controller.settings import ControllerSettings
from raftlog.node.replica.replica import LINE_AFTER_S
from raftlog.node.storage.api import SnapshotId

log = structlog.get_logger(__name__)

CLAIM_MAX_S = 1.0
"""Longest time, in seconds, that standbys wait for a claim to end."""
FAR_BEHIND_RECORDS = 10_000
"""Minimum number of unfolded records at which a standby waits; fewer take only about ten
milliseconds to fold.
"""


class ClaimWatch:
    """Gives a new leader's fold priority over that of a standby that is far behind.

    ``now``: seconds of the loop's clock. After a restart of all nodes each must fold the whole log:
    the leader before it can decide anything, the standbys only for the next failover. If they share
    cores or a disk, the standbys would slow the leader down. So a standby that is far behind waits
    until the leader decides, but at most ``CLAIM_MAX_S``.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._first_end = -1

    def leader_changed(self, *, elected: bool, now: float) -> None:
        """Record that another leader is known, or none.

        ``elected``: the leader is known, and the log has no record of its epoch yet.
        """
        self._until, self._first_end = now + CLAIM_MAX_S if elected else 0.0, -1

    def committed(self, high_watermark: int) -> None:
        """Record the high watermark.

        The first one covers the record that begins the epoch; a higher one means that the leader
        decides.
        """
        if self._first_end < 0:
            self._first_end = high_watermark
        elif high_watermark > self._first_end:
            self._until = 0.0

    def waits(self, behind_records: int, now: float) -> bool:
        """Return whether to wait before folding ``behind_records`` records."""
        return behind_records >= FAR_BEHIND_RECORDS and now < self._until


STANDBY_FOLD_S = 0.02


class CatchUp:
    """The catch-up of one node.

    ``send``: called by a leadership to send its parked replies. ``claimed``: called when this node
    becomes the active controller. ``wake``: run a turn soon.
    """

    def __init__(
        self,
        node: ControllerNode,
        settings: ControllerSettings,
        snapshots: SnapshotGenerator,
        rng: random.Random,
        *,
        send: Callable[[Parked], None],
        claimed: Callable[[], None],
        wake: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._node, self._settings, self._snapshots, self._rng = node, settings, snapshots, rng
        self._send, self._claimed, self._wake = send, claimed, wake
        self._call_later = call_later
        self._fold_timer: Timer | None = None
        self._claim_watch = ClaimWatch()

    def snapshot_loaded(self, snapshot_id: SnapshotId) -> None:
        """Begin to load a snapshot. Until it is loaded, the node folds nothing and does not
        claim.
        """
        node = self._node
        if snapshot_id.end_offset > node.committed.offset + 1:
            node.load = SnapshotLoad(node.replica.snapshots, snapshot_id)
            self._snapshots.installed(node.now(), node.committed.applied_bytes)
            self._wake()

    def became_leader(self, epoch: int, epoch_start_offset: int) -> None:
        """Begin to claim."""
        self._node.leadership = Leadership(
            epoch,
            epoch_start_offset,
            self._node.committed.image,
            self._node.committed.log_hash,
            self._send,
        )
        self._wake()

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Record that another leader is known, or none (-1)."""
        elected = leader_id >= 0 and self._node.replica.last_epoch < epoch
        self._claim_watch.leader_changed(elected=elected, now=self._node.now())

    def fold_soon(self) -> None:
        """Fold committed records soon.

        No answer depends on a standby's image, so the fold starts after the acknowledgement was
        sent, and covers several commits at once.
        """
        self._claim_watch.committed(self._node.committed_end)
        if self._fold_timer is None and not self._node.closed:
            self._fold_timer = self._call_later(STANDBY_FOLD_S, self._fold)

    def _fold(self) -> None:
        self._fold_timer = None
        self._wake()

    def step(self) -> bool:
        """Do one slice of the work that precedes decisions. Return False if there was none.

        Raises FatalError.
        """
        node = self._node
        if node.load is not None:
            self._load_slice(node.load)
        elif node.leadership is None:
            self._fold_slice()
        elif node.leadership.decider is None:
            self._claim(node.leadership)
        else:
            return False
        return True

    def _fold_slice(self) -> None:
        node = self._node
        behind = node.committed_end - 1 - node.committed.offset
        if self._claim_watch.waits(behind, node.now()):
            # Check again later: the leader may finish sooner.
            if self._fold_timer is None:
                self._fold_timer = self._call_later(STANDBY_FOLD_S, self._fold)
        elif not node.committed.advance(node.replica, node.committed_end):
            self._wake()

    def _load_slice(self, load: SnapshotLoad) -> None:
        node, image = self._node, load.step()
        if image is not None:
            node.load = None
            node.committed.replace(image, load.log_hash())
            log.info("snapshot loaded", offset=image.offset, state_hash=f"{image.state_hash:032x}")
            if node.leadership is not None:
                # This node was elected during the load: begin to claim from this image.
                stale = node.leadership.log
                node.leadership = Leadership(
                    stale.epoch,
                    stale.epoch_start_offset,
                    image,
                    node.committed.log_hash,
                    self._send,
                )
        self._wake()

    def _claim(self, leadership: Leadership) -> None:
        node = self._node
        if leadership.claim(node.replica, node.quorum, self._settings, self._rng, node.now()):
            self._claimed()
            # The first requests are decided, and answered, before the line is written.
            active = {"epoch": leadership.epoch, "offset": leadership.log.pending.offset}
            self._call_later(LINE_AFTER_S, partial(log.info, "active controller", **active))
        self._wake()

    def close(self) -> None:
        """Cancel the scheduled fold."""
        if self._fold_timer is not None:
            self._fold_timer.cancel()

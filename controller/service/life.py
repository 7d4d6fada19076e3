"""What a controller tells its journal about its own life.

Elections are told as they happen. The rest is looked at once a tick and compared with what was told
last: no hot path knows of the journal.
"""

from __future__ import annotations

from bisect import bisect_left

from controller.disk.snapshot_generator import SnapshotGenerator
from controller.service.node import ControllerNode
from raftlog.observability.journal import Journal, Kind
from raftlog.observability.latency import LATENCY_BOUNDS_S
from raftlog.storage.api import LogStore

SLOW_FLUSH_S = 0.5
STALL_S = 1.0
"""A disk call, a silent peer or a missing leader that lasts so long is worth a line."""
LOOP_GAP_S = 0.5
TICK_S = 0.1
"""Of the housekeeping."""
_CAMPAIGNS = ("prospective", "candidate")
_SLOW_FROM = bisect_left(LATENCY_BOUNDS_S, SLOW_FLUSH_S) + 1


class NodeLife:
    """One node's. A ``Chore`` of the housekeeping."""

    def __init__(
        self, node: ControllerNode, snapshots: SnapshotGenerator, store: LogStore, journal: Journal
    ) -> None:
        self._node, self._snapshots, self._store, self._journal = node, snapshots, store, journal
        self._ticked_at: float | None = None
        self._campaign: tuple[int, str] | None = None
        self._outage_said = False
        self._lost: set[int] = set()
        self._lost_at: dict[int, float] = {}
        self._slow = 0
        self._stalled = self._low = self._decides = False
        self._refusal = ""
        self._taken = self._loaded = 0
        self._log_start: int | None = None

    # --- as it happens ---------------------------------------------------------------------------

    def leader_changed(self, leader_id: int, epoch: int) -> None:
        """Another leader is known; -1: none, which the outage tells if it lasts."""
        if leader_id not in (-1, self._node.quorum.node_id):
            self._journal.note(Kind.LEADER_CHANGED, epoch=epoch, leader_id=leader_id)

    def became_leader(self, epoch: int, start_offset: int) -> None:
        """It leads."""
        reason = self._node.replica.core.campaign_reason
        self._journal.note(
            Kind.BECAME_LEADER, epoch=epoch, reason=reason, start_offset=start_offset
        )

    def lost_leadership(self, epoch: int, reason: str, *, handed_over: bool) -> None:
        """It leads no more."""
        self._decides = False
        self._journal.note(
            Kind.LOST_LEADERSHIP, epoch=epoch, reason=reason, handed_over=handed_over
        )

    # --- once a tick -----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """See ``Chore``."""
        last, self._ticked_at = self._ticked_at, now
        if last is not None and now - last > TICK_S + LOOP_GAP_S:
            gap_ms = round((now - last - TICK_S) * 1000)
            self._journal.note(Kind.LOOP_STALL, gap_ms=gap_ms)
        self._look_at_role()
        self._look_at_peers(now)
        self._look_at_disk()
        self._look_at_snapshots()

    def _look_at_role(self) -> None:
        node = self._node
        core = node.replica.core
        campaign = (core.epoch, core.campaign_reason) if core.role in _CAMPAIGNS else None
        if campaign is not None and (self._campaign is None or self._campaign[1] != campaign[1]):
            self._journal.note(
                Kind.CAMPAIGN_BEGAN,
                epoch=core.epoch,
                reason=core.campaign_reason,
                last_leader_id=node.leader_id,
            )
        if campaign is not None or core.campaign_reason == "":
            self._campaign = campaign
        decides = node.decider is not None
        if decides and not self._decides and node.leadership is not None:
            self._journal.note(
                Kind.ACTIVE_CONTROLLER,
                epoch=node.leadership.epoch,
                offset=node.leadership.log.pending.offset,
            )
        self._decides = decides

    def outage(self, reason: str) -> None:
        """No leader has been known for a second, and why; told again and again while that lasts,
        and empty when a leader is known.
        """
        if reason and not self._outage_said:
            epoch = self._node.replica.core.epoch
            self._journal.note(Kind.NO_LEADER, epoch=epoch, reason=reason)
        self._outage_said = bool(reason)

    def _look_at_peers(self, now: float) -> None:
        for peer in self._node.replica.peer_reach():
            known = peer.node_id in self._lost
            if not peer.is_reached and not known and peer.for_ms >= STALL_S * 1000:
                self._lost.add(peer.node_id)
                self._lost_at[peer.node_id] = now - peer.for_ms / 1000
                self._journal.note(Kind.PEER_LOST, peer_id=peer.node_id, reason=peer.reason)
            elif peer.is_reached and known:
                self._lost.discard(peer.node_id)
                after_ms = max(0, round((now - self._lost_at.pop(peer.node_id)) * 1000))
                self._journal.note(Kind.PEER_REGAINED, peer_id=peer.node_id, after_ms=after_ms)

    def _look_at_disk(self) -> None:
        node, journal = self._node, self._journal
        slow = sum(node.replica.sync_latency.counts[_SLOW_FROM:])
        if slow > self._slow:
            above_ms = round(SLOW_FLUSH_S * 1000)
            journal.note(Kind.SLOW_FLUSH, above_ms=above_ms, count=slow - self._slow)
        self._slow = slow
        busy_s = self._store.busy_s or 0.0
        if busy_s >= STALL_S and not self._stalled:
            journal.note(Kind.DISK_STALL, busy_ms=round(busy_s * 1000))
        self._stalled = busy_s >= STALL_S
        if node.space.low != self._low:
            self._low = node.space.low
            kind = Kind.SPACE_LOW if self._low else Kind.SPACE_REGAINED
            journal.note(kind, free_bytes=node.space.free_bytes)
        refusal = node.space.verdict.refusal
        if refusal and refusal != self._refusal:
            journal.note(Kind.WRITES_REFUSED, reason=refusal)
        elif self._refusal and not refusal:
            journal.note(Kind.WRITES_RESUMED)
        self._refusal = refusal

    def _look_at_snapshots(self) -> None:
        node, made = self._node, self._snapshots
        newest = node.newest_snapshot
        if made.generated > self._taken and newest is not None:
            self._taken = made.generated
            self._journal.note(
                Kind.SNAPSHOT_TAKEN, end_offset=newest.end_offset, bytes=made.generated_bytes
            )
        if made.loaded > self._loaded and not node.loading:
            self._loaded = made.loaded
            self._journal.note(Kind.SNAPSHOT_LOADED, end_offset=node.committed.offset + 1)
        start = node.log_start_offset
        if self._log_start is not None and start > self._log_start:
            self._journal.note(Kind.LOG_START_ADVANCED, offset=start)
        self._log_start = start

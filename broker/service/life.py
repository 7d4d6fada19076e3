"""The entries of a broker's journal about its own life: its state is checked a few times a second,
and compared with the last entry.
"""

from __future__ import annotations

from broker.metadata.follower import MetadataFollower
from broker.metadata.read_lease import ReadLease
from broker.metadata.view import View
from broker.registration.lifecycle import Lifecycle
from broker.replication.data_plane import DataPlane
from broker.service.fencing import Fencing
from broker.settings import LifecycleSettings
from raftlog.clock import QuorumTime
from raftlog.node.observability.clock_watch import ClockWatch
from raftlog.node.observability.journal import Journal, Kind

TICK_S = 0.2
LOOP_GAP_S = 0.5
SILENT_HEARTBEATS = 2
"""Number of heartbeats without an answer after which no controller counts as known."""


class BrokerLife:
    """A reader of the parts of one broker that changes none."""

    def __init__(
        self,
        journal: Journal,
        settings: LifecycleSettings,
        view: View,
        lifecycle: Lifecycle,
        fencing: Fencing,
        lease: ReadLease,
        follower: MetadataFollower,
        data: DataPlane | None,
        time: QuorumTime,
    ) -> None:
        self._journal = journal
        self._silent_s = SILENT_HEARTBEATS * settings.heartbeat_interval_ms / 1000
        self._view, self._lifecycle, self._fencing = view, lifecycle, fencing
        self._lease, self._follower, self._data = lease, follower, data
        self._clock = ClockWatch(time.ahead_ms, journal)
        self._ticked_at: float | None = None
        self._epoch = self._controller = -1
        self._unfenced = self._leased = self._low = False
        self._loaded = 0

    def tick(self, now: float) -> None:
        """Record what has changed since the last tick."""
        last, self._ticked_at = self._ticked_at, now
        if last is not None and now - last > TICK_S + LOOP_GAP_S:
            self._journal.note(Kind.LOOP_STALL, gap_ms=round((now - last - TICK_S) * 1000))
        self._look_at_controller(now)
        self._look_at_fencing()
        self._look_at_lease(now)
        self._look_at_data()
        self._clock.tick(now)

    def _look_at_controller(self, now: float) -> None:
        silent = self._lifecycle.silent_s(now) > self._silent_s
        controller = -1 if silent else self._follower.controller_id
        if controller == self._controller:
            return
        if controller >= 0:
            epoch = self._view.controller_epoch
            self._journal.note(Kind.CONTROLLER_FOUND, controller_id=controller, epoch=epoch)
        else:
            self._journal.note(Kind.CONTROLLER_LOST, controller_id=self._controller)
        self._controller = controller

    def _look_at_fencing(self) -> None:
        epoch = self._lifecycle.epoch
        if epoch >= 0 and epoch != self._epoch:
            self._journal.note(Kind.REGISTERED, broker_epoch=epoch)
        self._epoch = epoch
        why = self._fencing.why()
        if not why and not self._unfenced:
            self._journal.note(Kind.UNFENCED, broker_epoch=epoch)
        elif why and self._unfenced:
            self._journal.note(Kind.FENCED, reason=why)
        self._unfenced = not why

    def _look_at_lease(self, now: float) -> None:
        leased = self._lease.held(now)
        if leased and not self._leased:
            self._journal.note(Kind.LEASE_GRANTED)
        elif self._leased and not leased:
            wanted = self._lease.wanted(now)
            reason = self._lease.refusal() if wanted else "nobody reads strictly any more"
            self._journal.note(Kind.LEASE_LOST, reason=reason)
        self._leased = leased

    def _look_at_data(self) -> None:
        if self._follower.snapshots_installed > self._loaded:
            self._loaded = self._follower.snapshots_installed
            self._journal.note(Kind.SNAPSHOT_LOADED, end_offset=self._view.applied + 1)
        if self._data is None or self._data.space.low == self._low:
            return
        self._low = self._data.space.low
        kind = Kind.SPACE_LOW if self._low else Kind.SPACE_REGAINED
        self._journal.note(kind, free_bytes=self._data.space.free_bytes)

"""What decisions look at: the pending and the committed image, and the soft state that dies with
the controller's epoch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.settings import ControllerSettings
from controller.state.absent_ids import AbsentIds
from controller.state.epoch_floor import EpochFloor
from controller.state.gone import Gone
from controller.state.id_waits import IdWaits
from controller.state.isr_removals import IsrRemovals
from controller.state.lag_watch import LagWatch
from controller.state.sessions import SessionTracker
from controller.visibility.lao import LaoTracker
from controller.visibility.progress import ProgressPolicy
from controller.visibility.read_leases import ReadLeases
from controller.visibility.stall import LaoStall
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import Broker
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image


@dataclass(slots=True)
class ControllerState:
    """The state of the active controller of one epoch.

    ``pending`` holds the whole local log and everything proposed: decisions validate against it.
    ``committed`` is what may be shown. Facts that brokers report change soft state at once; the
    effects of decisions change it only once they are proposed.
    """

    cluster_id: str
    epoch: int
    settings: ControllerSettings
    pending: ImageBuilder
    committed: Image
    lao: LaoTracker
    sessions: SessionTracker
    lag_watch: LagWatch
    read_leases: ReadLeases
    rng: random.Random
    absent_ids: AbsentIds
    gone: Gone
    progress: ProgressPolicy
    generation: int = 0
    """Of the log: how often it was taken back to an older state."""
    epoch_floor: EpochFloor = field(default_factory=lambda: EpochFloor(0))
    wants_unfence: set[int] = field(default_factory=set)
    """The fenced brokers that asked to be unfenced as soon as they are ready."""
    to_look_at: dict[int, None] = field(default_factory=dict)
    """Those of them that have said something since they were last looked at: nobody becomes ready
    by what others say.
    """
    began_at: float = 0.0
    """When this controller took over."""
    sessions_given_at: float = 0.0
    """When unheard brokers were last given a session: at the claim, or when heartbeats came into
    force. No contact of theirs.
    """
    changed_at: dict[int, float] = field(default_factory=dict)
    """Broker id -> when its state last changed, if that was in this epoch."""
    lao_stall: LaoStall = field(default_factory=LaoStall)
    id_waits: IdWaits = field(default_factory=IdWaits)
    shutdown_offsets: dict[int, int] = field(default_factory=dict)
    """Broker id -> the last offset of the records that moved its leaderships away (inclusive)."""

    without_space: bool = False
    """No majority of the voters' disks has its reserve: brokers are fenced still, and leave, but
    nobody is unfenced.
    """
    isr_removals: IsrRemovals = field(default_factory=IsrRemovals)
    controller_ids: Callable[[float], frozenset[int]] = lambda now: frozenset()
    """Node ids of the voters in force and of the observers that fetch from this controller, at a
    time.
    """

    @property
    def next_offset(self) -> int:
        """The offset of the first record of the next decision."""
        return self.pending.offset + 1

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> Broker:
        """The broker of a request that says whom it is from.

        Raises NOT_CONTROLLER for an epoch beyond this log: the broker knows a registration that
        this controller does not, so it is this controller that is stale. Raises STALE_BROKER_EPOCH
        for any other registration than the present one.
        """
        if broker_id < 0:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"broker id {broker_id} is negative", field="broker_id"
            )
        if broker_epoch > self.pending.offset:
            raise ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"broker epoch {broker_epoch} is beyond the end of this log, {self.next_offset}: a"
                " newer controller gave it",
                field="broker_epoch",
            )
        broker = self.pending.brokers.get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            known = (
                "is not registered"
                if broker is None
                else f"is registered under epoch {broker.epoch}"
            )
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {broker_id} {known}, the request is from epoch {broker_epoch}",
                field="broker_epoch",
            )
        return broker

    def ask_unfence(self, broker_id: int) -> None:
        """A fenced broker wants to be unfenced as soon as it is ready."""
        self.wants_unfence.add(broker_id)
        self.to_look_at[broker_id] = None

    def no_unfence(self, broker_id: int) -> None:
        """It is unfenced, gone, or does not want it."""
        self.wants_unfence.discard(broker_id)
        self.to_look_at.pop(broker_id, None)

    def drop_wishes(self, broker_id: int) -> None:
        """It is fenced: what it asked for before, to be unfenced or to shut down, is void."""
        self.no_unfence(broker_id)
        self.shutdown_offsets.pop(broker_id, None)

    def changed(self, broker_id: int, now: float) -> None:
        """A broker's state has changed."""
        self.changed_at[broker_id] = now

    def forget(self, broker_id: int) -> None:
        """End a broker's session, and drop what was remembered about it."""
        self.sessions.end(broker_id)
        self.read_leases.forget(broker_id)
        self.drop_wishes(broker_id)
        self.isr_removals.forget(broker_id)

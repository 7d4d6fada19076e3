"""What decisions look at: the log of the epoch, and the soft state that dies with the epoch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.settings import ControllerSettings
from controller.state.absent_ids import AbsentIds
from controller.state.epoch_floor import EpochFloor
from controller.state.epoch_log import LogView
from controller.state.gone import Gone
from controller.state.id_waits import IdWaits
from controller.state.isr_removals import IsrRemovals
from controller.state.lag_watch import LagWatch
from controller.state.leases import LeaseTracker
from controller.state.sessions import SessionTracker
from controller.visibility.progress import ProgressPolicy
from controller.visibility.read_leases import ReadLeases
from controller.visibility.sketches import VisibilitySketches
from controller.visibility.stall import LaoStall
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import Broker
from raftlog.security.authorization import Authorization
from raftlog.security.configured import authorization_of


@dataclass(slots=True)
class ControllerState:
    """What the active controller of one epoch knows.

    Facts that brokers report change soft state at once; the effects of decisions change it only
    once they are proposed (``apply``). Nothing that has this state can change ``log``: the
    shell adds to it.
    """

    log: LogView
    """Claimed: the whole local log is in it."""
    settings: ControllerSettings
    cluster_id: str
    rng: random.Random
    began_at: float
    """When this controller took over."""
    generation: int = 0
    """The generation of the log."""
    previous_generations: tuple[int, ...] = ()
    """Those that the log had before, oldest first."""
    recoveries: int = 0
    """How often the log was taken back to an older state."""
    controller_ids: Callable[[float], frozenset[int]] = lambda now: frozenset()
    """Node ids of the voters in force and of the observers that fetch from this controller, at a
    time.
    """

    authorization: Authorization | None = field(init=False)
    """None: whoever may connect may do everything."""
    sessions: SessionTracker = field(init=False)
    sessions_given_at: float = field(init=False, default=0.0)
    """When unheard brokers were last given a session: at the claim, or when heartbeats came into
    force. No contact of theirs.
    """
    lag_watch: LagWatch = field(init=False)
    read_leases: ReadLeases = field(init=False)
    leases: LeaseTracker = field(init=False, default_factory=LeaseTracker)
    """Of the key-value store."""
    absent_ids: AbsentIds = field(init=False)
    gone: Gone = field(init=False)
    progress: ProgressPolicy = field(init=False)
    epoch_floor: EpochFloor = field(init=False)
    lao_stall: LaoStall = field(init=False, default_factory=LaoStall)
    sketches: VisibilitySketches = field(init=False, default_factory=VisibilitySketches)
    id_waits: IdWaits = field(init=False, default_factory=IdWaits)
    isr_removals: IsrRemovals = field(init=False, default_factory=IsrRemovals)
    wants_unfence: set[int] = field(init=False, default_factory=set)
    """The fenced brokers that asked to be unfenced as soon as they are ready."""
    to_look_at: dict[int, None] = field(init=False, default_factory=dict)
    """Those of them that have said something since they were last looked at: nobody becomes ready
    by what others say.
    """
    changed_at: dict[int, float] = field(init=False, default_factory=dict)
    """Broker id -> when its state last changed, if that was in this epoch."""
    shutdown_offsets: dict[int, int] = field(init=False, default_factory=dict)
    """Broker id -> the last offset of the records that moved its leaderships away (inclusive)."""
    without_space: bool = field(init=False, default=False)
    """No majority of the voters' disks has its reserve: brokers are fenced still, and leave, but
    nobody is unfenced.
    """

    def __post_init__(self) -> None:
        settings, now, image = self.settings, self.began_at, self.log.pending.snapshot()
        self.authorization = authorization_of(settings)
        session_timeout_s = settings.broker_session_timeout_ms / 1000
        self.lag_watch = LagWatch(
            lag_max_s=settings.broker_metadata_lag_max_ms / 1000,
            probation_s=settings.broker_metadata_lag_probation_ms / 1000,
            probation_max_s=settings.broker_metadata_lag_probation_max_ms / 1000,
            now=now,
        )
        self.read_leases = ReadLeases(session_timeout_s, now)
        self.absent_ids = AbsentIds(
            settings.broker_id_adopt_after_ms / 1000, session_timeout_s, now
        )
        self.gone = Gone(session_timeout_s)
        # The first record of the epoch stands for the inherited tail below it: LAO passes both or
        # neither.
        self.progress = ProgressPolicy(
            settings.progress_interval_ms / 1000, self.log.epoch_start_offset
        )
        self.epoch_floor = EpochFloor(self.recoveries)
        self.isr_removals.resume(image)
        self.leases.start([(id_, one.ttl_ms) for id_, one in sorted(image.leases.items())], now)
        self.sessions = SessionTracker(session_timeout_s)
        # A fenced broker holds no lease and says soon enough that it lives; one that died long ago
        # must not look alive.
        self.sessions.start(
            [
                (broker_id, image.brokers[broker_id].epoch)
                for broker_id in sorted(image.brokers)
                if not image.brokers[broker_id].fenced
            ],
            now,
        )

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
        if broker_epoch > self.log.pending.offset:
            raise ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"broker epoch {broker_epoch} is beyond the end of this log,"
                f" {self.log.end_offset}: a newer controller gave it",
                field="broker_epoch",
            )
        broker = self.log.pending.brokers.get(broker_id)
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

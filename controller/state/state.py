"""The input of decisions: the log of the epoch and the soft state that ends with the epoch.

``apply`` is the only place where a decision changes soft state.

The feature level ``broker.heartbeat.version`` implements the double roll of KIP-343. Level 0: every
registered broker, including legacy ones (registration version 0), counts as active from its
registration onwards. No broker is fenced for silence, and brokers that support heartbeats neither
send them nor fence themselves: all builds behave alike, so brokers can be upgraded and rolled back
one by one. A broker that fetches the log or registers counts as heard from, so that a second
process under the id of a live broker is still refused. Level 1: heartbeats are enabled. It can be
set once every registered broker supports them, and can be lowered again. As LAO is computed from
brokers' reports, ``lao.version`` 1 needs level 1; at level 0 LAO is unknown.

Why: docs/decisions/018-feature-levels.md
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from controller.decision import (
    Effect,
    FeatureLevelsUpdated,
    Fenced,
    IsrsLeft,
    LeaderEpochsRaised,
    LeadersElected,
    LeaseBegun,
    LeaseEnded,
    LeaseGranted,
    LeaseKeptAlive,
    LeaseStopped,
    LeavingBegun,
    Left,
    ProgressRecorded,
    Registered,
    RegisteredAgain,
    ShutdownBegun,
    Unfenced,
    Unregistered,
)
from controller.settings import ControllerSettings
from controller.state.batched_changes import EpochFloor, IsrRemovals, JoinElections
from controller.state.epoch_log import LogView
from controller.state.leases import LeaseTracker, ReadLeases
from controller.state.liveness import AbsentIds, Gone, IdWaits, LagWatch, SessionTracker
from controller.state.unclean_recovery import UncleanRecovery
from controller.visibility.progress import LaoStall, ProgressPolicy, VisibilitySketches
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import Broker, Cause
from raftlog.metadata.image import Image
from raftlog.metadata.versions import (
    BROKER_HEARTBEAT_VERSION,
    LAO_VERSION,
    heartbeats_enabled,
)
from raftlog.node.security.authorization import Authorization, authorization_of


@dataclass(slots=True)
class ControllerState:
    """The state of the active controller in one epoch.

    Facts that brokers report change soft state at once; the effects of decisions change it only
    once they are proposed (``apply``). A holder of this state cannot change ``log``: only the shell
    appends to it.
    """

    log: LogView
    """The log of the epoch; the claim is complete, so it includes the whole local log."""
    settings: ControllerSettings
    cluster_id: str
    rng: random.Random
    began_at: float
    """Time at which this controller became active."""
    generation: int = 0
    previous_generations: tuple[int, ...] = ()
    """Earlier generations of the log, oldest first."""
    recoveries: int = 0
    """Number of restores and unsafe recoveries of the log."""
    controller_ids: Callable[[float], frozenset[int]] = lambda now: frozenset()
    """Return, for a time, the node ids of the current voters and of the observers that fetch from
    this controller.
    """

    authorization: Authorization | None = field(init=False)
    """Permissions of clients, or None if every client that may connect may do everything."""
    sessions: SessionTracker = field(init=False)
    sessions_granted_at: float = field(init=False, default=0.0)
    """Time at which brokers last got a session without a contact: at the claim, or when heartbeats
    were enabled.
    """
    lag_watch: LagWatch = field(init=False)
    read_leases: ReadLeases = field(init=False)
    leases: LeaseTracker = field(init=False, default_factory=LeaseTracker)
    """Leases of the key-value store."""
    absent_ids: AbsentIds = field(init=False)
    gone: Gone = field(init=False)
    progress: ProgressPolicy = field(init=False)
    epoch_floor: EpochFloor = field(init=False)
    lao_stall: LaoStall = field(init=False, default_factory=LaoStall)
    sketches: VisibilitySketches = field(init=False, default_factory=VisibilitySketches)
    id_waits: IdWaits = field(init=False, default_factory=IdWaits)
    isr_removals: IsrRemovals = field(init=False, default_factory=IsrRemovals)
    join_elections: JoinElections = field(init=False, default_factory=JoinElections)
    unclean_recovery: UncleanRecovery = field(init=False)
    wants_unfence: set[int] = field(init=False, default_factory=set)
    """Fenced brokers that asked to be unfenced as soon as they are ready."""
    to_examine: dict[int, None] = field(init=False, default_factory=dict)
    """Brokers of ``wants_unfence`` that have reported since they were last examined; only its own
    report can make a broker ready.
    """
    changed_at: dict[int, float] = field(init=False, default_factory=dict)
    """Broker id -> time of its last state change in this epoch."""
    shutdown_offsets: dict[int, int] = field(init=False, default_factory=dict)
    """Broker id -> offset of the last record that moved its leaderships away (inclusive)."""
    without_space: bool = field(init=False, default=False)
    """True while no majority of the voters' disks has its reserve: brokers may be fenced and may
    leave, but none is unfenced.
    """

    def __post_init__(self) -> None:
        settings, now, image = self.settings, self.began_at, self.log.pending.snapshot()
        self.authorization = authorization_of(settings)
        self.unclean_recovery = UncleanRecovery(settings)
        session_timeout_s = settings.broker_session_timeout_ms / 1000
        self.lag_watch = LagWatch(
            lag_max_s=settings.broker_metadata_lag_max_ms / 1000,
            probation_s=settings.broker_metadata_lag_probation_ms / 1000,
            probation_max_s=settings.broker_metadata_lag_probation_max_ms / 1000,
            session_timeout_s=session_timeout_s,
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
        self.join_elections.resume(image)
        self.leases.start([(id_, one.ttl_ms) for id_, one in sorted(image.leases.items())], now)
        self.sessions = SessionTracker(session_timeout_s)
        # A fenced broker holds no lease, and if it is alive it reports soon enough; one that died
        # long ago must not look alive.
        self.sessions.start(
            [
                (broker_id, image.brokers[broker_id].epoch)
                for broker_id in sorted(image.brokers)
                if not image.brokers[broker_id].fenced
            ],
            now,
        )

    def check_broker_epoch(self, broker_id: int, broker_epoch: int) -> Broker:
        """Return the broker that a request names as its sender.

        Raises NOT_CONTROLLER for a broker epoch beyond this log: the broker knows a registration
        that this controller does not, so this controller is stale. Raises STALE_BROKER_EPOCH for
        any registration other than the current one.
        """
        if broker_id < 0:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"broker id {broker_id} is negative; it must be 0 or more",
                field="broker_id",
            )
        if broker_epoch > self.log.pending.offset:
            raise ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"broker epoch {broker_epoch} is beyond the end of this log,"
                f" {self.log.end_offset}: a newer controller assigned it",
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
                f"broker {broker_id} {known}, but the request names epoch {broker_epoch}",
                field="broker_epoch",
            )
        return broker

    def ask_unfence(self, broker_id: int) -> None:
        """Mark a fenced broker to be unfenced as soon as it is ready."""
        self.wants_unfence.add(broker_id)
        self.to_examine[broker_id] = None

    def cancel_unfence(self, broker_id: int) -> None:
        """Unmark a broker that is unfenced, unregistered, or no longer asks to be unfenced."""
        self.wants_unfence.discard(broker_id)
        self.to_examine.pop(broker_id, None)

    def drop_requests(self, broker_id: int) -> None:
        """Drop a fenced broker's earlier requests to be unfenced or to shut down."""
        self.cancel_unfence(broker_id)
        self.shutdown_offsets.pop(broker_id, None)

    def changed(self, broker_id: int, now: float) -> None:
        """Record that a broker's state changed at ``now``."""
        self.changed_at[broker_id] = now

    def forget(self, broker_id: int) -> None:
        """End a broker's session, and drop its soft state."""
        self.sessions.end(broker_id)
        self.read_leases.forget(broker_id)
        self.drop_requests(broker_id)
        self.isr_removals.forget(broker_id)


LEGACY_REGISTRATION = 0
"""Registration version of a broker that does not send heartbeats (KIP-343's BrokerInfo below
version 5).
"""
KNOWS_HEARTBEATS = 1
"""Lowest registration version of a broker that sends heartbeats."""


def heartbeats_off(state: ControllerState) -> bool:
    """Return whether brokers count as active without heartbeats."""
    # Runs at each fetch of a broker. Configs do not affect feature levels, so they need not be
    # folded for it.
    return not heartbeats_enabled(state.log.pending_but_configs.features)


def why_without_heartbeats(
    registration_version: int, features: Iterable[tuple[str, int, int]]
) -> str:
    """Return why a broker cannot send heartbeats, or "" if it can.

    The registration version decides, as in KIP-343.
    """
    if registration_version < KNOWS_HEARTBEATS:
        return f"has a legacy registration (version {registration_version}) without heartbeats"
    for name, low, high in features:
        if name == BROKER_HEARTBEAT_VERSION and not low <= 1 <= high:
            return f"supports {BROKER_HEARTBEAT_VERSION} {low} to {high}, not 1"
    return ""


def obstacles(image: Image, updates: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield (feature, obstacle) for each requested level that another level or a registered broker
    rules out.
    """
    after = {**{name: image.features[name] for name in image.features}, **updates}
    yield from _dependencies(after, updates)
    if updates.get(BROKER_HEARTBEAT_VERSION):
        for broker_id in sorted(image.brokers):
            broker = image.brokers[broker_id]
            why = why_without_heartbeats(broker.registration_version, broker.features)
            if why:
                yield BROKER_HEARTBEAT_VERSION, f"broker {broker_id} {why}"


def begin_heartbeats(state: ControllerState, now: float) -> None:
    """If heartbeats are enabled, give every broker that counts as active a whole session to send
    its first heartbeat.
    """
    if heartbeats_off(state):
        return
    state.sessions_granted_at = now
    for broker_id, broker in sorted(state.log.pending.snapshot().brokers.items()):
        if not broker.fenced:
            state.sessions.touch(broker_id, broker.epoch, now)


def unfence_legacy_brokers(state: ControllerState) -> None:
    """At a claim without heartbeats, mark the fenced legacy brokers to be unfenced.

    They never report again, so an earlier controller's intention would be lost.
    """
    if not heartbeats_off(state):
        return
    for broker_id, broker in sorted(state.log.pending.snapshot().brokers.items()):
        if (
            broker.registration_version == LEGACY_REGISTRATION
            and broker.fenced
            and not broker.has_left
        ):
            state.ask_unfence(broker_id)


def _dependencies(
    after: Mapping[str, int], updates: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    lao = after.get(LAO_VERSION, 0)
    if not lao or after.get(BROKER_HEARTBEAT_VERSION, 0):
        return
    lowered = BROKER_HEARTBEAT_VERSION in updates
    yield (
        BROKER_HEARTBEAT_VERSION if lowered else LAO_VERSION,
        f"{LAO_VERSION} {lao} requires the brokers' heartbeats: "
        + (
            "lower it to 0 in the same request"
            if lowered
            else f"raise {BROKER_HEARTBEAT_VERSION} to 1 in the same request"
        ),
    )


def apply(state: ControllerState, effect: Effect, now: float) -> None:
    """Apply one effect of a decision whose records are already in ``state.log.pending``."""
    match effect:
        case LeaseGranted(broker_id):
            state.read_leases.granted(broker_id, now)
        case LeaseStopped(broker_id):
            state.read_leases.stop(broker_id)
        case Registered(broker_id, broker_epoch):
            _registered(state, broker_id, broker_epoch, now)
        case RegisteredAgain(broker_id, broker_epoch, fenced):
            state.sessions.touch(broker_id, broker_epoch, now)
            if fenced and heartbeats_off(state):
                state.ask_unfence(broker_id)
        case Unregistered(broker_id):
            state.forget(broker_id)
            state.unclean_recovery.look_again()
            state.lag_watch.forget(broker_id)
            state.changed_at.pop(broker_id, None)
        case Fenced():
            _fenced(state, effect, now)
        case Unfenced(broker_id, record_count):
            state.cancel_unfence(broker_id)
            state.join_elections.unfenced(broker_id, record_count)
            state.lag_watch.unfenced(broker_id, now)
            state.unclean_recovery.look_again()
            state.changed(broker_id, now)
        case ShutdownBegun(broker_id, last_offset):
            if last_offset is not None:
                state.shutdown_offsets[broker_id] = last_offset
            state.changed(broker_id, now)
        case Left(broker_id):
            state.forget(broker_id)
            state.changed(broker_id, now)
        case FeatureLevelsUpdated():
            begin_heartbeats(state, now)
        case IsrsLeft(broker_id, begin):
            state.isr_removals.advance(broker_id, begin)
        case LeadersElected(broker_id, begin):
            state.join_elections.advance(broker_id, begin)
        case LeavingBegun(broker_id, loss, same_disk):
            state.isr_removals.begin(broker_id, loss, same_disk=same_disk)
        case LeaderEpochsRaised(partition_count):
            state.epoch_floor.raised(partition_count)
        case LeaseBegun(lease_id, ttl_ms) | LeaseKeptAlive(lease_id, ttl_ms):
            state.leases.keep(lease_id, ttl_ms, now)
        case LeaseEnded(lease_id):
            state.leases.end(lease_id)
        case ProgressRecorded(message):
            state.progress.proposed(message, now)
            state.progress.observed_end = state.log.end_offset


def _registered(state: ControllerState, broker_id: int, broker_epoch: int, now: float) -> None:
    state.forget(broker_id)
    state.read_leases.registered(broker_id)
    state.lag_watch.forget(broker_id)
    state.changed(broker_id, now)
    state.sessions.touch(broker_id, broker_epoch, now)
    state.absent_ids.present(broker_id)
    if heartbeats_off(state):
        state.ask_unfence(broker_id)


def _fenced(state: ControllerState, effect: Fenced, now: float) -> None:
    broker_id = effect.broker_id
    match effect.cause:
        case Cause.SESSION_TIMED_OUT:
            state.forget(broker_id)
        case Cause.LOG_TAKEN_BACK:
            state.forget(broker_id)
            if heartbeats_off(state):
                # The broker may never send another message.
                state.ask_unfence(broker_id)
        case Cause.PROCESS_GONE:
            # The session continues: a refused connection is evidence, not proof. No other broker
            # gets the id any sooner.
            state.gone.fenced(broker_id, now)
            state.drop_requests(broker_id)
        case Cause.METADATA_LAG | Cause.DISK_HANGS:
            # Such a broker still sends heartbeats: its session continues, so no other broker gets
            # its id.
            state.drop_requests(broker_id)
            state.read_leases.forget(broker_id)
            state.lag_watch.fenced(broker_id, now)
        case _:
            # The broker asked to be fenced, and still sends heartbeats.
            pass
    state.changed(broker_id, now)
    state.isr_removals.fenced(broker_id, effect.record_count)

"""Applies the effects of decisions to the soft state of the controller.

This is the only place where a decision changes soft state.
"""

from __future__ import annotations

from controller.effects import (
    AllLeasesStopped,
    Effect,
    FeatureLevelsUpdated,
    Fenced,
    IsrsLeft,
    LeaderEpochsRaised,
    LeaseBegun,
    LeaseEnded,
    LeaseGranted,
    LeaseKeptAlive,
    LeaseStopped,
    Left,
    ProgressRecorded,
    Registered,
    RegisteredAgain,
    ShutdownBegun,
    Unfenced,
    Unregistered,
)
from controller.state.double_roll import begin_heartbeats, heartbeats_off
from controller.state.state import ControllerState
from raftlog.metadata.causes import Cause


def apply(state: ControllerState, effect: Effect, now: float) -> None:
    """Apply one effect. The records of its decision must be in ``state.log.pending`` already."""
    match effect:
        case LeaseGranted(broker_id):
            state.read_leases.granted(broker_id, now)
        case LeaseStopped(broker_id):
            state.read_leases.stop(broker_id)
        case AllLeasesStopped():
            state.read_leases.stop_all()
        case Registered(broker_id, broker_epoch):
            _registered(state, broker_id, broker_epoch, now)
        case RegisteredAgain(broker_id, broker_epoch, fenced):
            state.sessions.touch(broker_id, broker_epoch, now)
            if fenced and heartbeats_off(state):
                state.ask_unfence(broker_id)
        case Unregistered(broker_id):
            state.forget(broker_id)
            state.lag_watch.forget(broker_id)
            state.changed_at.pop(broker_id, None)
        case Fenced():
            _fenced(state, effect, now)
        case Unfenced(broker_id):
            state.no_unfence(broker_id)
            state.lag_watch.unfenced(broker_id, now)
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
        case IsrsLeft(broker_id, keys, done):
            state.isr_removals.advance(broker_id, keys, done)
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
            state.drop_wishes(broker_id)
        case Cause.METADATA_LAG:
            # A broker that lags still heartbeats: its session continues, and no other broker gets
            # its id meanwhile.
            state.drop_wishes(broker_id)
            state.read_leases.forget(broker_id)
            state.lag_watch.fenced(broker_id, now)
        case _:
            # The broker asked for it, and still heartbeats.
            pass
    state.changed(broker_id, now)
    state.isr_removals.fenced(broker_id, effect.record_count)

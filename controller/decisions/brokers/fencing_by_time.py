"""Fencing that no request asks for: a session that ended, a process that is gone, a broker that
lags.
"""

from __future__ import annotations

from controller.decision import Write
from controller.effects import Fenced
from controller.rules.fencing import fence
from controller.state.double_roll import LEGACY_REGISTRATION, heartbeats_off
from controller.state.state import ControllerState
from raftlog.metadata.causes import Cause
from raftlog.metadata.entities import Broker


def fence_silent(state: ControllerState, now: float) -> Write | None:
    """Fence one broker whose session has ended."""
    while (broker_id := state.sessions.expired(now)) is not None:
        broker = state.log.pending.brokers.get(broker_id)
        if broker is not None and not broker.fenced and not heartbeats_off(state):
            return _fence(state, broker, Cause.SESSION_TIMED_OUT)
        # Nothing to write: it is fenced already, or counts as active without heartbeats.
        state.forget(broker_id)
    return None


def fence_gone(state: ControllerState, now: float) -> Write | None:
    """Fence one broker whose process has ended (:mod:`controller.state.gone`)."""
    if now < state.gone.next_check or heartbeats_off(state):
        return None
    broker = state.gone.due(state.log.pending.snapshot(), state.read_leases, now)
    if broker is None:
        return None
    return _fence(state, broker, Cause.PROCESS_GONE)


def fence_stuck(state: ControllerState, now: float) -> Write | None:
    """Fence one broker that heartbeats and does not apply the log, once it holds no read lease."""
    watch = state.lag_watch
    if now < watch.next_check:
        return None
    stuck = None
    if not heartbeats_off(state):
        stuck = watch.stuck(now, _unfenced_reporting(state), state.log.lao.applied_of)
    if stuck is None:
        watch.mark(now, state.log.committed.offset)
        return None
    leases = state.read_leases
    if leases.ends_at(stuck) > now:
        # Not while it may be answering strict reads: no renewals, and then. A broker that
        # catches up meanwhile is let off.
        leases.stop(stuck)
        watch.look_again(now, leases.ends_at(stuck))
        return None
    return _fence(state, state.log.pending.brokers[stuck], Cause.METADATA_LAG)


def _fence(state: ControllerState, broker: Broker, cause: Cause) -> Write:
    records = fence(state.log.pending, broker, cause)
    return Write(records, effects=(Fenced(broker.id, cause, len(records)),))


def _unfenced_reporting(state: ControllerState) -> list[int]:
    brokers = state.log.pending.brokers
    found = ((broker_id, brokers.get(broker_id)) for broker_id in state.log.committed.brokers)
    return [
        broker_id
        for broker_id, broker in found
        if broker is not None
        and not broker.fenced
        and broker.registration_version != LEGACY_REGISTRATION
    ]

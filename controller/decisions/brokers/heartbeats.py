"""Broker heartbeats: the state machine fenced -> unfenced -> controlled shutdown -> gone (Kafka's
table, KIP-343's names).

A heartbeat that changes nothing writes no record. The broker's report is processed before its
heartbeat is decided. A broker that reports a hanging disk is fenced; if it reports a full disk,
other leaders are elected.

Without a request, a broker is fenced when its session ends, its process exits, or it lags.
"""

from __future__ import annotations

from functools import lru_cache

from controller.decision import (
    Decision,
    Fenced,
    LeaseGranted,
    LeaseStopped,
    Left,
    Reply,
    ShutdownBegun,
    Unfenced,
    Write,
    refuse,
    write_or_reply,
)
from controller.rules.fencing import begin_shutdown, complete_shutdown, fence, unfence
from controller.rules.partition_change import (
    MAX_ELECTIONS,
    MAX_REMOVALS,
    elections_elsewhere,
    leads_any,
)
from controller.state.batched_changes import holds_many
from controller.state.state import LEGACY_REGISTRATION, ControllerState, heartbeats_off
from raftlog.errors import ErrorCode
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.metadata.entities import Broker, Cause
from raftlog.metadata.records import Record
from raftlog.wire.controller.v1 import controller_pb2 as rpc

_STATES = frozenset(rpc.BrokerLifecycleState.values())


def check_heartbeat(request: rpc.BrokerHeartbeatRequest, generation: int) -> None:
    """Raise INVALID_REQUEST for an invalid field, and INCONSISTENT_GENERATION for a broker that has
    applied a log of another generation.

    Otherwise: a log is recovered without its last records, but with the broker's registration. The
    broker learns the new epoch from a heartbeat's answer and reports the offset that it applied of
    the old log, so LAO covers writes of the new log that the broker has never seen.
    """
    if request.generation not in (NO_GENERATION, generation):
        raise refuse(
            ErrorCode.INCONSISTENT_GENERATION,
            f"the broker's log has generation {request.generation}, but this log has generation"
            f" {generation}",
            "generation",
        )
    applied, known_lao = request.current_metadata_offset, request.told_lowest_acknowledged_offset
    if applied < -1 or known_lao < -1:
        field, offset = ("current_metadata_offset", applied)
        if applied >= -1:
            field, offset = ("told_lowest_acknowledged_offset", known_lao)
        raise refuse(ErrorCode.INVALID_REQUEST, f"offset {offset} is below -1", field)
    if request.target_state not in _STATES:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"target_state is {request.target_state}; it must be in 0 .. {max(_STATES)}",
            "target_state",
        )
    if request.disk_hangs_ms < 0:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"{request.disk_hangs_ms} ms is negative; it must be 0 or more",
            "disk_hangs_ms",
        )
    for index, one in enumerate(request.replica_logs):
        for name, lowest in (("partition_index", 0), ("last_epoch", -1), ("log_end_offset", 0)):
            if getattr(one, name) < lowest:
                raise refuse(
                    ErrorCode.INVALID_REQUEST,
                    f"{name} {getattr(one, name)} is below its minimum of {lowest}",
                    f"replica_logs[{index}].{name}",
                )


def decide_heartbeat(
    state: ControllerState, broker: Broker, request: rpc.BrokerHeartbeatRequest, now: float
) -> Decision:
    """Decide the next state of a broker whose epoch has been checked and whose report has been
    processed.
    """
    want_shut_down = request.want_shut_down or request.target_state == rpc.STOPPING
    # Without heartbeats a broker counts as active whatever state it requests, except for a leave.
    want_fence = (
        request.want_fence or request.target_state == rpc.INACTIVE
    ) and not heartbeats_off(state)
    if broker.has_left:
        return _reply(state, broker, request, rpc.INACTIVE, should_shut_down=True)
    # A process that reports that it is stopping serves no more strict reads: it is moved and leaves
    # whatever lease it has.
    if broker.in_controlled_shutdown:
        return _while_stopping(state, broker, request, now)
    if want_shut_down:
        at_once = _may_leave_at_once(state, broker, want_fence=want_fence)
        return (
            _leave(state, broker, request, now) if at_once else _stop(state, broker, request, now)
        )
    hangs = request.disk_hangs_ms > 0 and not heartbeats_off(state)
    state.lag_watch.disk_reported(broker.id, now, hangs=hangs, low=request.low_on_space)
    if broker.fenced:
        return _while_fenced(state, broker, request, now, want_fence=want_fence or hangs)
    cause = Cause.ASKED_TO_BE_FENCED if want_fence else None
    if (
        hangs
        and not want_fence
        and not state.lag_watch.most_failing(_unfenced_reporting(state), now)
    ):
        cause = Cause.DISK_HANGS
    if cause is not None:
        if state.read_leases.ends_at(broker.id) > now:
            # Each heartbeat repeats the request; it is granted once the broker's read lease has
            # ended.
            reply = _reply(state, broker, request, rpc.ACTIVE)
            return reply._replace(effects=(LeaseStopped(broker.id),))
        body = _reply(state, broker, request, rpc.INACTIVE).body
        records = fence(state.log.pending, broker, cause)
        return Write(records, body, (Fenced(broker.id, cause, len(records)),))
    reply = _reply(state, broker, request, rpc.ACTIVE)
    if request.low_on_space and (elections := _elections_elsewhere(state, broker, now)):
        return Write(elections, reply.body)
    return _with_lease(state, broker, reply, now) if request.want_read_lease else reply


def _elections_elsewhere(state: ControllerState, broker: Broker, now: float) -> list[Record]:
    """Return elections of other leaders for the partitions of a broker that is low on space.

    Empty while most brokers are low on space: the others would lead everything until they are full.
    """
    low, unfenced = state.lag_watch.low_on_space(now), _unfenced_reporting(state)
    if 2 * len(low.intersection(unfenced)) > len(unfenced):
        return []
    return elections_elsewhere(state.log.pending, broker.id, low, limit=MAX_ELECTIONS)


def _with_lease(state: ControllerState, broker: Broker, reply: Reply, now: float) -> Reply:
    """Add a read lease to a reply, or the reason why none is granted.

    The reply has no records, so it waits for a confirmed read-index round.
    """
    refusal = _no_lease(state, broker, now)
    if refusal:
        reply.body.read_lease_refusal = refusal
        return reply
    reply.body.read_lease_ms = state.read_leases.length_ms
    return reply._replace(effects=(LeaseGranted(broker.id),))


def _no_lease(state: ControllerState, broker: Broker, now: float) -> str:
    if heartbeats_off(state):
        return "heartbeats are disabled: broker.heartbeat.version is 0"
    if not state.log.lao.unfenced_throughout(broker.id):
        return "the unfencing of this broker is not committed yet"
    if broker.id in state.isr_removals or state.read_leases.is_withheld(broker.id, now):
        return "this broker is about to be fenced or unregistered"
    return ""


def is_caught_up(broker: Broker, applied: int) -> bool:
    """Return whether a broker has applied its own registration; True if it reports no offsets."""
    return applied >= broker.epoch or broker.registration_version == LEGACY_REGISTRATION


def may_unfence(state: ControllerState, broker: Broker) -> bool:
    """Return whether a broker has applied enough to be unfenced: its own registration, and the
    offsets that the LAO rules require.

    False while it is still being removed from ISRs.
    """
    if broker.id in state.isr_removals:
        return False
    lao = state.log.lao
    if heartbeats_off(state):
        return lao.may_join(broker.id)
    return is_caught_up(broker, lao.applied_of(broker.id)) and lao.may_join(broker.id)


def on_probation(state: ControllerState, broker: Broker, now: float) -> bool:
    """Return whether a broker that was fenced for its lag or its disk must stay fenced for now."""
    return state.lag_watch.on_probation(broker.id, now) and not heartbeats_off(state)


def unfence_decision(state: ControllerState, broker: Broker, body: object = None) -> Write:
    """Return the unfencing of a broker that is ready."""
    cause = Cause.ACTIVE_WITHOUT_HEARTBEATS if heartbeats_off(state) else Cause.CAUGHT_UP
    records = unfence(state.log.pending, broker, cause)
    return Write(records, body, (Unfenced(broker.id, len(records)),))


def lowest_active_offset(state: ControllerState) -> int | None:
    """Return the lowest applied offset of the active brokers that report offsets, or None."""
    return min(
        (
            state.log.lao.applied_of(broker_id)
            for broker_id, broker in state.log.committed.brokers.items()
            if broker.active and broker.registration_version != LEGACY_REGISTRATION
        ),
        default=None,
    )


def _while_fenced(
    state: ControllerState,
    broker: Broker,
    request: rpc.BrokerHeartbeatRequest,
    now: float,
    *,
    want_fence: bool,
) -> Decision:
    if want_fence:
        state.cancel_unfence(broker.id)
    else:
        # The requested state is a reported fact, like the offset, not an effect of this decision.
        state.ask_unfence(broker.id)
        if (
            may_unfence(state, broker)
            and not on_probation(state, broker, now)
            and not state.without_space
        ):
            body = _reply(state, broker, request, rpc.ACTIVE).body
            return unfence_decision(state, broker, body)
    return _reply(state, broker, request, rpc.INACTIVE)


def _may_leave_at_once(state: ControllerState, broker: Broker, *, want_fence: bool) -> bool:
    """Return whether a broker may leave at once: it leads no partition or does not want to wait,
    and the changes to its partitions fit into one batch.
    """
    if broker.fenced:
        return True
    return (want_fence or not leads_any(state.log.pending, broker.id)) and not holds_many(
        state.log.pending, broker.id
    )


def _stop(
    state: ControllerState, broker: Broker, request: rpc.BrokerHeartbeatRequest, now: float
) -> Decision:
    """Move a broker's leaderships away.

    It leaves once the other brokers have applied these records, so that no client is sent to a
    stopped broker.
    """
    records = begin_shutdown(state.log.pending, broker)
    last_offset = state.log.end_offset + len(records) - 1
    # If partitions may remain, the next heartbeat continues.
    begun = ShutdownBegun(broker.id, last_offset if len(records) < MAX_REMOVALS else None)
    return write_or_reply(records, _reply(state, broker, request, rpc.STOPPING).body, begun)


def _while_stopping(
    state: ControllerState, broker: Broker, request: rpc.BrokerHeartbeatRequest, now: float
) -> Decision:
    # The broker leads no partition, and gets none while it stops. After a failover the offset is
    # not known: begin again, at the end of the log.
    if broker.id not in state.shutdown_offsets:
        return _stop(state, broker, request, now)
    lowest = lowest_active_offset(state)
    if lowest is not None and lowest < state.shutdown_offsets[broker.id]:
        return _reply(state, broker, request, rpc.STOPPING)
    return _leave(state, broker, request, now)


def _leave(
    state: ControllerState, broker: Broker, request: rpc.BrokerHeartbeatRequest, now: float
) -> Decision:
    """Complete a controlled shutdown, which ends the session, so that a successor can register at
    once.
    """
    body = _reply(state, broker, request, rpc.INACTIVE, should_shut_down=True).body
    return write_or_reply(complete_shutdown(state.log.pending, broker), body, Left(broker.id))


def _reply(
    state: ControllerState,
    broker: Broker,
    request: rpc.BrokerHeartbeatRequest,
    next_state: rpc.BrokerLifecycleState,
    *,
    should_shut_down: bool = False,
) -> Reply:
    log = state.log
    body = rpc.BrokerHeartbeatResponse.FromString(
        _shared_fields(
            is_caught_up(broker, request.current_metadata_offset),
            should_shut_down,
            log.lao.lao,
            next_state,
            log.epoch,
            state.generation,
            state.settings.broker_session_timeout_ms,
        )
    )
    body.broker_id, body.broker_epoch = broker.id, broker.epoch
    return Reply(body)


@lru_cache(maxsize=64)
def _shared_fields(
    caught_up: bool,
    should_shut_down: bool,
    lao: int,
    next_state: rpc.BrokerLifecycleState,
    controller_epoch: int,
    generation: int,
    session_timeout_ms: int,
) -> bytes:
    """Return the serialized fields that many brokers' answers share: parsing them is much faster
    than setting them.
    """
    return rpc.BrokerHeartbeatResponse(
        is_caught_up=caught_up,
        is_fenced=next_state == rpc.INACTIVE,
        should_shut_down=should_shut_down,
        lowest_acknowledged_offset=lao,
        current_state=next_state,
        controller_epoch=controller_epoch,
        generation=generation,
        broker_session_timeout_ms=session_timeout_ms,
    ).SerializeToString()


def fence_silent(state: ControllerState, now: float) -> Write | None:
    """Fence one broker whose session has expired."""
    while (broker_id := state.sessions.expired(now)) is not None:
        broker = state.log.pending.brokers.get(broker_id)
        if broker is not None and not broker.fenced and not heartbeats_off(state):
            return _fence(state, broker, Cause.SESSION_TIMED_OUT)
        # Nothing to write: the broker is fenced already, or counts as active without heartbeats.
        state.forget(broker_id)
    return None


def fence_gone(state: ControllerState, now: float) -> Write | None:
    """Fence one broker whose process has exited (:mod:`controller.state.liveness`)."""
    if now < state.gone.next_check or heartbeats_off(state):
        return None
    broker = state.gone.due(state.log.pending.snapshot(), state.read_leases, now)
    if broker is None:
        return None
    return _fence(state, broker, Cause.PROCESS_GONE)


def fence_stuck(state: ControllerState, now: float) -> Write | None:
    """Fence one broker that heartbeats without applying the log, once it holds no read lease."""
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
        # The broker may be answering strict reads: stop renewals, and wait for the lease to end. A
        # broker that catches up meanwhile is not fenced.
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

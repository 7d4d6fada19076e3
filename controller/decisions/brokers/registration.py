"""Registering and unregistering brokers, with the checks in Kafka's order.

The broker epoch is the offset of the registration's record, which therefore comes first in its
batch. The same batch removes the previous registration from the ISRs, so that no image shows the
new registration in an ISR that the old one was in (KIP-903). The broker remains an eligible leader
replica (KIP-966) only after a clean shutdown, which the request proves by naming the previous
broker epoch.
"""

from __future__ import annotations

from controller.decision import (
    Decision,
    Defer,
    LeaseStopped,
    LeavingBegun,
    Registered,
    RegisteredAgain,
    Unregistered,
    Write,
    refuse,
    write_or_reply,
)
from controller.decisions.brokers.broker_ids import Choice, choose_broker_id
from controller.decisions.brokers.hostnames import mapping_of
from controller.rules.fencing import registration_change
from controller.rules.partition_change import MAX_REMOVALS, Loss, removals
from controller.state.batched_changes import RETRY_S, holds_many
from controller.state.state import (
    LEGACY_REGISTRATION,
    ControllerState,
    heartbeats_off,
    why_without_heartbeats,
)
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import UNVOUCHED, Broker, Process
from raftlog.metadata.records import Record, record
from raftlog.metadata.versions import BROKER_HEARTBEAT_VERSION, LAO_VERSION
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

PORT_MAX = 65_535


def register_broker(
    state: ControllerState, request: rpc.RegisterBrokerRequest, now: float
) -> Decision:
    """Register a broker, fenced.

    A retry by the same process (incarnation id) gets the same epoch.
    """
    if request.cluster_id != state.cluster_id:
        raise refuse(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"this is cluster {state.cluster_id!r}, but the broker belongs to"
            f" {request.cluster_id[:80]!r}",
            "cluster_id",
        )
    if request.generation not in (0, state.generation, *state.previous_generations):
        raise refuse(
            ErrorCode.INCONSISTENT_GENERATION,
            f"this log has generation {state.generation} and does not descend from generation"
            f" {request.generation}, that of the broker's directory",
            "generation",
        )
    _check_fields(request)
    if state.epoch_floor.is_due(state.log.pending):
        # A registered broker could take roles from this image.
        return Defer(now + RETRY_S)
    choice: Choice | None = None
    if request.HasField("id_wanted"):
        choice = choose_broker_id(state, request, now)
        request = _with_id(request, choice.broker_id)
    old = state.log.pending.brokers.get(request.broker_id)
    _check_not_a_controller(state, request.broker_id, old, now)
    _check_duplicate(state, request, old, now)
    _check_features(state, request)
    if old is not None and old.incarnation_id == request.incarnation_id:
        return _register_again(state, request, old, choice, now)
    epoch = state.log.end_offset
    records = [_registration(request, epoch, fenced=True, in_controlled_shutdown=False)]
    if old is not None:
        # The broker is about to return, and leads again where it is the last member of an ISR: no
        # reason for an unclean leader.
        same_disk = (
            bool(old.process.directory_id)
            and old.process.directory_id == request.process.directory_id
        )
        loss = _loss_of(state, request, old)
        removed = removals(
            state.log.pending,
            old.id,
            on_purpose=True,
            same_disk=same_disk,
            loss=loss,
            limit=1 + MAX_REMOVALS if old.fenced else None,
        )
        records.extend(removed)
        if old.fenced and len(records) > 1 + MAX_REMOVALS:
            return Defer(now + RETRY_S, (LeavingBegun(old.id, loss, same_disk),))
    records.extend(mapping_of(state.log.pending, request.listeners[0].host, request.broker_id))
    return Write(
        records, _response(state, request, epoch, choice), (Registered(request.broker_id, epoch),)
    )


def unregister_broker(
    state: ControllerState, request: rpc.UnregisterBrokerRequest, now: float
) -> Decision:
    """Remove a registration, and the broker from every ISR and leadership; it stays in the replica
    sets.

    An unfenced broker is removed once its read lease has ended, at most one session timeout later.
    A broker with too many partitions for one batch is fenced first, and leaves them in batches.
    """
    broker = state.log.pending.brokers.get(request.broker_id)
    if broker is None:
        raise refuse(
            ErrorCode.BROKER_ID_NOT_REGISTERED,
            f"broker {request.broker_id} is not registered",
            "broker_id",
        )
    leases = state.read_leases
    if not broker.fenced and leases.ends_at(broker.id) > now:
        # The broker may be answering strict reads until then.
        return Defer(leases.ends_at(broker.id), (LeaseStopped(broker.id),))
    # Remove it from the ISRs first, so that no record leaves an unregistered member in an ISR.
    records = removals(state.log.pending, broker.id, loss=Loss.DISK, limit=1 + MAX_REMOVALS)
    if len(records) > MAX_REMOVALS:
        return Defer(now + RETRY_S, (LeavingBegun(broker.id, Loss.DISK, same_disk=False),))
    records.append(
        record(pb.UnregisterBrokerRecord(broker_id=broker.id, broker_epoch=broker.epoch))
    )
    return Write(records, rpc.UnregisterBrokerResponse(), (Unregistered(broker.id),))


def _loss_of(state: ControllerState, request: rpc.RegisterBrokerRequest, old: Broker) -> Loss:
    """Return what the broker may have lost since its previous registration.

    Nothing, if the same directory was closed cleanly under that epoch (KIP-966). While heartbeats
    are disabled no replica can report which records it has, so an unchanged disk counts as intact.
    """
    before, after = old.process.directory_id, request.process.directory_id
    if before and before != after:
        return Loss.DISK
    clean = request.previous_broker_epoch == old.epoch
    return Loss.NOTHING if clean or heartbeats_off(state) else Loss.UNCLEAN


def proves_old_process_gone(process: pb.ProcessProof, registered: Process) -> bool:
    """Return whether the new process holds the same lock that the registered one held.

    A lock is released when its process exits, so whichever process holds the lock now, the same
    (device, inode) since the same boot of the same machine, succeeds a dead one. A cloned disk has
    the same directory id, but another lock.
    """
    if not (process.boot_id and process.directory_id and process.lock_inode):
        return False
    proof = Process(process.boot_id, process.directory_id, process.lock_device, process.lock_inode)
    return proof == registered


def _check_fields(request: rpc.RegisterBrokerRequest) -> None:
    if request.HasField("id_wanted"):
        _check_wanted(request)
    elif request.broker_id < 0:
        raise refuse(
            ErrorCode.INVALID_REQUEST, f"broker id {request.broker_id} is negative", "broker_id"
        )
    if request.registration_version < 0:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"registration version {request.registration_version} is negative; it must be 0 or"
            " more",
            "registration_version",
        )
    if not request.incarnation_id:
        raise refuse(ErrorCode.INVALID_REQUEST, "incarnation_id is empty", "incarnation_id")
    if not request.listeners:
        raise refuse(
            ErrorCode.INVALID_REQUEST, "a broker must have at least one listener", "listeners"
        )
    seen: set[str] = set()
    for index, listener in enumerate(request.listeners):
        where = f"listeners[{index}]"
        if not listener.name or listener.name in seen:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"listener name {listener.name!r} must be nonempty and unique",
                f"{where}.name",
            )
        seen.add(listener.name)
        if not 0 < listener.port <= PORT_MAX:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"port {listener.port} must be in 1 .. {PORT_MAX}",
                f"{where}.port",
            )
    for index, directory in enumerate(request.log_dirs):
        if not directory or directory in request.log_dirs[:index]:
            raise refuse(
                ErrorCode.INVALID_REGISTRATION,
                f"log directory {directory!r} must be nonempty and unique",
                f"log_dirs[{index}]",
            )
    for index, feature in enumerate(request.features):
        if not 0 <= feature.min_supported_version <= feature.max_supported_version:
            raise refuse(
                ErrorCode.INVALID_REQUEST,
                f"min_supported_version {feature.min_supported_version} and max_supported_version"
                f" {feature.max_supported_version} must satisfy 0 <= min <= max",
                f"features[{index}]",
            )


def _check_wanted(request: rpc.RegisterBrokerRequest) -> None:
    if request.broker_id != -1:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"broker id is {request.broker_id}; it must be -1 if an id is wanted",
            "broker_id",
        )
    if request.id_wanted.asking_for_ms < 0:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"{request.id_wanted.asking_for_ms} ms is negative; it must be 0 or more",
            "id_wanted.asking_for_ms",
        )


def _check_not_a_controller(
    state: ControllerState, broker_id: int, old: Broker | None, now: float
) -> None:
    """Refuse the id of a controller: node ids are unique in a cluster.

    A broker that was registered under such an id before this check existed keeps it.
    """
    if old is None and broker_id in state.controller_ids(now):
        raise refuse(
            ErrorCode.INVALID_REGISTRATION,
            f"node {broker_id} is a controller of this cluster: give the broker a different"
            " node.id",
            "broker_id",
        )


def _check_duplicate(
    state: ControllerState, request: rpc.RegisterBrokerRequest, old: Broker | None, now: float
) -> None:
    if old is None or old.incarnation_id == request.incarnation_id:
        return
    if state.sessions.is_alive(old.id, now) and not proves_old_process_gone(
        request.process, old.process
    ):
        raise refuse(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"broker {old.id} is registered by another process, incarnation {old.incarnation_id} at"
            f" {old.endpoint}, and its session has not ended",
            "broker_id",
        )
    if (
        holds_many(state.log.pending, old.id)
        and not heartbeats_off(state)
        and (not old.fenced or old.id in state.isr_removals)
    ):
        # The batch of the registration must also have the broker's changes in all its partitions:
        # wait until they fit.
        raise refuse(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"broker {old.id} was in the ISRs of many partitions, or eligible to lead them, and"
            " must be removed from them first, once its session has ended: retry",
            "broker_id",
        )


def _check_features(state: ControllerState, request: rpc.RegisterBrokerRequest) -> None:
    supported = {feature.name: feature for feature in request.features}
    for name, level in sorted(state.log.pending.snapshot().features.items()):
        if name == LAO_VERSION and request.registration_version == LEGACY_REGISTRATION:
            # A legacy broker may join: LAO is then unknown, and the reason names the broker.
            continue
        if name == BROKER_HEARTBEAT_VERSION:
            _check_heartbeats(request, level)
            continue
        feature = supported.get(name)
        if (
            feature is None
            or not feature.min_supported_version <= level <= feature.max_supported_version
        ):
            can = (
                "none"
                if feature is None
                else f"{feature.min_supported_version} .. {feature.max_supported_version}"
            )
            raise refuse(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{name} is at level {level}, but broker {request.broker_id} supports {can}",
                "features",
            )


def _check_heartbeats(request: rpc.RegisterBrokerRequest, level: int) -> None:
    known = (
        (feature.name, feature.min_supported_version, feature.max_supported_version)
        for feature in request.features
    )
    why = why_without_heartbeats(request.registration_version, known)
    if why:
        message = (
            f"{BROKER_HEARTBEAT_VERSION} is at level {level}, but broker {request.broker_id} {why}"
        )
        raise refuse(ErrorCode.UNSUPPORTED_VERSION, message, "features")


def _with_id(request: rpc.RegisterBrokerRequest, broker_id: int) -> rpc.RegisterBrokerRequest:
    named = rpc.RegisterBrokerRequest()
    named.CopyFrom(request)
    named.ClearField("id_wanted")
    named.broker_id = broker_id
    return named


def _register_again(
    state: ControllerState,
    request: rpc.RegisterBrokerRequest,
    old: Broker,
    choice: Choice | None,
    now: float,
) -> Decision:
    amended = _registration(
        request, old.epoch, fenced=old.fenced, in_controlled_shutdown=old.in_controlled_shutdown
    )
    records = [] if amended.data.body == _as_registered(old).data.body else [amended]
    if records:
        records.extend(mapping_of(state.log.pending, request.listeners[0].host, request.broker_id))
    if records and old.cause in UNVOUCHED:
        # The amendment would erase the fact that LAO has not vouched for the broker.
        records.append(registration_change(old, old.cause))
    effects = () if old.has_left else (RegisteredAgain(old.id, old.epoch, old.fenced),)
    return write_or_reply(records, _response(state, request, old.epoch, choice), *effects)


def _registration(
    request: rpc.RegisterBrokerRequest, epoch: int, *, fenced: bool, in_controlled_shutdown: bool
) -> Record:
    return record(
        pb.RegisterBrokerRecord(
            broker_id=request.broker_id,
            incarnation_id=request.incarnation_id,
            broker_epoch=epoch,
            end_points=request.listeners,
            features=request.features,
            rack=request.rack,
            fenced=fenced,
            in_controlled_shutdown=in_controlled_shutdown,
            log_dirs=request.log_dirs,
            registration_version=request.registration_version,
            process=request.process,
        )
    )


def _as_registered(broker: Broker) -> Record:
    """Return the record that would create the current registration."""
    process = broker.process
    return record(
        pb.RegisterBrokerRecord(
            broker_id=broker.id,
            incarnation_id=broker.incarnation_id,
            broker_epoch=broker.epoch,
            end_points=[
                pb.Listener(name=end.name, host=end.host, port=end.port) for end in broker.listeners
            ],
            features=[
                pb.FeatureRange(name=name, min_supported_version=low, max_supported_version=high)
                for name, low, high in broker.features
            ],
            rack=broker.rack,
            fenced=broker.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown,
            log_dirs=broker.log_dirs,
            registration_version=broker.registration_version,
            process=pb.ProcessProof(
                boot_id=process.boot_id,
                directory_id=process.directory_id,
                lock_device=process.lock_device,
                lock_inode=process.lock_inode,
            ),
        )
    )


def _response(
    state: ControllerState, request: rpc.RegisterBrokerRequest, epoch: int, choice: Choice | None
) -> rpc.RegisterBrokerResponse:
    return rpc.RegisterBrokerResponse(
        broker_id=request.broker_id,
        broker_epoch=epoch,
        broker_session_timeout_ms=state.settings.broker_session_timeout_ms,
        heartbeats_off=heartbeats_off(state),
        id_source=rpc.BROKER_ID_GIVEN if choice is None else choice.source,
        id_reason="" if choice is None else choice.why,
        metadata_offset=max(epoch, state.log.pending.offset),
        generation=state.generation,
        previous_generations=state.previous_generations,
    )

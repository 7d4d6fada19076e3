"""AlterPartition: the leader of a partition proposes a new ISR; the controller accepts it, or names
the first rule that it breaks.

The order of the checks is that of Kafka's ReplicationControlManager. Each partition has its own
result, and a failure does not affect the others. The last check is KIP-903's: a replica enters an
ISR only under the broker epoch in which it caught up, so that no earlier proposal can admit a
broker that has restarted with an empty disk.

Why: docs/decisions/014-broker-epochs-guard-isr-changes.md
"""

from __future__ import annotations

from controller.decision import Reply, Write, check_record_count, refuse, write_or_reply
from controller.rules.partition_change import Brokers, next_state
from controller.settings import ControllerSettings
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import RECOVERED, RECOVERING, Partition
from raftlog.metadata.image import ImageView, PartitionKey
from raftlog.metadata.partitions import changed_partition
from raftlog.metadata.records import Record, record
from raftlog.metadata.versions import supports_replica_epochs
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

UNKNOWN_EPOCH = -1
TOPIC_ID_BYTES = 16


def alter_partitions(
    view: ImageView, settings: ControllerSettings, request: rpc.AlterPartitionRequest
) -> Write | Reply:
    """Decide every partition of a request whose broker epoch has been checked."""
    check_record_count(
        sum(len(topic.partitions) for topic in request.topics), settings.max_records_per_request
    )
    records: list[Record] = []
    changed: set[PartitionKey] = set()
    topics = []
    for topic in request.topics:
        results = []
        for data in topic.partitions:
            try:
                partition = _find(view, topic.topic_id, data)
                _check(view, request, partition, data, changed)
                results.append(_accept(view, request, partition, data, records, changed))
            except ApiError as error:
                results.append(_refused(data, error))
        topics.append(rpc.AlterPartitionTopicResult(topic_id=topic.topic_id, partitions=results))
    return write_or_reply(records, rpc.AlterPartitionResponse(topics=topics))


def _find(view: ImageView, topic_id: bytes, data: rpc.AlterPartitionData) -> Partition:
    """Return the partition (rules 1 and 2)."""
    if len(topic_id) != TOPIC_ID_BYTES or topic_id not in view.topics:
        raise refuse(
            ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with id {topic_id.hex()}", "topic_id"
        )
    partition = view.partitions.get((topic_id, data.partition_index))
    if partition is None:
        raise refuse(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            f"the topic has no partition {data.partition_index}",
            "partition_index",
        )
    return partition


def _check(
    view: ImageView,
    request: rpc.AlterPartitionRequest,
    partition: Partition,
    data: rpc.AlterPartitionData,
    changed: set[PartitionKey],
) -> None:
    _check_epochs(request, partition, data, changed)
    _check_isr(partition, data)
    for position, member in enumerate(data.new_isr_with_epochs):
        why = _ineligible(view, member, skip=not supports_replica_epochs(view.features))
        if why:
            raise refuse(
                ErrorCode.INELIGIBLE_REPLICA,
                f"broker {member.broker_id} cannot be in the ISR: it {why}",
                f"new_isr_with_epochs[{position}]",
            )


def _check_epochs(
    request: rpc.AlterPartitionRequest,
    partition: Partition,
    data: rpc.AlterPartitionData,
    changed: set[PartitionKey],
) -> None:
    """Check rules 3 to 7.

    An epoch ahead of this controller's was assigned by a newer controller: this one is stale.
    """
    if data.leader_epoch > partition.leader_epoch:
        raise refuse(
            ErrorCode.NOT_CONTROLLER,
            f"leader epoch {data.leader_epoch} is ahead of this controller's,"
            f" {partition.leader_epoch}",
            "leader_epoch",
        )
    if data.partition_epoch > partition.partition_epoch:
        raise refuse(
            ErrorCode.NOT_CONTROLLER,
            f"partition epoch {data.partition_epoch} is ahead of this controller's,"
            f" {partition.partition_epoch}",
            "partition_epoch",
        )
    if data.leader_epoch < partition.leader_epoch:
        raise refuse(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"leader epoch {data.leader_epoch} is over; the current one is"
            f" {partition.leader_epoch}",
            "leader_epoch",
        )
    if request.broker_id != partition.leader:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"the leader is broker {partition.leader}, not {request.broker_id}",
            "broker_id",
        )
    # If a partition occurs twice in a request, the first proposal has advanced its epoch.
    if (
        data.partition_epoch < partition.partition_epoch
        or (partition.topic_id, partition.index) in changed
    ):
        raise refuse(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"partition epoch {data.partition_epoch} is over",
            "partition_epoch",
        )


def _check_isr(partition: Partition, data: rpc.AlterPartitionData) -> None:
    """Check rules 8 to 11."""
    isr = [member.broker_id for member in data.new_isr_with_epochs]
    if not isr or len(set(isr)) < len(isr) or not set(isr) <= set(partition.replicas):
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"ISR {isr} must be a nonempty list of different replicas; the replicas are"
            f" {list(partition.replicas)}",
            "new_isr_with_epochs",
        )
    if partition.leader not in isr:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"the ISR {isr} must include the leader {partition.leader}",
            "new_isr_with_epochs",
        )
    state = data.leader_recovery_state
    if state not in (RECOVERED, RECOVERING):
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            f"leader_recovery_state is {state}; it must be {RECOVERED} (recovered) or {RECOVERING}"
            " (recovering)",
            "leader_recovery_state",
        )
    if state == RECOVERING and len(isr) > 1:
        raise refuse(
            ErrorCode.INVALID_REQUEST,
            "while the leader is RECOVERING, it must be alone in the ISR",
            "leader_recovery_state",
        )
    if state == RECOVERING and partition.leader_recovery_state == RECOVERED:
        raise refuse(
            ErrorCode.INVALID_REQUEST, "the leader has recovered already", "leader_recovery_state"
        )


def _ineligible(view: ImageView, member: pb.BrokerState, *, skip: bool) -> str:
    """Return why a broker cannot be in an ISR, or "" if it can (KIP-903; the last check, also made
    for the leader).

    ``skip``: do not compare broker epoch -1. Below a certain ``metadata.version`` brokers may not
    know their followers' epochs.
    """
    broker = view.brokers.get(member.broker_id)
    if broker is None:
        return "is not registered"
    if broker.in_controlled_shutdown:
        return "is shutting down"
    if broker.fenced:
        return "is fenced"
    if member.broker_epoch != broker.epoch and not (skip and member.broker_epoch == UNKNOWN_EPOCH):
        return f"is registered under epoch {broker.epoch}, not {member.broker_epoch}"
    return ""


def _accept(
    view: ImageView,
    request: rpc.AlterPartitionRequest,
    partition: Partition,
    data: rpc.AlterPartitionData,
    records: list[Record],
    changed: set[PartitionKey],
) -> rpc.AlterPartitionResult:
    """Write the proposed ISR if it changes anything.

    Raises NEW_LEADER_ELECTED, with the record written: a change that completes a reassignment also
    moves the leadership if the leader is removed.
    """
    isr = [member.broker_id for member in data.new_isr_with_epochs]
    change = next_state(
        Brokers(view), partition, isr=isr, recovery_state=data.leader_recovery_state
    )
    if change is None:
        if not data.advance_partition_epoch:
            return _result(partition)
        change = pb.PartitionChangeRecord(partition_id=partition.index, topic_id=partition.topic_id)
    changed.add((partition.topic_id, partition.index))
    # The record names the proposer and the epochs of the proposal, so that an audit needs only the
    # log.
    change.proposer_id, change.proposer_epoch = request.broker_id, request.broker_epoch
    change.isr_with_epochs.extend(data.new_isr_with_epochs)
    if not change.HasField("isr"):
        change.isr.ids.extend(partition.isr)
    records.append(record(change))
    after = changed_partition(partition, change)
    if after.leader != request.broker_id:
        raise refuse(
            ErrorCode.NEW_LEADER_ELECTED,
            f"the ISR is accepted and completes the reassignment to {list(after.replicas)}: the"
            f" leader is now {after.leader}",
            "new_isr_with_epochs",
        )
    return _result(after)


def _result(partition: Partition) -> rpc.AlterPartitionResult:
    return rpc.AlterPartitionResult(
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
        eligible_leader_replicas=partition.elr,
    )


def _refused(data: rpc.AlterPartitionData, error: ApiError) -> rpc.AlterPartitionResult:
    return rpc.AlterPartitionResult(
        partition_index=data.partition_index,
        error_code=error.code,
        error_message=f"{error.message} ({error.field})",
        leader_id=-1,
    )

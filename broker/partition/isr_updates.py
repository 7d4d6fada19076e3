"""AlterPartition: the proposals of this broker's leaders, in batches, one under way at a time."""

from __future__ import annotations

from broker.partition.deadlines import Timer
from broker.partition.events import AlterPartitionFailed, SendAlterPartition
from broker.partition.host import Host
from broker.partition.isr import Kind, Proposal
from broker.partition.leader import Leader
from raftlog.errors import ErrorCode
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2

RECOVERED = 0


class IsrUpdates:
    """The queued and outstanding proposals of one broker."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._queue: dict[PartitionKey, Leader] = {}
        self._under_way: dict[PartitionKey, tuple[Leader, Proposal]] | None = None
        self._not_before = float("-inf")
        self._timer: Timer | None = None

    def queue(self, leader: Leader) -> None:
        """Queue a leader's proposal."""
        self._queue[leader.replica.key] = leader

    def pump(self) -> None:
        """Send what is queued at the end of a step, if no request is under way."""
        host = self._host
        if not self._queue or self._under_way is not None:
            return
        if host.now < self._not_before:
            if self._timer is None:
                self._timer = host.deadlines.at(self._not_before, self._time_has_come)
            return
        under_way: dict[PartitionKey, tuple[Leader, Proposal]] = {}
        topics: dict[bytes, rpc.AlterPartitionTopic] = {}
        while self._queue and len(under_way) < host.settings.max_partitions_per_message:
            key = next(iter(self._queue))
            leader = self._queue.pop(key)
            proposal = leader.isr.state.proposal
            if (
                leader.replica.role is leader
                and proposal is not None
                and not proposal.waiting
                and not leader.isr.over
            ):
                under_way[key] = leader, proposal
                topic = topics.setdefault(key[0], rpc.AlterPartitionTopic(topic_id=key[0]))
                topic.partitions.append(_data(leader, proposal, key[1]))
        if not under_way:
            return
        self._under_way = under_way
        request = rpc.AlterPartitionRequest(
            broker_id=host.broker_id, broker_epoch=host.broker_epoch, topics=list(topics.values())
        )
        host.out.append(SendAlterPartition(request))

    def _time_has_come(self) -> None:
        self._timer = None

    def answered(self, response: rpc.AlterPartitionResponse) -> None:
        """Process each partition's own result. A partition without one was not tried."""
        under_way, self._under_way = self._under_way or {}, None
        results = {
            (topic.topic_id, result.partition_index): result
            for topic in response.topics
            for result in topic.partitions
        }
        for key, (leader, proposal) in under_way.items():
            if leader.isr.state.proposal is proposal and leader.replica.role is leader:
                result = results.get(key)
                if result is None:
                    result = rpc.AlterPartitionResult(error_code=ErrorCode.OPERATION_NOT_ATTEMPTED)
                leader.isr.answered(proposal, result)

    def failed(self, event: AlterPartitionFailed) -> None:
        """Retry shortly: the whole request failed. Proposals queued meanwhile are sent with it."""
        under_way, self._under_way = self._under_way or {}, None
        self._not_before = self._host.now + self._host.settings.isr_retry_ms / 1000
        for leader, proposal in under_way.values():
            if leader.isr.state.proposal is proposal and leader.replica.role is leader:
                leader.isr.failed(proposal, outcome_unknown=event.outcome_unknown)


def _data(leader: Leader, proposal: Proposal, index: int) -> rpc.AlterPartitionData:
    return rpc.AlterPartitionData(
        partition_index=index,
        leader_epoch=leader.epoch,
        new_isr_with_epochs=[
            records_pb2.BrokerState(broker_id=member, broker_epoch=epoch)
            for member, epoch in proposal.members
        ],
        # The loss of an unclean election is final: there is nothing to recover.
        leader_recovery_state=RECOVERED,
        partition_epoch=proposal.base_epoch,
        advance_partition_epoch=proposal.kind is Kind.WITHDRAW,
    )

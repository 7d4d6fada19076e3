from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from deciding import Cell, registration

from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.records import record
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

STALE, INVALID = ErrorCode.STALE_BROKER_EPOCH, ErrorCode.INVALID_REQUEST
INELIGIBLE = ErrorCode.INELIGIBLE_REPLICA
RECOVERING = 1


@dataclass
class Stage:
    """Partition 1, 2, 3 with ISR 1, 2: broker 3 is back. Broker 4 shuts down, 5 is fenced."""

    cell: Cell
    topic: bytes

    def propose(
        self,
        isr: Sequence[int | tuple[int, int]] = (1, 2, 3),
        broker_epoch: int | None = None,
        **fields: Any,
    ) -> rpc.AlterPartitionRequest:
        """A valid proposal to add broker 3, with changes; a pair in ``isr`` is (id, epoch)."""
        partition = self.cell.partition(self.topic)
        broker_id, topic_id = fields.pop("broker_id", 1), fields.pop("topic_id", self.topic)
        epoch = self.cell.broker(broker_id).epoch if broker_epoch is None else broker_epoch
        pairs = [(i, self.cell.broker(i).epoch) if isinstance(i, int) else i for i in isr]
        data: dict[str, Any] = {
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
            "new_isr_with_epochs": [pb.BrokerState(broker_id=i, broker_epoch=e) for i, e in pairs],
        }
        proposal = rpc.AlterPartitionData(**{**data, **fields})
        topic = rpc.AlterPartitionTopic(topic_id=topic_id, partitions=[proposal])
        return rpc.AlterPartitionRequest(broker_id=broker_id, broker_epoch=epoch, topics=[topic])

    def result(self, request: rpc.AlterPartitionRequest) -> rpc.AlterPartitionResult:
        return self.cell.send(request).topics[0].partitions[0]


@pytest.fixture
def stage() -> Stage:
    cell = Cell(brokers=5)
    topic = cell.create_on((1, 2, 3))
    cell.create_on((1, 2, 4, 5), name="wide")
    cell.create_on((4,), name="keeps-4-busy")
    cell.silence(3, 5)
    cell.beat(3)
    assert not cell.beat(4, want_shut_down=True).should_shut_down
    assert cell.partition(topic).isr == (1, 2)
    return Stage(cell, topic)


def _rules(stage: Stage) -> list[tuple[dict[str, Any], ErrorCode]]:
    """Kafka's rules 1 to 12: a violation of each, and its error. Earlier ones take precedence."""
    return [
        ({"topic_id": b"?" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"partition_index": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"broker_id": 2}, INVALID),
        ({"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"isr": []}, INVALID),
        ({"isr": [2, 3]}, INVALID),
        ({"leader_recovery_state": RECOVERING}, INVALID),
        ({"isr": [1], "leader_recovery_state": RECOVERING}, INVALID),
        ({"isr": [1, 2, (3, 1)]}, INELIGIBLE),
    ]


def test_each_violated_rule_has_its_error_and_changes_nothing(stage: Stage) -> None:
    for broken, code in _rules(stage):
        before = stage.cell.soft_state()
        result = stage.result(stage.propose(**dict(broken)))
        assert (broken, ErrorCode(result.error_code)) == (broken, code)
        assert result.error_message
        assert stage.cell.soft_state() == before


def test_rules_are_checked_in_kafkas_order(stage: Stage) -> None:
    """For each pair of rules that one request can violate."""
    rules = _rules(stage)
    pairs = 0
    for first, (broken, code) in enumerate(rules):
        for later, _ in rules[first + 1 :]:
            if set(broken) & set(later):
                continue
            pairs += 1
            both = {**later, **broken}
            assert (both, ErrorCode(stage.result(stage.propose(**both)).error_code)) == (both, code)
    assert pairs > 40


def test_proposal_of_a_stale_or_unknown_broker_is_refused_whole(stage: Stage) -> None:
    cell = stage.cell
    cell.refused(stage.propose(broker_epoch=1), STALE, "broker_epoch")
    cell.refused(stage.propose(broker_id=9, broker_epoch=1), STALE, "broker_epoch")
    cell.refused(stage.propose(broker_id=-1, broker_epoch=1), INVALID, "broker_id")
    beyond = cell.log.end_offset
    cell.refused(stage.propose(broker_epoch=beyond), ErrorCode.NOT_CONTROLLER, "broker_epoch")


@pytest.mark.parametrize("isr", [[1, 1], [1, 4], [1, 2, 3, 3]])
def test_isr_must_name_each_replica_once(stage: Stage, isr: list[int]) -> None:
    assert stage.result(stage.propose(isr=isr)).error_code == INVALID


def test_inactive_broker_is_not_eligible_for_the_isr(stage: Stage) -> None:
    wide = stage.cell.pending.topic_ids["wide"]
    on_wide = Stage(stage.cell, wide)
    for joining, reason in ((4, "is shutting down"), (5, "is fenced")):
        result = on_wide.result(on_wide.propose(isr=[1, 2, joining]))
        assert result.error_code == INELIGIBLE
        assert reason in result.error_message
        assert "new_isr_with_epochs[2]" in result.error_message
    stage.cell.send(rpc.UnregisterBrokerRequest(broker_id=5))
    result = on_wide.result(on_wide.propose(isr=[1, (5, -1)]))
    assert result.error_code == INELIGIBLE
    assert "not registered" in result.error_message


def test_proposed_replica_joins_the_isr(stage: Stage) -> None:
    before = stage.cell.partition(stage.topic)
    request = stage.propose()
    decision = stage.cell.propose(stage.cell.decide(request))
    after = stage.cell.partition(stage.topic)
    assert after.isr == (1, 2, 3)
    assert (after.leader, after.leader_epoch) == (before.leader, before.leader_epoch)
    assert after.partition_epoch == before.partition_epoch + 1
    result = decision.body.topics[0].partitions[0]
    assert list(result.isr) == [1, 2, 3]
    assert result.leader_id == 1
    assert result.partition_epoch == after.partition_epoch
    message = decision.records[0].message
    assert (message.proposer_id, message.proposer_epoch) == (1, stage.cell.broker(1).epoch)
    assert list(message.isr_with_epochs) == list(
        request.topics[0].partitions[0].new_isr_with_epochs
    )


def test_omitted_replica_leaves_the_isr(stage: Stage) -> None:
    assert stage.result(stage.propose(isr=[1])).error_code == 0
    assert stage.cell.partition(stage.topic).isr == (1,)
    assert stage.cell.partition(stage.topic).leader_epoch == 0


def test_epoch_minus_1_skips_the_epoch_check_until_every_broker_sends_epochs(stage: Stage) -> None:
    proposal = stage.propose(isr=[(1, -1), 2])
    result = stage.result(proposal)
    assert result.error_code == INELIGIBLE
    assert "not -1" in result.error_message
    stage.cell.fold([record(pb.FeatureLevelRecord(name="metadata.version", feature_level=1))])
    assert stage.result(proposal).error_code == 0


def test_withdrawal_raises_the_partition_epoch_against_earlier_attempts(stage: Stage) -> None:
    """An attempt to add broker 3 is unanswered; while it is in flight its leader voids it."""
    delayed = stage.propose()
    before = stage.cell.partition(stage.topic)
    result = stage.result(stage.propose(isr=[1, 2], advance_partition_epoch=True))
    assert result.error_code == 0
    assert list(result.isr) == [1, 2]
    assert result.partition_epoch == before.partition_epoch + 1
    after = stage.cell.partition(stage.topic)
    assert (after.isr, after.leader_epoch) == (before.isr, before.leader_epoch)
    assert after.partition_epoch == before.partition_epoch + 1
    assert stage.result(delayed).error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert stage.cell.partition(stage.topic).isr == (1, 2)


def test_unchanged_isr_writes_nothing(stage: Stage) -> None:
    decision = stage.cell.decide(stage.propose(isr=[1, 2]))
    assert decision.records == []
    result = decision.body.topics[0].partitions[0]
    assert result.error_code == 0
    assert result.partition_epoch == stage.cell.partition(stage.topic).partition_epoch


def test_replica_that_came_back_empty_is_not_admitted_by_an_older_proposal(stage: Stage) -> None:
    """KIP-903: B catches up, A proposes it; B loses its disk and registers before that arrives."""
    cell = stage.cell
    in_flight = stage.propose()
    cell.now += 9.1
    cell.beats(1, 2, 4)
    cell.due()
    cell.join(3, incarnation="with an empty disk")
    result = stage.result(in_flight)
    assert result.error_code == INELIGIBLE
    assert cell.partition(stage.topic).isr == (1, 2)
    assert stage.result(stage.propose()).error_code == 0


def test_invalid_partition_is_refused_alone_and_results_keep_their_order(stage: Stage) -> None:
    good, bad = stage.propose(), stage.propose(partition_index=7)
    wide_id = stage.cell.pending.topic_ids["wide"]
    good.topics[0].partitions.insert(0, bad.topics[0].partitions[0])
    good.topics.add(topic_id=b"short").partitions.add(partition_index=3)
    shrink = Stage(stage.cell, wide_id).propose(isr=[1])
    good.topics.append(shrink.topics[0])
    topics = stage.cell.send(good).topics
    assert [topic.topic_id for topic in topics] == [stage.topic, b"short", wide_id]
    codes = [
        [(result.partition_index, result.error_code) for result in topic.partitions]
        for topic in topics
    ]
    assert codes == [
        [(7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (0, 0)],
        [(3, ErrorCode.UNKNOWN_TOPIC_ID)],
        [(0, 0)],
    ]
    assert stage.cell.partition(stage.topic).isr == (1, 2, 3)
    assert stage.cell.partition(wide_id).isr == (1,)


def test_partition_named_twice_changes_once(stage: Stage) -> None:
    request = stage.propose()
    request.topics.append(stage.propose(isr=[1]).topics[0])
    results = [topic.partitions[0] for topic in stage.cell.send(request).topics]
    assert [result.error_code for result in results] == [0, ErrorCode.INVALID_UPDATE_VERSION]
    assert stage.cell.partition(stage.topic).isr == (1, 2, 3)


def test_recovering_leader_is_alone_in_the_isr_until_it_has_recovered(stage: Stage) -> None:
    cell = stage.cell
    change = pb.PartitionChangeRecord(
        topic_id=stage.topic,
        partition_id=0,
        isr=pb.IdList(ids=[1]),
        leader_recovery_state=RECOVERING,
    )
    cell.fold([record(change)])
    cell.commit()
    refused = stage.result(stage.propose(isr=[1, 2], leader_recovery_state=RECOVERING))
    assert refused.error_code == INVALID
    unknown = stage.result(stage.propose(isr=[1, 2], leader_recovery_state=2))
    assert unknown.error_code == INVALID
    still = cell.decide(stage.propose(isr=[1], leader_recovery_state=RECOVERING))
    assert still.records == []
    assert stage.result(stage.propose(isr=[1, 2])).error_code == 0
    assert cell.partition(stage.topic).leader_recovery_state == 0


def test_partition_without_a_leader_accepts_no_proposal() -> None:
    cell = Cell(brokers=2)
    stage = Stage(cell, cell.create_on((1,)))
    cell.silence(1)
    assert cell.partition(stage.topic).leader == -1
    assert stage.result(stage.propose(isr=[1])).error_code == INVALID


def test_request_with_more_partitions_than_a_batch_holds_is_refused_whole() -> None:
    cell = Cell(brokers=1, settings=ControllerSettings(max_records_per_request=2))
    stage = Stage(cell, cell.create_on((1,)))
    request = stage.propose(isr=[1])
    for _ in range(2):
        request.topics.append(request.topics[0])
    cell.refused(request, ErrorCode.POLICY_VIOLATION, "")


def test_proposal_is_decided_on_pending_changes(stage: Stage) -> None:
    cell = stage.cell
    cell.hold_commits = True
    first = stage.propose()
    assert stage.result(first).error_code == 0
    assert stage.result(first).error_code == ErrorCode.INVALID_UPDATE_VERSION
    cell.now += 9.1
    cell.propose(cell.decide(registration(3, "again")))
    assert cell.partition(stage.topic).isr == (1, 2)

from typing import Any

import pytest
from deciding import Cell, reassignment
from msgspec.structs import replace

from controller.rules.partition_change import Brokers, Election, next_state
from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as rpc

ASSIGNMENT, FACTOR = ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_REPLICATION_FACTOR


def refused_cancellation(cell: Cell, code: ErrorCode = ASSIGNMENT) -> None:
    cell.refused_part(reassignment((0, None)), code, "topics[0].partitions[0]")


def _codes(response: rpc.AlterPartitionReassignmentsResponse) -> list[int]:
    return [part.error.error_code for topic in response.topics for part in topic.partitions]


def _assignment(
    cell: Cell, topic: bytes, index: int = 0
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    partition = cell.partition(topic, index)
    return partition.replicas, partition.adding_replicas, partition.removing_replicas


def _ongoing(
    cell: Cell, **fields: Any
) -> dict[tuple[str, int], tuple[list[int], list[int], list[int], list[int]]]:
    response = cell.send(rpc.ListPartitionReassignmentsRequest(**fields))
    return {
        (topic.name, one.partition_index): (
            list(one.replicas),
            list(one.adding_replicas),
            list(one.removing_replicas),
            list(one.isr),
        )
        for topic in response.topics
        for one in topic.partitions
    }


def test_replicas_are_target_plus_removing_until_all_added_ones_are_in_sync() -> None:
    cell = Cell(brokers=5)
    topic = cell.create_on((1, 2, 3))
    before = cell.partition(topic)
    cell.reassign({0: [4, 5, 3]})
    assert _assignment(cell, topic) == ((4, 5, 3, 1, 2), (4, 5), (1, 2))
    partition = cell.partition(topic)
    assert (partition.leader, partition.isr) == (1, (1, 2, 3)), (
        "nothing moves before the new ones have caught up"
    )
    assert partition.leader_epoch == before.leader_epoch, "replicas were added only"
    assert partition.partition_epoch == before.partition_epoch + 1
    assert _ongoing(cell) == {("t", 0): ([4, 5, 3, 1, 2], [4, 5], [1, 2], [1, 2, 3])}

    result = cell.propose_isr(topic, [1, 2, 3, 4])
    assert (result.error_code, list(result.isr)) == (0, [1, 2, 3, 4])
    assert _assignment(cell, topic)[1:] == ((4, 5), (1, 2)), "one of two is not all"

    result = cell.propose_isr(topic, [1, 2, 3, 4, 5])
    assert result.error_code == ErrorCode.NEW_LEADER_ELECTED
    partition = cell.partition(topic)
    assert _assignment(cell, topic) == ((4, 5, 3), (), ())
    assert (partition.isr, partition.leader) == ((3, 4, 5), 4)
    assert partition.leader_epoch == before.leader_epoch + 1
    assert partition.partition_epoch == before.partition_epoch + 3
    assert _ongoing(cell) == {}
    cell.check_invariants()


def test_proposer_that_stays_leader_receives_its_new_leader_epoch() -> None:
    """Removing replicas begins a leader epoch, though the leader stays."""
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2))
    cell.reassign({0: [1, 3]})
    epoch = cell.partition(topic).leader_epoch
    result = cell.propose_isr(topic, [1, 2, 3])
    assert (result.error_code, result.leader_id, result.leader_epoch) == (0, 1, epoch + 1)
    assert list(result.isr) == [1, 3]
    after = cell.partition(topic)
    assert after.isr == (1, 3)
    assert after.leader_epoch == epoch + 1
    assert after.partition_epoch == result.partition_epoch


def test_completion_record_names_the_proposer_and_the_proposal() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2))
    cell.reassign({0: [3, 2]})
    (written,) = cell.decide(cell.isr_proposal(topic, [1, 2, 3])).records
    message = written.message
    assert (message.proposer_id, message.proposer_epoch) == (1, cell.broker(1).epoch)
    assert [member.broker_id for member in message.isr_with_epochs] == [1, 2, 3]
    assert list(message.isr.ids) == [2, 3]
    assert list(message.replicas.ids) == [3, 2]
    assert message.HasField("adding_replicas")
    assert message.HasField("removing_replicas")
    assert not message.adding_replicas.ids
    assert not message.removing_replicas.ids


def test_cancelling_restores_the_replicas_and_drops_added_ones_even_from_the_isr() -> None:
    cell = Cell(brokers=5)
    topic = cell.create_on((1, 2, 3))
    cell.reassign({0: [4, 5, 1]})
    cell.propose_isr(topic, [1, 2, 3, 4])
    cell.reassign({0: None})
    assert set(cell.partition(topic).replicas) == {1, 2, 3}
    assert _assignment(cell, topic)[1:] == ((), ())
    assert cell.partition(topic).isr == (1, 2, 3)
    assert cell.partition(topic).leader == 1
    assert _ongoing(cell) == {}
    refused_cancellation(cell, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)


def test_added_leader_loses_the_leadership_when_cancelled() -> None:
    cell = Cell(brokers=4)
    topic = cell.create_on((1, 2))
    cell.reassign({0: [3, 4]})
    cell.propose_isr(topic, [1, 2, 3])
    cell.silence(1, 2)
    partition = cell.partition(topic)
    assert (partition.leader, partition.isr) == (3, (3,))
    # 1 and 2 may lack what 3 has acknowledged.
    refused_cancellation(cell)
    cell.beats(1, 1)
    refused_cancellation(cell)
    cell.propose_isr(topic, [3, 1])
    cell.reassign({0: None})
    partition = cell.partition(topic)
    assert (partition.leader, partition.isr, set(partition.replicas)) == (1, (1,), {1, 2})
    cell.check_invariants()


def test_cancellation_that_requires_an_unclean_leader_is_refused_unless_allowed() -> None:
    cell = Cell(brokers=4)
    topic = cell.create_on((1, 2))
    cell.reassign({0: [3, 4]})
    cell.propose_isr(topic, [1, 2, 3])
    cell.silence(1, 2)
    cell.allow_unclean("t")
    refused_cancellation(cell)
    cell.beats(2, 2)
    cell.reassign({0: None})
    partition = cell.partition(topic)
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (2, (2,), 1)
    assert set(partition.replicas) == {1, 2}


def test_cancellation_waits_for_a_live_replica_also_without_a_leader() -> None:
    cell = Cell(brokers=4)
    topic = cell.create_on((1, 2))
    cell.reassign({0: [3]})
    cell.allow_unclean("t")
    cell.silence(1, 2)
    assert (cell.partition(topic).leader, cell.partition(topic).isr) == (3, (3,))
    cell.silence(3)
    before = cell.partition(topic)
    assert (before.leader, before.isr, before.elr) == (-1, (), (3,))
    refused_cancellation(cell)
    assert cell.partition(topic) == before
    cell.check_invariants()


def test_second_reassignment_starts_from_the_original_replicas() -> None:
    cell = Cell(brokers=6)
    topic = cell.create_on((1, 2, 3))
    cell.reassign({0: [4, 5, 6]})
    cell.propose_isr(topic, [1, 2, 3, 4])
    cell.reassign({0: [5, 2, 3]})
    assert _assignment(cell, topic) == ((5, 2, 3, 1), (5,), (1,)), "4 and 6 are not wanted any more"
    assert cell.partition(topic).isr == (1, 2, 3)
    cell.reassign({0: None})
    assert set(_assignment(cell, topic)[0]) == {1, 2, 3}


def test_shrinking_waits_until_all_remaining_replicas_are_in_sync() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3))
    cell.silence(2)
    cell.join(2, incarnation="again")
    assert cell.partition(topic).isr == (1, 3)
    cell.reassign({0: [2, 1]})
    assert _assignment(cell, topic) == ((2, 1, 3), (), (3,))
    assert _ongoing(cell) == {("t", 0): ([2, 1, 3], [], [3], [1, 3])}
    assert cell.propose_isr(topic, [1, 2, 3]).error_code == 0
    assert _assignment(cell, topic) == ((2, 1), (), ())
    assert (cell.partition(topic).isr, cell.partition(topic).leader) == ((1, 2), 1)


def test_immediately_complete_reassignment_takes_one_record() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3))
    decision = cell.decide(reassignment((0, [3, 2])))
    assert len(decision.records) == 1
    cell.propose(decision)
    partition = cell.partition(topic)
    assert _assignment(cell, topic) == ((3, 2), (), ())
    assert (partition.isr, partition.leader) == ((2, 3), 3)
    # Another order alone: nobody moves, but the first is the preferred leader from now on.
    epoch = partition.leader_epoch
    cell.reassign({0: [2, 3]})
    partition = cell.partition(topic)
    assert (partition.replicas, partition.leader, partition.leader_epoch) == ((2, 3), 3, epoch)
    # And what is so already writes nothing.
    assert cell.decide(reassignment((0, [2, 3]))).records == []


def test_dead_broker_being_added_does_not_complete_a_reassignment() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2))
    cell.silence(3)
    cell.reassign({0: [3, 2]})
    assert cell.propose_isr(topic, [1, 2]).error_code == 0
    assert _assignment(cell, topic)[1:] == ((3,), (1,))


def test_unclean_leader_does_not_complete_the_reassignment_of_the_replaced_isr() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2))
    cell.reassign({0: [3, 2]})
    cell.silence(1, 3)
    # An earlier unclean leader: what was being added is the ISR alone, and gone.
    partition = replace(cell.partition(topic), isr=(3,), leader=-1)
    change = next_state(Brokers(cell.pending), partition, election=Election.UNCLEAN)
    assert change is not None
    assert (change.leader, list(change.isr.ids), change.leader_recovery_state) == (2, [2], 1)
    assert not change.HasField("replicas")
    assert not change.HasField("adding_replicas")


@pytest.mark.parametrize(
    ("index", "ids", "code", "field"),
    [
        (1, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
        (-1, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ""),
        (0, [], ASSIGNMENT, ".replicas"),
        (0, [1, 1], ASSIGNMENT, ".replicas"),
        (0, [9], ASSIGNMENT, ".replicas"),
        (0, [-1], ASSIGNMENT, ".replicas"),
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ""),
    ],
)
def test_invalid_reassignments_are_refused(
    index: int, ids: list[int] | None, code: ErrorCode, field: str
) -> None:
    cell = Cell(brokers=3)
    cell.create_on((1, 2, 3))
    cell.refused_part(reassignment((index, ids)), code, f"topics[0].partitions[0]{field}")


def test_each_partition_has_its_own_result_and_duplicates_are_refused_both_times() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2), (1, 2), (1, 2))
    moves = ((0, [2, 3]), (1, [9]), (2, [3]), (2, None), (7, [1]))
    validated = cell.decide(reassignment(*moves, validate_only=True))
    codes = _codes(cell.send(reassignment(*moves)))
    assert (validated.records, _codes(validated.body)) == ([], codes)
    twice = ErrorCode.INVALID_REQUEST
    assert codes == [0, ASSIGNMENT, twice, twice, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [cell.partition(topic, index).adding_replicas for index in range(3)] == [(3,), (), ()]


def test_replication_factor_may_be_required_to_stay() -> None:
    cell = Cell(brokers=3)
    cell.create_on((1, 2))
    request = reassignment((0, [1, 2, 3]), allow_replication_factor_change=False)
    cell.refused_part(request, FACTOR, "topics[0].partitions[0].replicas")
    kept = reassignment((0, [1, 3]), allow_replication_factor_change=False)
    assert _codes(cell.send(kept)) == [0]
    # Measured by what there was before, not by what is there while it lasts.
    cell.refused_part(request, FACTOR, "topics[0].partitions[0].replicas")


def test_request_larger_than_a_batch_is_refused_whole() -> None:
    cell = Cell(brokers=3, settings=ControllerSettings(max_records_per_request=3))
    moves = [(index, [1]) for index in range(4)]
    cell.refused(reassignment(*moves), ErrorCode.POLICY_VIOLATION, "")


def test_listed_reassignments_are_committed_and_requested() -> None:
    cell = Cell(brokers=3)
    cell.create_on((1,), (1,), (1,), name="a")
    cell.create_on((1,), name="b")
    cell.send(reassignment((0, [2]), (2, [3]), name="a"))
    cell.send(reassignment((0, [2]), name="b"))
    assert sorted(_ongoing(cell)) == [("a", 0), ("a", 2), ("b", 0)]
    listed = rpc.ListReassignmentsTopic
    for topics, found in (
        ([listed(name="a"), listed(name="none")], [("a", 0), ("a", 2)]),
        ([listed(name="a", partition_indexes=[2, 1, 9])], [("a", 2)]),
    ):
        assert sorted(_ongoing(cell, topics=topics)) == found
    cell.hold_commits = True
    cell.send(reassignment((1, [2]), name="a"))
    assert ("a", 1) not in _ongoing(cell)


def test_reassignment_continues_after_a_fencing() -> None:
    cell = Cell(brokers=4)
    topic = cell.create_on((1, 2))
    cell.reassign({0: [3, 4]})
    cell.silence(1)
    partition = cell.partition(topic)
    assert (partition.leader, partition.isr) == (2, (2,))
    assert _assignment(cell, topic) == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert cell.propose_isr(topic, [2, 3, 4]).error_code == ErrorCode.NEW_LEADER_ELECTED
    assert (cell.partition(topic).leader, cell.partition(topic).isr) == (3, (3, 4))

from __future__ import annotations

from typing import Any

import pytest
from deciding import Cell

from controller.settings import ControllerSettings
from raftlog.bounds import CONTROLLER_BATCH_MAX_BYTES
from raftlog.errors import ErrorCode
from raftlog.metadata.records import RecordType
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


def _add(name: str, count: int, *assignments: list[int]) -> rpc.CreatePartitionsTopic:
    return rpc.CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=[rpc.CreatePartitionsAssignment(broker_ids=ids) for ids in assignments],
    )


def _request(
    *topics: rpc.CreatePartitionsTopic, validate_only: bool = False
) -> rpc.CreatePartitionsRequest:
    return rpc.CreatePartitionsRequest(topics=topics, validate_only=validate_only)


def test_partitions_are_added_behind_those_there_are() -> None:
    cell = Cell(brokers=4)
    topic = cell.create(num_partitions=2, replication_factor=3)
    decision = cell.decide(_request(_add("t", 7)))
    assert [record.type for record in decision.records] == [RecordType.PARTITION] * 5
    cell.propose(decision)
    assert cell.pending.topics[topic].partition_count == 7
    for index in range(2, 7):
        partition = cell.partition(topic, index)
        assert len(set(partition.replicas)) == 3
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    cell.check_invariants()


def test_they_have_as_many_replicas_as_the_first_is_to_have() -> None:
    cell = Cell(brokers=4)
    topic = cell.create_on((1, 2, 3))
    wanted = rpc.ReassignablePartition(replicas=pb.IdList(ids=[4, 1]))
    cell.send(
        rpc.AlterPartitionReassignmentsRequest(
            topics=[rpc.ReassignableTopic(name="t", partitions=[wanted])]
        )
    )
    assert len(cell.partition(topic).replicas) == 4, "target and removing"
    cell.send(_request(_add("t", 2)))
    assert len(cell.partition(topic, 1).replicas) == 2


def test_manual_assignments_are_kept_and_only_live_replicas_are_in_sync() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2))
    cell.silence(3)
    cell.send(_request(_add("t", 3, [3, 1], [2, 1])))
    first, second = cell.partition(topic, 1), cell.partition(topic, 2)
    assert (first.replicas, first.isr, first.leader) == ((3, 1), (1,), 1)
    assert (second.replicas, second.isr, second.leader) == ((2, 1), (2, 1), 2)


@pytest.mark.parametrize(
    ("topic", "code", "field"),
    [
        (_add("none", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ".name"),
        (_add("t", 2), ErrorCode.INVALID_PARTITIONS, ".count"),
        (_add("t", 1), ErrorCode.INVALID_PARTITIONS, ".count"),
        (_add("t", -1), ErrorCode.INVALID_PARTITIONS, ".count"),
        (_add("t", 4, [1, 2]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, ".assignments"),
        (_add("t", 3, [1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, ".assignments[0].broker_ids"),
        (
            _add("t", 4, [1, 2], [1, 1]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ".assignments[1].broker_ids",
        ),
        (_add("t", 3, [1, 9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, ".assignments[0].broker_ids"),
        (_add("wide", 2), ErrorCode.INVALID_REPLICATION_FACTOR, ""),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_bad_additions_are_refused(
    topic: rpc.CreatePartitionsTopic, code: ErrorCode, field: str, *, validate_only: bool
) -> None:
    cell = Cell(brokers=3)
    cell.create_on((1, 2), (1, 2))
    cell.create_on((1, 2, 3), name="wide")
    cell.silence(3)
    cell.refused_part(_request(topic, validate_only=validate_only), code, f"topics[0]{field}")


def test_good_additions_are_made_beside_bad_ones_and_validate_only_writes_nothing() -> None:
    cell = Cell(brokers=2)
    for name in ("a", "b"):
        cell.create(name, replication_factor=1)
    request = [_add("a", 2), _add("none", 2), _add("b", 2), _add("b", 3)]
    decision = cell.decide(_request(*request, validate_only=True))
    assert not decision.records
    codes = [result.error.error_code for result in cell.send(_request(*request)).results]
    twice = ErrorCode.INVALID_REQUEST
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, twice, twice]
    assert [result.error.error_code for result in decision.body.results] == codes
    counts = {
        topic.name: topic.partition_count for topic in cell.pending.snapshot().topics.values()
    }
    assert counts == {"a": 2, "b": 1}


@pytest.mark.parametrize("count", [12, 2_147_483_647])
def test_more_than_a_batch_holds_is_refused_whole_and_at_once(count: int) -> None:
    cell = Cell(brokers=1, settings=ControllerSettings(max_records_per_request=10))
    for name in ("a", "b"):
        cell.create(name, replication_factor=1)
    request, field = _request(_add("a", 2), _add("b", count)), "topics[1].count"
    cell.refused(request, ErrorCode.POLICY_VIOLATION, field)
    assert len(cell.decide(_request(_add("a", 2), _add("b", 10))).records) == 10


def _many(partitions: int, factor: int) -> Any:
    topic = rpc.CreatableTopic(name="wide", num_partitions=partitions, replication_factor=factor)
    return rpc.CreateTopicsRequest(topics=[topic])


def test_what_would_write_too_many_bytes_is_refused_with_the_name_of_the_request() -> None:
    cell = Cell(brokers=0)
    for broker_id in range(2_000_000_000, 2_000_000_160):
        cell.join(broker_id, listeners=[pb.Listener(name="PLAIN", host="h", port=1)])
    # 160 ids of five bytes, twice each.
    assert len(cell.decide(_many(4_000, 160)).records) == 4_001
    assert CONTROLLER_BATCH_MAX_BYTES < 6_000 * 160 * 10
    cell.refused(_many(6_000, 160), ErrorCode.MESSAGE_TOO_LARGE, "create_topics")


def test_what_would_place_too_many_replicas_is_refused_before_it_is_done() -> None:
    cell = Cell(brokers=0)
    for broker_id in range(1, 120):
        cell.join(broker_id, listeners=[pb.Listener(name="PLAIN", host="h", port=1)])
    cell.refused(_many(9_000, 119), ErrorCode.POLICY_VIOLATION, "")

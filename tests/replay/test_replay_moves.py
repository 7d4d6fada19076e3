"""Audit and state of a log with reassignments, as a controller writes it."""

import sys
from pathlib import Path

import pytest
from asking import ask, ask_shared

sys.path.insert(0, str(Path(__file__).parents[1] / "controller"))

from deciding import Cell

from raftlog import batch
from raftlog.metadata.entities import HASH_MASK, format_hash
from raftlog.metadata.records import Record, RecordType, record
from raftlog.segments.writer import ExportWriter
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


class Logged(Cell):
    """A cell that keeps its log."""

    def fold(self, records: list[Record]) -> None:
        before: bytes = getattr(self, "written", b"")
        self.written = before + batch.encode(
            [each.data for each in records],
            base_offset=self.pending.offset + 1,
            epoch=self.epoch,
            timestamp_ms=0,
            control=records[0].type == RecordType.LEADER_CHANGE,
        )
        super().fold(records)


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Logged, Path]:
    """Reassigned to completion, begun and cancelled, elected, elected uncleanly, extended."""
    cell = Logged(brokers=5)
    topic = cell.create_on((1, 2, 3))
    cell.reassign({0: [4, 5, 3]})
    cell.propose_isr(topic, [1, 2, 3, 4, 5])
    assert cell.partition(topic).replicas == (4, 5, 3)
    cell.reassign({0: [1, 2]})
    cell.propose_isr(topic, [3, 4, 5, 1])
    cell.reassign({0: None})
    cell.silence(4)
    cell.join(4, incarnation="next")
    cell.propose_isr(topic, [3, 4, 5])
    cell.send(rpc.ElectLeadersRequest())
    cell.silence(3, 5)
    cell.silence(4)
    cell.beat(5)
    cell.beat(5)
    cell.send(rpc.ElectLeadersRequest(election_type=rpc.UNCLEAN))
    assert (cell.partition(topic).leader, cell.partition(topic).leader_recovery_state) == (5, 1)
    cell.send(rpc.CreatePartitionsRequest(topics=[rpc.CreatePartitionsTopic(name="t", count=3, assignments=[
        rpc.CreatePartitionsAssignment(broker_ids=[5, 1, 2]), rpc.CreatePartitionsAssignment(broker_ids=[2, 5, 1])])]))  # fmt: skip
    directory = tmp_path_factory.mktemp("moved")
    with ExportWriter(directory, "test-cluster", 0, max_segment_records=20) as writer:
        writer.append_chunk(cell.written)
        writer.commit(cell.pending.offset + 1)
    return cell, directory


def test_parallel_fold_equals_the_controllers_state(moved: tuple[Logged, Path]) -> None:
    cell, directory = moved
    result = ask_shared(3, "state", directory, limit=1)
    assert result.state_hash == format_hash(cell.pending.state_hash & HASH_MASK)


def test_audit_accepts_reassignments(moved: tuple[Logged, Path]) -> None:
    _, directory = moved
    result = ask("audit", directory)
    assert (result.findings, result.passed) == ([], True)
    assert result.checked >= 10


def test_stale_epoch_in_a_completing_change_is_found(tmp_path: Path) -> None:
    """The record adds a former incarnation, and completes a reassignment."""
    again = Logged(brokers=3)
    moving = again.create_on((1, 2))
    again.reassign({0: [3, 2]})
    old = again.broker(3).epoch
    again.silence(3)
    again.join(3, incarnation="next")
    change = pb.PartitionChangeRecord(
        topic_id=moving,
        isr=pb.IdList(ids=[2, 3]),
        replicas=pb.IdList(ids=[3, 2]),
        adding_replicas=pb.IdList(),
        removing_replicas=pb.IdList(),
        leader=3,
        proposer_id=1,
        proposer_epoch=again.broker(1).epoch,
        isr_with_epochs=[pb.BrokerState(broker_id=3, broker_epoch=old)],
    )
    planted = again.pending.offset + 1
    again.fold([record(change)])
    with ExportWriter(tmp_path / "planted", "test-cluster", 0, max_segment_records=20) as writer:
        writer.append_chunk(again.written)
        writer.commit(again.pending.offset + 1)
    result = ask("audit", tmp_path / "planted")
    assert [(one.offset, one.rule, one.broker_id) for one in result.findings] == [
        (planted, "STALE_BROKER_EPOCH", 3)
    ]

"""Audit and state of a log with reassignments, as a controller writes it."""

import sys
from pathlib import Path

import pytest
from asking import ask, ask_shared

sys.path.insert(0, str(Path(__file__).parents[1] / "controller"))

from deciding import Cell

from raftlog import batch
from raftlog.metadata.entities import HASH_MASK, format_hash
from raftlog.metadata.records import Record, RecordType
from raftlog.segments.writer import ExportWriter
from raftlog.wire.controller.v1 import controller_pb2 as rpc


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
    placed = [rpc.CreatePartitionsAssignment(broker_ids=ids) for ids in ([5, 1, 2], [2, 5, 1])]
    more = rpc.CreatePartitionsTopic(name="t", count=3, assignments=placed)
    cell.send(rpc.CreatePartitionsRequest(topics=[more]))
    directory = tmp_path_factory.mktemp("moved")
    with ExportWriter(directory, "test-cluster", 0, max_segment_records=20) as writer:
        writer.append_chunk(cell.written)
        writer.commit(writer.next_offset)
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

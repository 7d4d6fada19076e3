"""Audit and state of a log with reassignments, as a controller writes it."""

import sys
from pathlib import Path

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


def test_reassignments_are_replayed_to_the_controllers_state_and_break_no_rule(
    tmp_path: Path,
) -> None:
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
    with ExportWriter(tmp_path, "test-cluster", 0, max_segment_records=20) as writer:
        writer.append_chunk(cell.written)
        writer.commit(writer.next_offset)
    state = ask_shared(3, "state", tmp_path, limit=1)
    assert state.state_hash == format_hash(cell.pending.state_hash & HASH_MASK)
    audited = ask("audit", tmp_path)
    assert (audited.findings, audited.passed) == ([], True)
    assert audited.checked >= 10

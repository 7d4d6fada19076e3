import math

from deciding import CLUSTER_ID, Cell, Decided, envelope, registration

from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.records import RecordType
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as rpc


def test_request_without_a_body_or_of_another_cluster_is_refused() -> None:
    cell = Cell(brokers=1)
    error = cell.decider.decide(rpc.ControllerRequest(), cell.now).error
    assert (error.code, error.field) == (ErrorCode.INVALID_REQUEST, "body")
    request = envelope(registration(1))
    request.cluster_id = "other"
    error = cell.decide_request(request).error
    assert error is not None
    assert (error.code, error.field) == (ErrorCode.INCONSISTENT_CLUSTER_ID, "cluster_id")
    request.cluster_id = CLUSTER_ID
    assert cell.decide_request(request).error is None


def test_empty_log_gets_its_feature_levels_first_and_once() -> None:
    cell = Cell(brokers=0, bootstrap=False)
    assert cell.decider.due.is_urgent()
    assert cell.decider.due.next_deadline() == -math.inf
    decisions = cell.due()
    assert [decision.types for decision in decisions] == [["FEATURE_LEVEL"] * 3]
    levels = {"lao.version": 1, "broker.heartbeat.version": 1}
    levels["metadata.version"] = LATEST_METADATA_VERSION
    assert {name: cell.pending.features[name] for name in levels} == levels
    assert not cell.decider.due.is_urgent()
    assert cell.decider.due.next_deadline() > cell.now
    assert cell.due() == []


def test_lost_bootstrap_is_written_again_by_the_next_leader() -> None:
    cell = Cell(brokers=0, bootstrap=False)
    committed = cell.decider.state.log.committed
    cell.hold_commits = True
    cell.due()
    later = Cell(brokers=0, image=committed, epoch=2, bootstrap=False)
    assert len(later.due()) == 1
    inherits = Cell(brokers=0, image=cell.pending.snapshot(), epoch=2, bootstrap=False)
    assert inherits.due() == []


def test_broker_is_unfenced_at_the_report_that_makes_it_ready() -> None:
    """[Under load a heartbeat every 2 s never catches the tip.]"""
    cell = Cell(brokers=1)
    epoch = cell.register(2)
    assert cell.beat(2, current_metadata_offset=epoch - 1).is_fenced
    assert not cell.decider.due.is_urgent()
    cell.decider.report(2, epoch, cell.epoch, cell.pending.offset, cell.lao.lao, cell.now)
    assert cell.decider.due.is_urgent()
    decision = cell.decider.due.next(cell.now)
    assert decision is not None
    cell.propose(decision)
    assert not cell.broker(2).fenced
    assert not cell.decider.due.is_urgent()


def test_report_does_not_unfence_a_broker_that_did_not_request_it() -> None:
    cell = Cell(brokers=1)
    epoch = cell.register(2)
    cell.decider.report(2, epoch, cell.epoch, cell.pending.offset, cell.lao.lao, cell.now)
    assert not cell.decider.due.is_urgent()
    assert cell.due() == []


def test_unfence_request_ends_with_its_registration_and_its_session() -> None:
    cell = Cell(brokers=1)
    epoch = cell.register(2)
    cell.beat(2, current_metadata_offset=0)
    cell.now += 9.1
    cell.beat(1)
    cell.register(2, "another")
    assert cell.decider.state.wants_unfence == set()
    cell.beat(2, current_metadata_offset=0)
    cell.decider.report(2, epoch, cell.epoch, cell.pending.offset, cell.lao.lao, cell.now)
    assert not cell.decider.due.is_urgent(), "a report of the epoch before"
    cell.now += 9.1
    cell.log.report(2, cell.broker(2).epoch, cell.epoch, cell.pending.offset, cell.lao.lao)
    cell.due()
    assert cell.broker(2).fenced
    assert cell.decider.state.sessions.last_contact(2) is None


def test_broker_ahead_of_a_new_controller_is_unfenced_once_that_has_committed_as_far() -> None:
    """[A deposed controller committed further than this one knows: a report beyond that is parked.]"""
    cell = Cell(brokers=0)
    epoch = cell.register(1)
    cell.hold_commits = True
    cell.propose(cell.decide(registration(2)))
    cell.propose(cell.decide(registration(3)))
    assert cell.beat(1, current_metadata_offset=epoch + 2).is_fenced
    assert not cell.decider.due.is_urgent()
    cell.commit()
    assert cell.decider.due.is_urgent()
    assert [decision.records[0].message.broker_id for decision in cell.due()] == [1]


def test_heartbeats_under_another_controller_epoch_only_prove_life() -> None:
    cell = Cell(brokers=1)
    before = cell.lao.applied_of(1)
    cell.create("t", replication_factor=1)
    cell.now += 3
    cell.beat(1, controller_epoch=cell.epoch - 1)
    assert cell.lao.applied_of(1) == before
    assert cell.decider.state.sessions.last_contact(1) == cell.now


def test_next_deadline_is_that_of_the_first_session_to_expire() -> None:
    cell = Cell(brokers=2, settings=ControllerSettings(broker_metadata_lag_max_ms=1_000_000))
    cell.now += 2
    cell.beat(1)
    cell.now += 2
    cell.beat(2)
    cell.due()
    cell.due()
    assert cell.decider.due.next_deadline() <= cell.now + 7
    cell.now += 6.9
    assert cell.due() == []
    cell.now += 0.2
    assert [decision.records[0].message.broker_id for decision in cell.due()] == [1]


def test_progress_is_written_at_most_once_an_interval_when_lao_has_passed_news() -> None:
    cell = Cell(brokers=1)
    cell.now += 1
    cell.beat(1)
    written = cell.due(progress=True)
    assert [record.type for decision in written for record in decision.records] == [
        RecordType.PROGRESS
    ]
    message = written[0].records[0].message
    assert message.lowest_acknowledged_offset == cell.lao.lao
    assert message.high_watermark <= cell.pending.offset
    assert [(entry.broker_id, entry.applied_offset) for entry in message.applied] == [
        (1, cell.lao.applied_of(1))
    ]
    # The broker applies the progress record: that is no news, or it would never end.
    for _ in range(5):
        cell.now += 2
        cell.beat(1)
        assert cell.due(progress=True) == []
    written = []
    for _ in range(3):
        cell.create(f"t{cell.pending.offset}", replication_factor=1)
        cell.beat(1)
        written += cell.due(progress=True)
    (first,) = (decision.records[0].message.lowest_acknowledged_offset for decision in written)
    assert first < cell.lao.lao, "the interval holds the next one back"
    assert cell.decider.due.next_deadline() <= cell.now + 1
    cell.now += 1.1
    (last,) = cell.due(progress=True)
    assert last.records[0].message.lowest_acknowledged_offset == cell.lao.lao > first


def test_lao_is_below_the_high_watermark_that_is_recorded_with_it() -> None:
    """Brokers apply committed records of a chunk before this controller has an image of it."""
    cell = Cell(brokers=1)
    cell.now += 1
    cell.hold_commits = True
    cell.create("t", replication_factor=1)
    end = cell.pending.offset + 1
    cell.log.commit(end)
    cell.beat(1, current_metadata_offset=end - 1)
    (written,) = cell.due(progress=True)
    message = written.records[0].message
    assert (message.lowest_acknowledged_offset, message.high_watermark) == (end - 1, end)


def test_idle_cluster_writes_no_record() -> None:
    cell = Cell(brokers=3)
    for _ in range(3):
        cell.now += 2
        cell.beats(1, 2, 3)
        cell.due()
    end = cell.pending.offset
    for _ in range(100):
        cell.now += 2
        cell.beats(1, 2, 3)
        cell.due()
    assert cell.pending.offset == end


def continued(cell: Cell, offset: int, *, epoch: int = 1, generation: int = 0) -> Decided:
    request = envelope(
        rpc.CreateTopicsRequest(topics=[rpc.CreatableTopic(name="t", num_partitions=1)])
    )
    request.acks = common_pb2.ACKS_VISIBLE
    request.written.generation, request.written.epoch = generation, epoch
    request.written.offset = offset
    return cell.decide_request(request)


def test_request_to_continue_a_wait_is_not_executed() -> None:
    cell = Cell()
    decided = continued(cell, cell.pending.offset)
    assert not decided.records
    assert decided.duplicate is not None
    assert (decided.duplicate.offset, decided.duplicate.epoch) == (cell.pending.offset, 1)


def test_request_to_continue_a_wait_is_refused_for_a_position_outside_this_log() -> None:
    cell = Cell()
    end = cell.pending.offset + 1
    for decided, code, field in (
        (continued(cell, 3, generation=1), ErrorCode.INCONSISTENT_GENERATION, "generation"),
        (continued(cell, -1), ErrorCode.INVALID_REQUEST, "offset"),
        (continued(cell, end), ErrorCode.NOT_CONTROLLER, "offset"),
        (continued(cell, 3, epoch=2), ErrorCode.NOT_CONTROLLER, "offset"),
    ):
        assert not decided.records
        assert decided.error is not None
        assert (decided.error.code, decided.error.field) == (code, f"written.{field}")
        assert not decided.error.outcome_unknown

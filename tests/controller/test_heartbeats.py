"""Heartbeats of brokers, their states and controlled shutdown."""

from typing import Any

import pytest
from deciding import Cell, registration
from test_features import update

from controller.decisions.quorum.features import SAFE_DOWNGRADE, UPGRADE
from controller.rules import fencing
from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import Cause
from raftlog.metadata.records import record
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

STALE, INVALID = ErrorCode.STALE_BROKER_EPOCH, ErrorCode.INVALID_REQUEST


def _state(reply: rpc.BrokerHeartbeatResponse) -> tuple[bool, bool, rpc.BrokerLifecycleState]:
    return reply.is_fenced, reply.should_shut_down, reply.current_state


def _stopping(cell: Cell, broker_id: int, **fields: Any) -> rpc.BrokerHeartbeatResponse:
    return cell.beat(broker_id, want_shut_down=True, **fields)


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"broker_id": -1}, INVALID, "broker_id"),
        ({"broker_id": 7}, STALE, "broker_epoch"),
        ({"broker_epoch": 2}, STALE, "broker_epoch"),
        ({"broker_epoch": -1}, STALE, "broker_epoch"),
        ({"current_metadata_offset": -2}, INVALID, "current_metadata_offset"),
        ({"told_lowest_acknowledged_offset": -2}, INVALID, "told_lowest_acknowledged_offset"),
        ({"target_state": 4}, INVALID, "target_state"),
        ({"target_state": -1}, INVALID, "target_state"),
        ({"disk_hangs_ms": -1}, INVALID, "disk_hangs_ms"),
        *(
            ({"replica_logs": [{name: value}]}, INVALID, f"replica_logs[0].{name}")
            for name, value in (("partition_index", -1), ("last_epoch", -2), ("log_end_offset", -1))
        ),
    ],
)
def test_invalid_heartbeat_is_refused(fields: dict[str, Any], code: ErrorCode, field: str) -> None:
    cell = Cell(brokers=2)
    cell.now += 1
    cell.refused(cell.heartbeat(**{"broker_id": 1, **fields}), code, field)


def test_heartbeat_of_another_generation_is_refused_and_its_report_ignored() -> None:
    cell = Cell(brokers=2, generation=2)
    report = cell.lao.applied_of(1)
    # What it has applied of the log before the recovery, and its epoch of the recovered one.
    offset = cell.log.end_offset + 1
    of_old = cell.heartbeat(1, generation=1, current_metadata_offset=offset)
    cell.refused(of_old, ErrorCode.INCONSISTENT_GENERATION, "generation")
    for _ in range(3):
        cell.fold([record(pb.NoOpRecord())])
    cell.commit()
    assert cell.lao.applied_of(1) == report
    of_old.generation = 2
    assert cell.decide(of_old).body.generation == 2
    assert cell.lao.applied_of(1) == offset


def test_epoch_at_or_beyond_the_log_end_means_a_stale_controller() -> None:
    cell = Cell(brokers=2)
    end = cell.log.end_offset
    for epoch in (end, end + 1000):
        cell.refused(
            cell.heartbeat(1, broker_epoch=epoch), ErrorCode.NOT_CONTROLLER, "broker_epoch"
        )
        cell.refused(
            cell.heartbeat(9, broker_epoch=epoch), ErrorCode.NOT_CONTROLLER, "broker_epoch"
        )
    cell.refused(cell.heartbeat(1, broker_epoch=end - 1), STALE, "broker_epoch")


def test_heartbeat_of_the_previous_incarnation_neither_counts_nor_renews_its_session() -> None:
    cell = Cell(brokers=2)
    old = cell.heartbeat(1)
    cell.now += 9.1
    cell.beat(2)
    cell.register(1, "another")
    contact = cell.decider.state.sessions.last_contact(1)
    cell.now += 1
    cell.refused(old, STALE, "broker_epoch")
    assert cell.decider.state.sessions.last_contact(1) == contact


def test_heartbeat_without_a_change_writes_nothing_and_returns_the_state() -> None:
    cell = Cell(brokers=2)
    cell.now += 1
    decision = cell.decide(cell.heartbeat(1))
    assert decision.records == []
    reply = decision.body
    assert _state(reply) == (False, False, rpc.ACTIVE)
    assert reply.is_caught_up
    assert reply.controller_epoch == 1
    assert reply.lowest_acknowledged_offset == cell.lao.lao >= 0
    assert (reply.broker_id, reply.broker_epoch) == (1, cell.broker(1).epoch)
    assert cell.decider.state.sessions.last_contact(1) == cell.now


def test_each_reply_has_the_broker_ids_and_the_session_timeout_to_use() -> None:
    cell = Cell(brokers=1, settings=ControllerSettings(broker_session_timeout_ms=7_000))
    before = cell.log.end_offset
    registered = cell.send(registration(2))
    assert (registered.broker_id, registered.broker_epoch) == (2, before)
    again = cell.send(registration(2))
    assert (again.broker_id, again.broker_epoch) == (2, before)
    for fields in ({"current_metadata_offset": 0}, {}, {}, {"want_shut_down": True}, {}):
        beaten = cell.beat(2, **fields)
        assert (beaten.broker_id, beaten.broker_epoch) == (2, before)
        assert beaten.broker_session_timeout_ms == 7_000
    assert (registered.broker_session_timeout_ms, again.broker_session_timeout_ms) == (7_000, 7_000)


def test_broker_stays_fenced_until_it_has_applied_its_own_registration() -> None:
    cell = Cell(brokers=0)
    epoch = cell.register(1)
    behind = cell.beat(1, current_metadata_offset=epoch - 1)
    assert _state(behind) == (True, False, rpc.INACTIVE)
    assert not behind.is_caught_up
    reply = cell.beat(1, current_metadata_offset=epoch)
    assert _state(reply) == (False, False, rpc.ACTIVE)
    assert reply.is_caught_up


def test_broker_stays_fenced_until_lao_would_not_decrease() -> None:
    cell = Cell(brokers=1)
    epoch = cell.register(2)
    for _ in range(3):
        cell.create(f"t{cell.pending.offset}", replication_factor=1)
    cell.beat(1)
    assert cell.lao.lao > epoch
    assert cell.beat(2, current_metadata_offset=epoch, told_lowest_acknowledged_offset=-1).is_fenced
    assert cell.broker(2).fenced
    # Told less than what a writer may have been answered "visible" for.
    cell.beat(1)
    assert cell.lao.min_known_lao > 0
    assert cell.beat(2, told_lowest_acknowledged_offset=cell.lao.min_known_lao - 1).is_fenced
    assert not cell.beat(2).is_fenced


def test_want_fence_keeps_a_broker_fenced_and_fences_it() -> None:
    cell = Cell(brokers=2)
    topic = cell.create_on((1, 2))
    cell.register(3)
    assert cell.beat(3, want_fence=True).is_fenced
    assert not cell.decider.due.is_urgent()
    # It may hold a lease: not at once.
    assert cell.beat(1, want_read_lease=True).read_lease_ms > 0
    assert _state(cell.beat(1, target_state=rpc.INACTIVE)) == (False, False, rpc.ACTIVE)
    cell.now += 9.0
    cell.beat(2)
    reply = cell.beat(1, target_state=rpc.INACTIVE)
    assert _state(reply) == (True, False, rpc.INACTIVE)
    assert cell.broker(1).fenced
    assert cell.partition(topic).leader == 2
    assert not cell.beat(1).is_fenced


def test_unfence_request_can_be_withdrawn() -> None:
    cell = Cell(brokers=1)
    epoch = cell.register(2)
    assert cell.beat(2, current_metadata_offset=epoch - 1).is_fenced
    assert cell.decider.state.wants_unfence == {2}
    cell.beat(2, want_fence=True)
    assert cell.decider.state.wants_unfence == set()


def test_unfencing_gives_the_broker_the_partitions_that_waited_for_it() -> None:
    cell = Cell(brokers=2)
    topic = cell.create_on((1,))
    cell.silence(1)
    assert cell.partition(topic).leader == -1
    decision = cell.decide(cell.heartbeat(1))
    assert decision.types == ["BROKER_REGISTRATION_CHANGE", "PARTITION_CHANGE"]
    cell.propose(decision)
    assert cell.partition(topic).leader == 1
    assert cell.broker(1).reason == "caught up"


def test_fenced_broker_in_shutdown_may_stop_at_once() -> None:
    cell = Cell(brokers=1)
    cell.register(2)
    assert _state(_stopping(cell, 2)) == (True, True, rpc.INACTIVE)
    assert not cell.decider.state.sessions.is_alive(2, cell.now)
    assert cell.decide(cell.heartbeat(2, want_shut_down=True)).records == []


def test_unfenced_broker_without_leaderships_may_stop_at_once() -> None:
    cell = Cell(brokers=2)
    topic = cell.create_on((2, 1))
    assert _state(cell.beat(1, target_state=rpc.STOPPING)) == (True, True, rpc.INACTIVE)
    assert cell.partition(topic).isr == (2,)
    assert cell.broker(1).reason == "controlled shutdown"
    cell.check_invariants()


@pytest.mark.parametrize(
    "fields", [{"want_fence": True}, {"want_shut_down": True, "target_state": rpc.INACTIVE}]
)
def test_broker_that_requests_fencing_and_shutdown_does_not_wait(fields: dict[str, Any]) -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3))
    assert _state(cell.beat(1, **{"want_shut_down": True, **fields})) == (True, True, rpc.INACTIVE)
    assert (cell.broker(1).fenced, cell.broker(1).in_controlled_shutdown) == (True, True)
    assert (cell.partition(topic).leader, cell.partition(topic).isr) == (2, (2, 3))
    cell.check_invariants()


def test_controlled_shutdown_moves_leaderships_and_waits_until_other_brokers_know() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3), (2, 1, 3))
    reply = _stopping(cell, 1)
    assert _state(reply) == (False, False, rpc.STOPPING)
    moved = cell.pending.offset
    broker = cell.broker(1)
    assert (broker.fenced, broker.in_controlled_shutdown) == (False, True)
    assert [cell.partition(topic, index).leader for index in range(2)] == [2, 2]
    assert [cell.partition(topic, index).isr for index in range(2)] == [(2, 3), (2, 3)]
    # One of the others does not know yet.
    cell.beat(2, current_metadata_offset=moved)
    cell.beat(3, current_metadata_offset=moved - 1)
    again = cell.decide(cell.heartbeat(1, want_shut_down=True))
    assert again.records == []
    assert _state(again.body) == (False, False, rpc.STOPPING)
    cell.beat(3, current_metadata_offset=moved)
    assert _state(_stopping(cell, 1, current_metadata_offset=0)) == (True, True, rpc.INACTIVE)
    assert cell.broker(1).fenced
    cell.check_invariants()


def test_last_broker_stops_at_its_second_heartbeat() -> None:
    cell = Cell(brokers=1)
    topic = cell.create_on((1,))
    assert _state(_stopping(cell, 1)) == (False, False, rpc.STOPPING)
    assert _state(_stopping(cell, 1)) == (True, True, rpc.INACTIVE)
    assert cell.partition(topic).leader == -1
    assert cell.partition(topic).elr == (1,)


def test_graceful_leave_lets_a_successor_register_at_once_even_after_a_failover() -> None:
    cell = Cell(brokers=2)
    assert _stopping(cell, 1).should_shut_down
    image = cell.pending.snapshot()
    cell.register(1, "successor")
    later = Cell(brokers=0, image=image, epoch=2)
    later.register(1, "successor")


def test_late_heartbeat_of_a_leaving_broker_revives_nothing() -> None:
    cell = Cell(brokers=2)
    assert _stopping(cell, 1).should_shut_down
    late = cell.decide(cell.heartbeat(1))
    assert late.records == []
    assert _state(late.body) == (True, True, rpc.INACTIVE)
    cell.decider.report(1, cell.broker(1).epoch, 1, cell.pending.offset, cell.lao.lao, cell.now)
    assert not cell.decider.state.sessions.is_alive(1, cell.now)
    cell.register(1)
    assert not cell.decider.state.sessions.is_alive(1, cell.now), (
        "a registration that is repeated late"
    )
    cell.register(1, "successor")


def test_broker_that_dies_while_stopping_has_not_left() -> None:
    """Its process may still live: a successor has to wait, or to prove the opposite."""
    cell = Cell(brokers=2)
    cell.create_on((1, 2))
    _stopping(cell, 1)
    cell.silence(1)
    assert (cell.broker(1).fenced, cell.broker(1).in_controlled_shutdown) == (True, False)
    cell.beat(1)  # it was only slow
    cell.refused(registration(1, "another"), ErrorCode.DUPLICATE_BROKER_REGISTRATION, "broker_id")


def test_new_controller_restarts_the_wait_of_a_stopping_broker() -> None:
    cell = Cell(brokers=2)
    cell.create_on((1, 2))
    _stopping(cell, 1)
    later = Cell(brokers=0, image=cell.pending.snapshot(), epoch=2)
    assert _state(_stopping(later, 1)) == (False, False, rpc.STOPPING), (
        "nobody has reported to this controller"
    )
    later.beat(2)
    assert _stopping(later, 1).should_shut_down


def test_unproposed_decision_leaves_no_trace() -> None:
    cell = Cell(brokers=2)
    cell.create_on((1, 2))
    cell.beats(1, 1)
    before = cell.soft_state()
    cell.decide(cell.heartbeat(1, want_shut_down=True))
    cell.decide(cell.heartbeat(1, want_fence=True))
    assert cell.soft_state() == before


# --- The cause of a change: a field for programs, and a text for people --------------------------


OFF = update(("broker.heartbeat.version", 0), ("lao.version", 0), kind=SAFE_DOWNGRADE)
ON = update(("broker.heartbeat.version", 1), ("lao.version", 1), kind=UPGRADE)


@pytest.fixture
def _reworded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "_WORDS", dict.fromkeys(fencing._WORDS, "caught up"))


@pytest.mark.usefixtures("_reworded")
def test_broker_change_records_a_cause_code_and_a_text() -> None:
    """Broker 1 is fenced and unfenced, stops and leaves."""
    at, seen = Cell(2), []
    topic = at.create_on((1, 2))
    assert at.partition(topic).leader == 1
    at.now += 60  # Leases of an earlier controller have ended.
    for heartbeat in (
        {"want_fence": True},
        {},
        {"want_shut_down": True},
        {"want_shut_down": True, "want_fence": True},
    ):
        at.beat(1, **heartbeat)
        for broker_id in (2, 1):
            at.decider.report(
                broker_id, at.broker(broker_id).epoch, 1, at.pending.offset, at.lao.lao, at.now
            )
        broker = at.broker(1)
        seen.append((broker.cause, broker.reason))
    causes = (Cause.ASKED_TO_BE_FENCED, Cause.CAUGHT_UP, *[Cause.CONTROLLED_SHUTDOWN] * 2)
    assert seen == [(cause, "caught up") for cause in causes]


@pytest.mark.usefixtures("_reworded")
def test_cause_without_heartbeats_survives_amendment_shutdown_and_failover() -> None:
    at = Cell(1)
    at.send(OFF)
    at.send(registration(7))
    at.due()
    assert at.broker(7).cause == Cause.ACTIVE_WITHOUT_HEARTBEATS
    at.create_on((7, 1))
    at.send(registration(7, rack="another"))
    assert (at.broker(7).rack, at.broker(7).cause) == ("another", Cause.ACTIVE_WITHOUT_HEARTBEATS)
    at.beat(7, want_shut_down=True)
    assert at.broker(7).cause == Cause.CONTROLLED_SHUTDOWN_WITHOUT_HEARTBEATS
    at = Cell(0, image=at.pending.snapshot(), epoch=2, now=at.now)
    end = at.pending.offset
    at.send(ON)
    at.decider.report(7, at.broker(7).epoch, 2, end, -1, at.now)
    assert at.lao.applied_of(7) == -1, (
        "what it had applied before heartbeats came into force does not count"
    )
    at.decider.report(7, at.broker(7).epoch, 2, at.pending.offset, -1, at.now)
    assert at.lao.applied_of(7) == at.pending.offset

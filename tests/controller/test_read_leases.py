"""Leases for strict reads: no broker is fenced, replaced or unregistered under one."""

from typing import Any

from deciding import Cell, registration

from controller.decision import Reply
from controller.state.leases import LEASE_SHARE, ReadLeases
from raftlog.errors import ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

SESSION_S = 9.0
LEASE_MS = 6750


def ask(cell: Cell, broker_id: int, **fields: Any) -> rpc.BrokerHeartbeatResponse:
    return cell.beat(broker_id, want_read_lease=True, **fields)


def test_lease_ends_a_session_timeout_after_its_decision() -> None:
    leases = ReadLeases(SESSION_S, now=100.0)
    assert leases.length_ms == LEASE_MS == int(SESSION_S * LEASE_SHARE * 1000)
    assert leases.ends_at(1) == 109.0, "one of an earlier controller may be in force"
    leases.granted(1, 105.0)
    assert (leases.ends_at(1), leases.ends_at(2)) == (114.0, 109.0)
    leases.forget(1)
    assert leases.ends_at(1) == 109.0


def test_broker_registered_here_has_only_leases_of_this_controller() -> None:
    leases = ReadLeases(SESSION_S, now=100.0)
    leases.registered(1)
    assert leases.ends_at(1) < 100.0
    assert leases.ends_at(2) == 109.0
    leases.granted(1, 100.5)
    assert leases.ends_at(1) == 109.5
    leases.forget(1)
    assert leases.ends_at(1) == 109.0


def test_renewals_stop_until_the_lease_has_ended_and_resume() -> None:
    leases = ReadLeases(SESSION_S, now=100.0)
    leases.granted(1, 105.0)
    assert not leases.is_withheld(1, 105.0)
    leases.stop(1)
    assert leases.is_withheld(1, 114.5)
    assert not leases.is_withheld(1, 116.0)
    assert not leases.is_withheld(2, 105.0)


def test_only_an_unfenced_broker_that_asks_gets_a_lease() -> None:
    cell = Cell(brokers=2)
    assert cell.beat(1).read_lease_ms == 0
    decision = cell.propose(cell.decide(cell.heartbeat(1, want_read_lease=True)))
    reply = decision.body
    assert (reply.read_lease_ms, reply.read_lease_refusal) == (LEASE_MS, "")
    # So the reply waits for a confirmed read-index round.
    assert isinstance(decision.outcome, Reply)
    assert cell.decider.state.read_leases.ends_at(1) == cell.now + SESSION_S


def test_broker_with_uncommitted_unfencing_gets_no_lease() -> None:
    """[The tail is truncated, and the next controller's log has never unfenced it.]"""
    cell = Cell(brokers=1)
    cell.register(2)
    cell.hold_commits = True
    assert not cell.beat(2).is_fenced
    reply = ask(cell, 2)
    assert reply.read_lease_ms == 0
    assert "not committed" in reply.read_lease_refusal
    cell.commit()
    assert ask(cell, 2).read_lease_ms == LEASE_MS


def test_leaving_fenced_or_not_yet_unfenced_broker_gets_no_lease() -> None:
    for leaving in ({"want_fence": True}, {"want_shut_down": True}):
        cell = Cell(brokers=2)
        cell.create_on((1, 2))
        assert ask(cell, 1, **leaving).read_lease_ms == 0
    cell = Cell(brokers=1)
    cell.register(2)
    assert ask(cell, 2, current_metadata_offset=-1).read_lease_ms == 0
    assert ask(cell, 2).read_lease_ms == 0, (
        "the reply that unfences it waits for the commit, but its image is one of those"
    )


def test_stuck_broker_is_fenced_when_its_lease_ends_and_gets_no_other() -> None:
    cell = Cell(brokers=3)
    stuck_at = cell.pending.offset
    cell.create("t", replication_factor=1)
    end = cell.now + 60
    refused_at = fenced_at = None
    last_granted_at = cell.now
    while cell.now < end and fenced_at is None:
        cell.now += 1.0
        cell.create(f"t{cell.pending.offset}", replication_factor=1)
        cell.beats(2, 3)
        reply = ask(cell, 1, current_metadata_offset=stuck_at, told_lowest_acknowledged_offset=-1)
        if reply.read_lease_ms:
            assert refused_at is None, "renewed after it was stopped"
            last_granted_at = cell.now
        elif refused_at is None:
            refused_at = cell.now
            assert "about to be fenced" in reply.read_lease_refusal
        cell.due()
        if cell.broker(1).fenced:
            fenced_at = cell.now
    assert fenced_at is not None
    assert refused_at is not None
    assert fenced_at >= last_granted_at + SESSION_S
    assert fenced_at <= last_granted_at + SESSION_S + 2
    assert cell.broker(1).reason == "metadata lag above broker.metadata.lag.max.ms"


def test_unregistration_waits_for_the_lease() -> None:
    cell = Cell(brokers=3)
    cell.now += 20
    cell.wait(0.1)
    assert cell.decide(rpc.UnregisterBrokerRequest(broker_id=2)).decide_again_at is None, (
        "no lease: at once"
    )
    ask(cell, 1)
    decision = cell.propose(cell.decide(rpc.UnregisterBrokerRequest(broker_id=1)))
    assert decision.decide_again_at == cell.now + SESSION_S
    assert not decision.records
    cell.now += 1
    assert ask(cell, 1).read_lease_ms == 0, "renewals have stopped"
    cell.now = decision.decide_again_at
    cell.send(rpc.UnregisterBrokerRequest(broker_id=1))
    assert 1 not in cell.pending.brokers


def test_new_controller_waits_for_leases_that_it_does_not_know() -> None:
    old = Cell(brokers=3)
    ask(old, 1)
    cell = Cell(brokers=0, image=old.pending.snapshot(), epoch=2, now=old.now + 1)
    cell.beats(1, 2, 3)
    waiting = cell.decide(rpc.UnregisterBrokerRequest(broker_id=1))
    assert waiting.decide_again_at == cell.now + SESSION_S
    assert not cell.beat(1, want_fence=True).is_fenced
    cell.refused(registration(1, "another"), ErrorCode.DUPLICATE_BROKER_REGISTRATION, "broker_id")
    cell.now += SESSION_S - 0.1
    cell.refused(registration(1, "another"), ErrorCode.DUPLICATE_BROKER_REGISTRATION, "broker_id")


def test_fenced_or_gone_broker_delays_no_unregistration() -> None:
    process = pb.ProcessProof(boot_id="b", directory_id="d", lock_device=1, lock_inode=7)
    cell = Cell(brokers=1)
    cell.register(2)
    assert cell.decide(rpc.UnregisterBrokerRequest(broker_id=2)).records
    cell.join(3, process=process)
    ask(cell, 3)
    assert cell.decide(registration(3, "another", process=process)).records


def test_stopping_process_leaves_regardless_of_its_lease() -> None:
    cell = Cell(brokers=2)
    ask(cell, 1)
    assert cell.beat(1, want_shut_down=True).should_shut_down
    assert cell.broker(1).fenced

from typing import Any

import pytest
from deciding import Cell, Decided

from controller.rules.partition_change import Brokers, Election, choose_leader
from raftlog.metadata.records import RecordType


def test_silent_broker_is_fenced_and_only_its_partitions_change() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2), (2, 3), (3, 1))
    alone = cell.create_on((1,), name="alone")
    cell.now += 5
    cell.beats(2, 3)
    cell.now += 4.1
    due = cell.decider.due.next(cell.now)
    assert due is not None
    decision = Decided(due)
    assert decision.types == ["BROKER_REGISTRATION_CHANGE"] + ["PARTITION_CHANGE"] * 3
    cell.propose(decision)
    broker = cell.broker(1)
    assert (broker.fenced, broker.reason) == (True, "session timed out")
    assert [cell.partition(topic, index).isr for index in range(3)] == [(2,), (2, 3), (3,)]
    assert [cell.partition(topic, index).leader for index in range(3)] == [2, 2, 3]
    assert [cell.partition(topic, index).leader_epoch for index in range(3)] == [1, 0, 0]
    assert [cell.partition(topic, index).partition_epoch for index in range(3)] == [1, 0, 1]
    assert (cell.partition(alone).isr, cell.partition(alone).leader) == ((), -1)
    assert cell.partition(alone).elr == (1,)
    assert cell.due() == []
    cell.check_invariants()


def test_fetches_do_not_renew_the_session() -> None:
    """[Only heartbeats are lost: the broker fences itself, and would stay leader here.]"""
    cell = Cell(brokers=2)
    topic = cell.create_on((1, 2))
    cell.beat(1)
    began = cell.now
    while cell.now < began + 8.4:
        cell.now += 0.5
        cell.beat(2)
        cell.decider.report(
            1, cell.broker(1).epoch, cell.epoch, cell.pending.offset, cell.lao.lao, cell.now
        )
        cell.due()
    assert not cell.broker(1).fenced
    assert cell.lao.applied_of(1) == cell.pending.offset, "how far it is counts all the same"
    cell.now = began + 9.1
    cell.due()
    assert (cell.broker(1).fenced, cell.broker(1).reason) == (True, "session timed out")
    assert cell.partition(topic).leader == 2


def test_live_leader_keeps_leading_though_it_is_not_preferred() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3))
    cell.silence(1)
    cell.beat(1)
    before = cell.partition(topic)
    assert before.leader == 2
    cell.propose_isr(topic, (1, 2, 3))
    assert cell.partition(topic).isr == (1, 2, 3)
    cell.silence(3)
    after = cell.partition(topic)
    assert (after.isr, after.leader, after.leader_epoch) == ((1, 2), 2, before.leader_epoch)


def test_expired_brokers_are_fenced_one_per_decision() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3))
    cell.now += 9.1
    cell.hold_commits = True
    decisions = cell.due()
    changes = [decision.records[0].message.broker_id for decision in decisions]
    assert changes == [1, 2, 3]
    assert (cell.partition(topic).elr, cell.partition(topic).leader) == ((3,), -1)
    assert cell.partition(topic).leader_epoch == 3
    cell.check_invariants()
    cell.now += 100
    assert cell.due() == [], "nobody is fenced twice"


def test_unproposed_fencing_is_decided_again() -> None:
    cell = Cell(brokers=1)
    cell.now += 9.1
    first = cell.decider.due.next(cell.now)
    second = cell.decider.due.next(cell.now)
    assert first is not None
    assert second is not None
    assert [record.data for record in first.records] == [record.data for record in second.records]


@pytest.mark.parametrize("offset", [-1, 1, 1000])
def test_heartbeat_of_another_epoch_is_not_a_sign_of_life(offset: int) -> None:
    """[One of an unassigned epoch would begin a session that true heartbeats do not renew.]"""
    cell = Cell(brokers=1)
    epoch, contact = cell.broker(1).epoch, cell.decider.state.sessions.last_contact(1)
    cell.now += 1
    assert not cell.decider.heard(1, epoch + offset, cell.now)
    assert not cell.decider.heard(9, epoch, cell.now)
    assert cell.decider.state.sessions.last_contact(1) == contact
    assert cell.decider.state.sessions.last_contact(9) is None
    assert cell.decider.heard(1, epoch, cell.now)
    assert cell.decider.state.sessions.last_contact(1) == cell.now


def test_new_controller_grants_every_unfenced_broker_a_whole_session() -> None:
    cell = Cell(brokers=2)
    cell.silence(2)
    later = Cell(brokers=0, image=cell.pending.snapshot(), epoch=2, now=cell.now + 1000)
    assert later.decider.state.sessions.is_alive(1, later.now)
    assert not later.decider.state.sessions.is_alive(2, later.now), (
        "who died long ago must not look alive"
    )
    later.now += 8.9
    assert later.due() == []
    assert not later.broker(1).fenced
    later.now += 0.2
    assert len(later.due()) == 1
    assert later.broker(1).fenced


def test_leader_is_the_first_active_replica_in_the_isr() -> None:
    cell = Cell(brokers=3)
    brokers, online = Brokers(cell.pending), Election.ONLINE
    assert choose_leader(brokers, -1, (3, 1, 2), (1, 2), online) == 1
    assert choose_leader(brokers, -1, (3, 1, 2), (2, 3), online) == 3
    assert choose_leader(brokers, 2, (3, 1, 2), (2, 3), online) == 2
    assert choose_leader(brokers, 2, (3, 1, 2), (2, 3), Election.PREFERRED) == 3
    assert choose_leader(brokers, 2, (3, 1, 2), (1, 2), Election.PREFERRED) == 2
    assert choose_leader(brokers, -1, (9, 1), (9, 1), online) == 1
    assert choose_leader(brokers, -1, (9,), (9,), online) == -1
    assert choose_leader(Brokers(cell.pending, leaving=3), 3, (3, 1, 2), (2, 3), online) == 2
    cell.silence(3)
    brokers = Brokers(cell.pending)
    assert choose_leader(brokers, 3, (3, 1, 2), (2, 3), online) == 2
    assert choose_leader(brokers, 3, (3, 1, 2), (3,), online) == -1
    assert choose_leader(Brokers(cell.pending, joining=3), -1, (3, 1, 2), (3,), online) == 3


def test_full_disk_allows_only_fencing() -> None:
    cell = Cell(brokers=3)
    cell.register(4)
    cell.decider.state.wants_unfence.add(4)
    cell.now += 3600
    decision = cell.decider.due.next(cell.now, fencing_only=True)
    seen = []
    while decision is not None:
        seen.append(decision.records[0].type)
        cell.propose(decision)
        decision = cell.decider.due.next(cell.now, fencing_only=True)
    assert seen == [RecordType.BROKER_REGISTRATION_CHANGE] * 3
    assert all(cell.broker(broker_id).fenced for broker_id in (1, 2, 3, 4))
    assert cell.decider.due.next(cell.now) is not None


def test_report_costs_the_same_for_any_number_of_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    """[A thousand brokers start at once: each report checked all that waited.]"""
    cell = Cell(brokers=1)
    for broker_id in range(2, 202):
        cell.register(broker_id)
        cell.beat(broker_id, current_metadata_offset=0)
    cell.due()
    looked: list[int] = []

    def may_unfence(state: object, broker: Any) -> bool:
        looked.append(broker.id)
        return False

    monkeypatch.setattr("controller.decider.may_unfence", may_unfence)
    assert len(cell.decider.state.wants_unfence) == 200
    cell.decider.report(7, cell.broker(7).epoch, 1, 0, -1, cell.now)
    assert not cell.decider.due.is_urgent()
    assert cell.due() == []
    assert looked == [7]
    # What no report tells is seen by looking at all, now and then.
    cell.now += 0.2
    assert cell.decider.due.next_deadline() <= cell.now
    cell.due()
    assert len(looked) == 201

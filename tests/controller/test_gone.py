"""Fencing of brokers whose process seems to be gone."""

from deciding import Cell, registration
from test_double_roll import rolled_back

from raftlog.errors import ErrorCode

SESSION_S = 9.0
GONE = "process gone: its listener refuses connections"


def steady(brokers: int = 3) -> Cell:
    """A controller that has led for longer than a session, and so knows all leases."""
    cell = Cell(brokers=brokers)
    cell.wait(10.0)
    return cell


def successor(cell: Cell) -> Cell:
    """The controller of the next epoch, on the same log."""
    return Cell(brokers=0, image=cell.pending.snapshot(), epoch=cell.epoch + 1, now=cell.now)


def found_gone(cell: Cell, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        cell.decider.found_gone(broker_id, cell.broker(broker_id).epoch, cell.now)


def test_dead_broker_is_fenced_at_once_with_its_partitions() -> None:
    cell = steady()
    topic = cell.create_on((1, 2), (2, 3))
    cell.decider.found_gone(1, cell.broker(1).epoch - 1, cell.now)
    cell.decider.found_gone(7, 0, cell.now)
    assert cell.due() == [], "evidence about another registration"
    found_gone(cell, 1)
    assert cell.decider.due.next_deadline() <= cell.now
    cell.due()
    assert (cell.broker(1).fenced, cell.broker(1).reason) == (True, GONE)
    assert (cell.partition(topic).leader, cell.partition(topic).isr) == (2, (2,))
    assert not cell.broker(2).fenced
    assert cell.decider.due.next_deadline() > cell.now
    cell.check_invariants()


def test_gone_broker_keeps_its_id_until_its_session_ends() -> None:
    """[a proxy refused the connection: the process is alive, so no other process may get its id at
    once]
    """
    cell = steady()
    found_gone(cell, 1)
    cell.due()
    cell.refused(registration(1, "another"), ErrorCode.DUPLICATE_BROKER_REGISTRATION, "broker_id")
    cell.now += SESSION_S + 0.1
    cell.due()
    assert cell.register(1, "another") > 0


def test_heartbeat_cancels_the_suspicion_and_unfences_the_broker() -> None:
    cell = steady()
    found_gone(cell, 1)
    cell.decider.heard(1, cell.broker(1).epoch, cell.now)
    cell.due()
    assert not cell.broker(1).fenced, "heard from between the evidence and the decision"
    found_gone(cell, 1)
    cell.due()
    assert cell.broker(1).fenced
    assert not cell.beat(1).is_fenced
    cell.due()
    assert not cell.broker(1).fenced


def test_fencing_waits_for_the_strict_read_lease() -> None:
    """[A firewall refuses, the process lives: it may answer strict reads under its lease.]"""
    cell = steady()
    cell.beat(1, want_read_lease=True)
    granted_at = cell.now
    cell.now += 1.0
    cell.beats(2, 3)
    found_gone(cell, 1)
    cell.due()
    assert not cell.broker(1).fenced
    assert cell.decider.state.read_leases.is_withheld(1, cell.now)
    cell.now += 4.0
    cell.beats(2, 3)
    cell.now = granted_at + SESSION_S - 0.01
    cell.due()
    assert not cell.broker(1).fenced
    cell.now = granted_at + SESSION_S
    cell.due()
    assert cell.broker(1).fenced


def test_new_controller_waits_for_leases_that_it_does_not_know() -> None:
    cell = successor(Cell(brokers=3))
    # It asks again, as its reply was lost: that is not a new registration.
    cell.register(1)
    cell.now += SESSION_S - 1.0
    cell.beats(2, 3)
    found_gone(cell, 1)
    cell.due()
    assert not cell.broker(1).fenced
    cell.now += 1.0
    cell.due()
    assert cell.broker(1).fenced


def test_broker_registered_with_this_controller_holds_no_lease_of_another() -> None:
    """[The first broker of a new cluster that was killed delayed LAO for a session.]"""
    cell = Cell(brokers=3)
    found_gone(cell, 1)
    cell.due()
    assert cell.broker(1).fenced
    # The same under a controller that has found other brokers in its log.
    cell = successor(Cell(brokers=2))
    cell.join(3)
    cell.beats(1, 2)
    found_gone(cell, 3)
    cell.due()
    assert cell.broker(3).fenced


def test_majority_of_brokers_is_never_fenced_as_gone() -> None:
    """[This node's own firewall is reloaded: all brokers seem to be gone.]"""
    cell = steady(5)
    found_gone(cell, 1, 2, 3)
    cell.due()
    assert not any(cell.broker(broker_id).fenced for broker_id in range(1, 6))
    cell.decider.heard(3, cell.broker(3).epoch, cell.now)
    cell.now += 2.0
    cell.due()
    assert [one for one in range(1, 6) if cell.broker(one).fenced] == [1, 2]
    found_gone(cell, 3)
    cell.due()
    assert not cell.broker(3).fenced, "nor one after the other"


def test_broker_never_counts_as_gone_while_heartbeats_are_disabled() -> None:
    cell = rolled_back(3)
    found_gone(cell, 1)
    assert cell.decider.state.gone.next_check == float("inf")
    cell.now += 60.0
    cell.due()
    assert not cell.broker(1).fenced

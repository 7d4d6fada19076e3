"""Outcomes and effects of a broker's life at the controller."""

from deciding import Cell, Decided, registration

from controller import decision
from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import Cause
from raftlog.wire.controller.v1 import controller_pb2 as rpc

SESSION_S = ControllerSettings().broker_session_timeout_ms / 1000


def shown(decided: Decided) -> tuple[str, tuple[object, ...]]:
    """Return the outcome's kind and its effects."""
    return type(decided.outcome).__name__, decided.effects


def test_broker_life_has_the_expected_outcomes() -> None:
    cell = Cell(brokers=2)
    said: list[tuple[str, tuple[object, ...]]] = []

    def ask(message: object) -> None:
        said.append(shown(cell.propose(cell.decide(message))))

    ask(registration(7))
    epoch = cell.broker(7).epoch
    assert said.pop() == ("Write", (decision.Registered(7, epoch),))
    ask(cell.heartbeat(7))
    assert said.pop() == ("Write", (decision.Unfenced(7),))
    ask(cell.heartbeat(7))
    assert said.pop() == ("Reply", ())
    ask(cell.heartbeat(7, want_read_lease=True))
    assert said.pop() == ("Reply", (decision.LeaseGranted(7),))
    ask(cell.heartbeat(7, want_shut_down=True))
    assert said.pop() == ("Write", (decision.Left(7),)), "it leads nothing: it may go at once"


def test_leading_broker_is_moved_before_it_leaves() -> None:
    cell = Cell(brokers=2)
    cell.create_on((1, 2), name="led-by-1")
    begun = cell.propose(cell.decide(cell.heartbeat(1, want_shut_down=True)))
    assert shown(begun) == ("Write", (decision.ShutdownBegun(1, cell.pending.offset),))


def test_silence_ends_in_a_fencing_that_names_its_cause() -> None:
    cell = Cell(brokers=1)
    cell.now += SESSION_S
    (fenced,) = cell.due()
    assert shown(fenced) == (
        "Write",
        (decision.Fenced(1, Cause.SESSION_TIMED_OUT, len(fenced.records)),),
    )


def test_decisions_compare_equal_and_change_nothing_until_proposed() -> None:
    cell = Cell(brokers=1)
    before = cell.soft_state()
    request = registration(7)
    assert cell.decide(request).outcome == cell.decide(request).outcome
    assert cell.soft_state() == before


def test_refusal_has_an_error_and_nothing_else() -> None:
    outcome = Cell(brokers=1).decide(rpc.UnregisterBrokerRequest(broker_id=9)).outcome
    assert isinstance(outcome, decision.Refusal)
    assert outcome.error.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_effect_is_dropped_with_its_unproposed_decision() -> None:
    cell = Cell(brokers=0)
    decided = cell.decide(registration(7))
    assert isinstance(decided.outcome, decision.Write)
    assert cell.decider.state.sessions.last_contact(7) is None
    cell.propose(decided)
    assert cell.decider.state.sessions.last_contact(7) == cell.now

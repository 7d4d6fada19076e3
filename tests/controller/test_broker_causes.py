"""The cause of a change of a broker: a field for programs, and a text for people."""

import pytest
from deciding import Cell, registration
from test_features import update

from controller.decisions.quorum.features import SAFE_DOWNGRADE, UPGRADE
from controller.rules import fencing
from raftlog.metadata.entities import Cause

OFF = update(("broker.heartbeat.version", 0), ("lao.version", 0), kind=SAFE_DOWNGRADE)
ON = update(("broker.heartbeat.version", 1), ("lao.version", 1), kind=UPGRADE)


@pytest.fixture(autouse=True)
def _reworded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "_WORDS", dict.fromkeys(fencing._WORDS, "caught up"))


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
    assert seen == [
        (cause, "caught up")
        for cause in (
            Cause.ASKED_TO_BE_FENCED,
            Cause.CAUGHT_UP,
            Cause.CONTROLLED_SHUTDOWN,
            Cause.CONTROLLED_SHUTDOWN,
        )
    ]


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

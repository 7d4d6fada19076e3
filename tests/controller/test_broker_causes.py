"""The controller says why it changes a broker in a field of its own, from metadata.version 6 on,
and in the old words below.
"""

from __future__ import annotations

import pytest
from deciding import Cell, registration
from test_features import Quorum, update

from controller.decisions.quorum.features import SAFE_DOWNGRADE, UPGRADE
from controller.rules import fencing
from controller.rules.fencing import without_cause
from controller.settings import ControllerSettings
from raftlog.metadata import versions
from raftlog.metadata.causes import OLD_TEXT_OF, Cause
from raftlog.metadata.entities import said_cause
from raftlog.metadata.records import RecordType, record
from raftlog.wire.records.v1 import records_pb2 as pb

LEVEL, BEFORE = versions.CAUSES, versions.CAUSES - 1
OFF = update(("broker.heartbeat.version", 0), ("lao.version", 0), kind=SAFE_DOWNGRADE)
ON = update(("broker.heartbeat.version", 1), ("lao.version", 1), kind=UPGRADE)


@pytest.fixture(autouse=True)
def _reworded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "_WORDS", dict.fromkeys(fencing._WORDS, "caught up"))


def cell(level: int, brokers: int = 2) -> Cell:
    quorum = Quorum(dict.fromkeys((1, 2, 3), versions.LATEST_METADATA_VERSION))
    return Cell(
        brokers, settings=ControllerSettings(bootstrap_metadata_version=level), quorum=quorum
    )


def life(level: int) -> list[tuple[int, str, Cause]]:
    """What is said of broker 1 that is fenced, back, stops and leaves: the number, the words, and
    what is read of them.
    """
    at, seen = cell(level), []
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
        seen.append((said_cause(broker), broker.reason, broker.cause))
    return seen


def test_from_the_level_on_the_cause_is_said_and_the_words_are_for_people() -> None:
    causes = [said for said, _, _ in life(LEVEL)]
    assert causes[0] == Cause.ASKED_TO_BE_FENCED
    assert causes[-1] == Cause.CONTROLLED_SHUTDOWN
    assert life(LEVEL) == [(said, "caught up", Cause(said)) for said in causes]


def test_below_the_level_the_texts_of_old_are_written_and_nothing_else() -> None:
    assert life(BEFORE) == [
        (0, OLD_TEXT_OF[Cause(said)], Cause(said)) for said, _, _ in life(LEVEL)
    ]


@pytest.mark.parametrize("level", [BEFORE, LEVEL])
def test_what_lao_does_not_vouch_for_outlives_a_shutdown_an_amendment_and_a_failover(
    level: int,
) -> None:
    at = cell(level, brokers=1)
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


def test_a_lowered_level_takes_the_causes_back_in_the_words_that_programs_of_it_read() -> None:
    at = cell(LEVEL)
    causes = {broker_id: at.broker(broker_id).cause for broker_id in (1, 2)}
    decision = at.propose(at.decide(update(("metadata.version", BEFORE), kind=SAFE_DOWNGRADE)))
    assert [one.type for one in decision.records] == [
        RecordType.BROKER_REGISTRATION_CHANGE,
        RecordType.BROKER_REGISTRATION_CHANGE,
        RecordType.HOSTNAME,
        RecordType.HOSTNAME,
        RecordType.FEATURE_LEVEL,
    ]
    for broker_id, cause in causes.items():
        broker = at.broker(broker_id)
        assert (said_cause(broker), broker.reason, broker.cause) == (0, OLD_TEXT_OF[cause], cause)
        assert not broker.fenced
    assert at.lao.members == [1, 2]
    raised = at.propose(at.decide(update(("metadata.version", LEVEL))))
    assert [one.message for one in raised.records] == [
        pb.FeatureLevelRecord(name="metadata.version", feature_level=LEVEL)
    ]


def test_other_features_and_levels_leave_the_causes_alone() -> None:
    at = cell(LEVEL)
    at.send(OFF)
    assert said_cause(at.broker(1)) == Cause.CAUGHT_UP
    at = cell(BEFORE)
    decision = at.propose(at.decide(update(("metadata.version", BEFORE - 1), kind=SAFE_DOWNGRADE)))
    assert [one.type for one in decision.records] == [RecordType.FEATURE_LEVEL]


def test_words_that_no_build_wrote_are_kept_when_a_cause_is_taken_back() -> None:
    at = cell(BEFORE)
    odd = pb.BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=at.broker(1).epoch, reason="a test"
    )
    draft = at.pending.snapshot().brokers[1]
    assert without_cause(draft).message.reason == OLD_TEXT_OF[Cause.CAUGHT_UP]
    at._fold([record(odd)])
    assert at.broker(1).cause == Cause.UNSPECIFIED
    assert without_cause(at.broker(1)).message.reason == "a test"

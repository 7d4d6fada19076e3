"""KIP-343's double roll: below broker.heartbeat.version 1 heartbeats are not needed."""

from typing import Any

import pytest
from deciding import Cell, registration
from test_features import refused, update

from controller.decisions.quorum.features import SAFE_DOWNGRADE
from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

HEARTBEATS, LAO = "broker.heartbeat.version", "lao.version"
OFF = update((HEARTBEATS, 0), (LAO, 0), kind=SAFE_DOWNGRADE)
ON = update((HEARTBEATS, 1), (LAO, 1))
ONLY_METADATA = [
    pb.FeatureRange(name="metadata.version", min_supported_version=1, max_supported_version=2)
]


def rolled_back(brokers: int = 3, **fields: Any) -> Cell:
    """A cluster whose heartbeats are disabled."""
    cell = Cell(brokers, **fields)
    cell.send(OFF)
    return cell


@pytest.mark.parametrize("level", [1, 2])
def test_new_cluster_enables_heartbeats_at_each_metadata_version(level: int) -> None:
    cell = Cell(1, settings=ControllerSettings(bootstrap_metadata_version=level))
    legacy = registration(7, registration_version=0, features=ONLY_METADATA)
    says = "broker 7 has a legacy registration (version 0) without heartbeats"
    cell.refused(legacy, ErrorCode.UNSUPPORTED_VERSION, "features", says)
    assert [cell.pending.features[name] for name in (HEARTBEATS, LAO)] == [1, 1]
    cell.now += 9.1
    assert len(cell.due()) == 1, "its brokers are fenced for silence"


@pytest.mark.parametrize("version", [0, 1])
def test_broker_is_active_from_registration_when_heartbeats_are_disabled(version: int) -> None:
    cell = rolled_back(0)
    cell.send(registration(7, registration_version=version, features=ONLY_METADATA))
    (unfenced,) = cell.due()
    assert unfenced.types == ["BROKER_REGISTRATION_CHANGE"]
    assert cell.broker(7).active
    assert cell.broker(7).reason == "active without heartbeats"
    cell.now += 3600
    assert cell.due() == []
    assert cell.broker(7).active


def test_controlled_shutdown_does_not_wait_for_a_legacy_broker() -> None:
    cell = rolled_back(2)
    cell.send(registration(7, registration_version=0, features=ONLY_METADATA))
    cell.due()
    cell.create_on((1, 2))
    cell.beat(1, want_shut_down=True)
    cell.beat(2)
    assert cell.beat(1, want_shut_down=True).should_shut_down


def test_broker_is_never_fenced_when_heartbeats_are_disabled() -> None:
    cell = rolled_back(3)
    topic = cell.create_on((1, 2, 3))
    cell.now += 3600
    assert cell.due() == []
    reply = cell.beat(1, want_fence=True)
    assert (reply.is_fenced, reply.current_state) == (False, rpc.ACTIVE)
    assert cell.partition(topic).isr == (1, 2, 3)


def test_second_process_is_refused_while_the_first_one_fetches() -> None:
    cell = rolled_back(1)
    for _ in range(3):
        cell.now += 8
        cell.decider.report(1, cell.broker(1).epoch, 1, cell.pending.offset, -1, cell.now)
        cell.refused(
            registration(1, "another"), ErrorCode.DUPLICATE_BROKER_REGISTRATION, "broker_id"
        )
    cell.now += 9.1
    cell.due()
    old = cell.broker(1).epoch
    assert cell.register(1, "another") > old
    cell.due()
    assert cell.broker(1).active


def test_restart_leaves_the_previous_isrs_and_leads_where_it_was_the_last_member() -> None:
    cell = rolled_back(2)
    topic, alone = cell.create_on((1, 2)), cell.create_on((1,), name="alone")
    cell.now += 9.1
    cell.register(1, "another")
    cell.due()
    assert cell.partition(topic).isr == (2,)
    assert (cell.partition(alone).isr, cell.partition(alone).leader) == ((1,), 1)
    cell.check_invariants()


def test_controlled_shutdown_works_without_heartbeats_and_is_final() -> None:
    cell = rolled_back(2)
    topic = cell.create_on((1, 2))
    reply = cell.beat(1, want_shut_down=True)
    assert reply.current_state == rpc.STOPPING
    assert cell.partition(topic).leader == 2
    for broker_id in (1, 2):
        cell.decider.report(
            broker_id, cell.broker(broker_id).epoch, 1, cell.pending.offset, -1, cell.now
        )
    reply = cell.beat(1, want_shut_down=True)
    assert reply.should_shut_down
    # Its last fetches must not bring it back.
    cell.decider.report(1, cell.broker(1).epoch, 1, cell.pending.offset, -1, cell.now)
    assert cell.due() == []
    assert cell.broker(1).fenced


def test_broker_fenced_before_heartbeats_were_disabled_returns_when_heard_from() -> None:
    cell = Cell(3)
    cell.silence(1, 2)
    cell.send(OFF)
    assert cell.due() == []
    cell.decider.report(1, cell.broker(1).epoch - 1, 1, cell.pending.offset, -1, cell.now)
    assert cell.due() == [], "another incarnation says nothing about this one"
    lowered = cell.pending.offset
    cell.decider.report(1, cell.broker(1).epoch, 1, lowered - 1, -1, cell.now)
    assert cell.due() == [], (
        "it does not know yet that it was fenced, and may read at a LAO told before"
    )
    cell.decider.report(1, cell.broker(1).epoch, 1, lowered, -1, cell.now)
    assert len(cell.due()) == 1
    assert cell.broker(1).active
    assert cell.broker(2).fenced, "the dead do not become leaders"


def test_new_controller_unfences_the_legacy_broker_whose_registration_it_inherits() -> None:
    cell = rolled_back(0)
    cell.send(registration(7, registration_version=0, features=ONLY_METADATA))
    assert cell.broker(7).fenced
    later = Cell(0, image=cell.pending.snapshot(), epoch=2, bootstrap=False)
    assert len(later.due()) == 1
    assert later.broker(7).active


def test_raise_names_the_brokers_that_do_not_heartbeat() -> None:
    cell = rolled_back(2)
    cell.send(registration(7, registration_version=0, features=ONLY_METADATA))
    cell.due()
    message, field = refused(cell, ON)
    assert message == "broker 7 has a legacy registration (version 0) without heartbeats"
    assert field == "updates[0].max_version_level"
    cell.send(rpc.UnregisterBrokerRequest(broker_id=7))
    only_off = pb.FeatureRange(name=HEARTBEATS, min_supported_version=0, max_supported_version=0)
    cell.send(registration(8, features=[*ONLY_METADATA, only_off]))
    assert (
        refused(cell, update((HEARTBEATS, 1)))[0] == f"broker 8 supports {HEARTBEATS} 0 to 0, not 1"
    )
    cell.send(rpc.UnregisterBrokerRequest(broker_id=8))
    cell.send(ON)
    assert cell.pending.features[HEARTBEATS] == 1


def test_active_brokers_get_a_whole_session_for_their_first_heartbeat_after_the_raise() -> None:
    cell = rolled_back(2)
    cell.now += 3600
    cell.due()
    cell.send(ON)
    cell.now += 8.9
    assert cell.due() == []
    cell.beat(2)
    cell.now += 0.2
    (fenced,) = cell.due()
    assert fenced.records[0].message.broker_id == 1


def test_lao_is_unknown_during_the_raise_and_names_the_brokers() -> None:
    cell = Cell(2)
    cell.beats(1, 2)
    before = cell.lao.lao
    assert before > 0
    cell.send(OFF)
    assert (cell.lao.lao, cell.lao.min_known_lao) == (-1, -1)
    assert cell.lao.unknown_reason == f"{HEARTBEATS} is 0: brokers [1, 2] send no heartbeats"
    cell.send(ON)
    assert cell.lao.lao == before, "those who were vouched for still are"


def test_lao_waits_for_brokers_that_joined_before_catching_up() -> None:
    """[B joined with 3 applied; LAO was 9: announced again, B would show 3.]"""
    cell = Cell(2)
    cell.beats(1, 2)
    cell.send(OFF)
    low = cell.register(3)
    cell.due()
    cell.decider.report(3, low, 1, 2, -1, cell.now)
    assert cell.broker(3).active
    cell.send(ON)
    raised = cell.pending.offset
    cell.beats(1, 2)
    assert cell.lao.lao == -1
    assert "brokers [3] have not reported" in cell.lao.unknown_reason
    cell.beat(3, current_metadata_offset=raised - 1)
    assert cell.lao.lao == -1
    cell.beat(3, current_metadata_offset=raised)
    assert cell.lao.lao == raised


@pytest.mark.parametrize("way", ["plain", "amended", "stopping"])
def test_new_controller_knows_which_brokers_joined_before_catching_up(way: str) -> None:
    cell = rolled_back(1)
    epoch = cell.register(3)
    cell.due()
    if way == "amended":
        cell.register(3, rack="r9")
    if way == "stopping":
        cell.create_on((3, 1))
        cell.beat(3, want_shut_down=True)
    cell.send(ON)
    later = Cell(0, image=cell.pending.snapshot(), epoch=2, now=cell.now)
    start = later.pending.offset
    later.beat(1)
    later.decider.report(3, epoch, 2, start - 1, -1, later.now)
    assert later.lao.lao == -1
    later.decider.report(3, epoch, 2, start, -1, later.now)
    assert later.lao.lao == start


def test_lao_is_neither_kept_nor_raised_without_heartbeats() -> None:
    message, where = refused(Cell(0), update((HEARTBEATS, 0), kind=SAFE_DOWNGRADE))
    assert "lao.version 1 requires the brokers' heartbeats: lower it" in message
    assert where == "updates[0].max_version_level"
    cell = rolled_back(1)
    assert "raise broker.heartbeat.version to 1" in refused(cell, update((LAO, 1)))[0]
    cell.send(update((HEARTBEATS, 1)))
    cell.send(update((LAO, 1)))


def test_validate_only_reports_what_would_be_refused() -> None:
    cell = rolled_back(1)
    cell.send(registration(7, registration_version=0, features=ONLY_METADATA))
    assert "broker 7" in refused(cell, update((HEARTBEATS, 1), validate_only=True))[0]
    assert (
        cell.decide(update((HEARTBEATS, 0), kind=SAFE_DOWNGRADE, validate_only=True)).error is None
    )


def test_session_granted_by_a_raise_is_not_a_sign_of_life() -> None:
    """[A broker without its disk is told that its previous process lives, and gets a new id.]"""
    cell = rolled_back(1)
    cell.now += 30.0
    cell.send(ON)
    cell.now += 1.0
    host = pb.Listener(name="PLAIN", host="host-1", port=9001)
    wanted = rpc.BrokerIdWanted(asking_for_ms=20_000)
    again = registration(-1, "without disk", listeners=[host], id_wanted=wanted)
    cell.refused(again, ErrorCode.DUPLICATE_BROKER_REGISTRATION, "broker_id")

"""Registration of brokers, and the outcomes and effects of a broker's life."""

from typing import Any

import pytest
from deciding import Cell, Decided, registration

from controller.decision import (
    Fenced,
    LeaseGranted,
    Left,
    Registered,
    ShutdownBegun,
    Unfenced,
    Write,
)
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import Cause
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

DUPLICATE = ErrorCode.DUPLICATE_BROKER_REGISTRATION
UNSUPPORTED = ErrorCode.UNSUPPORTED_VERSION
PROOF: Any = {"boot_id": "boot", "directory_id": "dir", "lock_device": 7, "lock_inode": 11}


def test_broker_epoch_is_the_offset_of_its_record_and_the_broker_starts_fenced() -> None:
    cell = Cell(brokers=0)
    decision = cell.decide(registration(4, rack="r1", log_dirs=["/a"]))
    assert decision.types == ["REGISTER_BROKER", "HOSTNAME"]
    expected = cell.log.end_offset
    cell.propose(decision)
    broker = cell.broker(4)
    assert decision.body.broker_epoch == broker.epoch == expected == cell.pending.offset - 1
    assert broker.fenced
    assert not broker.in_controlled_shutdown
    assert (broker.rack, broker.log_dirs, broker.endpoint) == ("r1", ("/a",), "host-4:9004")


def _listener(**fields: Any) -> list[pb.Listener]:
    return [pb.Listener(**{"name": "PLAIN", "host": "h", "port": 1, **fields})]


def _feature(name: str, low: int, high: int) -> list[pb.FeatureRange]:
    return [pb.FeatureRange(name=name, min_supported_version=low, max_supported_version=high)]


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID, "cluster_id"),
        ({"cluster_id": ""}, ErrorCode.INCONSISTENT_CLUSTER_ID, "cluster_id"),
        ({"broker_id": -1}, ErrorCode.INVALID_REQUEST, "broker_id"),
        ({"incarnation_id": ""}, ErrorCode.INVALID_REQUEST, "incarnation_id"),
        ({"listeners": []}, ErrorCode.INVALID_REQUEST, "listeners"),
        ({"listeners": _listener(name="")}, ErrorCode.INVALID_REQUEST, "listeners[0].name"),
        ({"listeners": _listener() + _listener()}, ErrorCode.INVALID_REQUEST, "listeners[1].name"),
        ({"listeners": _listener(host="")}, ErrorCode.INVALID_REQUEST, "listeners[0].host"),
        ({"listeners": _listener(host="h" * 256)}, ErrorCode.INVALID_REQUEST, "listeners[0].host"),
        ({"listeners": _listener(port=0)}, ErrorCode.INVALID_REQUEST, "listeners[0].port"),
        ({"listeners": _listener(port=65536)}, ErrorCode.INVALID_REQUEST, "listeners[0].port"),
        ({"log_dirs": [""]}, ErrorCode.INVALID_REGISTRATION, "log_dirs[0]"),
        ({"log_dirs": ["/a", "/b", "/a"]}, ErrorCode.INVALID_REGISTRATION, "log_dirs[2]"),
        ({"features": _feature("x", 2, 1)}, ErrorCode.INVALID_REQUEST, "features[0]"),
        ({"features": []}, UNSUPPORTED, "features"),
        ({"features": _feature("metadata.version", 98, 99)}, UNSUPPORTED, "features"),
    ],
)
def test_bad_registration_is_refused(fields: dict[str, Any], code: ErrorCode, field: str) -> None:
    Cell(brokers=1).refused(registration(**{"broker_id": 9, **fields}), code, field)


def test_checks_are_in_kafkas_order() -> None:
    cell = Cell(brokers=1)
    bad = {"cluster_id": "other", "listeners": [], "features": []}
    cell.refused(registration(1, "another", **bad), ErrorCode.INCONSISTENT_CLUSTER_ID, "cluster_id")
    del bad["cluster_id"]
    cell.refused(registration(1, "another", **bad), ErrorCode.INVALID_REQUEST, "listeners")
    del bad["listeners"]
    cell.refused(registration(1, "another", **bad), DUPLICATE, "broker_id")
    cell.refused(registration(2, "another", **bad), ErrorCode.UNSUPPORTED_VERSION, "features")


def test_same_process_may_amend_its_registration_and_keeps_its_state() -> None:
    cell = Cell(brokers=2)
    before = cell.broker(1)
    applied = cell.lao.applied_of(1)
    assert cell.register(1, rack="r9") == before.epoch
    after = cell.broker(1)
    assert (after.rack, after.epoch, after.fenced) == ("r9", before.epoch, False)
    assert cell.lao.applied_of(1) == applied
    assert cell.decide(registration(1, rack="r9")).records == []


def test_another_process_waits_for_the_session_to_end() -> None:
    cell = Cell(brokers=2)
    cell.refused(registration(1, "another"), DUPLICATE, "broker_id")
    cell.now += 8.9
    cell.refused(registration(1, "another"), DUPLICATE, "broker_id")
    cell.now += 0.2
    old = cell.broker(1).epoch
    assert cell.register(1, "another") > old
    assert cell.broker(1).fenced


def test_new_incarnation_leaves_every_isr_in_the_batch_of_its_registration() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3), (2, 1, 3))
    alone = cell.create_on((1,), (2,), name="alone")
    cell.now += 9.1
    cell.beats(2, 3)
    decision = cell.decide(registration(1, "another"))
    assert decision.types == ["REGISTER_BROKER"] + ["PARTITION_CHANGE"] * 3
    cell.propose(decision)
    assert [cell.partition(topic, index).isr for index in range(2)] == [(2, 3), (2, 3)]
    assert [cell.partition(topic, index).leader_epoch for index in range(2)] == [1, 0], (
        "who goes on leading does so"
    )
    last = cell.partition(alone, 0)
    assert (last.isr, last.elr, last.leader) == ((), (), -1), "nobody says that it was shut down"
    assert last.last_known_elr == (1,)
    assert cell.partition(alone, 1).partition_epoch == 0
    cell.check_invariants()


def test_only_a_successor_with_the_same_lock_need_not_wait() -> None:
    """A cloned disk has the same directory id but its own lock; another boot the same inode."""
    cell = Cell(brokers=2)
    cell.join(5, process=pb.ProcessProof(**PROOF))
    for part in PROOF:
        other = pb.ProcessProof(**{**PROOF, part: PROOF[part] * 2})
        cell.refused(registration(5, "x", process=other), DUPLICATE, "broker_id")
    assert cell.register(5, "successor", process=pb.ProcessProof(**PROOF)) == cell.pending.offset
    cell.join(6, process=pb.ProcessProof())
    cell.refused(registration(6, "x", process=pb.ProcessProof()), DUPLICATE, "broker_id")


def test_requests_are_decided_on_the_pending_image() -> None:
    cell = Cell(brokers=0)
    cell.hold_commits = True
    first = cell.register(1)
    assert cell.register(2) == first + 2
    cell.refused(registration(1, "another"), DUPLICATE, "broker_id")
    assert 1 not in cell.decider.state.log.committed.brokers


def test_unregistering_removes_a_broker_from_isrs_and_ends_its_session() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3), (2, 1, 3))
    alone = cell.create_on((1,), name="alone")
    cell.send(rpc.UnregisterBrokerRequest(broker_id=1))
    assert 1 not in cell.pending.brokers
    assert [cell.partition(topic, index).isr for index in range(2)] == [(2, 3), (2, 3)]
    assert [cell.partition(topic, index).replicas for index in range(2)] == [(1, 2, 3), (2, 1, 3)]
    gone = cell.partition(alone)
    assert (gone.isr, gone.elr, gone.last_known_elr, gone.leader) == ((), (), (), -1)
    assert not cell.decider.state.sessions.is_alive(1, cell.now)
    cell.check_invariants()
    cell.refused(
        rpc.UnregisterBrokerRequest(broker_id=1), ErrorCode.BROKER_ID_NOT_REGISTERED, "broker_id"
    )
    # It comes back as a new registration, and its partition with it.
    cell.join(1)
    cell.report(1, cell.partition(alone))
    assert cell.partition(alone).leader == 1


def test_broker_life_has_the_expected_outcomes() -> None:
    cell = Cell(brokers=2)

    def shown(decided: Decided) -> tuple[str, tuple[object, ...]]:
        """Return the outcome's kind and its effects."""
        return type(decided.outcome).__name__, cell.propose(decided).effects

    asked = cell.decide(registration(7))
    assert cell.decider.state.sessions.last_contact(7) is None, "not proposed yet"
    assert shown(asked) == ("Write", (Registered(7, cell.pending.offset - 1),))
    assert cell.decider.state.sessions.last_contact(7) == cell.now
    assert shown(cell.decide(cell.heartbeat(7))) == ("Write", (Unfenced(7),))
    assert shown(cell.decide(cell.heartbeat(7))) == ("Reply", ())
    lease = cell.heartbeat(7, want_read_lease=True)
    assert shown(cell.decide(lease)) == ("Reply", (LeaseGranted(7),))
    leaves = shown(cell.decide(cell.heartbeat(7, want_shut_down=True)))
    assert leaves == ("Write", (Left(7),)), "it leads nothing: it may go at once"
    cell.create_on((1, 2), name="led-by-1")
    begun = shown(cell.decide(cell.heartbeat(1, want_shut_down=True)))
    assert begun == ("Write", (ShutdownBegun(1, cell.pending.offset),))
    cell.now += cell.settings.broker_session_timeout_ms / 1000
    fenced = cell.due()[-1]
    expected = (Fenced(2, Cause.SESSION_TIMED_OUT, len(fenced.records)),)
    assert (type(fenced.outcome), fenced.effects) == (Write, expected)

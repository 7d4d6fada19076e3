from typing import Any, cast

import pytest
from deciding import Cell
from msgspec.structs import replace

from controller.decision import Write
from controller.decisions.partitions import leader_elections
from controller.decisions.partitions.leader_elections import LeaderBalance, wants_preferred
from controller.rules.partition_change import is_overdue
from controller.settings import ControllerSettings
from raftlog.errors import ErrorCode
from raftlog.metadata.records import RecordType, record
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

RECOVERING = 1
UNKNOWN, NOT_NEEDED = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.ELECTION_NOT_NEEDED
NO_PREFERRED = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
NOBODY = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def _request(
    *topics: tuple[str, list[int]],
    kind: rpc.ElectionType = rpc.PREFERRED,
    validate_only: bool = False,
) -> rpc.ElectLeadersRequest:
    named = [rpc.ElectableTopic(name=name, partition_indexes=indexes) for name, indexes in topics]
    return rpc.ElectLeadersRequest(election_type=kind, topics=named, validate_only=validate_only)


def _results(response: rpc.ElectLeadersResponse) -> dict[tuple[str, int], tuple[int, int]]:
    return {
        (topic.name, one.partition_index): (one.error.error_code, one.leader_id)
        for topic in response.topics
        for one in topic.partitions
    }


def _back(cell: Cell, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        for _ in range(2):
            cell.beat(broker_id)
        assert not cell.broker(broker_id).fenced


def _take_in(cell: Cell, topic: bytes, isr: list[int], index: int = 0) -> None:
    assert cell.propose_isr(topic, isr, index).error_code == 0


def _moved(cell: Cell) -> bytes:
    """A partition of brokers 1, 2, 3 that is led by 2, with 1 back in the ISR."""
    topic = cell.create_on((1, 2, 3))
    cell.silence(1)
    _back(cell, 1)
    _take_in(cell, topic, [1, 2, 3])
    assert cell.partition(topic).leader == 2
    return topic


def test_preferred_leader_is_elected_on_request() -> None:
    cell = Cell(brokers=3)
    topic = _moved(cell)
    epoch = cell.partition(topic).leader_epoch
    assert _results(cell.send(_request(("t", [0])))) == {("t", 0): (0, 1)}
    partition = cell.partition(topic)
    assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1, 2, 3), epoch + 1)
    assert _results(cell.send(_request(("t", [0])))) == {("t", 0): (NOT_NEEDED, 1)}


def test_each_partition_has_its_own_result() -> None:
    cell = Cell(brokers=4)
    topic = cell.create_on((1, 2), (2, 1), (4, 2))
    cell.create_on((4,), name="gone")
    cell.silence(1, 4)
    _back(cell, 1)
    codes = _results(cell.send(_request(("t", [0, 2, 5]), ("none", []), ("gone", []), ("t", [1]))))
    assert codes == {
        ("t", 0): (NO_PREFERRED, 2),
        ("t", 2): (NO_PREFERRED, 2),
        ("t", 5): (UNKNOWN, -1),
        ("none", 0): (UNKNOWN, -1),
        ("gone", 0): (NO_PREFERRED, -1),
        ("t", 1): (NOT_NEEDED, 2),
    }
    assert cell.partition(topic).leader == 2


def test_partition_named_twice_is_refused_both_times() -> None:
    cell = Cell(brokers=3)
    topic = _moved(cell)
    response = cell.send(_request(("t", [0]), ("t", [])))
    codes = [one.error.error_code for one in response.topics[0].partitions]
    assert codes == [ErrorCode.INVALID_REQUEST] * 2
    assert cell.partition(topic).leader == 2


def test_all_partitions_selects_those_with_something_to_do_and_reports_the_rest() -> None:
    cell = Cell(brokers=3, settings=ControllerSettings(max_records_per_request=4))
    topics = [cell.create_on((1, 2, 3), (1, 3, 2), name=name) for name in ("a", "b", "c")]
    cell.create_on((2, 3), name="d")
    cell.silence(1)
    _back(cell, 1)
    for topic in topics:
        for index in range(2):
            _take_in(cell, topic, [1, 2, 3], index)
    only = cell.decide(_request(validate_only=True))
    assert not only.records
    first = cell.send(_request())
    assert (len(_results(first)), first.remaining) == (4, 2)
    second = cell.send(_request())
    assert (len(_results(second)), second.remaining) == (2, 0)
    assert set(_results(first).values()) | set(_results(second).values()) == {(0, 1)}
    assert _results(first).keys().isdisjoint(_results(second))
    third = cell.send(_request())
    assert (_results(third), third.remaining) == ({}, 0)
    assert _results(only.body) == _results(first)


def test_unclean_leader_is_alone_in_the_isr_and_recovers() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3))
    cell.silence(1, 2, 3)
    partition = cell.partition(topic)
    assert (partition.leader, partition.isr, partition.elr) == (-1, (), (3,))
    assert _results(cell.send(_request(("t", [0]), kind=rpc.UNCLEAN))) == {("t", 0): (NOBODY, -1)}
    _back(cell, 2, 1)
    assert cell.partition(topic).leader == -1, "not by itself: 3 alone has everything"
    assert _results(cell.send(_request(("t", [0])))) == {("t", 0): (NO_PREFERRED, -1)}
    epoch = cell.partition(topic).leader_epoch
    assert _results(cell.send(_request(("t", [0]), kind=rpc.UNCLEAN))) == {("t", 0): (0, 1)}
    partition = cell.partition(topic)
    assert partition.leader == 1
    assert partition.isr == (1,)
    assert partition.leader_recovery_state == RECOVERING
    assert partition.leader_epoch == epoch + 1
    assert _results(cell.send(_request(("t", [0]), kind=rpc.UNCLEAN))) == {
        ("t", 0): (NOT_NEEDED, 1)
    }
    # The old last member is a follower like any other now.
    _back(cell, 3)
    assert cell.partition(topic).leader == 1
    _take_in(cell, topic, [1, 3])
    assert cell.partition(topic).leader_recovery_state == 0
    cell.check_invariants()


def test_unclean_election_of_all_selects_partitions_without_a_leader() -> None:
    cell = Cell(brokers=2)
    dead = cell.create_on((1, 2))
    cell.create_on((2, 1), name="alive")
    cell.silence(2)
    cell.silence(1)
    _back(cell, 2)
    assert cell.partition(dead).leader == -1
    response = cell.send(_request(kind=rpc.UNCLEAN))
    assert set(_results(response)) == {("alive", 0), ("t", 0)}
    assert cell.partition(dead).leader == 2


def test_invalid_requests_are_refused() -> None:
    cell = Cell(brokers=3, settings=ControllerSettings(max_records_per_request=3))
    cell.create_on((1, 2), (1, 2))
    cell.refused(
        _request(("t", [0]), kind=cast(Any, 7)), ErrorCode.INVALID_REQUEST, "election_type"
    )
    cell.refused(_request(("t", [0, 1, 2, 3])), ErrorCode.POLICY_VIOLATION, "")


# --- brokers that come and go -------------------------------------------------------------------


def test_fencing_the_last_member_elects_an_unclean_leader_where_allowed() -> None:
    cell = Cell(brokers=3)
    strict, loose = cell.create_on((1, 2), name="strict"), cell.create_on((1, 2), name="loose")
    cell.allow_unclean("loose")
    cell.silence(1)
    _back(cell, 1)
    assert cell.partition(loose).isr == (2,)
    cell.silence(2)
    assert (cell.partition(strict).leader, cell.partition(strict).elr) == (-1, (2,))
    partition = cell.partition(loose)
    assert partition.leader == 1
    assert partition.isr == (1,)
    assert partition.leader_recovery_state == RECOVERING
    cell.check_invariants()


def test_unfencing_elects_an_unclean_leader_where_allowed() -> None:
    cell = Cell(brokers=2)
    strict, loose = cell.create_on((1, 2), name="strict"), cell.create_on((1, 2), name="loose")
    cell.allow_unclean("loose")
    cell.silence(1)
    cell.silence(2)
    assert [cell.partition(topic).leader for topic in (strict, loose)] == [-1, -1]
    _back(cell, 1)
    assert [cell.partition(topic).leader for topic in (strict, loose)] == [-1, 1]
    assert cell.partition(loose).leader_recovery_state == RECOVERING
    _back(cell, 2)
    assert [cell.partition(topic).leader for topic in (strict, loose)] == [2, 1]
    assert cell.partition(strict).leader_recovery_state == 0


def test_stopping_or_replacing_the_last_member_elects_no_unclean_leader() -> None:
    """It stays eligible, and leads again with all records when it returns."""
    cell = Cell(brokers=2)
    topic = cell.create_on((1, 2))
    cell.allow_unclean("t")
    cell.silence(2)
    _back(cell, 2)
    assert cell.partition(topic).isr == (1,)
    while not cell.beat(1, want_shut_down=True).should_shut_down:
        cell.beat(2)
    assert (cell.partition(topic).leader, cell.partition(topic).elr) == (-1, (1,))
    cell.back(1)
    assert (cell.partition(topic).leader, cell.partition(topic).isr) == (1, (1,))
    assert cell.partition(topic).leader_recovery_state == 0


def test_unregistering_the_last_member_elects_an_unclean_leader_where_allowed() -> None:
    cell = Cell(brokers=2)
    strict, loose = cell.create_on((1, 2), name="strict"), cell.create_on((1, 2), name="loose")
    cell.allow_unclean("loose")
    cell.silence(2)
    _back(cell, 2)
    cell.send(rpc.UnregisterBrokerRequest(broker_id=1))
    assert [cell.partition(topic).leader for topic in (strict, loose)] == [-1, 2]


# --- by itself ----------------------------------------------------------------------------------


def _alive(cell: Cell, seconds: float) -> list[int]:
    """Let time pass; return the number of records of each batch of partition changes."""
    decisions = cell.wait(seconds, step=1.0)
    return [len(one.records) for one in decisions if set(one.types) == {"PARTITION_CHANGE"}]


def test_preferred_leaders_are_elected_automatically_after_the_interval() -> None:
    cell = Cell(brokers=3)
    topic = _moved(cell)
    begun = cell.now
    assert _alive(cell, 250) == []
    assert cell.partition(topic).leader == 2
    assert _alive(cell, 100) == [1]
    assert cell.partition(topic).leader == 1
    assert cell.now - begun < 360
    assert _alive(cell, 700) == [], "nothing more to do"


def test_balance_can_be_switched_off() -> None:
    cell = Cell(brokers=3, settings=ControllerSettings(auto_leader_rebalance_enable=False))
    topic = _moved(cell)
    assert _alive(cell, 700) == []
    assert cell.partition(topic).leader == 2


def test_balance_examines_slices_and_elects_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_elections, "SLICE_PARTITIONS", 4)
    monkeypatch.setattr(leader_elections, "MAX_ELECTIONS", 3)
    cell = Cell(brokers=3, settings=ControllerSettings(leader_imbalance_check_interval_seconds=30))
    count = 10
    topic = cell.create_on(*[(1, 2, 3)] * count)
    cell.silence(1)
    _back(cell, 1)
    for index in range(count):
        _take_in(cell, topic, [1, 2, 3], index)
    steps: list[Any] = []
    while cell.now < 200:
        cell.now = max(cell.now, cell.decider.due.next_deadline())
        cell.beats(1, 2, 3)
        decisions = [
            len(one.records)
            for one in cell.due()
            if one.records[0].type == RecordType.PARTITION_CHANGE
        ]
        if cell.now > 130 and (decisions or steps):
            steps.append(decisions)
        cell.now += 0.01
        if {cell.partition(topic, index).leader for index in range(count)} == {1}:
            break
    assert [one for one in steps if one] == [[3], [3], [3], [1]], (
        "never more than the bound, and one batch a step"
    )
    assert {cell.partition(topic, index).leader for index in range(count)} == {1}


def test_step_of_the_balance_examines_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    real = wants_preferred

    def counted(brokers: Any, partition: Any) -> bool:
        looked.append(1)
        return real(brokers, partition)

    monkeypatch.setattr(leader_elections, "SLICE_PARTITIONS", 4)
    monkeypatch.setattr(leader_elections, "wants_preferred", counted)
    cell = Cell(brokers=3, settings=ControllerSettings(leader_imbalance_check_interval_seconds=30))
    cell.create_on(*[(1, 2, 3)] * 10)
    due, image = LeaderBalance(cell.settings, 0.0), cell.pending.snapshot()
    now, steps = 30.0, []
    for _ in range(3):
        before = len(looked)
        assert due.due(cell.pending, image, now) is None
        steps.append(len(looked) - before)
        now = due.next_deadline()
    assert steps == [4, 4, 2]


def test_leader_balance_decides_on_the_newest_state() -> None:
    """A partition whose state changed since the examination is left alone."""
    cell = Cell(brokers=3)
    topic = _moved(cell)
    stale = cell.decider.state.log.committed
    settings = ControllerSettings(leader_imbalance_check_interval_seconds=1)

    def due() -> Write | None:
        return LeaderBalance(settings, cell.now).due(cell.pending, stale, cell.now + 2)

    assert due() is not None
    cell.send(_request(("t", [0])))
    assert due() is None
    cell.send(rpc.DeleteTopicsRequest(names=["t"]))
    assert due() is None
    assert (topic, 0) not in cell.pending.partitions


def test_topic_that_begins_to_allow_unclean_leaders_gets_them_after_the_interval() -> None:
    cell = Cell(brokers=2, settings=ControllerSettings(unclean_leader_election_interval_ms=20_000))
    topic, strict = cell.create_on((1, 2)), cell.create_on((1, 2), name="strict")
    cell.silence(1)
    cell.silence(2)
    _back(cell, 1)
    assert _alive(cell, 30) == []
    cell.allow_unclean("t")
    assert _alive(cell, 30) == [1]
    partition = cell.partition(topic)
    assert (partition.leader, partition.leader_recovery_state) == (1, RECOVERING)
    assert cell.partition(strict).leader == -1


def test_reassignment_left_by_an_older_build_is_completed() -> None:
    """Its controller adds the last replica, but cannot complete."""
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2))
    cell.reassign({0: [3, 2]})
    cell.propose(
        Write([record(pb.PartitionChangeRecord(topic_id=topic, isr=pb.IdList(ids=[1, 2])))])
    )
    assert not is_overdue(cell.partition(topic))
    cell.propose(
        Write([record(pb.PartitionChangeRecord(topic_id=topic, isr=pb.IdList(ids=[1, 2, 3])))])
    )
    assert is_overdue(cell.partition(topic))
    assert _alive(cell, 320) == [1]
    partition = cell.partition(topic)
    assert (partition.replicas, partition.isr, partition.adding_replicas) == ((3, 2), (2, 3), ())
    assert not is_overdue(partition)
    only_added = replace(partition, replicas=(3, 2), isr=(3, 2), adding_replicas=(2,))
    assert is_overdue(only_added)
    assert not is_overdue(replace(only_added, isr=(3,)))
    assert _alive(cell, 320) == []


def test_unclean_leader_is_preferably_an_original_replica() -> None:
    cell = Cell(brokers=4)
    topic = cell.create_on((1, 2))
    cell.reassign({0: [3, 4]})
    assert cell.partition(topic).replicas == (3, 4, 1, 2)
    cell.silence(1)
    cell.silence(2)
    _back(cell, 1)
    assert _results(cell.send(_request(("t", [0]), kind=rpc.UNCLEAN))) == {("t", 0): (0, 1)}
    cell.silence(1)
    assert _results(cell.send(_request(("t", [0]), kind=rpc.UNCLEAN))) == {("t", 0): (0, 3)}

"""Removal of a broker from more ISRs than one batch changes."""

from collections.abc import Iterator
from typing import Any

import pytest
from deciding import Cell, Decided, registration

from controller.decisions.brokers import heartbeats
from controller.decisions.brokers import registration as registering
from controller.rules import fencing, partition_change
from controller.state import batched_changes
from raftlog.errors import ErrorCode
from raftlog.metadata.image import PartitionKey, Replicas
from raftlog.metadata.records import RecordType
from raftlog.wire.controller.v1 import controller_pb2 as rpc

PARTITIONS, LIMIT = 10, 4


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (partition_change, fencing, heartbeats, registering, batched_changes):
        monkeypatch.setattr(module, "MAX_REMOVALS", LIMIT)


def cell(*replicas: int, partitions: int = PARTITIONS) -> Cell:
    at = Cell(brokers=3)
    at.create_on(*[replicas or (1, 2, 3)] * partitions)
    return at


def step(at: Cell, **how: bool) -> Decided | None:
    """Do the next work that is due."""
    due = at.decider.due.next(at.now, **how)
    return None if due is None else at.propose(due)


def isrs_with(at: Cell, broker_id: int) -> int:
    return sum(
        broker_id in partition.isr for _, partition in at.pending.snapshot().partitions.items()
    )


def leads(at: Cell, broker_id: int) -> int:
    return sum(
        partition.leader == broker_id for _, partition in at.pending.snapshot().partitions.items()
    )


def half_fenced(*replicas: int, partitions: int = PARTITIONS) -> Cell:
    """Broker 1 is fenced, and the first batch of changes is written."""
    at = cell(*replicas, partitions=partitions)
    at.expire(1)
    step(at)
    assert at.broker(1).fenced
    assert isrs_with(at, 1) == partitions - LIMIT
    return at


class Looks:
    """Counts the partitions examined from here on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        since = Replicas.since

        def counted(replicas: Replicas, key: PartitionKey) -> Iterator[PartitionKey]:
            for one in since(replicas, key):
                self.count += 1
                yield one

        monkeypatch.setattr(Replicas, "since", counted)


def test_silent_broker_is_fenced_first_and_removed_in_bounded_batches() -> None:
    (within,) = cell(partitions=LIMIT).silence(1)
    assert len(within.records) == 1 + LIMIT
    at = cell()
    decisions = at.silence(1)
    assert [len(decision.records) for decision in decisions] == [1 + LIMIT, LIMIT, 2]
    assert decisions[0].records[0].type == RecordType.BROKER_REGISTRATION_CHANGE
    assert isrs_with(at, 1) == leads(at, 1) == 0
    at.check_invariants()
    assert not at.decider.state.isr_removals


def test_broker_stays_fenced_until_it_has_left_all_isrs() -> None:
    at = half_fenced()
    assert at.beat(1).is_fenced
    while isrs_with(at, 1):
        assert at.broker(1).fenced
        assert step(at)
    at.now += 1.0
    at.due()
    assert not at.broker(1).fenced


def test_next_controller_continues_the_removals() -> None:
    at = half_fenced()
    after = Cell(0, image=at.pending.snapshot(), epoch=2, now=at.now)
    assert isrs_with(after, 1) == 0
    after.check_invariants()


def test_remaining_isr_removals_are_urgent_and_full_disks_do_not_stop_them() -> None:
    at = half_fenced()
    assert at.decider.due.is_urgent()
    assert at.decider.due.next_deadline() <= at.now
    while step(at, fencing_only=True):
        pass
    assert isrs_with(at, 1) == 0
    at.due()
    assert not at.decider.due.is_urgent()
    assert at.decider.due.next_deadline() > at.now


@pytest.mark.parametrize("successor", ["clean", "unclean", "other disk"])
def test_successor_of_an_eligible_replica_registers_after_all_removals(successor: str) -> None:
    at = Cell(brokers=0)
    epoch = at.join(1, **PROOF)
    at.join(2)
    at.join(3)
    at.create_on(*[(1,)] * PARTITIONS)
    at.silence(1)
    fields: dict[str, Any] = {**PROOF, "previous_broker_epoch": epoch}
    if successor == "unclean":
        fields["previous_broker_epoch"] = -1
    if successor == "other disk":
        fields["process"] = {**PROOF["process"], "directory_id": "other"}
    again = registration(1, "successor", **fields)
    sizes = []
    decision = at.propose(at.decide(again))
    if successor != "clean":
        assert decision.decide_again_at is not None
        at.refused(again, ErrorCode.DUPLICATE_BROKER_REGISTRATION, "broker_id")
        sizes = [len(each.records) for each in at.due()]
        decision = at.propose(at.decide(again))
    assert sizes == ([] if successor == "clean" else [LIMIT, LIMIT, 2])
    assert decision.error is None
    assert decision.body.broker_epoch > epoch
    assert all(one.type != RecordType.PARTITION_CHANGE for one in decision.records)
    expected = {"clean": ((1,), (1,)), "unclean": ((), (1,)), "other disk": ((), ())}
    for one in at.pending.snapshot().partitions.values():
        assert (one.elr, one.last_known_elr) == expected[successor]
    at.check_invariants()


PROOF: dict[str, Any] = {
    "process": {"boot_id": "b", "directory_id": "d", "lock_device": 1, "lock_inode": 1}
}


def test_registration_waits_until_its_batch_is_small_enough() -> None:
    at = Cell(brokers=0)
    at.join(1, **PROOF)
    at.join(2)
    at.join(3)
    at.create_on(*[(1, 2, 3)] * PARTITIONS)
    again = registration(1, "successor", **PROOF)
    at.refused(again, ErrorCode.DUPLICATE_BROKER_REGISTRATION, "broker_id")
    at.expire(1)
    step(at)
    at.refused(again, ErrorCode.DUPLICATE_BROKER_REGISTRATION, "broker_id")
    at.due()
    decision = at.propose(at.decide(again))
    assert decision.error is None
    assert set(decision.types) <= {"REGISTER_BROKER", "HOSTNAME"}


def test_controlled_shutdown_continues_with_each_heartbeat() -> None:
    at = cell()
    sizes = []
    for _ in range(3):
        decision = at.propose(at.decide(at.heartbeat(1, want_shut_down=True)))
        sizes.append(len(decision.records))
        assert decision.body.current_state == rpc.STOPPING
    assert sizes == [1 + LIMIT, LIMIT, 2]
    at.beats(2, 3)
    assert at.beat(1, want_shut_down=True).should_shut_down
    assert isrs_with(at, 1) == 0
    follower = cell(2, 1, 3)
    decision = follower.propose(follower.decide(follower.heartbeat(1, want_shut_down=True)))
    assert (len(decision.records), decision.body.current_state) == (1 + LIMIT, rpc.STOPPING)


def leaderless(at: Cell) -> int:
    return sum(one.leader < 0 for one in at.pending.snapshot().partitions.values())


def test_returning_broker_gets_its_leaderships_batch_by_batch() -> None:
    at = cell(1)
    at.silence(1)
    assert leaderless(at) == PARTITIONS
    decision = at.propose(at.decide(at.heartbeat(1)))
    assert len(decision.records) == 1 + LIMIT
    assert [len(each.records) for each in at.due()] == [LIMIT, 2]
    assert (leads(at, 1), leaderless(at)) == (PARTITIONS, 0)
    assert at.due() == []
    at.check_invariants()


def test_next_controller_completes_the_elections_for_a_returned_broker() -> None:
    at = cell(1)
    at.silence(1)
    at.propose(at.decide(at.heartbeat(1)))
    later = Cell(brokers=0, image=at.pending.snapshot(), epoch=2, now=at.now)
    for _ in range(10):
        later.due()
    assert leaderless(later) == 0


def test_elections_end_when_the_broker_is_fenced_again() -> None:
    at = cell(1)
    at.silence(1)
    at.propose(at.decide(at.heartbeat(1)))
    at.beat(1, want_fence=True)
    at.due()
    assert leads(at, 1) == 0
    assert leaderless(at) == PARTITIONS
    at.check_invariants()


def test_elections_examine_few_partitions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Cell(brokers=3)
    at.create_on(*[(2, 3)] * PARTITIONS)
    at.create_on((1,), name="alone")
    at.silence(1)
    monkeypatch.setattr(batched_changes, "BATCHES_A_STEP", 1)
    image = at.pending.snapshot()
    assert leaderless(at) == 1
    elections, looks = batched_changes.JoinElections(), Looks(monkeypatch)
    elections.resume(image)
    steps = 0
    while elections:
        looks.count = 0
        assert elections.due(image) is None, "neither broker 2 nor broker 3 can lead it"
        assert looks.count <= LIMIT
        steps += 1
    assert steps == 8


def test_unfencing_examines_no_partition_with_a_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    at = cell()
    at.silence(1)
    broker = at.broker(1)
    looks = Looks(monkeypatch)
    assert len(fencing.unfence(at.pending, broker)) == 1
    assert looks.count == 0


def test_unregistered_broker_with_many_partitions_leaves_them_batch_by_batch() -> None:
    at = cell(1)
    at.silence(1)
    decision = at.propose(at.decide(rpc.UnregisterBrokerRequest(broker_id=1)))
    assert decision.decide_again_at is not None
    assert [len(each.records) for each in at.due()] == [LIMIT, LIMIT, 2]
    decision = at.propose(at.decide(rpc.UnregisterBrokerRequest(broker_id=1)))
    assert decision.error is None
    assert len(decision.records) == 1
    for one in at.pending.snapshot().partitions.values():
        assert (one.elr, one.last_known_elr) == ((), ())


def test_unfenced_broker_with_many_partitions_is_fenced_and_then_unregistered() -> None:
    at = cell()
    request = rpc.UnregisterBrokerRequest(broker_id=1)
    decision = at.propose(at.decide(request))
    assert decision.decide_again_at is not None
    first = step(at)
    assert first is not None
    assert len(first.records) == 1 + LIMIT
    assert at.broker(1).fenced
    assert at.beat(1).is_fenced, "its leaders would propose it for the ISRs that it has left"
    assert [len(each.records) for each in at.due()][:2] == [LIMIT, 2]
    assert isrs_with(at, 1) == leads(at, 1) == 0
    decision = at.propose(at.decide(request))
    assert decision.error is None
    assert len(decision.records) == 1
    at.check_invariants()


def test_unfenced_broker_with_a_read_lease_leaves_its_partitions_when_the_lease_ends() -> None:
    at = cell()
    at.beat(1, want_read_lease=True)
    decision = at.propose(at.decide(rpc.UnregisterBrokerRequest(broker_id=1)))
    assert decision.decide_again_at == at.decider.state.read_leases.ends_at(1) > at.now
    assert at.due() == []
    assert isrs_with(at, 1) == PARTITIONS


def test_new_controller_examines_no_partition_that_has_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = cell().pending.snapshot()
    looks = Looks(monkeypatch)
    later = Cell(0, image=image, epoch=2)
    later.due()
    assert looks.count == 0
    assert not later.decider.state.join_elections


def test_removals_examine_few_partitions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at = cell()
    at.silence(1)
    monkeypatch.setattr(batched_changes, "BATCHES_A_STEP", 1)
    image = at.pending.snapshot()
    removals, looks = batched_changes.IsrRemovals(), Looks(monkeypatch)
    removals.resume(image)
    steps = 0
    while removals:
        looks.count = 0
        assert removals.due(image) is None, "broker 1 has left all ISRs"
        assert looks.count <= LIMIT
        steps += 1
    assert steps == 4

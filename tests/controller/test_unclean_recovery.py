"""Unclean recovery (KIP-966): the leader of a partition that has lost its ISR and its ELR."""

import pytest
from deciding import Cell, replica_log

from controller.state import unclean_recovery
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb

TIMEOUT_S = 30.0


def lost(*, strategy: str = "balanced", empty: bool = False) -> tuple[Cell, bytes]:
    """Partition (1, 2, 3): 2 and 3 have left its ISR; then 1, its last member, crashes and returns,
    if ``empty`` with another disk. 2 and 3 are fenced.
    """
    cell = Cell(brokers=0)
    for broker_id in (1, 2, 3):
        cell.join(broker_id, process=disk(broker_id))
    topic = cell.create_on((1, 2, 3))
    cell.configure("t", "unclean.recovery.strategy", strategy)
    cell.silence(2, 3)
    cell.silence(1, 2, 3)
    assert cell.partition(topic).elr == (1,)
    cell.back(1, clean=False, process=disk(11 if empty else 1))
    partition = cell.partition(topic)
    assert (partition.leader, partition.isr, partition.elr) == (-1, (), ())
    assert partition.last_known_elr == (() if empty else (1,))
    return cell, topic


def disk(number: int) -> pb.ProcessProof:
    return pb.ProcessProof(directory_id=f"disk-{number}")


def report(cell: Cell, topic: bytes, broker_id: int, last_epoch: int = -1, end: int = 0) -> int:
    """Report a log; return the leader afterwards."""
    cell.report(broker_id, cell.partition(topic), last_epoch, end)
    return cell.partition(topic).leader


def test_last_leader_with_its_records_is_elected_without_the_others() -> None:
    cell, topic = lost()
    before = cell.partition(topic)
    assert report(cell, topic, 1, 2, 10) == 1
    partition = cell.partition(topic)
    assert (partition.isr, partition.elr, partition.last_known_elr) == ((1,), (), ())
    assert partition.leader_recovery_state == 1
    assert partition.leader_epoch == before.leader_epoch + 1
    cell.check_invariants()


def test_empty_last_member_is_not_elected_while_another_may_have_the_records() -> None:
    """KIP-903's exception."""
    cell, topic = lost(empty=True)
    assert report(cell, topic, 1) == -1
    cell.back(2, clean=False, process=disk(2))
    assert report(cell, topic, 2, 1, 7) == -1, "3 has not reported"
    cell.now += 10 * TIMEOUT_S
    cell.beats(1, 2)
    cell.due()
    assert cell.partition(topic).leader == -1, "balanced never gives up"
    cell.back(3, clean=False, process=disk(3))
    assert report(cell, topic, 3, 1, 8) == 3


@pytest.mark.parametrize(
    ("second", "third", "leader"),
    [((1, 7), (0, 900), 2), ((1, 7), (1, 8), 3), ((0, 5), (0, 5), 2), ((-1, 0), (-1, 0), 1)],
)
def test_longest_log_of_the_newest_epoch_is_elected(
    second: tuple[int, int], third: tuple[int, int], leader: int
) -> None:
    cell, topic = lost(empty=True)
    for broker_id in (2, 3):
        cell.back(broker_id, clean=False, process=disk(broker_id))
    report(cell, topic, 1)
    report(cell, topic, 2, *second)
    assert report(cell, topic, 3, *third) == leader


def test_record_names_what_was_known_and_what_may_be_lost() -> None:
    cell, topic = lost(empty=True)
    for broker_id in (2, 3):
        cell.back(broker_id, clean=False, process=disk(broker_id))
    report(cell, topic, 1)
    report(cell, topic, 2, 1, 7)
    (decision,) = cell.report(3, cell.partition(topic), 1, 5)
    recovery = decision.records[0].message.recovery
    assert [(one.broker_id, one.last_epoch, one.log_end_offset) for one in recovery.logs] == [
        (2, 1, 7),
        (3, 1, 5),
        (1, -1, 0),
    ]
    assert [one.broker_epoch for one in recovery.logs] == [cell.broker(i).epoch for i in (2, 3, 1)]
    assert (recovery.strategy, recovery.last_known_leader) == ("balanced", -1)
    assert recovery.loss == "the disk of the last leader is lost"


def test_recovery_without_loss_is_recorded_as_such() -> None:
    cell, topic = lost()
    (decision,) = cell.report(1, cell.partition(topic), 2, 5)
    recovery = decision.records[0].message.recovery
    assert (recovery.loss, list(recovery.silent), recovery.last_known_leader) == ("", [2, 3], 1)


def test_best_replica_is_waited_for_until_it_is_unfenced() -> None:
    cell, topic = lost(empty=True)
    report(cell, topic, 1)
    for broker_id, end in ((2, 9), (3, 5)):
        epoch = cell.register(
            broker_id, f"next-{broker_id}", process=disk(broker_id), previous_broker_epoch=-1
        )
        log = replica_log(cell.partition(topic), 1, end)
        cell.send(
            cell.heartbeat(
                broker_id, broker_epoch=epoch, replica_logs=[log], want_fence=broker_id == 2
            )
        )
    cell.due()
    assert cell.partition(topic).leader == -1, "3 is live, 2 has more"
    cell.beat(2)
    cell.due()
    assert cell.partition(topic).leader == 2


def test_report_of_an_earlier_process_is_ignored() -> None:
    cell, topic = lost(empty=True)
    cell.back(2, clean=False, process=disk(2))
    assert report(cell, topic, 2, 1, 7) == -1
    cell.silence(2)
    cell.back(2, clean=False, process=disk(22))
    report(cell, topic, 1)
    cell.back(3, clean=False, process=disk(3))
    assert report(cell, topic, 3, 0, 1) == -1, "2 has another disk now, and has not reported it"
    assert report(cell, topic, 2) == 3


def test_unregistered_replica_is_not_waited_for() -> None:
    cell, topic = lost(empty=True)
    report(cell, topic, 1)
    cell.back(2, clean=False, process=disk(2))
    assert report(cell, topic, 2, 1, 7) == -1
    cell.send(rpc.UnregisterBrokerRequest(broker_id=3))
    cell.due()
    assert cell.partition(topic).leader == 2


def test_empty_new_replica_does_not_replace_an_unregistered_one() -> None:
    """nats-server #4396: a move off the broker that has the only copy is no reason to lose it."""
    cell = Cell(brokers=2)
    topic = cell.create_on((1,))
    cell.send(rpc.UnregisterBrokerRequest(broker_id=1))
    cell.reassign({0: [2]})
    assert cell.partition(topic).adding_replicas == (2,)
    assert report(cell, topic, 2) == -1
    cell.join(1, process=disk(1))
    assert report(cell, topic, 1, 0, 9) == 1


def test_eligible_replica_is_waited_for() -> None:
    cell = Cell(brokers=3)
    topic = cell.create_on((1, 2, 3))
    cell.silence(2, 3)
    cell.silence(1, 2, 3)
    for broker_id in (2, 3):
        cell.back(broker_id, clean=False)
        assert report(cell, topic, broker_id, 1, 50) == -1
    log = replica_log(cell.partition(topic), 1, 40)
    cell.beat(1, replica_logs=[log], want_fence=True)
    cell.due()
    assert cell.partition(topic).leader == -1, "all have reported; 1 is eligible, and not live yet"
    cell.beat(1)
    assert cell.partition(topic).leader == 1
    assert cell.partition(topic).leader_recovery_state == 0


def test_aggressive_strategy_waits_for_a_bounded_time() -> None:
    cell, topic = lost(strategy="aggressive", empty=True)
    report(cell, topic, 1)
    cell.back(2, clean=False, process=disk(2))
    assert report(cell, topic, 2, 1, 7) == -1
    for _ in range(7):
        cell.now += TIMEOUT_S / 8
        cell.beats(1, 2)
        cell.due()
    assert cell.partition(topic).leader == -1
    cell.now += TIMEOUT_S / 8
    decisions = cell.due()
    (election,) = [one for one in decisions if one.records[0].message.HasField("recovery")]
    recovery = election.records[0].message.recovery
    assert cell.partition(topic).leader == 2
    assert (list(recovery.silent), recovery.strategy) == ([3], "aggressive")
    assert recovery.loss == "the disk of the last leader is lost; brokers [3] did not report"


def test_waiting_partitions_are_examined_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """[Each check of 25,000 partitions that wait for a disk takes longer than the interval.]"""
    monkeypatch.setattr(unclean_recovery, "MAX_LOOKS", 2)
    cell = Cell(brokers=2)
    topic = cell.create_on(*[(1, 2)] * 5)
    cell.configure("t", "unclean.recovery.strategy", "aggressive")
    cell.silence(2)
    cell.silence(1, 2)
    cell.back(2, clean=False)
    for index in range(5):
        cell.report(2, cell.partition(topic, index), 0, 4)
    recovery, view = cell.decider.state.unclean_recovery, cell.pending
    while recovery.next_deadline() <= cell.now:
        assert recovery.due(view, cell.now) is None
    elected = []
    for _ in range(3):
        cell.now += TIMEOUT_S
        write = recovery.due(view, cell.now)
        assert write is not None
        assert recovery.next_deadline() > cell.now, "nothing else until the next interval"
        elected.append([one.message.partition_id for one in write.records])
        cell.propose(write)
    assert elected == [[0, 1], [2, 3], [4]]


def test_aggressive_strategy_gives_up_absent_eligible_replicas() -> None:
    cell = Cell(brokers=2)
    topic = cell.create_on((1, 2))
    cell.configure("t", "unclean.recovery.strategy", "aggressive")
    cell.silence(2)
    cell.silence(1, 2)
    cell.back(2, clean=False)
    assert report(cell, topic, 2, 0, 4) == -1
    for _ in range(9):
        cell.now += TIMEOUT_S / 8
        cell.beat(2)
        cell.due()
    assert (cell.partition(topic).leader, cell.partition(topic).elr) == (2, ())


def test_strategy_none_leaves_the_election_to_the_operator() -> None:
    cell, topic = lost(strategy="none", empty=True)
    for broker_id in (2, 3):
        cell.back(broker_id, clean=False, process=disk(broker_id))
    report(cell, topic, 1)
    report(cell, topic, 2, 1, 7)
    assert report(cell, topic, 3, 1, 9) == -1
    request = rpc.ElectLeadersRequest(election_type=rpc.UNCLEAN)
    request.topics.add(name="t", partition_indexes=[0])
    assert cell.send(request).topics[0].partitions[0].leader_id == 3, "the one that lost least"


def test_report_of_another_leader_epoch_or_an_unassigned_replica_is_ignored() -> None:
    """[The replica was still leader, and has appended since.]"""
    cell, topic = lost()
    log = replica_log(cell.partition(topic), 1, 3)
    log.leader_epoch -= 1
    cell.beat(1, replica_logs=[log])
    cell.due()
    assert cell.partition(topic).leader == -1
    cell.join(9)
    assert report(cell, topic, 9, 5, 1000) == -1
    log = rpc.ReplicaLogReport(topic_id=b"?" * 16, last_epoch=1, log_end_offset=3)
    cell.beat(1, replica_logs=[log])
    assert cell.due() == []

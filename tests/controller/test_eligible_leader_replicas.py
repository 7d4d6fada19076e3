"""Eligible leader replicas (KIP-966)."""

import pytest
from deciding import Cell

from controller.rules.partition_change import Brokers, Election, next_state
from raftlog.metadata.entities import Partition
from raftlog.metadata.partitions import changed_partition
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


def cell_of(replicas: tuple[int, ...] = (1, 2, 3), *, min_isr: int = 2) -> tuple[Cell, bytes]:
    """A cluster with one partition on these brokers."""
    cell = Cell(brokers=max(replicas))
    topic = cell.create_on(replicas)
    cell.configure("t", "min.insync.replicas", str(min_isr))
    return cell, topic


def shrunk() -> tuple[Cell, bytes]:
    """Broker 1 leads alone, 2 is eligible, 3 is not."""
    cell, topic = cell_of()
    cell.silence(3)
    cell.silence(2, 3)
    return cell, topic


def members(cell: Cell, topic: bytes) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return leader, ISR and ELR."""
    one = cell.partition(topic)
    return one.leader, one.isr, one.elr


def test_replica_becomes_eligible_when_the_isr_falls_below_min_insync_replicas() -> None:
    cell, topic = cell_of()
    cell.silence(3)
    assert members(cell, topic) == (1, (1, 2), ())
    cell.silence(2, 3)
    assert members(cell, topic) == (1, (1,), (2,)), "3 left while the ISR was large enough"
    cell.silence(1, 2, 3)
    assert members(cell, topic) == (-1, (), (1, 2))
    assert cell.partition(topic).last_known_elr == (1,)
    cell.check_invariants()


def test_eligible_replica_leads_alone_if_the_isr_is_empty() -> None:
    cell, topic = shrunk()
    cell.silence(1, 2, 3)
    before = cell.partition(topic)
    cell.beat(3)
    assert members(cell, topic) == (-1, (), (1, 2)), "3 is not eligible"
    cell.beat(2)
    after = cell.partition(topic)
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (2, (2,), (1,), ())
    assert after.leader_recovery_state == 0, "the election is clean"
    assert after.leader_epoch == before.leader_epoch + 1
    cell.check_invariants()


def test_live_eligible_replica_takes_over_at_once_from_the_last_member() -> None:
    cell, topic = shrunk()
    cell.beat(2)
    assert members(cell, topic) == (1, (1,), (2,)), "unfenced, and not caught up yet"
    cell.silence(1, 3)
    assert members(cell, topic) == (2, (2,), (1,))


def test_last_leader_is_preferred_among_eligible_replicas() -> None:
    """It may have records that were not committed yet."""
    partition = Partition(b"t" * 16, 0, (1, 2, 3), (), (), (), -1, 0, 4, 9, (1, 2), (2,))
    cell = Cell(brokers=3)
    change = next_state(Brokers(cell.pending), partition)
    assert change is not None
    assert changed_partition(partition, change).leader == 2


def test_large_enough_isr_clears_the_eligible_replicas() -> None:
    cell, topic = shrunk()
    cell.beat(3)
    assert list(cell.propose_isr(topic, [1]).eligible_leader_replicas) == [2]
    result = cell.propose_isr(topic, [1, 3])
    assert list(result.eligible_leader_replicas) == []
    assert members(cell, topic) == (1, (1, 3), ())


def test_lower_min_insync_replicas_clears_them_when_the_leader_proposes_its_isr() -> None:
    cell, topic = shrunk()
    cell.configure("t", "min.insync.replicas", "3")
    assert list(cell.propose_isr(topic, [1]).eligible_leader_replicas) == [2], "a higher one"
    cell.configure("t", "min.insync.replicas", "1")
    assert members(cell, topic) == (1, (1,), (2,)), "the leader must not move on before it knows"
    epoch = cell.partition(topic).partition_epoch
    assert cell.propose_isr(topic, [1]).partition_epoch == epoch + 1
    assert members(cell, topic) == (1, (1,), ())


def test_response_to_the_leader_names_the_replica_that_it_made_eligible() -> None:
    """[The leader counts on its older config, and moves the high watermark.]"""
    cell, topic = cell_of((1, 2))
    assert list(cell.propose_isr(topic, [1]).eligible_leader_replicas) == [2]


@pytest.mark.parametrize("clean", [True, False])
def test_eligible_replica_stays_eligible_only_after_a_clean_shutdown(clean: bool) -> None:
    cell, topic = shrunk()
    cell.back(2, clean=clean)
    assert members(cell, topic) == (1, (1,), (2,) if clean else ())


def test_shutdown_before_the_last_registration_is_not_clean() -> None:
    """[A process registers, crashes, and its successor finds the file of an earlier one.]"""
    cell, topic = cell_of((1, 2))
    first = cell.broker(2).epoch
    cell.silence(2)
    cell.back(2)
    cell.silence(2)
    cell.join(2, incarnation="third", previous_broker_epoch=first)
    assert members(cell, topic) == (1, (1,), ())


def test_clean_shutdown_of_another_directory_does_not_count() -> None:
    cell = Cell(brokers=1)
    mine, other = pb.ProcessProof(directory_id="mine"), pb.ProcessProof(directory_id="other")
    epoch = cell.join(2, process=mine)
    topic = cell.create_on((2,))
    cell.silence(2)
    assert cell.partition(topic).elr == (2,)
    cell.join(2, incarnation="next", process=other, previous_broker_epoch=epoch)
    gone = cell.partition(topic)
    assert (gone.leader, gone.elr, gone.last_known_elr) == (-1, (), ())


@pytest.mark.parametrize("directory", ["mine", "other"])
def test_last_known_leader_is_kept_while_its_disk_is_not_known_to_be_lost(directory: str) -> None:
    cell = Cell(brokers=1)
    cell.join(2, process=pb.ProcessProof(directory_id="mine"))
    topic = cell.create_on((2, 1))
    cell.silence(1)
    cell.silence(1, 2)
    process = pb.ProcessProof(directory_id=directory)
    cell.join(2, incarnation="next", process=process)
    partition = cell.partition(topic)
    assert (partition.leader, partition.isr, partition.elr) == (-1, (), ())
    assert partition.last_known_elr == ((2,) if directory == "mine" else ())


def test_unregistered_broker_is_not_eligible() -> None:
    cell, topic = shrunk()
    cell.send(rpc.UnregisterBrokerRequest(broker_id=2))
    assert members(cell, topic) == (1, (1,), ())


def test_removed_replica_is_not_eligible() -> None:
    cell, topic = shrunk()
    cell.reassign({0: [1]})
    partition = cell.partition(topic)
    assert (partition.replicas, partition.isr, partition.elr) == ((1,), (1,), ())


def test_unclean_leader_leaves_no_replica_eligible() -> None:
    cell, topic = shrunk()
    cell.silence(1, 2, 3)
    cell.beat(3)
    partition = cell.partition(topic)
    change = next_state(Brokers(cell.pending), partition, election=Election.UNCLEAN)
    assert change is not None
    after = changed_partition(partition, change)
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == (3, (3,), (), ())
    assert after.leader_recovery_state == 1


def test_replica_being_added_does_not_raise_the_required_isr_size() -> None:
    cell = Cell(brokers=4)
    topic = cell.create_on((1, 2))
    cell.configure("t", "min.insync.replicas", "3")
    cell.reassign({0: [1, 2, 3, 4]})
    cell.propose_isr(topic, [1, 2, 3])
    assert members(cell, topic) == (1, (1, 2, 3), ())
    cell.silence(3)
    assert members(cell, topic) == (1, (1, 2), ()), "two replicas are all that there were"


def test_clean_elections_from_elr_and_unclean_ones_are_counted_apart() -> None:
    cell, topic = cell_of()

    def counts() -> tuple[int, ...]:
        of = cell.send(rpc.DescribeBrokersRequest()).partitions
        return of.with_elr, of.awaiting_recovery, of.elections_from_elr, of.unclean_elections

    assert counts() == (0, 0, 0, 0)
    cell.silence(3)
    cell.silence(2, 3)
    assert counts() == (1, 0, 0, 0)
    cell.silence(1, 2, 3)
    cell.beat(2)
    assert members(cell, topic) == (2, (2,), (1,))
    assert counts() == (1, 0, 1, 0)
    cell.silence(1, 2, 3)
    cell.back(1, clean=False)
    cell.back(2, clean=False)
    assert counts() == (0, 1, 1, 0)
    cell.report(2, cell.partition(topic), 2, 10)
    assert members(cell, topic) == (2, (2,), ())
    assert counts() == (0, 0, 1, 1)

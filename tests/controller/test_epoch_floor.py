"""Leader epochs after a recovery: none is reused, and no broker registers before that is sure."""

from itertools import pairwise

import pytest
from deciding import Cell, reassignment, registration

from controller.state.batched_changes import MAX_RAISED, RETRY_S
from raftlog.metadata.control_records import EPOCHS_PER_RECOVERY, MAX_RECOVERIES, first_leader_epoch
from raftlog.metadata.entities import Partition
from raftlog.metadata.image import Image
from raftlog.wire.controller.v1 import controller_pb2 as rpc
from raftlog.wire.records.v1 import records_pb2 as pb


def taken_back(partitions: int = 3) -> Image:
    """Return a recovered state: three brokers, a topic, a partition without a leader."""
    cell = Cell()
    cell.create(num_partitions=partitions, replication_factor=2)
    return cell.pending.snapshot()


def successor(image: Image, recoveries: int) -> Cell:
    return Cell(brokers=0, image=image, epoch=1000, recoveries=recoveries)


def leader_epochs(cell: Cell) -> set[int]:
    partitions = cell.pending.snapshot().partitions
    return {partitions[key].leader_epoch for key in partitions}


def test_recovery_first_fences_all_and_raises_all_leader_epochs_into_its_range() -> None:
    before = taken_back()
    never = successor(before, 0).pending.snapshot()
    assert never.partitions == before.partitions, "a log that was never recovered is left alone"
    for generation in (1, 2, 7):
        cell = successor(before, generation)
        assert leader_epochs(cell) == {generation * EPOCHS_PER_RECOVERY}
        image = cell.pending.snapshot()
        assert {
            (broker.fenced, broker.in_controlled_shutdown) for broker in image.brokers.values()
        } == {(True, False)}
        for key in before.partitions:
            old = before.partitions[key]
            new = image.partitions[key]
            expected = (-1, old.isr, old.replicas, old.partition_epoch + 1)
            assert (new.leader, new.isr, new.replicas, new.partition_epoch) == expected
        assert successor(image, generation).pending.snapshot().partitions == image.partitions, (
            "once in a generation"
        )
        assert leader_epochs(successor(image, generation + 1)) == {
            (generation + 1) * EPOCHS_PER_RECOVERY
        }


def isr_of(cell: Cell) -> Partition:
    partition: Partition = next(iter(cell.pending.snapshot().partitions.items()))[1]
    return partition


def three(cell: Cell) -> Image:
    cell.create("one")
    return cell.pending.snapshot()


def on_disk(broker_id: int, disk: str = "", incarnation: str = "new") -> rpc.RegisterBrokerRequest:
    process = pb.ProcessProof(
        boot_id="b", directory_id=disk or f"disk-{broker_id}", lock_inode=broker_id
    )
    return registration(broker_id, f"{incarnation}-{broker_id}", process=process)


def of_disks() -> Image:
    cell = Cell(brokers=0)
    for broker_id in (1, 2, 3):
        cell.send(on_disk(broker_id, incarnation="old"))
        cell.propose(cell.decide(cell.heartbeat(broker_id)))
    return three(cell)


def unfenced(cell: Cell, broker_id: int) -> None:
    cell.propose(cell.decide(cell.heartbeat(broker_id)))
    assert not cell.pending.brokers[broker_id].fenced


@pytest.mark.parametrize("order", [(1, 2), (2, 1), (3, 2), (1, 3)])
def test_first_replica_back_with_its_disk_leads_after_recovery(order: tuple[int, int]) -> None:
    cell = successor(of_disks(), 1)
    first, second = order
    # Both are other processes by now, and have registered before either is unfenced: the one that
    # is away is not what is left.
    for broker_id in order:
        cell.send(on_disk(broker_id))
        assert (isr_of(cell).leader, sorted(isr_of(cell).isr)) == (-1, [1, 2, 3])
    unfenced(cell, first)
    assert (isr_of(cell).leader, isr_of(cell).isr) == (first, (first,))
    assert isr_of(cell).leader_epoch == EPOCHS_PER_RECOVERY + 1
    unfenced(cell, second)
    assert isr_of(cell).isr == (first,), "it catches up, and its leader proposes it"


def test_replica_back_with_another_disk_leaves_the_isr() -> None:
    cell = successor(of_disks(), 1)
    cell.send(on_disk(1, "another"))
    assert (isr_of(cell).leader, sorted(isr_of(cell).isr)) == (-1, [2, 3])
    unfenced(cell, 1)
    assert (isr_of(cell).leader, sorted(isr_of(cell).isr)) == (-1, [2, 3])
    cell.send(on_disk(3))
    unfenced(cell, 3)
    assert (isr_of(cell).leader, isr_of(cell).isr) == (3, (3,))


def test_restored_cluster_asks_every_replica_when_all_disks_are_new() -> None:
    cell = successor(of_disks(), 1)
    members = isr_of(cell).isr
    for broker_id in members:
        cell.send(on_disk(broker_id, f"new-disk-{broker_id}"))
    assert (isr_of(cell).leader, isr_of(cell).isr, isr_of(cell).last_known_elr) == (-1, (), ())
    for broker_id in members:
        assert isr_of(cell).leader == -1
        unfenced(cell, broker_id)
        cell.report(broker_id, isr_of(cell))
    assert (isr_of(cell).leader, isr_of(cell).isr) == (members[0], members[:1])


def test_joining_replica_is_not_elected_while_isr_members_are_awaited() -> None:
    image = of_disks()
    cell = successor(image, 1)
    cell.allow_unclean("one")
    cell.send(on_disk(1, "another"))
    unfenced(cell, 1)
    assert isr_of(cell).leader == -1


def test_same_processes_continue_under_their_registrations() -> None:
    cell = successor(of_disks(), 1)
    before = cell.pending.offset
    for broker_id in (2, 3):
        cell.send(on_disk(broker_id, incarnation="old"))
    assert cell.pending.offset == before
    unfenced(cell, 3)
    assert (isr_of(cell).leader, isr_of(cell).isr) == (3, (3,))


def test_new_partition_starts_in_the_raised_epoch_range() -> None:
    cell = successor(taken_back(), 1)
    for broker_id in (1, 2, 3):
        cell.register(broker_id)
        unfenced(cell, broker_id)
    cell.create("new", num_partitions=2)
    cell.send(rpc.CreatePartitionsRequest(topics=[rpc.CreatePartitionsTopic(name="t", count=5)]))
    new = [
        p.leader_epoch
        for p in cell.pending.snapshot().partitions.values()
        if p.leader_epoch == EPOCHS_PER_RECOVERY
    ]
    assert len(new) == 4
    cell.send(rpc.UnregisterBrokerRequest(broker_id=1))
    assert leader_epochs(cell) == {EPOCHS_PER_RECOVERY + elections for elections in (0, 1, 2)}


def test_no_leadership_moves_before_all_epochs_are_raised() -> None:
    """A partition would get the next epoch of the previous history."""
    cell = Cell(brokers=0, image=taken_back(1), epoch=1000, recoveries=1, bootstrap=False)
    partition = isr_of(cell)
    leader, epoch = partition.leader, cell.pending.brokers[partition.leader].epoch
    other = next(one for one in partition.replicas if one != leader)
    requests = (
        reassignment((0, [other])),
        rpc.BrokerHeartbeatRequest(broker_id=leader, broker_epoch=epoch, want_shut_down=True),
    )
    for request in requests:
        waits = cell.decide(request)
        assert (waits.records, waits.decide_again_at) == ([], cell.now + RETRY_S), request
    while (due := cell.decider.due.begin_generation()) is not None:
        cell.propose(due)
    for request in requests:
        assert cell.decide(request).decide_again_at is None, request


def test_registration_waits_until_all_epochs_are_raised() -> None:
    cell = Cell(
        brokers=0, image=taken_back(2 * MAX_RAISED + 1), epoch=1000, recoveries=1, bootstrap=False
    )
    again = cell.decide(registration(1))
    assert (again.records, again.body, again.decide_again_at) == ([], None, cell.now + 0.02)
    batches = []
    while (due := cell.decider.due.begin_generation()) is not None:
        assert cell.decide(registration(1)).decide_again_at is not None
        assert cell.decider.due.is_urgent()
        assert cell.decider.due.next_deadline() == float("-inf")
        batches.append(len(cell.propose(due).records))
    assert batches == [3, MAX_RAISED, MAX_RAISED, 1]
    raised_at = cell.pending.offset
    # The very registration that the old log has, by the process that made it: no record says that
    # this is another generation.
    reply = cell.send(registration(1))
    assert cell.pending.offset == raised_at
    assert (reply.broker_epoch < raised_at, reply.metadata_offset) == (True, raised_at)
    fresh = cell.send(registration(9))
    assert fresh.metadata_offset == fresh.broker_epoch == raised_at + 1


def test_epoch_raise_skips_partitions_deleted_or_raised_in_the_meantime() -> None:
    cell = Cell(
        brokers=0, image=taken_back(MAX_RAISED + 2), epoch=1000, recoveries=1, bootstrap=False
    )
    for _ in range(2):
        first = cell.decider.due.begin_generation()
        assert first is not None
        cell.propose(first)
    cell.send(rpc.DeleteTopicsRequest(names=["t"]))
    assert cell.decider.due.begin_generation() is None
    assert cell.send(registration(1)).broker_epoch >= 0


@pytest.mark.parametrize("generation", [MAX_RECOVERIES, MAX_RECOVERIES + 1, 2**40])
def test_epoch_ranges_of_generations_do_not_overlap_and_the_last_one_fits(generation: int) -> None:
    starts = [first_leader_epoch(number) for number in range(MAX_RECOVERIES + 1)]
    assert starts[0] == 0
    assert {after - before for before, after in pairwise(starts)} == {EPOCHS_PER_RECOVERY}
    assert first_leader_epoch(generation) == first_leader_epoch(MAX_RECOVERIES)
    assert first_leader_epoch(MAX_RECOVERIES) + EPOCHS_PER_RECOVERY == 2**31
    message = pb.PartitionChangeRecord(leader_epoch=first_leader_epoch(generation))
    assert pb.PartitionChangeRecord.FromString(message.SerializeToString()) == message

"""Cordoned brokers, and the plans that drain brokers and balance replicas."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from deciding import Cell, reassignment

from raftlog.errors import ErrorCode
from raftlog.metadata.image import Image
from raftlog.ops.moves import MovePlan, balance_plan, drain_plan, target_of
from raftlog.wire.controller.v1 import controller_pb2 as rpc


class Racks(Cell):
    """Brokers with racks; ``racks[0]`` is that of broker 1."""

    def __init__(self, *racks: str) -> None:
        super().__init__(0)
        for broker_id, rack in enumerate(racks, 1):
            self.join(broker_id, rack=rack)

    def cordon(self, broker_id: int | str, value: str = "true") -> None:
        self.configure(str(broker_id), "cordoned", value, kind=4)

    def catch_up(self) -> None:
        """Complete all moves: the leaders propose the added replicas."""
        for partition in list(self.image.partitions.values()):
            if not partition.adding_replicas and not partition.removing_replicas:
                continue
            members = sorted({*partition.isr, *partition.adding_replicas})
            self.propose_isr(partition.topic_id, members, partition.index)

    @property
    def image(self) -> Image:
        return self.pending.snapshot()

    def carry_out(self, plan: MovePlan) -> None:
        for one in plan.moves:
            self.reassign({one.partition: one.replicas}, one.topic)

    def move(self, plan: MovePlan) -> None:
        self.carry_out(plan)
        self.catch_up()

    def counts(self) -> Counter[int]:
        return Counter(one for each in self.image.partitions.values() for one in target_of(each))

    def shared_racks(self) -> int:
        """Return the number of partitions with two replicas in one rack."""
        racks = [
            [self.broker(one).rack for one in target_of(each)]
            for each in self.image.partitions.values()
        ]
        return sum(len(set(each)) < len(each) for each in racks)


# --- cordoned brokers -----------------------------------------------------------------------------


def test_cordoned_broker_gets_no_replica_of_a_new_topic_or_partition() -> None:
    cell = Racks("", "", "", "")
    cell.cordon(4)
    cell.create("t", num_partitions=30)
    added = rpc.CreatePartitionsTopic(name="t", count=60)
    cell.send(rpc.CreatePartitionsRequest(topics=[added]))
    assert (4 in cell.counts(), len(cell.image.partitions)) == (False, 60)
    cell.cordon(4, "false")
    cell.create("u", num_partitions=30)
    assert cell.counts()[4] > 0


def test_cordoned_broker_keeps_its_replicas_and_leaderships() -> None:
    cell = Racks("", "", "")
    topic = cell.create_on((2, 1, 3))
    cell.cordon(2)
    described = cell.send(rpc.DescribeBrokersRequest())
    assert [one.cordoned for one in described.brokers] == [False, True, False]
    partition = cell.partition(topic)
    assert (partition.leader, partition.replicas) == (2, (2, 1, 3))
    cell.reassign({0: (2, 1)})


def test_topic_that_needs_a_cordoned_broker_is_refused() -> None:
    cell = Racks("", "", "")
    cell.create_on((1, 2))
    cell.cordon(3)
    topic = rpc.CreatableTopic(name="v", num_partitions=1, replication_factor=3)
    factor = ErrorCode.INVALID_REPLICATION_FACTOR
    request = rpc.CreateTopicsRequest(topics=[topic])
    cell.refused_part(request, factor, "topics[0].replication_factor")
    assigned = rpc.CreatableReplicaAssignment(partition_index=0, broker_ids=[1, 3])
    topic = rpc.CreatableTopic(
        name="u", num_partitions=-1, replication_factor=-1, assignments=[assigned]
    )
    code, field = ErrorCode.INVALID_REPLICA_ASSIGNMENT, "topics[0].partitions[0].replicas"
    request = rpc.CreateTopicsRequest(topics=[topic])
    cell.refused_part(request, code, "topics[0].assignments[0].broker_ids")
    cell.refused_part(reassignment((0, [1, 3])), code, field)


def test_cluster_wide_cordon_applies_to_brokers_without_their_own_config() -> None:
    cell = Racks("", "", "")
    cell.cordon("")
    cell.cordon(2, "false")
    cell.create("t", num_partitions=4, replication_factor=1)
    assert set(cell.counts()) == {2}


# --- draining -------------------------------------------------------------------------------------


def test_drained_broker_holds_no_replicas() -> None:
    cell = Racks("a", "a", "b", "b", "c", "c")
    cell.create("t", num_partitions=24)
    cell.cordon(5)
    plan = drain_plan(cell.image, {5})
    assert plan.stuck == ()
    assert len(plan.moves) == cell.counts()[5] > 0
    cell.carry_out(plan)
    again = drain_plan(cell.image, {5})
    assert (again.moves, again.under_way) == ((), len(plan.moves)), "it names only what is left"
    cell.catch_up()
    assert drain_plan(cell.image, {5}) == MovePlan((), (), 0)
    assert cell.counts()[5] == 0
    assert cell.shared_racks() == 0


def test_substitute_takes_the_position_of_the_drained_broker() -> None:
    cell = Racks("", "", "", "")
    cell.create_on((2, 1), (1, 2))
    assert [one.replicas for one in drain_plan(cell.image, {2}).moves] == [(3, 1), (1, 4)]


def test_partition_that_no_broker_can_take_is_reported() -> None:
    cell = Racks("", "", "")
    cell.create_on((1, 2, 3))
    cell.create_on((1, 2), name="u")
    plan = drain_plan(cell.image, {2})
    assert [(one.topic, one.replicas) for one in plan.moves] == [("u", (1, 3))]
    assert [(one.topic, one.why) for one in plan.stuck] == [
        ("t", "3 replicas, but only 2 brokers can take one")
    ]
    (first, *_) = drain_plan(cell.image, {1, 2, 3}).stuck
    assert first.why == "3 replicas, but no broker can take one"


def test_replicas_are_not_moved_to_cordoned_fenced_or_drained_brokers() -> None:
    cell = Racks(*[""] * 6)
    cell.create_on(*[(1, 2)] * 6)
    cell.cordon(3)
    cell.silence(4)
    plan = drain_plan(cell.image, {2, 5})
    assert {one.replicas for one in plan.moves} == {(1, 6)}


def test_replicas_are_not_moved_to_a_broker_that_is_low_on_space() -> None:
    cell = Racks("", "", "", "")
    cell.create_on(*[(1, 2)] * 6)
    assert {one.replicas for one in drain_plan(cell.image, {2}, {3}).moves} == {(1, 4)}
    (first, *_) = drain_plan(cell.image, {2}, {3, 4}).stuck
    assert first.why == "2 replicas, but only 1 broker can take one; low on space: 3, 4"
    moved_to = {one for each in balance_plan(cell.image, {3}).moves for one in each.replicas}
    assert moved_to == {1, 2, 4}
    cell = Racks("", "", "")
    cell.create_on(*[(1, 2)] * 6)
    moves = balance_plan(cell.image, {1}).moves
    assert {one.replicas for one in moves} == {(3, 2), (1, 3)}, "but away from it"


def test_move_to_a_broker_that_runs_low_on_space_gets_another_target() -> None:
    cell = Racks("", "", "", "")
    cell.create_on((1, 2))
    cell.reassign({0: (1, 3)})
    (move,) = drain_plan(cell.image, {2}, {3}).moves
    assert move.replicas == (1, 4)


def test_broker_low_on_space_gets_new_replicas_only_if_the_others_are_too_few() -> None:
    cell = Racks("", "", "", "")
    cell.create("t", num_partitions=1, replication_factor=3)
    before = cell.counts()[4]
    cell.beat(4, low_on_space=True)
    (shown,) = [one for one in cell.send(rpc.DescribeBrokersRequest()).brokers if one.low_on_space]
    assert shown.broker_id == 4
    cell.create("u", num_partitions=30, replication_factor=3)
    cell.send(rpc.CreatePartitionsRequest(topics=[rpc.CreatePartitionsTopic(name="t", count=30)]))
    assert cell.counts()[4] == before
    cell.create("v", num_partitions=1, replication_factor=4)
    assert cell.counts()[4] == before + 1


def test_move_to_a_dead_broker_gets_another_target() -> None:
    """Cruise Control #664: it waited for that broker forever."""
    cell = Racks("", "", "", "")
    cell.create_on((1, 2))
    cell.reassign({0: (1, 3)})
    cell.silence(3)
    (move,) = drain_plan(cell.image, {2}).moves
    assert move.replicas == (1, 4)
    cell.move(drain_plan(cell.image, {2}))
    assert cell.counts() == {1: 1, 4: 1}


@pytest.mark.parametrize("unregistered", [False, True])
def test_dead_broker_is_drained(unregistered: bool) -> None:
    """Cruise Control #2187: replicas stayed on a dead broker."""
    cell = Racks("", "", "", "")
    cell.create_on((1, 2), (2, 3))
    cell.silence(2)
    if unregistered:
        cell.send(rpc.UnregisterBrokerRequest(broker_id=2))
    cell.move(drain_plan(cell.image, {2}))
    assert cell.counts()[2] == 0


def test_brokers_of_a_whole_rack_are_drained_together() -> None:
    cell = Racks("a", "a", "b", "b", "c", "c")
    cell.create("t", num_partitions=12, replication_factor=2)
    cell.move(drain_plan(cell.image, {1, 2}))
    assert cell.counts()[1] == cell.counts()[2] == 0
    assert cell.shared_racks() == 0


# --- balance --------------------------------------------------------------------------------------


def test_new_broker_gets_its_share_of_replicas() -> None:
    cell = Racks("", "")
    cell.create_on(*[(1, 2)] * 9)
    cell.join(3)
    cell.move(balance_plan(cell.image))
    assert sorted(cell.counts().values()) == [6, 6, 6]
    assert balance_plan(cell.image).moves == ()


def test_replicas_are_moved_out_of_a_rack_that_has_several() -> None:
    cell = Racks("a", "a", "b")
    cell.create_on((1, 2), (2, 1))
    cell.move(balance_plan(cell.image))
    assert cell.shared_racks() == 0


def test_rack_spread_is_not_sacrificed_for_balanced_counts() -> None:
    cell = Racks("a", "a", "b")
    cell.create_on(*[(1, 3)] * 6)
    cell.move(balance_plan(cell.image))
    assert cell.counts() == {1: 3, 2: 3, 3: 6}
    assert cell.shared_racks() == 0


def test_partition_under_reassignment_is_left_alone() -> None:
    cell = Racks("", "", "")
    cell.create_on(*[(1,)] * 4)
    cell.reassign({0: (2,)})
    plan = balance_plan(cell.image)
    assert plan.under_way == 1
    assert 0 not in {one.partition for one in plan.moves}


@pytest.mark.parametrize("seed", range(8))
def test_random_clusters_are_balanced_by_one_plan_and_stay_balanced(seed: int) -> None:
    rng = random.Random(seed)
    racks = [rng.choice("abc") for _ in range(rng.randrange(4, 8))]
    cell = Racks(*racks)
    ids = range(1, len(racks) + 1)
    cell.create_on(*(rng.sample(ids, 2) for _ in range(40)))
    spread = [cell.shared_racks()]
    for _ in range(3):
        plan = balance_plan(cell.image)
        assert len({(one.topic, one.partition) for one in plan.moves}) == len(plan.moves)
        cell.move(plan)
        spread.append(cell.shared_racks())
    assert all(later <= earlier for earlier, later in pairwise(spread))
    assert spread[-1] == 0 or len(set(racks)) == 1
    assert balance_plan(cell.image).moves == ()

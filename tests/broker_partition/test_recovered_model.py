"""Random schedules in which the metadata is taken back: partitions serve again, what may stay
stays, and no epoch has two histories.
"""

from __future__ import annotations

import pytest
from partition_model import BROKERS, TOPIC_ID, BrokenPromiseError
from recovered_model import RecoveredWorld, run

from simulation.mutants.edits import Edit, edited

KEY = (TOPIC_ID, 0)
FLOOR = "controller.state.batched_changes:EpochFloor"
BREAKAGES = {
    "leader epochs are raised by one": (
        Edit(
            f"{FLOOR}._raise_some",
            "leader_epoch=self.first",
            "leader_epoch=view.partitions[key].leader_epoch + 1",
        ),
    ),
    "leader epochs are not raised": (
        Edit(f"{FLOOR}._is_below", "partition.leader_epoch < self.first", "False"),
        Edit(f"{FLOOR}.due", "partition.leader_epoch < self.first", "False"),
    ),
    "an image from before the registration was decided gives roles": (
        Edit(
            "broker.partition.manager:Roles.reconsider",
            "current and host.image.offset >= host.shown_from",
            "current",
        ),
    ),
}


@pytest.mark.parametrize("block", range(3))
def test_partitions_serve_again_and_keep_what_they_may(block: int) -> None:
    worlds = [run(seed) for seed in range(block * 15, block * 15 + 15)]
    assert sum(world.recoveries for world in worlds) > 8
    assert sum(world.kept for world in worlds) > 10, (
        "acknowledged before a recovery, and not excused by it"
    )
    assert sum(world.forgotten for world in worlds) > 10
    assert sum(world.truncated for world in worlds) > 0


def test_two_histories_never_meet_in_one_leader_epoch() -> None:
    world = RecoveredWorld(1)
    world.begin()
    world.turns()
    before = len(world.controller.log) - 1
    one, two, three = (world.nodes[id_] for id_ in BROKERS)
    # 3 leads epoch 1 alone, and has records in it; then everything since is forgotten, 3 too.
    for id_ in (1, 2):
        world.fence(id_)
    world.cut |= {1, 2}
    world.behind |= {1, 2}
    world.turns(3)
    for _ in range(3):
        world.produce(KEY, three)
    world.turns(3)
    assert three.disk.end(KEY, durable=True) > one.disk.end(KEY, durable=True)
    world.kill(three, replace_disk=False)
    world.take_back(before)
    world.cut.clear()
    world.behind.clear()
    # The others go on without it, with records at the same offsets.
    world.turns()
    leader = next(node for node in (one, two) if world.leader_of(node, KEY) is not None)
    for _ in range(5):
        world.produce(KEY, leader)
    world.turns()
    assert leader.disk.end(KEY, durable=True) > three.disk.end(KEY, durable=True)
    world.restart(three)
    world.turns()
    world.heal()
    assert world.truncated > 0, "what was of the other history is cut off"


@pytest.mark.parametrize("name", BREAKAGES)
def test_a_breakage_is_caught(name: str) -> None:
    with edited(BREAKAGES[name]), pytest.raises(BrokenPromiseError):
        _first_few()


def _first_few() -> None:
    for seed in range(40):
        run(seed)

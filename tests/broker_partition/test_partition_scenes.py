"""Named races, each told step by step: the real rules keep their promises, and without the rule
that is at stake they are broken.
"""

from collections.abc import Callable

import pytest
from partition_driver import DrivenWorld
from partition_model import TOPIC_ID, BrokenPromiseError, Node

from simulation.mutants.edits import Edit, edited

KEY = (TOPIC_ID, 0)
LEADER_ISR = "broker.partition.isr:LeaderIsr"
NO_CHECK_AT_CONTROLLER = Edit(
    "controller.decisions.partitions.alter_partition:_ineligible",
    "member.broker_epoch != broker.epoch and",
    "False and",
)


def two_brokers(world: DrivenWorld) -> tuple[Node, Node]:
    """A = broker 1 leads, alone in the ISR, and has an acknowledged record; B = broker 2 was gone
    and is not back yet; 3 stays away.
    """
    world.min_isr = world.partitions = 1
    world.begin()
    world.turns()
    a, b = world.nodes[1], world.nodes[2]
    for gone in (3, 2):
        world.kill(world.nodes[gone], replace_disk=False)
        world.fence(gone)
    world.turns()
    assert world.isr_of(KEY) == (1,)
    assert world.produce(KEY, a) is not None
    world.turns()
    assert world.acked == 1
    return a, b


def catches_up(world: DrivenWorld, b: Node) -> None:
    """B is back under a new epoch, fetches all, and A's proposal to take it in is on its way, and
    slow.
    """
    world.hold_alters = True
    world.restart(b)
    world.turns(40)
    (alter,) = world.alters
    assert [m.broker_id for m in alter.request.topics[0].partitions[0].new_isr_with_epochs] == [
        1,
        2,
    ]
    assert world.isr_of(KEY) == (1,)


def hard_failure(world: DrivenWorld, b: Node) -> None:
    """B fails; the controller fences it, which changes nothing for the partition; it comes back
    with an empty disk, and is unfenced.
    """
    world.kill(b, replace_disk=True)
    world.fence(b.id)
    world.cut.add(b.id)
    world.restart(b)
    world.catch_up(b)


def leader_fails(world: DrivenWorld, a: Node) -> None:
    """A crashes and is fenced; then everybody comes back, and nothing may be missing."""
    world.kill(a, replace_disk=False)
    world.fence(a.id)
    world.turns()
    world.heal()


def the_race_of_kip_903() -> DrivenWorld:
    """B catches up, its disk is replaced, the delayed AlterPartition arrives (the example in the
    proposal's motivation).
    """
    world = DrivenWorld(0)
    a, b = two_brokers(world)
    catches_up(world, b)
    hard_failure(world, b)
    world.behind.add(a.id)  # The leader does not know of B's new registration yet.
    world.hold_alters = False
    world.carry_alter()
    leader_fails(world, a)
    return world


def a_fetch_that_comes_super_late() -> DrivenWorld:
    """The leader knows B's new epoch already when the last fetch of B's former life arrives."""
    world = DrivenWorld(0)
    a, b = two_brokers(world)
    world.hold_alters = True
    world.restart(b)
    # B has everything, but its last fetch, which says so, is still on its way when it fails.
    for _ in range(100):
        world.now += 0.01
        world.catch_up(a, b)
        wire = b.wires.get(a.id)
        if (
            wire is not None
            and wire.requests
            and b.disk.end(KEY, durable=True) == a.disk.end(KEY, durable=True)
        ):
            break
        world.open_link()
        world.deliver()
    else:
        raise AssertionError("B has not caught up")
    assert not world.alters
    hard_failure(world, b)
    world.cut.clear()
    world.catch_up(a)
    while wire.requests:
        world.deliver_request(wire)
    world.carry_alters()
    leader_fails(world, a)
    return world


def a_refusal_while_an_earlier_attempt_is_under_way() -> DrivenWorld:
    """An attempt has no answer; the next is refused, as B is fenced just then; B is unfenced, and
    the first attempt arrives.
    """
    world = DrivenWorld(0)
    a, b = two_brokers(world)
    catches_up(world, b)
    world.cut.add(b.id)
    first = world.alters.pop()
    world.give_up_alter(a)
    assert len(world.alters) == 1, "the same again"
    world.fence(b.id)
    world.carry_alters()
    world.catch_up(b)
    late, world.alters = world.alters, [first]
    world.carry_alters()
    world.alters = late
    world.behind.add(a.id)
    world.produce(KEY, a)
    world.turns(5)
    world.cut.clear()
    leader_fails(world, a)
    return world


def an_attempt_without_an_answer_is_accepted() -> DrivenWorld:
    """A does not hear that B is in the ISR; what it acknowledges meanwhile must be on B."""
    world = DrivenWorld(0)
    a, b = two_brokers(world)
    catches_up(world, b)
    world.cut.add(b.id)
    first = world.alters.pop()
    world.give_up_alter(a)
    world.produce(KEY, a)
    world.catch_up(a)
    late, world.alters = world.alters, [first]
    world.hold_alters = False
    world.carry_alter()
    assert world.isr_of(KEY) == (1, 2)
    world.answers.clear()
    world.alters = late
    world.behind.add(a.id)
    leader_fails(world, a)
    return world


def a_replica_that_is_behind() -> DrivenWorld:
    """B fetches from the beginning, and A fails before B has got everything."""
    world = DrivenWorld(0)
    a, b = two_brokers(world)
    world.restart(b)
    for _ in range(100):
        world.now += 0.01
        world.catch_up(a, b)
        world.open_link()
        wire = b.wires.get(a.id)
        if wire is not None and wire.requests:
            world.deliver_request(wire)
        if wire is not None and wire.responses:
            break
    else:
        raise AssertionError("B has not fetched")
    world.catch_up(a)
    world.carry_alters()
    leader_fails(world, a)
    return world


SCENES: tuple[tuple[Callable[[], DrivenWorld], tuple[tuple[Edit, ...], ...]], ...] = (
    (the_race_of_kip_903, ((NO_CHECK_AT_CONTROLLER,),)),
    (
        a_fetch_that_comes_super_late,
        (
            (
                Edit(
                    f"{LEADER_ISR}.epoch_of",
                    "if follower is not None and follower.end_offset >= 0:",
                    "if False:",
                ),
                Edit(
                    f"{LEADER_ISR}._is_eligible",
                    "return follower.broker_epoch == broker.epoch",
                    "return True",
                ),
                Edit(
                    "broker.partition.sessions:Sessions._check_epoch",
                    "if epoch < max(known, 0):",
                    "if False:",
                ),
            ),
        ),
    ),
    (
        a_refusal_while_an_earlier_attempt_is_under_way,
        ((Edit(f"{LEADER_ISR}._ineligible", "elif proposal.uncertain:", "elif False:"),),),
    ),
    (
        an_attempt_without_an_answer_is_accepted,
        (
            (
                Edit(
                    f"{LEADER_ISR}.failed",
                    "self._updates.queue(self)",
                    "self.state.revert() if outcome_unknown else None",
                ),
            ),
            (
                Edit(
                    "broker.partition.leader:Leader.advance",
                    "in self.isr.state.maximal",
                    "in self.isr.state.committed",
                ),
            ),
        ),
    ),
    (
        a_replica_that_is_behind,
        (
            (
                Edit(
                    f"{LEADER_ISR}._may_join",
                    "follower.end_offset >= self.high_watermark\n            and"
                    " follower.end_offset >= self.start_offset\n",
                    "True\n",
                ),
            ),
        ),
    ),
)


@pytest.mark.parametrize("scene", [scene for scene, _ in SCENES], ids=lambda scene: scene.__name__)
def test_partition_scene_loses_no_acknowledged_record(scene: Callable[[], DrivenWorld]) -> None:
    assert scene().acked >= 1


@pytest.mark.parametrize(
    ("scene", "edits"),
    [(scene, edits) for scene, without in SCENES for edits in without],
    ids=[f"{scene.__name__}-{n}" for scene, without in SCENES for n in range(len(without))],
)
def test_partition_scene_loses_records_without_the_rule(
    scene: Callable[[], DrivenWorld], edits: tuple[Edit, ...]
) -> None:
    with edited(edits), pytest.raises(BrokenPromiseError, match=r"acknowledged|in the ISR"):
        scene()

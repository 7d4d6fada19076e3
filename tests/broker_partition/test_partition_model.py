"""Random schedules of three brokers: the promises hold, and each deliberate breakage of a rule is
caught.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from partition_driver import run
from partition_model import BROKERS, TOPIC_ID, BrokenPromiseError
from recovered_model import RecoveredWorld
from recovered_model import run as run_recovered

from simulation.mutants.edits import Edit, edited


class Breakage(NamedTuple):
    name: str
    edits: tuple[Edit, ...]
    retains: bool = False
    """Where topics do not keep everything."""


def breakage(name: str, *edits: tuple[str, str, str], retains: bool = False) -> Breakage:
    """Return a breakage of one or several edits: target, old and new text."""
    return Breakage(name, tuple(Edit(*one) for one in edits), retains)


# fmt: off
BREAKAGES = (
    breakage("a refused proposal is never reverted",
        ("broker.partition.isr:LeaderIsr._ineligible", "            self.state.revert()\n", "            proposal.waiting = True\n")),
    breakage("a follower acknowledges what is not flushed",
        ("broker.partition.follower:Follower.named", "replica.log.flushed_end", "replica.log.end"),
        ("broker.partition.follower:LeaderLink._take", "if not replica.durable:", "if False:")),
    breakage("the leader counts itself at its log end",
        ("broker.partition.isr:LeaderIsr.end_offset_of", "self.replica.log.flushed_end", "self.replica.log.end")),
    breakage("acknowledged before the high watermark",
        ("broker.partition.client_requests:Produces._append", "for_commit=acks == ALL", "for_commit=False")),
    breakage("logs are not compared",
        ("raftlog.quorum.log_state:LogEnds.divergence",
         "return None if epoch == last_epoch and offset <= end else (epoch, end)", "return None")),
    breakage("a follower does not truncate",
        ("broker.partition.follower:Follower._truncate", "self.host.truncate(replica, max(target, log.start))", "pass")),
    breakage("roles are taken from an image of a former life",
        ("broker.partition.manager:Roles.reconsider",
         "current = registration is not None and registration.epoch == host.broker_epoch", "current = registration is not None")),
    breakage("a broker that takes itself for fenced takes records",
        ("broker.partition.client_requests:Produces._check", "if not self.host.serves:", "if False:")),
    breakage("a replica that leaves the ISR is not waited for until that is committed",
        ("broker.partition.isr:IsrState._merge",
         "maximal = dict.fromkeys(self.committed)", "maximal = dict.fromkeys(self.committed if self.proposal is None else ())")),
    breakage("what is not committed is dropped",
        ("broker.partition.leader:start_to_keep", "whole = run.end_offset < high_watermark", "whole = run is not runs.runs[-1]"),
        retains=True),
    breakage("more is dropped than the topic is too large by",
        ("broker.partition.leader:start_to_keep", "too_much = 0 <= kept.size <= size - run.size", "too_much = 0 <= kept.size <= size"),
        retains=True),
    breakage("the newest batch is dropped",
        ("broker.partition.leader:start_to_keep",
         "            if too_old and start < runs.last_base < high_watermark:\n                return runs.last_base\n",
         "            if too_old and run.end_offset == high_watermark:\n                return run.end_offset\n"), retains=True),
    breakage("a follower below the log start is sent what there is",
        ("broker.partition.sessions:Session._name", "if named.fetch_offset < log.start or (", "if ("), retains=True),
    breakage("a follower begins anew whatever it has",
        ("broker.partition.follower:Follower.begin_at",
         "if not (log_start_offset > log.end or (is_empty and 0 <= log_start_offset < log.end)):", "if log_start_offset < 0:"),
        ("broker.partition.sessions:Session._name",
         "        if diverging is not None:\n",
         "        if diverging is not None:\n            self.is_out_of_range(key, log.start)\n            return\n"), retains=True),
    breakage("a log that was cut keeps what it knew of the rest",
        ("broker.partition.host:Host.truncate", "            replica.runs.truncate(end_offset)\n", "            pass\n"), retains=True),
)
# fmt: on


FEW = 40


@pytest.mark.parametrize("block", range(4))
def test_the_promises_hold(block: int) -> None:
    worlds = [run(seed) for seed in range(block * 15, block * 15 + 15)]
    assert sum(world.acked for world in worlds) > 30
    assert sum(world.led for world in worlds) > 20


def test_they_hold_with_epochs_that_may_be_left_out() -> None:
    for seed in range(100, 110):
        run(seed, level=1)


@pytest.mark.parametrize(
    "breakage", BREAKAGES, ids=lambda breakage: breakage.name.replace(" ", "-")
)
def test_a_breakage_is_caught(breakage: Breakage) -> None:
    with edited(breakage.edits), pytest.raises(BrokenPromiseError):
        _first_few(retains=breakage.retains)


def _first_few(*, retains: bool) -> None:
    for seed in range(FEW):
        run(seed, retains=retains)


def test_they_hold_where_topics_do_not_keep_everything() -> None:
    worlds = [run(seed, retains=True) for seed in range(200, 300)]
    assert sum(world.acked for world in worlds) > 500
    assert sum(world.drops for world in worlds) > 50
    assert sum(world.resets for world in worlds) > 5


# --- Random schedules in which the metadata is taken back ----------------------------------------


KEY = (TOPIC_ID, 0)
FLOOR = "controller.state.batched_changes:EpochFloor"
RECOVERY_BREAKAGES = {
    "leader epochs are raised by one": (
        Edit(
            f"{FLOOR}._raise_some",
            "self.first)",
            "view.partitions[key].leader_epoch + 1)",
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
    worlds = [run_recovered(seed) for seed in range(block * 15, block * 15 + 15)]
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


@pytest.mark.parametrize("name", RECOVERY_BREAKAGES)
def test_breakage_of_a_recovery_is_caught(name: str) -> None:
    with edited(RECOVERY_BREAKAGES[name]), pytest.raises(BrokenPromiseError):
        _first_few_recovered()


def _first_few_recovered() -> None:
    for seed in range(40):
        run_recovered(seed)

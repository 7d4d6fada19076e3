"""The core as a whole: determinism, unexpected input, its own checks."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from one_node import caught_up, leader_of_three
from quorum_harness import Cluster

from raftlog.errors import InvariantError
from raftlog.node.storage.api import VoteState
from raftlog.quorum import events as ev
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def test_unexpected_message_is_ignored() -> None:
    node = leader_of_three()
    at = len(node.effects)
    for thing in (pb.VoteResponse(), pb.FetchSnapshotResponse(), None, "x"):
        node.receive(thing)
    node.step(ev.ResponseReceived(2, 1, None))
    node.step(ev.RequestFailed(9, 99))
    assert len(node.effects) == at


def test_same_input_yields_the_same_output() -> None:
    def history() -> list[Any]:
        cluster = Cluster(5, 1, seed=3, connected=True)
        cluster.elect()
        cluster.propose(3)
        cluster.resign()
        cluster.run(3)
        return cluster.history

    assert history() == history()


def test_effects_of_starting_are_returned_by_the_first_step() -> None:
    node = Cluster(3, start=False)[1]
    node.disk.vote = VoteState(2)
    node.disk.log = [(4, 1)]
    node.start()
    voters = node.config.voters
    assert node.effects[:2] == [ev.VotersChanged(-1, voters), ev.PeersChanged(voters[1:])]
    assert node.effects[2:4] == [ev.PersistVote(VoteState(4)), ev.LeaderChanged(-1, 4)]


def test_leader_id_is_saved_after_the_sends() -> None:
    """The leader's id is not a promise: nothing waits for it."""
    node = leader_of_three()
    kinds = [type(effect).__name__ for effect in node.effects]
    became = kinds.index("BecameLeader")
    assert kinds[became - 2 : became + 2] == ["Send", "Send", "BecameLeader", "SaveLeader"]


BREACHES: list[tuple[str, Callable[[Any], object]]] = [
    ("flushed end", lambda node: setattr(node.log, "flushed_end", node.log.end + 1)),
    ("HW", lambda node: setattr(node, "high_watermark", node.log.end + 1)),
    ("never goes down", lambda node: setattr(node, "high_watermark", 0)),
    ("higher epoch", lambda node: setattr(node, "vote", VoteState(0))),
    ("never changed or forgotten", lambda node: setattr(node, "vote", VoteState(1, 3, "dir3", 1))),
    ("durable vote", lambda node: setattr(node, "durable_vote", VoteState(1))),
    ("names itself", lambda node: setattr(node, "leader_id", 2)),
    (
        "newest in the log",
        lambda node: setattr(node, "voters", node.history.before.__class__(node.voters.all)),
    ),
]
"""Violations of the checks of O(1), which run after each step in production, too."""
SLOW_BREACHES: list[tuple[str, Callable[[Any], object]]] = [
    ("one leader", lambda node: setattr(node, "vote", VoteState(1, 1, "dir1", 2))),
    ("higher epoch", lambda node: node.log.epochs.append(7, node.log.end - 1)),
    ("counts itself", lambda node: setattr(node, "is_voter", False)),
    ("does not lead", lambda node: setattr(node, "participates", False)),
    ("no other replica", lambda node: node.role.progress.voters.pop(3)),
]


@pytest.mark.parametrize("by_step", [False, True])
def test_violation_is_named_and_effects_of_its_step_are_withheld(by_step: bool) -> None:
    for rule, breach in BREACHES if by_step else BREACHES + SLOW_BREACHES:
        node = leader_of_three()
        node.propose([5])
        caught_up(node, fetch_offset=1)
        node.up.validate_each_step = False
        node.step(ev.Tick())
        node.up.validate()
        breach(node.up._node)
        tick = partial(node.up.step, ev.Tick(), node.cluster.now)
        with pytest.raises(InvariantError, match=rule):
            (tick if by_step else node.up.validate)()


def test_tick_acts_only_at_the_deadline() -> None:
    """A Tick before the deadline does nothing; at the deadline an event happens or the deadline
    moves.
    """
    cluster = Cluster(3, connected=True)
    cluster.elect()
    rng = random.Random(1)
    for _ in range(300):
        for node in cluster.alive:
            deadline = node.up.next_deadline()
            if deadline > cluster.now:
                at = len(node.effects)
                node.step(ev.Tick())
                assert len(node.effects) == at
            else:
                node.step(ev.Tick())
                assert node.up.next_deadline() > cluster.now
        cluster.settle()
        cluster.now += rng.random() * 0.2

"""A leader that is about to hand over says so, and the voters store their votes ahead."""

from __future__ import annotations

from functools import partial
from typing import Any

from quorum_harness import CLUSTER, Cluster, SimNode, effects_of, requests_of

from raftlog.quorum.events import (
    BecameLeader,
    PersistVote,
    PrepareVote,
    Reply,
    RequestReceived,
    ResignRequested,
    SuccessorChosen,
)
from raftlog.storage.api import VoteState
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def about_to_hand_over(voters: int = 3) -> tuple[Cluster, SimNode, SimNode, SimNode]:
    """A cluster, its leader, the successor that it has named, and another voter; the votes are
    stored.
    """
    cluster = Cluster(voters, connected=True)
    leader = cluster.elect()
    cluster.propose()
    cluster.settle()
    successor, other, *_ = (node for node in cluster.alive if node is not leader)
    leader.step(SuccessorChosen(successor.id))
    cluster.settle()
    return cluster, leader, successor, other


def stored_for(successor: SimNode, epoch: int) -> VoteState:
    return VoteState(epoch, successor.id, successor.config.directory_id)


def ask(node: SimNode, candidate: SimNode, epoch: int, **other: Any) -> pb.VoteResponse:
    """Ask a node for its vote, with a log like its own unless ``other`` says more."""
    values = {"last_offset_epoch": node.up.last_epoch, "last_offset": node.up.log_end_offset}
    request = pb.VoteRequest(
        cluster_id=CLUSTER,
        voter_id=node.id,
        voter_directory_id=node.config.directory_id,
        replica_epoch=epoch,
        replica_id=candidate.id,
        replica_directory_id=candidate.config.directory_id,
        **(values | other),
    )
    node.step(RequestReceived(request, (candidate.id, 77, candidate.life)))
    replies = [e for e in node.effects if isinstance(e, Reply)]
    assert isinstance(replies[-1].response, pb.VoteResponse)
    return replies[-1].response


def persisted(node: SimNode, since: int) -> list[VoteState]:
    return [e.vote for e in node.effects[since:] if isinstance(e, PersistVote)]


def any_leads(nodes: list[SimNode]) -> bool:
    return any(effects_of(node, BecameLeader) for node in nodes)


def test_all_voters_store_their_votes_and_stay_in_their_epoch() -> None:
    cluster, leader, successor, _ = about_to_hand_over()
    for node in cluster.alive:
        assert node.disk.vote == stored_for(successor, 2)
        assert (node.up.epoch, node.up.leader_id) == (1, leader.id)
    assert successor.up.is_successor
    assert not leader.up.is_successor
    before = leader.high_watermark
    cluster.propose()
    cluster.settle()
    assert leader.high_watermark == before + 1, "it leads on, and they acknowledge"


def test_a_transfer_waits_for_no_vote() -> None:
    cluster, leader, successor, _other = about_to_hand_over()
    at = {node.id: len(node.effects) for node in cluster.alive}
    leader.step(ResignRequested("asked to", successor.id))
    cluster.run_until(lambda: successor.up.role == "leader", 0.05, step=0.001)
    assert successor.up.was_chosen
    for node in cluster.alive:
        assert persisted(node, at[node.id]) == []
    assert {node.up.epoch for node in (leader, successor)} == {2}
    cluster.settle()
    assert {node.disk.vote.epoch for node in cluster.alive} == {2}


def test_the_log_is_looked_at_when_the_vote_is_asked_for() -> None:
    _, _, successor, other = about_to_hand_over()
    end, at = other.up.log_end_offset, len(other.effects)
    assert not ask(other, successor, 2, last_offset=end - 1).vote_granted
    assert ask(other, successor, 2).vote_granted
    assert persisted(other, at) == []


def test_a_running_voter_is_free_to_vote_for_another_and_stores_that_first() -> None:
    cluster, leader, successor, other = about_to_hand_over()
    cluster.crash(leader.id)
    at = len(successor.effects)
    ask(successor, other, 2)
    assert persisted(successor, at) == [stored_for(other, 2)]
    assert not ask(successor, leader, 2).vote_granted


def test_a_refused_candidate_takes_nothing_from_the_prepared_vote() -> None:
    """The epoch that it opens is on the disk already."""
    _, leader, successor, other = about_to_hand_over()
    at = len(other.effects)
    assert not ask(other, leader, 2, last_offset=0, last_offset_epoch=0).vote_granted
    assert other.up.epoch == 2
    assert ask(other, successor, 2).vote_granted
    assert persisted(other, at) == []


def test_a_vote_stored_behind_it_takes_its_place() -> None:
    """[Epoch 3 begins and the successor of epoch 2 is forgotten; the disk has no vote for it]"""
    _, leader, successor, other = about_to_hand_over()
    at = len(other.effects)
    assert not ask(other, leader, 3, last_offset=0, last_offset_epoch=0).vote_granted
    assert persisted(other, at) == [VoteState(3)]
    assert not ask(other, successor, 2).vote_granted


def test_it_counts_only_when_it_is_durable() -> None:
    cluster = Cluster(3, connected=True)
    leader = cluster.elect()
    cluster.settle()
    successor, other = (node for node in cluster.alive if node is not leader)
    leader.step(SuccessorChosen(successor.id))
    for message in list(cluster.network):
        if message.target == other.id:
            cluster.network.remove(message)
            cluster.deliver(message)
    assert len(effects_of(other, PrepareVote)) == 1
    at = len(other.effects)
    ask(other, successor, 2)
    assert persisted(other, at) == [stored_for(successor, 2)]
    assert other.disk.vote.epoch == 1, "nothing is told before it is"


def test_a_node_that_comes_back_has_given_its_vote() -> None:
    cluster, leader, successor, other = about_to_hand_over()
    cluster.crash(other.id)
    cluster.restart(other.id)
    assert (other.up.epoch, other.up.voted_id) == (2, successor.id)
    assert not ask(other, leader, 2).vote_granted
    assert ask(other, successor, 2).vote_granted


def test_a_successor_that_comes_back_takes_no_part_in_that_epoch() -> None:
    """It may have led it."""
    cluster, _, successor, _ = about_to_hand_over()
    cluster.crash(successor.id)
    cluster.restart(successor.id)
    assert (successor.up.role, successor.up.epoch) == ("resigned", 2)


def test_when_the_leader_leads_on_the_vote_of_its_epoch_is_stored_again() -> None:
    cluster, leader, _successor, other = about_to_hand_over()
    leader.step(SuccessorChosen(-1))
    cluster.propose()
    cluster.settle()
    for node in cluster.alive:
        assert node.disk.vote.epoch == 1
        assert node.disk.vote.leader_id == leader.id
    assert leader.disk.vote.voted_id == leader.id
    cluster.crash(other.id)
    cluster.restart(other.id)
    cluster.run(1.0)
    assert (leader.up.role, leader.up.epoch) == ("leader", 1), "nobody is disturbed"


def test_two_transfers_in_a_row_prepare_for_the_last_named() -> None:
    cluster, leader, successor, other = about_to_hand_over()
    leader.step(SuccessorChosen(other.id))
    cluster.settle()
    assert {node.disk.vote for node in cluster.alive} == {stored_for(other, 2)}
    leader.step(ResignRequested("asked to", other.id))
    cluster.run_until(lambda: other.up.role == "leader", 0.05, step=0.001)
    other.step(SuccessorChosen(successor.id))
    cluster.settle()
    assert {node.disk.vote for node in cluster.alive} == {stored_for(successor, 3)}
    other.step(ResignRequested("asked to", successor.id))
    cluster.run_until(lambda: successor.up.role == "leader", 0.05, step=0.001)
    assert successor.up.epoch == 3


def test_without_the_leader_and_the_successor_the_others_elect_as_soon_as_ever() -> None:
    """The votes that they have stored bind no running node."""
    took: list[float] = []
    for prepares in (True, False):
        cluster = Cluster(5, connected=True)
        leader = cluster.elect()
        cluster.settle()
        successor, *others = (node for node in cluster.alive if node is not leader)
        if prepares:
            leader.step(SuccessorChosen(successor.id))
            cluster.settle()
        cluster.crash(successor.id)
        cluster.crash(leader.id)
        begun = cluster.now
        cluster.run_until(partial(any_leads, others), 5)
        took.append(cluster.now - begun)
        assert {node.up.epoch for node in others} == {2}
    assert took[0] <= took[1] + 0.001


def test_with_two_voters_the_one_left_is_elected_by_both() -> None:
    cluster = Cluster(2, connected=True)
    leader = cluster.elect()
    cluster.settle()
    (successor,) = (node for node in cluster.alive if node is not leader)
    leader.step(SuccessorChosen(successor.id))
    cluster.settle()
    leader.step(ResignRequested("asked to", successor.id))
    cluster.run_until(lambda: successor.up.role == "leader", 0.05, step=0.001)
    assert any(requests_of(successor, pb.VoteRequest))


def test_what_names_no_voter_is_prepared_for_nobody() -> None:
    cluster = Cluster(3, connected=True)
    leader = cluster.elect()
    cluster.settle()
    for stranger in (9, leader.id, -1):
        leader.step(SuccessorChosen(stranger))
        cluster.settle()
        assert {node.disk.vote.epoch for node in cluster.alive} == {1}

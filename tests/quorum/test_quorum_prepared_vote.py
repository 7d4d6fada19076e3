"""A leader that is about to hand over says so, and the voters store their votes ahead."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from quorum_harness import CLUSTER, Cluster, SimNode, effects_of, requests_of

from raftlog.errors import ErrorCode
from raftlog.quorum.events import (
    BecameLeader,
    PersistVote,
    PrepareVote,
    Reply,
    ReplyFetch,
    RequestReceived,
    ResignRequested,
    SendFetch,
    SpaceChanged,
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


def resign(leader: SimNode, successor: SimNode) -> None:
    leader.step(ResignRequested("asked to", successor.id))


def deliver_first(cluster: Cluster, is_it: Any) -> None:
    """Hand over the first message of a kind, before those that were sent sooner."""
    message = next(message for message in cluster.network if is_it(message))
    cluster.network.remove(message)
    cluster.deliver(message)


def tells_vote(message: Any) -> bool:
    return isinstance(message.body, pb.FetchResponse) and message.body.HasField("vote")


def test_the_leader_gives_its_vote_with_the_resignation_and_nobody_is_asked() -> None:
    cluster, leader, successor, _other = about_to_hand_over()
    asked = len(list(requests_of(successor, pb.VoteRequest)))
    resign(leader, successor)
    assert (leader.up.epoch, leader.up.voted_id) == (2, successor.id)
    deliver_first(cluster, tells_vote)
    assert (successor.up.role, successor.up.epoch) == ("leader", 2), "one hop"
    (*_, began) = effects_of(successor, BecameLeader)
    assert set(began.granting_voters) == {leader.id, successor.id}
    assert len(list(requests_of(successor, pb.VoteRequest))) == asked
    cluster.settle()
    assert {node.up.leader_id for node in cluster.alive} == {successor.id}


def test_its_vote_is_the_first_thing_that_leaves() -> None:
    _, leader, successor, _ = about_to_hand_over()
    at = len(leader.effects)
    resign(leader, successor)
    told, asked, *_ = leader.effects[at:]
    assert isinstance(told, ReplyFetch)
    assert told.response.vote.vote_granted
    assert isinstance(asked, SendFetch)
    assert (asked.peer_id, asked.request.current_leader_epoch) == (successor.id, 2)
    assert persisted(leader, at) == []


def test_a_fetch_of_the_next_epoch_waits_at_the_successor_until_it_leads() -> None:
    cluster, leader, successor, _ = about_to_hand_over()
    resign(leader, successor)
    deliver_first(
        cluster,
        lambda message: (
            isinstance(message.body, pb.FetchRequest) and message.body.current_leader_epoch == 2
        ),
    )
    assert successor.up.role == "follower"
    assert not any(message.source == successor.id for message in cluster.network), "no answer yet"
    deliver_first(cluster, tells_vote)
    answers = [
        message
        for message in cluster.network
        if (message.source, message.target) == (successor.id, leader.id)
        and isinstance(message.body, pb.FetchResponse)
    ]
    assert [message.body.error_code for message in answers] == [0]
    assert answers[0].span is not None, "with the first record of the epoch"


def test_a_fetch_that_waits_is_refused_when_the_successor_does_not_campaign() -> None:
    cluster, leader, successor, other = about_to_hand_over()
    resign(leader, successor)
    deliver_first(
        cluster,
        lambda message: (
            isinstance(message.body, pb.FetchRequest) and message.body.current_leader_epoch == 2
        ),
    )
    at = len(successor.effects)
    ask(successor, other, 3)
    (refused,) = (e for e in successor.effects[at:] if isinstance(e, ReplyFetch))
    assert refused.response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_of_five_the_vote_that_was_given_counts_and_the_others_are_asked() -> None:
    cluster, leader, successor, _ = about_to_hand_over(5)
    resign(leader, successor)
    cluster.run_until(lambda: successor.up.role == "leader", 0.05, step=0.001)
    (*_, began) = effects_of(successor, BecameLeader)
    assert {leader.id, successor.id} < set(began.granting_voters)
    cluster.settle()
    assert {node.up.leader_id for node in cluster.alive} == {successor.id}


def test_a_leader_does_not_vote_for_one_that_lacks_a_record_or_whose_vote_is_not_stored() -> None:
    cluster, leader, successor, _ = about_to_hand_over()
    cluster.propose()
    resign(leader, successor)
    assert (leader.up.role, leader.up.epoch) == ("resigned", 1)
    cluster = Cluster(3, connected=True)
    leader = cluster.elect()
    cluster.settle()
    successor, _other = (node for node in cluster.alive if node is not leader)
    leader.step(SuccessorChosen(successor.id))
    resign(leader, successor)
    assert (leader.up.role, leader.up.epoch) == ("resigned", 1)


def test_a_vote_that_was_given_counts_in_its_epoch_alone() -> None:
    """[The successor is a candidate again two epochs later, and still has the old vote]"""
    cluster, leader, successor, other = about_to_hand_over()
    resign(leader, successor)
    cluster.run_until(lambda: successor.up.role == "leader", 0.05, step=0.001)
    cluster.settle()
    resign(successor, other)
    cluster.run_until(lambda: other.up.role == "leader" and cluster.calm(), 5)
    cluster.propose()
    cluster.run(1.0)
    leader.step(SpaceChanged(low=True))  # It leaves the election to the successor.
    cluster.crash(other.id)
    cluster.run_until(lambda: successor.up.role in ("candidate", "leader"), 5, step=0.0001)
    assert successor.up.epoch > 2
    assert successor.up.role == "candidate"
    assert leader.id not in successor.role.granted, "it has not voted in this epoch yet"


@pytest.mark.parametrize(
    "wrong",
    [
        {"vote_granted": False},
        {"pre_vote": True},
        {"leader_epoch": 3},
        {"error_code": int(ErrorCode.FENCED_LEADER_EPOCH)},
    ],
)
def test_an_answer_that_tells_of_no_vote_of_the_next_epoch_gives_none(wrong: Any) -> None:
    cluster, leader, successor, _ = about_to_hand_over()
    resign(leader, successor)
    message = next(message for message in cluster.network if tells_vote(message))
    for field, value in wrong.items():
        setattr(message.body.vote, field, value)
    deliver_first(cluster, tells_vote)
    assert successor.up.role == "candidate", "it has to ask"
    cluster.settle()
    assert successor.up.role == "leader"


def test_a_leader_whose_disk_is_behind_fetches_as_soon_as_it_is_not() -> None:
    cluster, leader, successor, _ = about_to_hand_over()
    cluster.propose()
    while leader.up.high_watermark < leader.up.log_end_offset or successor.log != leader.log:
        others = [node for node in cluster.alive if node is not leader]
        if not any(node.persist() or node.flush() for node in others):
            cluster.deliver(cluster.network.pop(0))
    assert leader.up.flushed_end_offset < leader.up.log_end_offset
    while successor.flush() or cluster.network:
        if cluster.network:
            cluster.deliver(cluster.network.pop(0))
    at = len(leader.effects)
    resign(leader, successor)
    assert leader.up.epoch == 2
    asked = [e for e in leader.effects[at:] if isinstance(e, SendFetch)]
    assert asked == []
    assert leader.flush()
    asked = [e for e in leader.effects[at:] if isinstance(e, SendFetch)]
    assert [e.request.current_leader_epoch for e in asked] == [2]


def test_who_follows_the_successor_unasked_stores_nothing_first() -> None:
    """The epoch, and a vote in it, are on its disk already."""
    cluster, leader, successor, other = about_to_hand_over()
    at = len(other.effects)
    resign(leader, successor)
    deliver_first(cluster, tells_vote)
    deliver_first(
        cluster,
        lambda message: (
            message.target == other.id and isinstance(message.body, pb.BeginQuorumEpochRequest)
        ),
    )
    assert (other.up.role, other.up.leader_id) == ("follower", successor.id)
    assert persisted(other, at) == []
    cluster.settle()
    assert other.disk.vote.leader_id == successor.id, "saved when the disk had time"

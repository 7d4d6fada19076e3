"""Fetches around an election: early ones of a voter, and the answers of a resigning leader, which
name its successor.
"""

import pytest
from one_node import begin, fetch_request, granted, one, vote_request
from quorum_harness import Cluster, SimNode, effects_of, elected, requests_of

from raftlog.errors import ErrorCode
from raftlog.node.storage.api import VoteState
from raftlog.quorum import events as ev
from raftlog.quorum.leader import MORE_WITHIN_S
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def alone() -> SimNode:
    return one(VoteState(3), [(3, 7)], fatal_allowed=False)


def candidate() -> SimNode:
    """Node 1 has voted for itself, durably, in epoch 4."""
    node = alone()
    for peer_id in (2, 3):
        node.step(ev.PeerConnected(peer_id))
    answer(node, granted(2, 3, pre_vote=True))
    assert node.up.role == "candidate"
    node.step(ev.VotePersisted(node.up._node.vote))
    return node


def answer(node: SimNode, response: pb.VoteResponse) -> None:
    sent = [e for e in node.effects if type(getattr(e, "request", None)) is pb.VoteRequest]
    node.answer(next(e for e in reversed(sent) if e.peer_id == 2), response)


def elect(node: SimNode) -> None:
    answer(node, granted(2, 4))
    assert node.up.role == "leader"


def fetch(node: SimNode, replica_id: int, number: int) -> list[ev.ReplyFetch]:
    """Return the responses to the Fetch of a voter that has everything, and knows nothing."""
    request = fetch_request(
        replica_id, 4, fetch_offset=1, last_fetched_epoch=3, correlation_id=number
    )
    return effects_of(node.receive(request, replica_id), ev.ReplyFetch)


def refused(reply: ev.ReplyFetch) -> tuple[int, int]:
    assert reply.response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    return reply.reply_to[0], reply.response.correlation_id


def test_candidate_answers_early_fetch_with_its_first_record() -> None:
    node = candidate()
    assert fetch(node, 2, 5) == []
    at = len(node.effects)
    elect(node)
    (reply,) = effects_of(node.effects[at:], ev.ReplyFetch)
    assert (reply.reply_to[0], reply.offset, reply.response.leader_id) == (2, 1, 1)
    assert reply.max_bytes > 0
    told = [request.voter_id for request in requests_of(node, pb.BeginQuorumEpochRequest)]
    assert told == [3], "the answer tells the other who leads"


def test_early_fetch_is_answered_with_the_first_writes_or_soon() -> None:
    for writes in (True, False):
        node = candidate()
        fetch(node, 2, 5)
        node.more_follows = True
        at = len(node.effects)
        elect(node)
        assert not effects_of(node.effects[at:], ev.ReplyFetch)
        begun = node.cluster.now
        assert fetch(node, 3, 6) == [], "who comes meanwhile waits, too"
        if writes:
            node.more_follows = False
            node.propose([50])
        else:
            assert node.up.next_deadline() <= begun + MORE_WITHIN_S
            node.cluster.run(2 * MORE_WITHIN_S)
        replies = effects_of(node.effects[at:], ev.ReplyFetch)
        assert [reply.offset for reply in replies] == [1, 1]


def test_losing_candidate_refuses_all_kept_fetches() -> None:
    node = candidate()
    fetch(node, 2, 5)
    fetch(node, 3, 6)
    replies = effects_of(node.receive(begin(3, 5), 3), ev.ReplyFetch)
    assert [refused(reply) for reply in replies] == [(2, 5), (3, 6)]


def test_candidate_keeps_one_fetch_per_voter_and_none_of_others() -> None:
    node = candidate()
    assert fetch(node, 2, 5) == []
    (older,) = fetch(node, 2, 6)
    assert refused(older) == (2, 5)
    (stranger,) = fetch(node, 7, 8)
    assert refused(stranger) == (7, 8)


def vote_for(node: SimNode, candidate_id: int) -> ev.SendFetch:
    """Vote, and return the Fetch that follows."""
    whole = {"last_offset_epoch": 3, "last_offset": 1}
    node.receive(vote_request(1, candidate_id, replica_epoch=4, **whole), candidate_id)
    assert node.up.voted_id == candidate_id
    (sent,) = effects_of(node, ev.SendFetch)
    assert (sent.peer_id, sent.request.current_leader_epoch) == (candidate_id, 4)
    return sent


def test_voter_learns_the_leader_from_the_response_and_uses_it() -> None:
    node = alone()
    sent = vote_for(node, 2)
    node.answer(sent, pb.FetchResponse(leader_id=2, leader_epoch=4, high_watermark=1))
    assert (node.up.role, node.up.leader_id) == ("follower", 2)
    assert node.up.high_watermark == 1, "the answer counts"
    first, second = effects_of(node, ev.SendFetch)
    assert first is sent
    assert second.peer_id == 2, "one Fetch at a time"


def test_voter_that_learned_the_leader_does_not_ask_twice() -> None:
    node = alone()
    sent = vote_for(node, 2)
    node.receive(begin(2, 4))
    assert node.up.role == "follower"
    assert effects_of(node, ev.SendFetch) == [sent]
    node.answer(sent, pb.FetchResponse(leader_id=2, leader_epoch=4, high_watermark=1))
    assert node.up.high_watermark == 1


def test_voter_whose_candidate_loses_waits_and_then_follows_another() -> None:
    for lost in (True, False):
        node = alone()
        sent = vote_for(node, 2)
        if lost:
            refusal = pb.FetchResponse(
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader_id=-1, leader_epoch=4
            )
            node.answer(sent, refusal)
        else:
            node.step(ev.RequestFailed(2, sent.correlation_id))
        assert node.up.role == "unattached"
        node.receive(begin(3, 5), 3)
        assert node.up.leader_id == 3
        assert node.last(ev.SendFetch).peer_id == 3


def test_response_of_an_epoch_with_another_leader_is_ignored() -> None:
    node = alone()
    sent = vote_for(node, 2)
    node.receive(begin(3, 5), 3)
    node.answer(sent, pb.FetchResponse(leader_id=2, leader_epoch=4, high_watermark=1))
    assert (node.up.leader_id, node.up.epoch, node.up.high_watermark) == (3, 5, -1)


def test_last_response_of_a_leader_lets_its_successor_campaign_at_once() -> None:
    """Before the request with the same content."""
    cluster, leader = elected()
    cluster.settle()
    others = cluster.others(leader)
    chosen = others[1]
    at = len(leader.effects)
    leader.step(ev.ResignRequested("asked to", chosen.id))
    told = [e.response for e in leader.effects[at:] if isinstance(e, ev.ReplyFetch)]
    assert [list(response.preferred_candidates) for response in told] == [[chosen.id]] * 2
    cluster.network = [
        m for m in cluster.network if not isinstance(m.body, pb.EndQuorumEpochRequest)
    ]
    begun = cluster.now
    cluster.run_until(lambda: bool(effects_of(chosen, ev.BecameLeader)), 0.05, step=0.001)
    assert not effects_of(others[0], ev.BecameLeader)
    assert cluster.now - begun < 0.01


def test_voter_fetches_from_its_candidate_once_its_own_log_is_flushed() -> None:
    """Its log was still being written when it voted."""
    cluster, leader = elected()
    cluster.settle()
    leader.propose([50])
    assert leader.up.flushed_end_offset < leader.up.log_end_offset
    (candidate, _) = cluster.others(leader)
    whole = {"last_offset_epoch": leader.up.last_epoch, "last_offset": leader.up.log_end_offset}
    at = len(leader.effects)
    leader.receive(vote_request(leader.id, candidate.id, replica_epoch=2, **whole), candidate.id)
    assert (leader.up.role, leader.up.voted_id) == ("unattached", candidate.id)
    assert not effects_of(leader.effects[at:], ev.SendFetch)
    while leader.flush():
        pass
    sent = effects_of(leader.effects[at:], ev.SendFetch)
    assert [(e.peer_id, e.request.current_leader_epoch) for e in sent] == [(candidate.id, 2)]


# --- the named successor ------------------------------------------------------------------------


def cluster_with_successor(voters: int = 3) -> tuple[Cluster, SimNode, SimNode]:
    """A cluster, its leader, and the voter that it has named as its successor."""
    cluster, leader = elected(voters)
    cluster.propose()
    cluster.settle()
    successor = cluster.others(leader)[0]
    leader.step(ev.SuccessorChosen(successor.id))
    cluster.settle()
    return cluster, leader, successor


def transfer(cluster: Cluster, leader: SimNode, successor: SimNode) -> None:
    leader.step(ev.ResignRequested("asked to", successor.id))
    cluster.run_until(lambda: successor.up.role == "leader", 0.05, step=0.001)


def test_only_the_successor_knows_that_it_is_named_and_the_leader_keeps_leading() -> None:
    cluster, leader, successor = cluster_with_successor()
    assert [node for node in cluster.alive if node.up.is_successor] == [successor]
    assert {node.disk.vote.epoch for node in cluster.alive} == {1}, "no vote is stored ahead"
    before = leader.high_watermark
    cluster.propose()
    cluster.settle()
    assert leader.high_watermark == before + 1


@pytest.mark.parametrize("voters", [2, 3, 5])
def test_leader_knows_whether_it_was_the_named_successor(voters: int) -> None:
    cluster, leader, successor = cluster_with_successor(voters)
    transfer(cluster, leader, successor)
    assert (successor.up.epoch, successor.up.succeeds_leader) == (2, True)
    cluster.settle()
    transfer(cluster, successor, leader)
    assert (leader.up.epoch, leader.up.succeeds_leader) == (3, False), "it was not named"


def test_successor_campaigns_without_pre_votes() -> None:
    cluster, leader, successor = cluster_with_successor()
    asked = len(list(requests_of(successor, pb.VoteRequest)))
    transfer(cluster, leader, successor)
    requests = list(requests_of(successor, pb.VoteRequest))[asked:]
    assert [request.pre_vote for request in requests] == [False, False]


def test_another_successor_or_none_replaces_the_named_one() -> None:
    cluster, leader, successor = cluster_with_successor()
    (other,) = cluster.others(leader, successor)
    leader.step(ev.SuccessorChosen(other.id))
    cluster.settle()
    assert [node for node in cluster.alive if node.up.is_successor] == [other]
    leader.step(ev.SuccessorChosen(-1))
    cluster.propose()
    cluster.settle()
    assert not [node for node in cluster.alive if node.up.is_successor]


def test_named_successor_is_valid_in_its_epoch_only() -> None:
    cluster, leader, successor = cluster_with_successor()
    (other,) = cluster.others(leader, successor)
    transfer(cluster, leader, other)
    cluster.settle()
    assert not successor.up.is_successor
    transfer(cluster, other, successor)
    assert (successor.up.epoch, successor.up.succeeds_leader) == (3, False)


def test_leader_names_neither_a_non_voter_nor_itself() -> None:
    cluster, leader, _ = cluster_with_successor()
    for stranger in (9, leader.id, -1):
        leader.step(ev.SuccessorChosen(stranger))
        cluster.propose()
        cluster.settle()
        assert not [node for node in cluster.alive if node.up.is_successor]


def test_successor_with_another_disk_is_not_this_node() -> None:
    cluster, leader, successor = cluster_with_successor()
    leader.step(ev.SuccessorChosen(-1))
    cluster.propose()
    cluster.settle()
    (*_, sent) = effects_of(successor, ev.SendFetch)
    response = pb.FetchResponse(
        leader_id=leader.id,
        leader_epoch=1,
        high_watermark=successor.high_watermark,
        successor=pb.PreferredCandidate(
            candidate_id=successor.id, candidate_directory_id="another"
        ),
    )
    successor.step(ev.ResponseReceived(leader.id, sent.correlation_id, response))
    assert successor.last(ev.SendFetch) is not sent, "the answer was accepted"
    assert not successor.up.is_successor

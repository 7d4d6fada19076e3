"""Votes, pre-votes and leadership (KIP-595, KIP-996), with counter-examples to simpler rules."""

import random
from typing import Any

import pytest
from one_node import ask, begin, end_request, granted, one, vote_request
from quorum_harness import Cluster, SimNode, effects_of, elected, requests_of

from raftlog.errors import ErrorCode, FatalError
from raftlog.node.storage.api import VoteState
from raftlog.quorum import events as ev
from raftlog.quorum.transitions import TRANSITIONS
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

# --- starting -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vote", "log", "role", "epoch"),
    [
        (VoteState(), [], "unattached", 0),
        (VoteState(3, 2, "dir2"), [], "unattached", 3),
        (VoteState(3, 2, "dir2", 2), [], "follower", 3),
        (VoteState(3, 1, "dir1"), [], "resigned", 3),
        (VoteState(3, 1, "dir1", 1), [], "resigned", 3),
        (VoteState(3, -1, "", 1), [], "resigned", 3),
        (VoteState(3, 1, "dir1", 2), [], "resigned", 3),
        (VoteState(3, 1, "dir1", 1), [(4, 1)], "unattached", 4),
        (VoteState(3, 2, "dir2", 9), [], "unattached", 3),
    ],
)
def test_node_starts_in_the_expected_role(
    vote: VoteState, log: list[tuple[int, int]], role: str, epoch: int
) -> None:
    node = one(vote, log)
    assert (node.up.role, node.up.epoch) == (role, epoch)
    if epoch > vote.epoch:
        assert effects_of(node, ev.PersistVote)[0] == ev.PersistVote(VoteState(epoch)), (
            "the log's epoch is made durable first"
        )


def test_node_never_campaigns_again_in_an_epoch_in_which_it_voted_for_itself() -> None:
    """[If it led again, offset and epoch would name two different records.]"""
    node = one(VoteState(3, 1, "dir1", 1), [(3, 1), (3, 2)])
    assert (
        ask(node, vote_request(1, replica_epoch=3, last_offset_epoch=2, last_offset=9)).vote_granted
        is False
    )
    assert node.up.next_deadline() >= node.cluster.now + 1.0, "waits for the election timeout"
    node.cluster.run(1.3)
    sent = list(requests_of(node, pb.VoteRequest))
    assert sent
    assert all(request.pre_vote and request.replica_epoch == 3 for request in sent)
    node.step(ev.PeerConnected(2))
    assert not effects_of(node, ev.BecameLeader)


def test_voter_does_not_campaign_on_a_connection_just_after_voting() -> None:
    """At a cold start a second campaign would unseat the leader that the first is about to elect."""
    node = one()
    assert ask(node, vote_request(1, replica_epoch=1)).vote_granted is True
    at = len(node.effects)
    node.step(ev.PeerConnected(2))
    node.step(ev.PeerConnected(3))
    assert node.up.role == "unattached"
    assert not effects_of(node.effects[at:], ev.Send)
    assert node.up.next_deadline() >= node.cluster.now + 1.0, "the candidate gets its time"
    node.cluster.run(1.3)
    assert node.up.role == "prospective", "and no more than that"


def test_vote_from_before_a_restart_does_not_delay_a_cold_start() -> None:
    node = one(VoteState(3, 2, "dir2"))
    node.step(ev.PeerConnected(2))
    assert node.up.role == "prospective"


def test_restarted_candidate_follows_the_winner_of_its_epoch() -> None:
    node = one(VoteState(3, 1, "dir1"))
    assert ask(node, begin(3, 3)).error_code == ErrorCode.NONE
    assert (node.up.role, node.up.leader_id, node.up.voted_id) == ("follower", 3, 1)


def test_restarted_follower_remembers_its_vote() -> None:
    node = one(VoteState(3, 2, "dir2"))
    assert not ask(node, vote_request(1, 3, replica_epoch=3)).vote_granted
    assert ask(node, vote_request(1, replica_epoch=3)).vote_granted, (
        "the same candidate may ask twice"
    )
    assert not ask(
        node, vote_request(1, replica_epoch=3, replica_directory_id="wiped")
    ).vote_granted


# --- votes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster_id": "other", "replica_epoch": 1}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"cluster_id": "other", "replica_epoch": 12}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"last_offset": -1, "replica_epoch": 12}, ErrorCode.INVALID_REQUEST),
        ({"last_offset_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_offset_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"last_offset_epoch": 6, "pre_vote": True}, ErrorCode.INVALID_REQUEST),
        ({"replica_id": -3}, ErrorCode.INVALID_REQUEST),
        ({"replica_id": 1}, ErrorCode.INVALID_REQUEST),
        ({"replica_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"replica_epoch": 4}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"voter_id": 3, "replica_epoch": 9}, ErrorCode.INVALID_VOTER_KEY),
        ({"voter_directory_id": "wiped", "replica_epoch": 9}, ErrorCode.INVALID_VOTER_KEY),
        ({"voter_directory_id": ""}, ErrorCode.NONE),
        ({"last_offset_epoch": 5, "pre_vote": True}, ErrorCode.NONE),
    ],
)
def test_invalid_vote_request_is_refused_and_changes_nothing(
    fields: dict[str, Any], error: ErrorCode
) -> None:
    node = one(VoteState(5))
    response = ask(node, vote_request(1, **fields))
    assert response.error_code == error
    assert response.vote_granted is (error == ErrorCode.NONE)
    assert response.leader_epoch == (0 if error == ErrorCode.INCONSISTENT_CLUSTER_ID else 5)
    assert node.up.epoch == 5


def test_vote_is_durable_before_it_is_sent() -> None:
    node = one()
    ask(node, vote_request(1, replica_epoch=2))
    assert effects_of(node, ev.PersistVote) == [ev.PersistVote(VoteState(2, 2, "dir2"))], (
        "epoch and vote in one write"
    )
    assert not node.cluster.network
    node.persist()
    vote, fetch = sorted(node.cluster.network, key=lambda m: m.is_request)
    assert vote.body.vote_granted
    assert (fetch.target, fetch.body.current_leader_epoch) == (2, 2), "it is asked for records"


@pytest.mark.parametrize("pre_vote", [True, False])
@pytest.mark.parametrize(
    ("epoch", "end", "granted"),
    [(3, 5, True), (3, 6, True), (4, 1, True), (3, 4, False), (2, 9, False), (0, 0, False)],
)
def test_candidate_needs_a_log_as_complete_as_the_voters(
    pre_vote: bool, epoch: int, end: int, granted: bool
) -> None:
    node = one(VoteState(5), [(1, 1), (1, 2), (3, 3), (3, 4), (3, 5)])
    request = vote_request(
        1, replica_epoch=6, last_offset_epoch=epoch, last_offset=end, pre_vote=pre_vote
    )
    assert ask(node, request).vote_granted is granted
    assert node.up.epoch == 6, "a pre-vote of a higher epoch moves the epoch too"
    assert node.up.voted_id == (2 if granted and not pre_vote else -1)


def test_candidate_on_another_disk_than_the_configured_one_gets_no_vote() -> None:
    node = one(VoteState(5))
    for pre_vote in (True, False):
        assert not ask(
            node, vote_request(1, pre_vote=pre_vote, replica_directory_id="wiped")
        ).vote_granted


def test_pre_votes_change_no_state() -> None:
    node = one(VoteState(5))
    for candidate in (2, 3):
        assert ask(node, vote_request(1, candidate, pre_vote=True)).vote_granted, (
            "any number of them"
        )
    node.cluster.run(1.3)
    assert node.up.role == "prospective"
    assert not effects_of(node, ev.PersistVote)
    assert node.up.epoch == 5


def test_refused_candidate_does_not_postpone_the_election() -> None:
    node = one(VoteState(5), [(5, 1)])
    before = node.up.next_deadline()
    node.up._node.end_fast_election()  # a cold start is in a hurry anyway
    node.cluster.now += 0.9
    assert not ask(node, vote_request(1, replica_epoch=6)).vote_granted
    assert node.up.next_deadline() == before


def test_candidate_that_lost_part_of_its_log_does_not_get_the_vote_again() -> None:
    """It requested votes, crashed before its own vote was durable, and requests again in the same
    epoch.
    """
    node = one(VoteState(5), [(4, 1), (4, 2)])
    whole = {"last_offset_epoch": 4, "last_offset": 2}
    assert ask(node, vote_request(1, replica_epoch=6, **whole)).vote_granted
    shorter = {"last_offset_epoch": 4, "last_offset": 1}
    assert not ask(node, vote_request(1, replica_epoch=6, **shorter)).vote_granted
    assert ask(node, vote_request(1, replica_epoch=6, **whole)).vote_granted


def test_candidate_requests_votes_before_its_own_vote_is_durable() -> None:
    cluster = Cluster(3)
    node = cluster[1]
    node.step(ev.PeerConnected(2))
    cluster.network.clear()
    answer(node, effects_of(node, ev.Send)[0], 0, pre_vote=True)
    assert node.disk.vote == VoteState(0)
    assert [(m.target, m.body.pre_vote) for m in cluster.network] == [(2, False), (3, False)]
    node.crash()
    node.start()
    assert (node.up.role, node.up.epoch) == ("unattached", 0), "to ask was not a promise"


def test_candidate_counts_its_own_vote_when_it_is_durable() -> None:
    cluster = Cluster(3)
    node = cluster[1]
    node.step(ev.PeerConnected(2))
    answer(node, effects_of(node, ev.Send)[0], 0, pre_vote=True)
    assert node.up.role == "candidate"
    votes = effects_of(node, ev.Send)[2:]
    assert len(votes) == 2
    for vote in votes:
        answer(node, vote, 1)
    assert node.up.role == "candidate", (
        "a majority of others is not enough while the own vote may be lost"
    )
    node.step(ev.VotePersisted(VoteState(0)))
    assert node.up.role == "candidate", "that was another vote"
    node.persist()
    assert node.up.role == "leader"


def answer(node: SimNode, send: ev.Send, epoch: int, **fields: Any) -> None:
    node.answer(send, granted(send.peer_id, epoch, **fields))


@pytest.mark.parametrize(
    "sender", [{"voter_id": 4}, {"voter_directory_id": "wiped"}, {"voter_directory_id": ""}]
)
def test_vote_of_another_node_at_the_voters_address_does_not_count(sender: dict[str, Any]) -> None:
    node = Cluster(3)[1]
    node.step(ev.PeerConnected(2))
    sent = effects_of(node, ev.Send)[0]
    answer(node, sent, 0, pre_vote=True, **sender)
    assert node.up.role == "prospective"
    node = Cluster(3)[1]
    node.step(ev.PeerConnected(2))
    answer(node, effects_of(node, ev.Send)[0], 0, pre_vote=True)
    assert node.up.role == "candidate"


def test_late_repeated_and_foreign_responses_change_nothing() -> None:
    node = Cluster(5)[1]
    node.step(ev.PeerConnected(2))
    node.step(ev.PeerConnected(3))
    sends = effects_of(node, ev.Send)
    answer(node, sends[0], 0, pre_vote=True)
    answer(node, sends[0], 0, pre_vote=True)
    assert node.up.role == "prospective", "one peer's answer counts once"
    forged = ev.Send(sends[1].peer_id, sends[0].correlation_id, sends[0].request)
    answer(node, forged, 0, pre_vote=True)
    answer(node, sends[1], 0, pre_vote=False)
    answer(node, sends[2], 0, pre_vote=True, error_code=int(ErrorCode.INVALID_VOTER_KEY))
    assert node.up.role == "prospective"
    answer(node, sends[3], 0, pre_vote=True)
    assert node.up.role == "candidate"
    answer(node, sends[1], 9, pre_vote=True)
    assert node.up.epoch == 1, "an answer to a role before this one"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ErrorCode.NONE, ("follower", 7, 3)),
        (ErrorCode.INCONSISTENT_CLUSTER_ID, ("prospective", 0, -1)),
    ],
)
def test_response_with_a_higher_epoch_ends_the_campaign_unless_of_another_cluster(
    error: ErrorCode, expected: tuple[str, int, int]
) -> None:
    node = Cluster(3)[1]
    node.step(ev.PeerConnected(2))
    refusal = {"pre_vote": True, "vote_granted": False, "leader_id": 3, "error_code": int(error)}
    answer(node, effects_of(node, ev.Send)[0], 7, **refusal)
    assert (node.up.role, node.up.epoch, node.up.leader_id) == expected


# --- two leaders, illegal steps -----------------------------------------------------------------


def test_claim_of_a_second_leader_in_an_epoch_is_refused() -> None:
    """Any peer can send it: it shows no violation by this node."""
    node = one(VoteState(5, -1, "", 2))
    at = len(node.effects)
    response = ask(node, begin(3, 5))
    assert (response.error_code, response.leader_id) == (ErrorCode.INVALID_REQUEST, 2)
    assert response.error_message == "leader_id: two leaders in epoch 5: 2 and 3"
    refused, _ = node.effects[at:]
    reason = "two leaders in epoch 5: 2 and 3"
    assert refused == ev.Refused("BeginQuorumEpochRequest", "leader_id", reason, contradiction=True)
    assert (node.up.role, node.up.leader_id) == ("follower", 2)
    assert ask(node, vote_request(1, replica_epoch=9)).vote_granted, "it lives on"


def test_role_transitions_are_enforced() -> None:
    node = one().up._node
    with pytest.raises(
        FatalError, match="no transition is allowed from unattached in epoch 0 to leader"
    ):
        node.become_leader((1,))
    assert all(target in TRANSITIONS for targets in TRANSITIONS.values() for target in targets)
    assert [role for role, targets in TRANSITIONS.items() if "leader" in targets] == ["candidate"]
    assert [role for role, targets in TRANSITIONS.items() if "candidate" in targets] == [
        "prospective"
    ]


# --- how fast, how calm -------------------------------------------------------------------------


@pytest.mark.parametrize("voters", [1, 2, 3, 5])
def test_quorum_elects_a_leader_from_a_cold_start(voters: int) -> None:
    cluster = Cluster(voters, connected=True)
    took = cluster.run_until(cluster.calm)
    assert took < 0.1
    assert len(cluster.oracle.leader_of) == 1
    if voters > 1:
        assert cluster.leader().up.epoch == 1, "nobody split the vote"


def test_election_timer_starts_a_campaign_without_links() -> None:
    cluster = Cluster(3)
    took = cluster.run_until(lambda: bool(cluster.leaders()))
    assert 1.0 <= took < 1.3


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_dead_leader_is_replaced_at_once(voters: int, seed: int) -> None:
    cluster, leader = elected(voters, seed=seed)
    cluster.propose(3)
    cluster.run(random.Random(seed).random() * 0.01)
    epoch = leader.up.epoch
    cluster.crash(leader.id)
    took = cluster.run_until(cluster.calm)
    assert took < 0.12
    assert cluster.leader().up.epoch <= epoch + 2


def test_silent_leader_is_replaced_after_the_fetch_timeout() -> None:
    for seed in range(10):
        cluster, leader = elected(seed=seed)
        cluster.isolate(leader.id)
        took = cluster.run_until(lambda: any(node.id != leader.id for node in cluster.leaders()))  # noqa: B023
        assert 0.6 < took < 1.3


def test_simultaneously_restarted_voters_elect_a_leader_before_the_election_timeout() -> None:
    """A restarted leader tells its followers that it no longer leads."""
    cluster = Cluster(3, connected=True)
    cluster.elect()
    for node_id in (1, 2, 3):
        cluster.crash(node_id, noticed=False)
    cluster.network.clear()
    for node_id in (1, 2, 3):
        cluster.restart(node_id)
    assert cluster.run_until(cluster.calm) < 0.2


def test_lost_leader_and_refused_pre_votes_are_retried_soon() -> None:
    """2 knows that the leader is down, 3 still believes in it: 2 retries at short intervals until 3
    knows too.
    """
    cluster, leader = elected()
    two, three = cluster.others(leader)
    cluster.crash(leader.id, noticed=False)
    two.step(ev.PeerLost(leader.id))
    begun = cluster.now
    cluster.run(0.3)
    asked = [r for r in requests_of(two, pb.VoteRequest) if r.voter_id == three.id and r.pre_vote]
    tries = len(asked)
    assert 5 <= tries <= 31, "10 to 40 ms apart"
    assert two.up.role == "prospective"
    assert three.up.role == "follower", "hears it, as far as it knows"
    three.step(ev.PeerLost(leader.id))
    cluster.run_until(cluster.calm)
    assert cluster.now - begun < 0.45


def test_pre_votes_slow_down_when_the_lost_peer_is_back() -> None:
    cluster, leader = elected()
    two = cluster.others(leader)[0]
    two.step(ev.PeerLost(leader.id))
    cluster.settle()
    assert two.up.role == "prospective", "refused, and about to ask again"
    two.step(ev.PeerConnected(leader.id))
    cluster.run(0.2)
    assert two.up.role == "follower"
    assert len([r for r in requests_of(two, pb.VoteRequest) if r.voter_id == leader.id]) <= 3
    assert len(cluster.oracle.leader_of) == 1, "no needless election"


def test_claim_of_a_leader_known_to_be_dead_is_not_followed() -> None:
    cluster = Cluster(3)
    node = cluster[1]
    node.step(ev.PeerConnected(3))
    node.step(ev.PeerLost(2))
    ask(node, begin(2, 4))
    assert node.up.role == "follower"
    cluster.isolate(2)
    cluster.run(0.06)
    asked = [request for request in requests_of(node, pb.VoteRequest) if request.replica_epoch == 4]
    assert asked, "does not wait for the fetch timeout"


def test_responding_leader_is_not_treated_as_dead() -> None:
    """Its process returned and was elected before our control link to it was up again."""
    cluster = Cluster(3)
    cluster[3].step(ev.PeerLost(1))
    cluster[1].step(ev.PeerConnected(2))
    cluster.run(0.3)
    assert (cluster[3].up.role, cluster[3].up.leader_id) == ("follower", 1)
    assert not list(requests_of(cluster[3], pb.VoteRequest))
    cluster[3].step(ev.PeerConnected(2))
    cluster.blocked = lambda source, target: {source, target} == {1, 3}
    cluster.run(3)
    cluster.heal()
    cluster.run(1.5)
    assert cluster[3].up.role == "follower", "does not ask for votes for ever"
    assert list(cluster.oracle.leader_of) == [1]


def test_candidate_that_cannot_win_delays_an_election_only_briefly() -> None:
    """The leader is down; a candidate whose log is too short has already opened the next epoch."""
    node = one(VoteState(5, -1, "", 3), [(5, 1)])
    node.step(ev.PeerLost(3))
    assert not ask(node, vote_request(1, replica_epoch=6)).vote_granted
    assert node.up.role == "unattached"
    assert node.up.next_deadline() <= node.cluster.now + 0.04


def test_isolated_node_does_not_disturb_the_leader_when_it_returns() -> None:
    """Pre-votes: its epoch has not changed, and voters that hear a leader refuse it."""
    cluster, leader = elected()
    away = cluster.others(leader)[0]
    cluster.isolate(away.id)
    cluster.run(6)
    cluster.heal()
    cluster.propose(2)
    cluster.run_until(cluster.calm)
    assert list(cluster.oracle.leader_of) == [1]
    assert not effects_of(leader, ev.LostLeadership)


def test_leader_that_sends_but_cannot_be_reached_is_replaced() -> None:
    """A repeated BeginQuorumEpoch does not reset the fetch timer."""
    cluster, leader = elected()
    cluster.blocked = lambda source, target: target == leader.id
    took = cluster.run_until(lambda: any(node is not leader for node in cluster.leaders()), 5)
    assert took < 1.7, "the fetch timeout after its last answer"
    assert len(list(requests_of(leader, pb.BeginQuorumEpochRequest))) > 2, "it did go on sending"


def test_quorum_settles_when_two_voters_are_cut_from_each_other() -> None:
    """Two that cannot reach each other, and one that reaches both: no endless elections."""
    cluster = Cluster(3, connected=True)
    cluster.elect()
    cluster.blocked = lambda source, target: {source, target} == {1, 2}
    cluster.run(5)
    led = len(cluster.oracle.leader_of)
    cluster.run(10)
    assert len(cluster.oracle.leader_of) == led
    assert cluster.leaders()


# --- resigning ----------------------------------------------------------------------------------


def test_resigned_leader_is_succeeded_at_once() -> None:
    cluster, leader = elected()
    cluster.resign()
    took = cluster.run_until(cluster.calm)
    assert took < 0.05
    assert cluster.leader() is not leader
    assert effects_of(leader, ev.LostLeadership) == [ev.LostLeadership(1, "asked to")]
    assert not effects_of(leader, ev.Fatal)


@pytest.mark.parametrize(
    ("preferred", "delay_ms"),
    [((2, 1, 3), 10), ((2, 3, 1, 4), 10), ((2, 3, 4, 1), 20), ((2, 3), 40), ((), 40)],
)
def test_end_quorum_epoch_decides_who_campaigns(preferred: tuple[int, ...], delay_ms: int) -> None:
    node = one(VoteState(5, -1, "", 3))
    ask(node, end_request(3, 5, *preferred))
    assert node.up.role == "follower"
    assert node.up.next_deadline() == pytest.approx(node.cluster.now + delay_ms / 1000)
    assert ask(node, vote_request(1, pre_vote=True)).vote_granted, "the leader is heard no more"


def test_first_preferred_candidate_campaigns_at_once() -> None:
    """The leader that prefers it would grant the pre-vote."""
    node = one(VoteState(5, -1, "", 3))
    ask(node, end_request(3, 5, 1, 2))
    assert (node.up.role, node.up.epoch) == ("candidate", 6)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (end_request(3, 4, 1), ErrorCode.FENCED_LEADER_EPOCH),
        (end_request(9, 5, 1), ErrorCode.INVALID_REQUEST),
        (end_request(1, 5, 1), ErrorCode.INVALID_REQUEST),
        (end_request(-1, 5, 1), ErrorCode.INVALID_REQUEST),
        (
            pb.EndQuorumEpochRequest(cluster_id="other", leader_id=3, leader_epoch=9),
            ErrorCode.INCONSISTENT_CLUSTER_ID,
        ),
        (begin(3, 9, cluster_id="x"), ErrorCode.INCONSISTENT_CLUSTER_ID),
        (begin(3, 0), ErrorCode.INVALID_REQUEST),
        (begin(7, 9), ErrorCode.INVALID_REQUEST),
        (begin(3, 4), ErrorCode.FENCED_LEADER_EPOCH),
    ],
)
def test_invalid_leader_requests_change_nothing(request_: object, error: ErrorCode) -> None:
    node = one(VoteState(5, -1, "", 3))
    deadline = node.up.next_deadline()
    assert ask(node, request_).error_code == error
    assert (node.up.role, node.up.epoch, node.up.next_deadline()) == ("follower", 5, deadline)


def test_check_quorum_resigns_an_isolated_leader() -> None:
    cluster, leader = elected()
    cluster.isolate(leader.id)
    took = cluster.run_until(lambda: leader.up.role != "leader", 5)
    assert 1.0 < took <= 1.51
    assert "majority" in effects_of(leader, ev.LostLeadership)[0].reason


def test_check_quorum_keeps_a_leader_with_followers() -> None:
    cluster, leader = elected(5)
    for node in cluster.alive:
        if node is not leader and len(cluster.alive) > 3:
            cluster.crash(node.id)
    cluster.run(10)
    assert leader.up.role == "leader"
    single = Cluster(1)
    single.elect()
    single.run(10)
    assert list(single.oracle.leader_of) == [1], "a quorum of one never expires"


def test_voters_learn_the_leader_from_each_other() -> None:
    """A node that was unreachable during the election learns the leader from a refused pre-vote."""
    cluster = Cluster(3)
    cluster.isolate(3)
    cluster[1].step(ev.PeerConnected(2))
    cluster.settle()
    assert cluster[1].up.role == "leader"
    cluster.heal()
    cluster.blocked = lambda source, target: (source, target) == (1, 3)
    cluster[3].step(ev.PeerConnected(2))
    cluster.settle()
    assert (cluster[3].up.role, cluster[3].up.leader_id) == ("follower", 1)
    assert any(isinstance(effect, ev.SendFetch) for effect in cluster[3].effects)

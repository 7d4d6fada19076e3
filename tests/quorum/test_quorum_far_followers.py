"""A silent leader is replaced in time, however far the voters are. A rival is waited for during a
round trip: otherwise three of five far voters campaign in each epoch, and split its votes forever.
"""

import one_node
import pytest
from one_node import vote_request
from quorum_harness import TRAVEL_S, Cluster, SimNode, effects_of, elected, requests_of

from raftlog.node.storage.api import VoteState
from raftlog.quorum.election_state import ElectionHints, Heard
from raftlog.quorum.events import BecameLeader, PersistVote
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def doubting(voters: int = 3, *, node_id: int = 1, log: int = 5) -> SimNode:
    """Node 1 follows the node with the highest id, which is silent; its timer is about to expire."""
    cluster = Cluster(voters, start=False, checked=False)
    cluster.blocked = lambda source, target: True
    node = cluster[node_id]
    node.disk.vote = VoteState(4, -1, "", voters)
    node.disk.log = [(4, value) for value in range(log)]
    node.start()
    return node


def ask(node: SimNode, candidate: int, end: int, heard_leading_ms: int | None = None) -> bool:
    """Return whether a pre-vote is granted."""
    log = {"replica_epoch": 4, "last_offset_epoch": 4, "last_offset": end}
    request = vote_request(
        node.id, candidate, pre_vote=True, heard_leading_ms=heard_leading_ms, **log
    )
    return bool(one_node.ask(node, request).vote_granted)


def time_out(node: SimNode) -> None:
    node.cluster.run(1.11)
    assert node.up.role == "prospective"


def test_pre_vote_request_of_a_voter_with_a_shorter_log_counts_as_its_grant() -> None:
    node = doubting()
    time_out(node)
    assert not ask(node, 2, end=4)
    assert node.up.role == "candidate"


def test_pre_vote_request_received_before_this_nodes_timeout_counts() -> None:
    """[Refused and forgotten, it cost both a whole timeout.]"""
    node = doubting()
    node.role._hears_leader = True
    node.cluster.run(0.9)
    assert not ask(node, 2, end=5)
    assert node.up.role == "follower"
    node.cluster.run(0.21)
    assert node.up.role == "candidate"
    assert not [request for request in requests_of(node, pb.VoteRequest) if request.pre_vote], (
        "nothing left to ask"
    )


def test_old_pre_vote_request_does_not_count() -> None:
    """Its sender may hear the leader again."""
    node = doubting()
    node.role._hears_leader = True
    node.cluster.run(0.4)
    assert not ask(node, 2, end=5)
    time_out(node)


def test_follower_of_a_silent_leader_retries_when_another_requests_pre_votes() -> None:
    node = doubting(5)
    time_out(node)
    node.role.lost()
    assert node.up.role == "follower"
    assert not ask(node, 2, end=4)
    assert node.up.role == "prospective"
    assert {request.voter_id for request in requests_of(node, pb.VoteRequest)} == {2, 3, 4, 5}


def in_doubt(leader: int = 3) -> SimNode:
    """Its round is lost: 2 has refused it. The leader had led for 9 s when last heard."""
    node = doubting()
    node.role.node.leader_id = leader
    time_out(node)
    node.role.node.heard = Heard(4, node.cluster.now, leading_ms=9_000)
    node.role.lost()
    assert node.up.role == "follower"
    return node


def test_follower_may_return_to_a_leader_that_still_leads() -> None:
    """[It requested pre-votes while the two were isolated from each other, and its request arrived
    when it had long been hearing the leader again: a leader that no other voter missed was
    deposed.]
    """
    timeout_ms = doubting().role.node.config.fetch_timeout_ms
    late = in_doubt()
    assert not ask(late, 2, end=4, heard_leading_ms=9_000 - timeout_ms - 1)
    assert late.up.role == "prospective", "it is asked, and its answer counts"
    assert {request.voter_id for request in requests_of(late, pb.VoteRequest)} == {2, 3}
    assert effects_of(late, PersistVote) == []


@pytest.mark.parametrize("behind_ms", [0, 1_000, None])
def test_pre_vote_request_of_a_voter_that_lost_the_leader_at_the_same_time_counts_as_its_grant(
    behind_ms: int | None,
) -> None:
    """None stands for a build that does not report it."""
    node = in_doubt()
    assert behind_ms is None or behind_ms <= node.role.node.config.fetch_timeout_ms
    assert not ask(
        node, 2, end=4, heard_leading_ms=None if behind_ms is None else 9_000 - behind_ms
    )
    assert node.up.role == "candidate"


def test_pre_vote_request_of_the_leader_itself_counts_as_its_grant() -> None:
    """It leads no more, whatever this node remembers."""
    node = in_doubt(leader=2)
    assert not ask(node, 2, end=4, heard_leading_ms=0)
    assert node.up.role in ("prospective", "candidate")
    node.cluster.run(0.31)
    assert node.up.role == "candidate"


def test_contact_with_a_former_leader_does_not_count() -> None:
    node = in_doubt()
    node.role.node.heard = Heard(3, node.cluster.now, leading_ms=9_000)
    assert not ask(node, 2, end=4, heard_leading_ms=0)
    assert node.up.role == "candidate"


def test_follower_does_not_return_to_a_leader_proven_gone() -> None:
    node = in_doubt()
    node.role.node.start_fast_election(3)
    assert not ask(node, 2, end=4, heard_leading_ms=0)
    assert node.up.role == "candidate"


def test_lower_id_campaigns_first_with_equal_logs() -> None:
    one, two = doubting(node_id=1), doubting(node_id=2)
    for node in (one, two):
        time_out(node)
    assert not ask(one, 2, end=5)
    assert one.up.role == "candidate"
    assert ask(two, 1, end=5)
    assert two.up.role == "prospective"


def test_wait_for_a_rival_is_bounded() -> None:
    """It may be isolated from a third voter that this node reaches."""
    node = doubting(5, node_id=2)
    time_out(node)
    begun = node.cluster.now
    for _ in range(30):
        assert ask(node, 1, end=5) is (node.up.role == "prospective")
        for candidate in (3, 4):
            ask(node, candidate, end=4)
        if node.up.role == "candidate":
            break
        node.cluster.run(0.05)
    assert node.up.role == "candidate"
    assert 0.8 < node.cluster.now - begun < 1.1


def test_candidate_of_five_waits_for_responses_before_older_requests_count() -> None:
    """[Two that count the same requests at once split the votes.]"""
    node = doubting(5)
    time_out(node)
    for candidate in (2, 3):
        assert not ask(node, candidate, end=4)
    assert node.up.role == "prospective"
    node.cluster.run(0.31)
    assert node.up.role == "candidate"


def test_refused_pre_vote_round_ends_without_waiting_for_the_silent_leader() -> None:
    """The other follower hears it: the round is lost, and the leader is fetched from again."""
    cluster, leader = elected()
    away = cluster.others(leader)[0]
    cluster.blocked = lambda source, target: {source, target} == {leader.id, away.id}
    cluster.run_until(lambda: away.up.role == "prospective", 3, step=TRAVEL_S)
    cluster.run(0.01)
    assert away.up.role == "follower"
    cluster.heal()
    cluster.run(2.0)
    assert away.role._hears_leader
    assert len(effects_of(leader, BecameLeader)) == 1
    assert not any(persisted.vote.epoch > 1 for persisted in effects_of(away, PersistVote))


def test_request_of_a_non_voter_is_not_support() -> None:
    node = doubting()
    time_out(node)
    assert not ask(node, 7, end=4)
    node.cluster.network.clear()
    node.cluster.run(0.35)
    assert node.up.role == "prospective"


# --- how long a rival goes first ----------------------------------------------------------------


def test_rival_goes_first_for_the_duration_of_an_election() -> None:
    hints = ElectionHints(0.5)
    hints.note_rival(1, 100.0, 0.02)
    assert hints.yields_until() == 100.02, "nobody has answered yet"
    hints.note_answer(2, 0.001)
    assert hints.yields_until() == 100.02, "a near cluster waits no longer than before"
    hints.note_answer(3, 0.2)
    assert hints.yields_until() == pytest.approx(100.6)
    assert hints.rivals(100.5) == {1}
    assert hints.rivals(100.7) == set()


def test_late_answer_lets_a_rival_go_first_for_at_most_the_fetch_timeout() -> None:
    hints = ElectionHints(0.5)
    hints.note_rival(1, 100.0, 0.02)
    hints.note_answer(2, 30.0)
    assert hints.yields_until() == 101.0


def test_known_round_trip_times_survive_the_epoch() -> None:
    hints = ElectionHints(0.5)
    hints.note_answer(2, 0.1)
    hints.note_answer(3, 0.2)
    hints.clear()
    hints.note_rival(1, 100.0, 0.02)
    assert hints.yields_until() == pytest.approx(100.6)
    hints.forget(3)
    assert hints.yields_until() == pytest.approx(100.3), "whose process is gone answers no more"

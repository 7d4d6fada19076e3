"""Claims about epochs and leaders: each rule with a message that it refuses."""

from typing import Any

import msgspec
import pytest
from one_node import (
    ask,
    begin,
    end_request,
    fetch,
    follower_of_two,
    leader_of_three,
    one,
    respond,
    vote_request,
)
from quorum_harness import Cluster, SimNode, effects_of, span_of

from raftlog.endpoint import Voter, VotersAt
from raftlog.errors import ErrorCode, FatalError
from raftlog.node.storage.api import VoteState
from raftlog.quorum.admission import (
    ALLOWANCE_EPOCHS,
    ALLOWANCE_EPOCHS_PER_S,
    EPOCH_LIMIT,
    MAX_EPOCH,
    EpochAllowance,
    is_endpoint,
)
from raftlog.quorum.events import Append, Fatal, PeerConnected, Refused, Send, SendFetch
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

# --- how far ------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [MAX_EPOCH + 1, EPOCH_LIMIT])
@pytest.mark.parametrize("kind", ["vote", "pre-vote", "begin", "end"])
def test_no_request_moves_a_node_near_the_last_epoch(kind: str, epoch: int) -> None:
    """The next candidate would have no epoch left, and no leader could ever be elected again."""
    node = one(VoteState(5))
    request, field = {
        "vote": (vote_request(1, replica_epoch=epoch), "replica_epoch"),
        "pre-vote": (vote_request(1, replica_epoch=epoch, pre_vote=True), "replica_epoch"),
        "begin": (begin(2, epoch), "leader_epoch"),
        "end": (end_request(2, epoch, 1), "leader_epoch"),
    }[kind]
    response = ask(node, request)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.error_message.startswith(f"{field}: epoch {epoch} is above")
    assert (response.leader_epoch, node.up.epoch, node.up.role) == (5, 5, "unattached")
    assert effects_of(node, Refused)[0].field == field


def test_unproven_epoch_may_be_ahead_only_by_the_allowance() -> None:
    node = one(VoteState(5))
    response = ask(node, vote_request(1, replica_epoch=5 + ALLOWANCE_EPOCHS + 1))
    assert response.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert node.up.epoch == 5
    assert ask(node, vote_request(1, replica_epoch=5 + ALLOWANCE_EPOCHS)).vote_granted
    assert (
        ask(node, begin(3, 5 + ALLOWANCE_EPOCHS + 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    ), "used up"
    node.cluster.now += 1
    assert (
        ask(node, begin(3, 5 + ALLOWANCE_EPOCHS + ALLOWANCE_EPOCHS_PER_S)).error_code
        == ErrorCode.NONE
    )


def test_many_small_epoch_steps_are_bounded_by_time() -> None:
    """A peer that raises the epoch by one with each message needs years to exhaust the epochs."""
    allowance, taken = EpochAllowance(0.0), 0
    for at in range(200_000):
        taken += 100 * allowance.spend(100, at / 1000)
    assert taken <= ALLOWANCE_EPOCHS + 200 * ALLOWANCE_EPOCHS_PER_S
    assert (MAX_EPOCH - taken) / ALLOWANCE_EPOCHS_PER_S > 6 * 365 * 86_400
    assert EpochAllowance(100.0).spend(ALLOWANCE_EPOCHS, 0.0), (
        "a clock that goes back takes nothing away"
    )


def test_node_that_missed_a_million_epochs_catches_up() -> None:
    """It disbelieves claims of others, but believes responses to its own requests from addresses of
    the voter set.
    """
    cluster = Cluster(3, start=False)
    far = 3 * ALLOWANCE_EPOCHS
    for node_id in (2, 3):
        cluster[node_id].disk.vote = VoteState(far)
        cluster[node_id].disk.log = [(1, 1), (far, 2)]
        cluster[node_id].start()
    cluster.oracle.written.update({(0, 1): 1, (1, far): 2})
    cluster.connect_all()
    cluster.elect()
    cluster[1].disk.vote, cluster[1].disk.log = VoteState(1), [(1, 1)]
    cluster.restart(1)
    cluster.run_until(cluster.calm)
    assert cluster[1].up.epoch == cluster.leader().up.epoch > far
    assert "too far above" in effects_of(cluster[1], Refused)[0].reason
    assert not effects_of(cluster[1], Refused)[0].contradiction, "no promise is broken"


def test_response_from_an_address_outside_the_voter_set_is_not_proof() -> None:
    """A leader may have moved, so it is followed to the address that it reports. But any peer may
    report one.
    """
    node = one(VoteState(5), [(1, 1)])
    node.up._node.append_voters((VotersAt(0, node.cluster.voters),))
    ask(node, begin(2, 6, "elsewhere:1"))
    fetch = node.last(SendFetch)
    assert (fetch.peer_id, node.dialed[2].endpoint) == (2, "elsewhere:1")
    far = pb.FetchResponse(leader_id=3, leader_epoch=6 + 2 * ALLOWANCE_EPOCHS)
    node.answer(fetch, far)
    assert (node.up.epoch, node.up.leader_id) == (6, 2)
    ask(node, begin(2, 7, "host2:1"))
    node.answer(node.last(SendFetch), far)
    assert (node.up.epoch, node.up.leader_id) == (6 + 2 * ALLOWANCE_EPOCHS, 3)


@pytest.mark.parametrize("epoch", [MAX_EPOCH + 1, EPOCH_LIMIT])
def test_no_response_moves_a_node_near_the_last_epoch(epoch: int) -> None:
    node = one(VoteState(5))
    node.step(PeerConnected(2))
    send = next(effect for effect in effects_of(node, Send) if effect.peer_id == 2)
    node.answer(send, pb.VoteResponse(leader_id=3, leader_epoch=epoch))
    assert node.up.epoch == 5
    assert effects_of(node, Refused)[0].contradiction


def test_replica_neither_campaigns_nor_fails_in_the_last_epoch() -> None:
    node = one(VoteState(MAX_EPOCH))
    for _ in range(5):
        node.wait_for_deadline()
    assert (node.up.role, node.up.epoch) == ("unattached", MAX_EPOCH)
    assert "is the last one" in effects_of(node, Refused)[0].reason
    assert ask(node, vote_request(1, replica_epoch=MAX_EPOCH)).vote_granted


@pytest.mark.parametrize(
    ("vote", "log"),
    [(VoteState(MAX_EPOCH + 1), []), (VoteState(2**31), []), (VoteState(1), [(EPOCH_LIMIT, 1)])],
)
def test_directory_beyond_the_last_epoch_is_not_started(
    vote: VoteState, log: list[tuple[int, int]]
) -> None:
    with pytest.raises(FatalError, match="storage recover"):
        one(vote, log)


# --- of whom ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre_vote", [True, False])
def test_unknown_candidate_opens_no_epoch_while_a_leader_is_heard(pre_vote: bool) -> None:
    """Its log may be longer, and hold the record that makes it a voter. Then the current leader
    will report that.
    """
    longer = {"last_offset_epoch": 3, "last_offset": 90}
    request = vote_request(1, 9, replica_epoch=4, pre_vote=pre_vote, **longer)
    node = follower_of_two([(2, 1)])
    respond(node)
    response = ask(node, request)
    assert (response.error_code, response.vote_granted) == (ErrorCode.INVALID_REQUEST, False)
    assert response.error_message.startswith(
        "replica_id: node 9 is in no voter set that this node knows"
    )
    assert ask(node, begin(9, 4, "host9:1")).error_code == ErrorCode.INVALID_REQUEST
    assert (node.up.role, node.up.epoch, node.up.leader_id) == ("follower", 3, 2)
    leader = leader_of_three()
    assert ask(leader, request).error_code == ErrorCode.INVALID_REQUEST
    assert (leader.up.role, leader.up.epoch) == ("leader", 1)


@pytest.mark.parametrize(
    "short", [{"last_offset": 1}, {"last_offset_epoch": 3}, {"voter_directory_id": ""}]
)
def test_unknown_candidate_needs_a_log_that_may_have_made_it_a_voter(short: dict[str, Any]) -> None:
    node = one(VoteState(5), [(4, 1), (4, 2)])
    newer = {"replica_id": 9, "replica_epoch": 6, "last_offset_epoch": 4, "last_offset": 2}
    assert ask(node, vote_request(1, **newer | short)).error_code == ErrorCode.INVALID_REQUEST
    assert node.up.epoch == 5
    same_epoch = vote_request(1, **newer | short | {"replica_epoch": 5})
    assert ask(node, same_epoch).error_code == ErrorCode.INVALID_REQUEST
    assert node.up.voted_id == -1, "nor does it take the vote of this one"
    assert ask(node, vote_request(1, **newer)).vote_granted, (
        "of a set that this log does not have yet"
    )


@pytest.mark.parametrize(
    "endpoint", ["", "host9", "host9:0", "host9:99999", "a b:1", "h\n:1", "h" * 400 + ":1", ":1 "]
)
def test_unknown_leader_reports_its_address(endpoint: str) -> None:
    node = one(VoteState(5))
    assert ask(node, begin(9, 6, endpoint)).error_code == ErrorCode.INVALID_REQUEST
    assert node.up.epoch == 5
    assert not is_endpoint(endpoint)
    assert ask(node, begin(9, 6, "host9:1")).error_code == ErrorCode.NONE
    assert node.up.leader_id == 9


def test_begin_for_another_replica_changes_nothing() -> None:
    node = one(VoteState(5))
    for request in (begin(2, 6, voter_id=3), begin(2, 6, voter_directory_id="wiped")):
        assert ask(node, request).error_code == ErrorCode.INVALID_VOTER_KEY
    assert (node.up.role, node.up.epoch) == ("unattached", 5)


# --- who leads ----------------------------------------------------------------------------------


def claimed(node: SimNode) -> SendFetch:
    """A peer claims that 3 leads epoch 6; return the Fetch that follows."""
    ask(node, begin(3, 6))
    assert node.up.leader_id == 3
    return node.last(SendFetch)


def no_leader(names: int) -> pb.FetchResponse:
    """A node that does not lead epoch 6 names the leader."""
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return pb.FetchResponse(error_code=code, leader_id=names, leader_epoch=6)


def test_claimed_leader_is_replaced_by_a_proven_one() -> None:
    """Otherwise one forged message would keep this voter from the true leader for the whole epoch."""
    node = one(VoteState(5))
    fetch = claimed(node)
    assert ask(node, begin(2, 6)).error_code == ErrorCode.INVALID_REQUEST, (
        "another claim is no proof"
    )
    node.answer(fetch, no_leader(2))
    assert (node.up.role, node.up.leader_id, node.up.epoch) == ("follower", 2, 6)


def test_answer_that_names_the_asked_leader_is_not_its_resignation() -> None:
    """[Another node at the leader's address named the leader: the voter campaigned forever.]"""
    node = one(VoteState(5))
    fetch = claimed(node)
    node.answer(fetch, no_leader(3))
    assert (node.up.role, node.up._node.fast_election) == ("follower", False)


def test_leader_that_confirms_its_leadership_is_followed_whoever_denied_it() -> None:
    node = one(VoteState(5))
    fetch = claimed(node)
    node.answer(fetch, no_leader(-1))
    ask(node, begin(3, 6))
    for _ in range(4):
        node.wait_for_deadline()
        for send in effects_of(node, Send):
            if isinstance(send.request, pb.VoteRequest):
                fields = {"pre_vote": True, "voter_id": send.peer_id}
                node.answer(send, pb.VoteResponse(leader_id=3, leader_epoch=6, **fields))
    assert (node.up.role, node.up.leader_id) == ("follower", 3)


def test_leader_that_has_responded_is_the_only_one_of_its_epoch() -> None:
    node = one(VoteState(5))
    fetch = claimed(node)
    node.answer(fetch, pb.FetchResponse(leader_id=3, leader_epoch=6))
    node.answer(node.last(SendFetch), pb.FetchResponse(leader_id=2, leader_epoch=6))
    assert node.up.leader_id == 3
    assert node.last(Refused).reason == "two leaders in epoch 6: 3 and 2"


def test_former_leader_follows_nobody_in_its_epoch() -> None:
    """Also after a restart, before any response."""
    node = one(VoteState(5, 1, "dir1", 1))
    node.wait_for_deadline()
    send = effects_of(node, Send)[0]
    node.answer(send, pb.VoteResponse(leader_id=3, leader_epoch=5, pre_vote=True))
    assert node.up.leader_id == -1
    assert node.last(Refused).contradiction


# --- what a leader sends ------------------------------------------------------------------------


@pytest.mark.parametrize("voters", [(Voter(2, "a:1"), Voter(2, "b:1")), (Voter(-5, "a:1"),)])
def test_invalid_voter_set_is_not_appended(voters: tuple[Voter, ...]) -> None:
    node = follower_of_two([(2, 1)])
    span = msgspec.structs.replace(span_of([(3, 1)], 1), voters=(VotersAt(1, voters),))
    answer = pb.FetchResponse(leader_id=2, leader_epoch=3, records=span.data)
    node.answer(node.last(SendFetch), answer, span)
    assert not effects_of(node, Append)
    assert not effects_of(node, Fatal)
    assert "the VotersRecord at 1 is invalid" in effects_of(node, Refused)[0].reason


def test_round_unknown_to_the_leader_is_dropped() -> None:
    """Echoed again and again it would be refused again and again."""
    node = follower_of_two([(2, 1)])
    respond(node, round=2**62)
    assert node.last(SendFetch).request.round == 2**62
    respond(node, error_code=ErrorCode.INVALID_REQUEST)
    node.after(0.1)
    assert node.last(SendFetch).request.round == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"current_leader_epoch": EPOCH_LIMIT},
        {"current_leader_epoch": MAX_EPOCH + 1, "last_fetched_epoch": MAX_EPOCH + 1},
        {"fetch_offset": 2**63 - 1},
        {"replica_directory_id": "d" * 65},
        {"replica_directory_id": "\x1b[2J"},
        {"max_metadata_version": -1},
    ],
)
def test_fetch_fields_are_limited(fields: dict[str, Any]) -> None:
    node = leader_of_three()
    (reply,) = fetch(node, **fields)
    assert reply.response.error_code == ErrorCode.INVALID_REQUEST
    assert not node.role.progress.observers

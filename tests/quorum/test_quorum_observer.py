"""Nodes outside the voter set."""

import random

from one_node import ask, begin, vote_request
from quorum_harness import CLUSTER, Cluster, effects_of, elected, requests_of

from raftlog.errors import ErrorCode
from raftlog.node.storage.api import RecoveredLog, VoteState
from raftlog.quorum import events as ev
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.quorum.core import QuorumCore
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def test_observer_asks_the_voters_in_turn() -> None:
    cluster = Cluster(3, 1, start=False)
    observer = cluster[4]
    observer.start()
    for _ in range(6):
        send = observer.last(ev.SendFetch)
        observer.step(ev.RequestFailed(send.peer_id, send.correlation_id))
        cluster.now += 0.021
        observer.step(ev.Tick())
    asked = [send.peer_id for send in effects_of(observer, ev.SendFetch)]
    assert len(asked) == 7
    assert set(asked[:3]) == {1, 2, 3}
    assert asked[:3] == asked[3:6]


def test_observer_follows_a_new_leader() -> None:
    cluster, leader = elected(3, 1)
    cluster.crash(leader.id)
    assert cluster.run_until(cluster.calm) < 0.3
    other, leader = elected(3, 1)
    other.isolate(leader.id)
    other.run_until(lambda: other[4].up.leader_id not in (-1, leader.id), 5)


def test_observer_adopts_no_epoch_without_a_leader() -> None:
    cluster, leader = elected(3, 1)
    epoch = leader.up.epoch
    cluster.crash(4)
    observer = cluster[4]
    observer.disk.vote = VoteState(epoch)
    observer.start()

    def answer(leader_id: int) -> None:
        asked = observer.last(ev.SendFetch)
        response = pb.FetchResponse(
            error_code=ErrorCode.FENCED_LEADER_EPOCH,
            leader_id=leader_id,
            leader_epoch=epoch + 9,
            correlation_id=asked.correlation_id,
        )
        observer.answer(asked, response)

    answer(-1)
    assert (observer.up.epoch, observer.up.leader_id) == (epoch, -1)
    cluster.run_until(lambda: observer.up.leader_id == leader.id and cluster.calm(), 5)
    assert observer.log == leader.log
    cluster.crash(4)
    observer.disk.vote = VoteState(epoch)
    observer.start()
    answer(2)
    assert (observer.up.epoch, observer.up.leader_id) == (epoch + 9, 2)


def test_observer_never_requests_votes_or_leads_but_grants_votes() -> None:
    cluster = Cluster(3, 1)
    observer = cluster[4]
    for voter in (1, 2, 3):
        cluster[voter].crash()
    for event in (
        ev.PeerConnected(1),
        ev.PeerConnected(2),
        ev.PeerLost(1),
        ev.ReadIndexRequested(),
        ev.ResignRequested("x"),
    ):
        observer.step(event)
    cluster.run(10)
    assert not list(requests_of(observer, pb.VoteRequest))
    assert not effects_of(observer, ev.BecameLeader)
    for pre_vote in (True, False):
        assert ask(observer, vote_request(4, pre_vote=pre_vote)).vote_granted, (
            "the log may lag behind that which made it a voter"
        )
    assert (observer.up.role, observer.up.epoch, observer.up.voted_id) == ("observer", 5, 2)


def test_observer_grants_no_vote_to_a_candidate_that_does_not_name_its_directory() -> None:
    """A candidate that counts by a configured set takes any disk of a node for that voter: also a
    new one, which has forgotten what the old one acknowledged. A simulated cluster elected a voter
    far behind in this way.
    """
    observer = Cluster(3, 1)[4]
    for epoch, pre_vote in ((0, True), (5, False)):
        vote = vote_request(4, replica_epoch=epoch, pre_vote=pre_vote, voter_directory_id="")
        assert not ask(observer, vote).vote_granted
    assert (observer.up.epoch, observer.up.voted_id) == (5, -1)


def test_voter_with_a_new_disk_is_an_observer() -> None:
    """The same id with another directory: it does not know its earlier votes and acknowledgements."""
    voters = tuple(Voter(i, f"h{i}:1", f"dir{i}") for i in (1, 2, 3))
    config = QuorumConfig(CLUSTER, 1, "wiped", voters)
    core = QuorumCore(config, RecoveredLog(VoteState(), 0, 0, ()), random.Random(0), 0.0)
    assert core.role == "observer"
    for _ in range(5):
        effects = core.step(ev.Tick(), core.next_deadline())
        sends = [effect for effect in effects if isinstance(effect, ev.SendFetch)]
        assert all(send.peer_id != 1 for send in sends), "does not ask itself"
        for send in sends:
            core.step(ev.RequestFailed(send.peer_id, send.correlation_id), core.next_deadline())
    (reply, *_) = effects_of(core.step(ev.RequestReceived(begin(2, 4), "r"), 1.0), ev.Reply)
    assert reply.response.error_code == ErrorCode.INVALID_VOTER_KEY
    assert (core.role, core.leader_id, core.epoch) == ("observer", -1, 0), (
        "it is told of no leader: it asks the voters"
    )


def test_restarted_observer_keeps_its_state() -> None:
    cluster, leader = elected(3, 1)
    cluster.crash(4)
    cluster.restart(4)
    assert cluster[4].up.leader_id == leader.id
    assert effects_of(cluster[4], ev.SendFetch)[-1].peer_id == leader.id

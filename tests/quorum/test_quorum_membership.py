"""Voter sets in the log (KIP-853)."""

from typing import Any

import pytest
from one_node import ask, begin, end_request, one, vote_request
from quorum_harness import Cluster, SimNode, effects_of, requests_of, span_of, voter, voters_value

from raftlog.endpoint import Voter, VotersAt
from raftlog.errors import ErrorCode
from raftlog.node.storage.api import RecoveredLog, SnapshotId, VoteState
from raftlog.quorum import events as ev
from raftlog.quorum.leader import Progress
from raftlog.quorum.voters import VoterHistory, VoterSet
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def voters(*names: str) -> tuple[Voter, ...]:
    return tuple(voter(name) for name in names)


def logged(voting: int = 3, observing: int = 1, **options: Any) -> tuple[Cluster, SimNode]:
    """Return a cluster whose first voter set is in the log and committed, and its leader."""
    cluster = Cluster(voting, observing, connected=True, **options)
    leader = cluster.elect()
    leader.propose_voters(*(str(v.node_id) for v in cluster.voters))
    cluster.run_until(cluster.calm)
    return cluster, leader


def test_voter_set_takes_effect_when_appended() -> None:
    cluster, leader = logged()
    leader.propose_voters("1", "2", "3", "4")
    assert (leader.up.voters, leader.up.voters_offset) == (voters("1", "2", "3", "4"), 2)
    assert leader.up.high_watermark == 2, "and not only when it is committed"
    cluster.run_until(cluster.calm)
    assert cluster[4].up.role == "follower"
    assert cluster[4].up.is_voter
    for node in cluster.alive:
        assert node.up.voters == voters("1", "2", "3", "4")
        assert node.last(ev.VotersChanged) == ev.VotersChanged(2, node.up.voters)
        assert node.last(ev.PeersChanged).peers == tuple(
            v for v in node.up.voters if v.node_id != node.id
        )


def test_removed_voter_observes_once_the_removal_is_committed() -> None:
    cluster, leader = logged(observing=0)
    gone = cluster.others(leader)[0]
    leader.propose_voters(*(str(i) for i in (1, 2, 3) if i != gone.id))
    cluster.run_until(cluster.calm)
    assert (gone.up.role, gone.up.is_voter) == ("observer", False)
    asked = len(list(requests_of(gone, pb.VoteRequest)))
    cluster.crash(leader.id)
    cluster.run(5)
    assert not cluster.leaders(), "of two voters both are needed"
    assert len(list(requests_of(gone, pb.VoteRequest))) == asked


def test_removed_voter_ends_no_leadership_once_the_removal_is_committed() -> None:
    """Its certificate is still valid."""
    cluster, leader = logged(observing=0)
    follower, gone = cluster.others(leader)
    epoch = leader.up.epoch

    def asked(node: SimNode) -> list[int]:
        me = {"voter_id": node.id, "voter_directory_id": f"dir{node.id}"}
        newer = {"last_offset_epoch": epoch, "last_offset": 90}
        requests = (
            vote_request(node.id, gone.id, replica_epoch=epoch + 2, **newer),
            begin(gone.id, epoch + 3, f"host{gone.id}:1", **me),
            end_request(gone.id, epoch + 4),
        )
        return [ask(node, request).error_code for request in requests]

    cluster.crash(gone.id)
    leader.propose_voters(str(leader.id), str(follower.id))
    cluster.run_until(cluster.calm)
    for node in (leader, follower):
        assert asked(node) == [ErrorCode.INVALID_REQUEST] * 3
        assert (node.up.epoch, node.up.leader_id) == (epoch, leader.id)
    assert leader.up.role == "leader"


def test_removed_voter_follows_once_other_epochs_exceed_its_own() -> None:
    """Until then each leader refuses it, and it abandons no epoch in which it may have voted."""
    cluster, leader = logged(voting=4, observing=0)
    first, second, gone = cluster.others(leader)
    epoch = leader.up.epoch

    def raise_epoch(node: SimNode, to: int) -> None:
        ask(node, vote_request(node.id, first.id, replica_epoch=to))

    cluster.isolate(gone.id)
    leader.propose_voters(*(str(node.id) for node in (leader, first, second)))
    cluster.run_until(lambda: second.up.high_watermark == 3)
    raise_epoch(gone, epoch + 10)
    cluster.heal()
    cluster.run(10)
    assert (gone.up.epoch, gone.up.leader_id, gone.up.is_voter) == (epoch + 10, -1, True)
    assert (leader.up.role, leader.up.epoch) == ("leader", epoch), "it ends no leadership"
    raise_epoch(second, epoch + 20)
    cluster.run_until(lambda: gone.up.role == "observer" and cluster.calm())
    assert gone.up.epoch > epoch + 20


def test_removed_voter_is_heard_until_the_removal_is_committed() -> None:
    """Otherwise there might be no leader: the others may lack the record that removes it."""
    log = RecoveredLog(VoteState(), 0, 4, ())
    history = VoterHistory(voters("1", "2", "3", "9"), log)
    history.append(VotersAt(4, voters("1", "2", "3")))
    history.append(VotersAt(7, voters("1", "2")))
    heard = {
        watermark: [one for one in (1, 2, 3, 9) if history.may_lead(one, watermark)]
        for watermark in (-1, 4, 5, 7, 8)
    }
    assert heard == {-1: [1, 2, 3, 9], 4: [1, 2, 3, 9], 5: [1, 2, 3], 7: [1, 2, 3], 8: [1, 2]}
    history.advance(8)
    assert not history.may_lead(3, -1), "what was dropped was committed"


def test_removed_leader_is_not_counted_and_resigns_once_the_removal_is_committed() -> None:
    cluster, leader = logged(observing=0)
    others = cluster.others(leader)
    cluster.crash(others[1].id)
    leader.propose_voters(str(others[0].id), str(others[1].id))
    cluster.run(0.2)
    assert leader.up.role == "leader"
    assert leader.up.high_watermark == 2, (
        "it and the one that is left are no majority of the two others"
    )
    assert leader.up.describe(cluster.now).voters[0].node_id != leader.id
    assert leader.up.describe(cluster.now).observers[0].node_id == leader.id
    cluster.restart(others[1].id)
    took = cluster.run_until(
        lambda: bool(cluster.leaders()) and cluster.leader() is not leader and cluster.calm()
    )
    assert took < 0.4, "its successors are told"
    assert leader.up.role == "observer"


def test_membership_change_names_its_obstacle() -> None:
    cluster, leader = logged()
    assert leader.up.membership_obstacle() == ""
    assert cluster[4].up.membership_obstacle() == "this node does not lead"
    cluster.isolate(leader.id)
    leader.propose_voters("1", "2", "3", "4")
    assert "at 2 is not committed" in leader.up.membership_obstacle()
    cluster.run_until(lambda: any(n is not leader for n in cluster.leaders()), 5)
    cluster.heal()
    cluster.run_until(cluster.calm)
    assert leader.up.voters == voters("1", "2", "3"), "truncated: in force no more"
    assert cluster.leader().up.membership_obstacle() == ""


def test_voter_change_waits_for_a_commit_of_the_epoch() -> None:
    node = Cluster(1, start=False, checked=False)[1]
    node.cluster.fatal_allowed = True
    node.start()
    node.persist()
    assert node.up.role == "leader"
    assert "no record of epoch" in node.up.membership_obstacle()
    node.propose_voters("1")
    assert "no record of epoch" in node.fatal
    assert not [span for span in effects_of(node, ev.Append) if span.span.voters]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("1", "4"), "more than one replica"),
        (("1", "2", "3b"), "more than one replica"),
        (("1", "2", "4"), "more than one replica"),
        ((), "contains no voters"),
    ],
)
def test_core_stops_at_an_invalid_voter_set(names: tuple[str, ...], reason: str) -> None:
    cluster, leader = logged()
    cluster.fatal_allowed = True
    leader.propose([voters_value(*names)])
    assert reason in leader.fatal
    assert isinstance(leader.effects[-1], ev.Fatal)
    assert leader.up.step(ev.Proposed(1, span_of([(1, 9)], 2)), cluster.now) == [], "it has stopped"


def test_core_stops_at_two_voter_records_in_one_chunk() -> None:
    cluster, leader = logged()
    cluster.fatal_allowed = True
    leader.propose([voters_value("1", "2"), voters_value("1", "2", "3")])
    assert "one change at a time" in leader.fatal


@pytest.mark.parametrize(
    "changed",
    [
        (Voter(1, "moved:9", "dir1"), voter("2"), voter("3")),
        (voter("1"), voter("2")),
        (voter("1"), voter("2"), voter("3"), voter("4")),
    ],
)
def test_valid_voter_set_is_proposed(changed: tuple[Voter, ...]) -> None:
    leader = logged()[1]
    at = leader.up.log_end_offset
    epoch = leader.up.epoch
    span = ev.LogSpan(at, at + 1, ((epoch, at),), b"1:1", 0, (VotersAt(at, changed),))
    leader.step(ev.Proposed(epoch, span))
    assert leader.up.voters == changed
    assert not leader.fatal


def test_learned_directories_are_not_a_change_of_replicas() -> None:
    known, unknown = (
        VoterSet(voters("1", "2")),
        VoterSet((Voter(1, "host1:1"), Voter(2, "host2:1"))),
    )
    assert unknown.replicas_changed(known) == 0
    assert known.replicas_changed(unknown) == 2 * 2, "never forgotten: any disk would do then"
    assert known.replicas_changed(VoterSet(voters("1", "2b"))) == 2
    assert known.replicas_changed(VoterSet(voters("1", "2", "3"))) == 1


def test_voter_history_follows_the_log() -> None:
    sets = [
        VotersAt(10, voters("1", "2")),
        VotersAt(10, voters("1")),
        VotersAt(14, voters("1", "3")),
    ]
    snapshots = (SnapshotId(10, 2),)
    history = VoterHistory(
        voters("9"), RecoveredLog(VoteState(), 10, 20, ((2, 10),), 0, 2, snapshots, tuple(sets))
    )
    assert (history.offset, history.record_offset, history.before.ids) == (14, 14, (1,))
    assert not history.truncate(15)
    assert history.truncate(11)
    assert (history.voters.all, history.offset) == (voters("1"), 10)
    assert history.truncate(10), "the record at the snapshot's end, not the snapshot's own set"
    assert (history.voters.all, history.offset, history.record_offset) == (voters("1", "2"), 10, -1)
    history.append(VotersAt(12, ()))
    assert (history.voters.ids, history.offset, history.record_offset) == ((9,), -1, 12), (
        "the configured set counts again"
    )
    history.advance(13)
    assert history.record_offset == -1
    assert not history.truncate(13), "what was dropped is certain"
    history.reset(30, voters("3"))
    assert (history.voters.ids, history.offset) == ((3,), 30)


def test_progress_of_a_replica_survives_a_voter_change() -> None:
    progress = Progress(VoterSet(voters("1", "2", "3")), 1, 0.0)
    progress.heard_from(2, "dir2").acknowledge(5, 9, 1.0)
    progress.heard_from(4, "dir4").acknowledge(7, 9, 2.0)
    progress.set_voters(VoterSet(voters("1", "3", "4")), 3.0, counts_leader=True)
    assert progress.voters[4].end_offset == 7
    assert progress.voters[4].is_voter
    gone = progress.observers[(2, "dir2")]
    assert (gone.end_offset, gone.is_voter) == (5, False)
    assert progress.heard_from(2, "dir2") is gone
    progress.set_voters(VoterSet(voters("1", "2b", "4")), 4.0, counts_leader=True)
    assert progress.voters[2].end_offset == -1, "another disk, another replica"
    assert (2, "dir2") in progress.observers


def test_uncounted_leader_is_in_no_majority() -> None:
    progress = Progress(VoterSet(voters("2", "3")), 1, 0.0, counts_leader=False)
    progress.heard_from(2, "dir2").acknowledge(5, 9, 1.0)
    assert progress.majority_offset(9) == -1
    progress.heard_from(3, "dir3").acknowledge(4, 9, 2.0)
    assert progress.majority_offset(9) == 4
    progress.heard_from(2, "dir2").echoed_round = 7
    assert progress.majority_round(7) == 0
    assert progress.majority_heard_at(8.0) == 1.0


def test_observers_receive_no_rounds() -> None:
    """Otherwise an observer that becomes a voter could echo a round that is still shared after it
    received it.
    """
    cluster, leader = logged()
    cluster.request_read_index()
    cluster.run_until(cluster.calm)
    assert all(request.round == 0 for request in requests_of(cluster[4], pb.FetchRequest))
    leader.propose_voters("1", "2", "3", "4")
    cluster.run_until(cluster.calm)
    number = cluster.request_read_index()
    cluster.run_until(lambda: list(requests_of(cluster[4], pb.FetchRequest))[-1].round == number, 2)


def test_leader_describes_what_replicas_report() -> None:
    cluster, leader = logged(max_metadata_version=2)
    for node_id in (4, next(n.id for n in cluster.alive if n is not leader)):
        cluster[node_id].step(ev.SpaceChanged(True))
        cluster.run(1)
        seen = leader.up.describe(cluster.now)
        low = {r.node_id: r.low_on_space for r in (*seen.voters, *seen.observers)}
        assert low[node_id]
        assert not low[leader.id]
        assert {r.max_metadata_version for r in (*seen.voters, *seen.observers)} == {2}
    assert (seen.voters_offset, seen.voter_set) == (1, leader.up.voters)
    assert seen.observers[0].directory_id == "dir4"
    assert seen.observers[0].log_end_offset == leader.up.log_end_offset
    assert 0 <= seen.observers[0].last_caught_up_age_ms <= 1000


def test_unknown_leader_is_dialed_at_its_reported_address() -> None:
    """With a lagging log: the leader is not among its voters, or has moved."""
    node = one(VoteState(1), [(1, 1), (1, voters_value("1", "2"))])
    ask(node, begin(7, 2, "host7:1", voter_directory_id=""))
    assert node.up.role == "unattached", (
        "a set newer than any here names this replica by its directory"
    )
    ask(node, begin(7, 2, "host7:1"))
    assert (node.up.role, node.up.leader_id) == ("follower", 7)
    assert node.last(ev.PeersChanged).peers == (voter("2"), Voter(7, "host7:1"))
    ask(node, begin(2, 3, "moved:9"))
    assert node.last(ev.PeersChanged).peers == (Voter(2, "moved:9", "dir2"),)
    several = "SSL://moved:9,PLAINTEXT://moved:8"
    ask(node, begin(2, 4, several))
    assert node.last(ev.PeersChanged).peers == (Voter(2, several, "dir2"),)


# --- transfer, hung disk, little space ----------------------------------------------------------


def test_dead_successor_costs_little_time() -> None:
    cluster, leader = logged()
    successor = next(node.id for node in cluster.alive if node is not leader and node.id != 4)
    cluster.crash(successor)
    leader.step(ev.ResignRequested("transfer", successor))
    assert cluster.run_until(cluster.calm, 2) < 0.3


def test_slow_disk_with_progress_does_not_cost_the_leadership() -> None:
    node = Cluster(1, start=False)[1]
    node.start()
    node.cluster.settle()
    for _ in range(6):
        node.propose([node.cluster.new_value()])
        node.cluster.now += 0.6
        node.cluster.tick_due()
        node.flush()
    assert node.up.role == "leader"
    node.propose([node.cluster.new_value()])
    for _ in range(4):
        node.cluster.now += 0.5
        node.cluster.tick_due()
    assert node.up.role == "resigned"
    node.cluster.now += 3
    node.cluster.tick_due()
    assert node.up.role == "resigned", "not before it has flushed again"
    node.flush()
    node.cluster.run(3)
    assert node.up.role == "leader"


def test_sole_voter_leads_even_with_low_disk_space() -> None:
    node = Cluster(1, start=False)[1]
    node.start()
    node.step(ev.SpaceChanged(True))
    node.cluster.run(0.1)
    assert node.up.role == "leader"


def test_voter_low_on_space_campaigns_only_after_twice_the_timeout() -> None:
    cluster, leader = logged(observing=0)
    low, other = cluster.others(leader)
    low.step(ev.SpaceChanged(True))
    cluster.crash(leader.id)
    cluster.run_until(cluster.calm)
    assert cluster.leader() is other
    cluster.crash(other.id)
    cluster.run(1.99)
    assert low.up.role == "follower", "an election is left to the others"
    cluster.run(0.4)
    assert low.up.role == "prospective"


def test_removed_leader_that_alone_has_its_removal_leads_once_more_and_commits_it() -> None:
    """The other cannot be elected by its own set without it, and its log is longer."""
    cluster, leader = logged(2, 0)
    (other,) = cluster.others(leader)
    leader.propose_voters(str(other.id))
    leader.flush()
    cluster.network.clear()
    for node in (leader, other):
        cluster.crash(node.id, keep=9)
    for node in (leader, other):
        cluster.restart(node.id)
    cluster.run_until(lambda: bool(cluster.leaders()) and cluster.leader() is other)
    cluster.run_until(cluster.calm)
    assert (leader.up.role, leader.up.voters) == ("observer", voters(str(other.id)))


def test_voter_change_right_after_a_snapshot_is_not_committed_by_it() -> None:
    """Its record has the offset at which the snapshot ends. If it were taken for the snapshot's
    content, no truncation would reach it.
    """
    cluster, leader = logged()
    for other in cluster.alive:
        if other is not leader:
            cluster.crash(other.id)
    end = leader.up.high_watermark
    assert end == leader.up.log_end_offset
    leader.propose_voters("1", "2", "3", "4")
    snapshot_id = leader.snapshot(end)
    leader.advance_start(snapshot_id)
    core, history = leader.up, leader.up._node.history
    assert (core.voters_offset, history.record_offset) == (end, end)
    assert "is not committed yet" in core.membership_obstacle()
    core._node.truncate_voters(end)
    assert core.voters == voters("1", "2", "3"), (
        "truncated: the set of the snapshot is in force again"
    )

"""The checkers of the quorum."""

from types import SimpleNamespace

import pytest
from checks_harness import (
    VOTERS,
    Chunks,
    Trace,
    chunk_of,
    config,
    play,
    refused,
    stories,
    voter,
    voters_record,
)

from raftlog.endpoint import VotersAt
from raftlog.errors import StorageError
from raftlog.node.storage.api import NodeIdentity, VoteState
from raftlog.quorum import events as ev
from raftlog.wire.broker.v1.broker_pb2 import BrokerResponse
from raftlog.wire.data.v1.data_pb2 import ReplicaFetchResponse
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.commitment import Commitment, Durability
from simulation.checks.elections import Elections
from simulation.checks.log_time import LogTime
from simulation.checks.membership import VoterSets, majorities_meet
from simulation.checks.node_log import LogMatching, NodeLog
from simulation.twins.loop import START_OF_TIME_MS

EVERYTHING = (Elections, Commitment, Durability, VoterSets)


def _led(*checkers: object) -> Trace:
    """c1 leads epoch 1; its first record is everywhere and committed."""
    trace = Trace(*checkers)
    trace.lead("c1", 1)
    for name in ("c2", "c3"):
        trace.replicate("c1", name)
    trace.commit("c1", 1)
    return trace


def test_sound_history_passes_all_checkers() -> None:
    trace = _led(*EVERYTHING)
    trace.committed(1, config("k", "a"))
    trace.append("c1", 1, config("k", "b"))
    trace.fetch("c2", 2, 1)
    trace.stop("c1")
    trace.lead("c2", 2, (2, 3))
    trace.replicate("c2", "c3")
    trace.commit("c2", 3)
    trace.commit("c3", 3)
    trace.start("c1")
    # Raft: what c1 alone had goes.
    trace.truncate("c1", 2)
    trace.replicate("c2", "c1")
    trace.commit("c1", 3)
    assert trace.ledger.golden.config(16, "k", "match", 2) == "a"
    assert trace.ledger.golden.config(16, "k", "match", 0) is None
    commitment = trace.checkers[2]
    assert isinstance(commitment, Commitment)
    assert commitment.advances == 3


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("off_ms", "ahead_ms", "why"),
    [
        ((0, 0, 0), (0, 5, 7), ""),
        ((HOUR_MS, 0, 0), (0, 1_000), ""),
        ((HOUR_MS, 0, 0), (0, HOUR_MS), "a majority's clocks were at most 0"),
        ((HOUR_MS, HOUR_MS, 0), (0, HOUR_MS), ""),
        ((HOUR_MS, HOUR_MS, 0), (HOUR_MS, 0), ""),
        ((0, 0, 0), (7, 6), "is 6 ms ahead, the one before 7"),
        ((0, 0, -HOUR_MS), (7, -HOUR_MS), ""),
        ((0, 0, 0), (7, -HOUR_MS), "a majority's clocks were at least 0"),
    ],
)
def test_log_time_is_compared_with_the_clocks_of_a_majority(
    off_ms: tuple[int, ...], ahead_ms: tuple[int, ...], why: str
) -> None:
    trace = Trace(LogTime)
    for host, off in zip(trace.controllers, off_ms, strict=True):
        host.wall_offset_ms = off
        trace.last.clock_set(host)
    log = NodeLog("c1", LogMatching(), 0, 0, 0)
    for offset, ahead in enumerate(ahead_ms):
        log.append(
            offset, chunk_of(offset, 1, config("k", "a"), timestamp_ms=START_OF_TIME_MS + ahead)
        )
    for logged in log.batches[:-1]:
        trace.ledger.golden.append(logged)
    if not why:
        trace.ledger.golden.append(log.batches[-1])
        return
    with refused(why):
        trace.ledger.golden.append(log.batches[-1])


def test_log_time_ahead_of_all_clocks_is_refused() -> None:
    trace = Trace(LogTime)
    for host in trace.controllers:
        host.wall_offset_ms = HOUR_MS
        trace.last.clock_set(host)
    log = NodeLog("c1", LogMatching(), 0, 0, 0)
    for offset in range(2):
        ahead_ms = START_OF_TIME_MS + HOUR_MS
        log.append(offset, chunk_of(offset, 1, config("k", "a"), timestamp_ms=ahead_ms))
    trace.ledger.golden.append(log.batches[0])
    trace.time = 20.0
    for host in trace.controllers:
        host.wall_offset_ms = 0
        trace.last.clock_set(host)
    trace.time = 40.0
    trace.last.after_step(
        trace.controllers[0], ev.Proposed(1, ev.LogSpan(1, 2, ((1, 1),), b"", 0)), []
    )
    with refused("no voter's clock was, by 0"):
        trace.ledger.golden.append(log.batches[1])


# --- I4, I6: the ledger's own -------------------------------------------------------------------


@stories(
    r"""
    other bytes at an offset and epoch: append c1 1 a; append c2 1 b -> I4
    the same batch above another prefix: append c1 1 a; append c1 3 c; append c2 2 b;
        append c2 3 c -> I4
    a drop of committed records: committed 1 a; truncate c3 1 -> I6.*drops
    observers of a deposed leader may drop what a later one commits: append c1 1 a;
        replicate c1 c3; set_epoch c3 2; lead c1 3 1,2; replicate c1 c2; commit c1 3; truncate c3 1
    but not those of the later one: append c1 1 a; replicate c1 c3; set_epoch c3 2; lead c1 3 1,2;
        replicate c1 c2; commit c1 3; set_epoch c3 3; truncate c3 1 -> I6.*drops
    a cut below the own high watermark: commit c2 1; truncate c2 0 -> I6.*truncates to 0, below 1
    a commit of another log: append c1 1 a; append c2 2 b; replicate c1 c3; commit c1 2;
        commit c2 2 -> I6.*has .epoch, chain
    a high watermark that goes back: committed 1 a; commit c1 1 -> I6.*goes from 2 to 1
    a follower that knows more than its leader: append c1 1 a; replicate c1 c2;
        commit c2 2 -> I6.*takes 2 for committed
    a snapshot above the committed end: loads c2 7 1 -> I9
    a snapshot of another epoch: loads c2 1 1; loads c2 1 9 -> I9
    a cut inside a batch: append c1 1 a b; truncate c1 2 -> truncates to 2, where no batch
    a cut behind the end: append c1 1 a b; truncate c1 7 -> truncates to 7, where no batch
    a commit of a part of a batch: append c1 1 a b;
        commit c1 2 -> commits 2, which is not the end of a batch
    """
)
def test_log_is_compared_with_what_was_written_and_committed(steps: list[str], rule: str) -> None:
    play(_led(), steps, rule)


def test_restart_with_other_bytes_is_refused() -> None:
    trace = _led()
    trace.append("c1", 1, config("k", "a"))
    trace.stop("c1")
    trace.host("c1").disk.live.chunks[-1] = chunk_of(1, 1, config("k", "z"))
    with refused("I4"):
        trace.start("c1")


def test_log_with_a_gap_is_refused() -> None:
    trace = _led()
    with refused("appends at 5"):
        trace.append_chunk("c1", 5, chunk_of(5, 1, config("k", "a")))


def test_log_start_above_the_committed_end_is_refused() -> None:
    trace = _led()
    host = trace.host("c2")
    host.core.log_start_offset = 7
    with refused("I9.*begins at 7"):
        trace.ledger.controller_started(host)


def test_recovery_that_differs_from_the_disk_is_refused() -> None:
    trace = _led()
    host = trace.host("c2")
    host.core.log_end_offset = 1
    trace.ledger.controller_started(host)
    host.core.log_end_offset = 2
    with refused("recovered up to 2, its disk ends at 1"):
        trace.ledger.controller_started(host)


def test_span_that_ends_elsewhere_than_its_batches_is_refused() -> None:
    trace = _led()
    with refused("ending at 2"):
        trace.step(
            "c1", ev.Append(ev.LogSpan(1, 3, ((1, 1),), chunk_of(1, 1, config("k", "a")), 1))
        )


def test_batch_with_a_wrong_offset_is_refused() -> None:
    trace = _led()
    with refused("has a batch of 2 at offset 1"):
        trace.ledger.nodes["c1"].log.append(1, chunk_of(2, 1, config("k", "a")))


# --- I1, I2, I3, I7 -----------------------------------------------------------------------------


@stories(
    r"""
    two leaders in an epoch: wins c2 1 2,3 -> I1
    leading again in an epoch after a restart: stop c1; start c1; wins c1 1 1,2 -> I1
    an epoch that goes back: set_epoch c1 0; step c1 -> I2.*goes back
    an epoch that a restart has forgotten: stop c1; forgets c1 0; start c1 -> I2.*came back
    a vote that is told before it is durable: forgets c2 2;
        vote c2 2 1 durable= -> I3.*its disk has
    a candidate that asks has not voted yet: vote c2 2 2 durable=; stop c2; start c2; vote c2 2 3
    a vote that was counted is given: lead c2 2 2,3; vote c2 2 3 -> I3.*has voted
    a second vote in an epoch: vote c3 2 1; vote c3 2 1; vote c3 2 2 -> I3.*has voted
    a leader without a majority: vote c2 2 2; wins c2 2 2, -> I3.*with the votes of
    a vote that was not granted: vote c2 2 2; wins c2 2 2,3 -> I3.*counts a vote of 3
    the own vote before it is durable: vote c3 2 2; wins c2 2 2,3 -> I3.*counts a vote of 2
    a leader without committed records: append c1 1 a; replicate c1 c2; commit c1 2;
        lead c3 2 3,1 -> I7
    a leader with another log than the committed one: append c1 1 a; append c3 2 b;
        replicate c1 c2; commit c1 2; lead c3 3 3,1 -> I7
    an election that is heard of late: vote c2 2 2; vote c3 2 2; lead c1 3 1,3; replicate c1 c3;
        commit c1 2; wins c2 2 2,3
    """
)
def test_votes_and_leaders_are_checked_against_their_epochs(steps: list[str], rule: str) -> None:
    play(_led(Elections), steps, rule)


def test_message_in_an_epoch_that_is_not_durable_is_refused() -> None:
    trace = _led(Elections)
    with refused("I2.*speaks"):
        trace.send("c2", "c1", quorum.FetchRequest(current_leader_epoch=2))


def test_another_directory_is_another_voter() -> None:
    trace = _led(Elections)
    trace.vote("c3", 2, 1)
    trace.stop("c3")
    trace.host("c3").disk.identity = NodeIdentity("cluster", 3, "another")
    trace.host("c3").disk.vote = VoteState(0)
    trace.start("c3")
    trace.vote("c3", 2, 2)


def test_only_votes_by_the_voters_own_directory_count() -> None:
    trace = _led(Elections)
    trace.stop("c3")
    host = trace.host("c3")
    host.disk.identity, host.disk.vote = NodeIdentity("cluster", 3, "another"), VoteState(0)
    trace.start("c3")
    trace.vote("c3", 2, 1)
    trace.vote("c2", 2, 2)
    with refused("I3.*counts a vote of 3.*given to ..$"):
        trace.step("c2", ev.BecameLeader(2, (2, 3)))
    trace.stop("c3")
    host.disk.identity, host.disk.vote = NodeIdentity("cluster", 3, "dir-3"), VoteState(0)
    trace.start("c3")
    trace.vote("c3", 2, 2)
    trace.step("c2", ev.BecameLeader(2, (2, 3)))


# --- I5, I8 -------------------------------------------------------------------------------------


@stories(
    r"""
    no durable majority: append c1 1 a durable=; replicate c1 c2; commit c1 2 -> I5.*only on \[2\]
    another record at that offset: append c2 2 b; append c1 1 a; commit c1 2 -> I5.*only on \[1\]
    an older epoch by counting: append c1 1 a; replicate c1 c2; stop c1; lead c2 2 2,3;
        replicate c2 c3; commit c2 2 -> I8
    an older epoch with a record of the own: append c1 1 a; replicate c1 c2; stop c1;
        lead c2 2 2,3; replicate c2 c3; commit c2 3
    """
)
def test_commit_requires_a_durable_majority_of_its_own_epoch(steps: list[str], rule: str) -> None:
    play(_led(Commitment), steps, rule)


def test_majority_of_another_set_is_refused() -> None:
    trace = Trace(Commitment, voters=(*VOTERS, voter(4), voter(5)))
    trace.lead("c1", 1)
    trace.replicate("c1", "c2")
    with refused("I5"):
        trace.commit("c1", 1)
    trace = Trace(Commitment, voters=(*VOTERS, voter(4), voter(5)))
    trace.lead("c1", 1)
    trace.replicate("c1", "c2")
    trace.replicate("c1", "c5")
    trace.commit("c1", 1)


def test_last_appended_voter_set_counts() -> None:
    trace = Trace(Commitment, voters=(*VOTERS, voter(4)))
    trace.lead("c1", 1)
    for name in ("c2", "c3", "c4"):
        trace.replicate("c1", name)
    trace.commit("c1", 1)
    end = trace.append("c1", 1, voters_record(*VOTERS))
    trace.replicate("c1", "c4")
    with refused(r"I5.*durable only on \[1\] of the voters \[1, 2, 3\]"):
        trace.commit("c1", end)


def test_lost_disk_counts_for_what_it_held() -> None:
    trace = _led(Commitment)
    end = trace.append("c1", 1, config("k", "a"))
    trace.replicate("c1", "c2")
    host = trace.host("c2")
    trace.stop("c2")
    host.disk = SimpleNamespace(
        **{**vars(host.disk), "identity": NodeIdentity("cluster", 2, "new"), "live": Chunks()}
    )
    host.disk.durable = Chunks()
    trace.start("c2")
    trace.commit("c1", end)
    end = trace.append("c1", 1, config("k", "b"))
    trace.replicate("c1", "c2")
    with refused(r"I5.*only on \[1\]"):
        trace.commit("c1", end)


# --- flush before acknowledge, I18 --------------------------------------------------------------


@stories(
    """
    before the flush: append c1 1 a; replicate c1 c2 durable=; fetch c2 1 1;
        fetch c2 2 1 -> does not hold it durably
    another epoch than the disk has: fetch c2 1 7 -> does not hold it durably
    truncated records need not survive: append c2 2 b; fetch c2 2 2; truncate c2 1; stop c2;
        start c2
    """
)
def test_acknowledged_records_are_durable(steps: list[str], rule: str) -> None:
    play(_led(Durability), steps, rule)


def test_loss_of_acknowledged_records_is_refused() -> None:
    trace = _led(Durability)
    trace.append("c1", 1, config("k", "a"))
    trace.replicate("c1", "c2")
    trace.fetch("c2", 2, 1)
    trace.stop("c2")
    disk = trace.host("c2").disk
    disk.live.bases.pop()
    disk.live.chunks.pop()
    with refused("had acknowledged"):
        trace.start("c2")


def test_message_after_a_storage_error_is_refused() -> None:
    trace = _led(Durability)
    trace.fetch("c2", 1, 1)
    trace.host("c2").disk.failure = StorageError("fsync: EIO")
    with refused("I18"):
        trace.send("c2", "c1", quorum.FetchResponse())


@pytest.mark.parametrize(
    ("answer", "rests_on_the_disk"),
    [
        (BrokerResponse(fetch={"partitions": [{"error_code": 0}]}), True),
        (BrokerResponse(fetch={"partitions": [{"error_code": 29}]}), False),
        (ReplicaFetchResponse(), True),
        (ReplicaFetchResponse(error_code=31), False),
    ],
)
def test_broker_may_refuse_unauthorized_reads(answer: object, rests_on_the_disk: bool) -> None:
    trace = Trace(Durability, brokers=1)
    trace.host("b1").disk = SimpleNamespace(failure=StorageError("append: EIO"))
    if not rests_on_the_disk:
        trace.send("b1", "client", answer)
        return
    with refused("I18"):
        trace.send("b1", "client", answer)


# --- I19 ----------------------------------------------------------------------------------------


@stories(
    """
    a second change in flight: append c1 1 voters:1,2,3,4;
        append c1 1 voters:1,2,3 -> I19.*not committed
    a change before the own epoch is committed: stop c1; lead c2 2 2,3;
        append c2 2 voters:1,2,3,4 -> I19.*before 2 commits
    two members at once: append c1 1 voters:1,4,5 -> I19: disjoint
    a set that the log alone names: append c1 1 voters:1,2,3,4; tell sample -> I19.*its log names
    a set that was truncated: append c1 1 voters:1,2,3,4; truncate c1 1; tell sample
    """
)
def test_voters_change_one_at_a_time(steps: list[str], rule: str) -> None:
    play(_led(VoterSets), steps, rule)


def test_voters_changed_one_at_a_time_pass() -> None:
    trace = _led(VoterSets)
    trace.committed(1, voters_record(*VOTERS))
    trace.committed(1, voters_record(*VOTERS, voter(4)))
    trace.committed(1, voters_record(voter(2), voter(3), voter(4)))
    assert trace.last.changes == 3


def test_chunk_with_two_voter_sets_is_a_failure() -> None:
    trace = _led(VoterSets)
    chunk = chunk_of(1, 1, voters_record(*VOTERS)) + chunk_of(
        2, 1, voters_record(*VOTERS, voter(4))
    )
    with refused("I19"):
        trace.append_chunk("c1", 1, chunk)


def test_voter_set_that_the_state_machine_did_not_receive_is_refused() -> None:
    trace = _led(VoterSets)
    with refused("I19.*told of"):
        trace.append_chunk("c1", 1, chunk_of(1, 1, voters_record(*VOTERS)), voters=())
    trace = _led(VoterSets)
    with refused("I19.*not in the log"):
        trace.append_chunk("c1", 1, chunk_of(1, 1, config("k", "a")), voters=(VotersAt(1, VOTERS),))


CAMPAIGNS = quorum.VoteRequest(replica_id=3, replica_epoch=5, last_offset_epoch=1, last_offset=1)
LEADS = quorum.BeginQuorumEpochRequest(leader_id=3, leader_epoch=5, leader_endpoint="c3:9093")
RESIGNS = quorum.EndQuorumEpochRequest(leader_id=3, leader_epoch=5)


def _removed(*, committed: bool) -> Trace:
    """c1 leads and c2 follows; c3 was removed, which both know if it is committed."""
    trace = _led(VoterSets)
    trace.host("c1").core.role = "leader"
    if committed:
        trace.stop("c3")
        trace.commit("c2", trace.committed(1, voters_record(*VOTERS[:2])) + 1)
    else:
        trace.append("c1", 1, voters_record(*VOTERS[:2]))
        trace.replicate("c1", "c2")
    trace.tell("after_step", trace.host("c1"), ev.Tick(), [])
    return trace


def _believed(trace: Trace, name: str, request: object) -> None:
    core = trace.host(name).core
    core.epoch, core.role = 5, "unattached"
    trace.step(name, event=ev.RequestReceived(request, None))


@pytest.mark.parametrize("request_", [CAMPAIGNS, LEADS, RESIGNS])
def test_removed_voter_that_ends_a_leadership_is_refused(request_: object) -> None:
    with refused(r"I19.*removed 3 moves c1 from .*'leader', epoch=1"):
        _believed(_removed(committed=True), "c1", request_)
    _believed(_removed(committed=False), "c1", request_)


@pytest.mark.parametrize("request_", [CAMPAIGNS, RESIGNS])
def test_removed_voter_that_raises_a_followers_epoch_is_refused(request_: object) -> None:
    with refused("I19.*removed 3 moves c2"):
        _believed(_removed(committed=True), "c2", request_)
    _believed(_removed(committed=False), "c2", request_)


def test_node_with_a_longer_log_may_be_a_voter_again() -> None:
    trace = _removed(committed=True)
    longer = quorum.VoteRequest(replica_id=3, last_offset_epoch=2, last_offset=1)
    _believed(trace, "c2", longer)
    with refused("I19.*removed 3 moves c1"):
        _believed(trace, "c1", longer)


def test_voter_of_the_committed_set_is_believed() -> None:
    trace = _removed(committed=True)
    _believed(trace, "c1", quorum.VoteRequest(replica_id=2, replica_epoch=5))
    trace.step("c2", event=ev.RequestReceived(CAMPAIGNS, None))


def test_majorities_of_neighbouring_sets_intersect_and_of_others_do_not() -> None:
    assert majorities_meet(VOTERS, VOTERS)
    assert majorities_meet(VOTERS, (*VOTERS, voter(4)))
    assert majorities_meet(VOTERS, VOTERS[:2])
    assert not majorities_meet(VOTERS, (*VOTERS, voter(4), voter(5)))
    assert not majorities_meet(VOTERS, (VOTERS[0], voter(4), voter(5)))
    assert not majorities_meet(VOTERS, (voter(4), voter(5), voter(6)))


def test_leader_records_are_not_taken_for_voter_sets() -> None:
    trace = _led(VoterSets)
    trace.append("c1", 1, pb.LeaderChangeRecord(leader_id=1, generation=1))
    assert trace.last.changes == 0

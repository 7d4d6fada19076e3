"""The quorum's checkers pass sound traces, and refuse each kind of unsound one by its name."""

from types import SimpleNamespace

import pytest
from checks_harness import VOTERS, Chunks, Trace, chunk_of, config, voter, voters_record

from raftlog.endpoint import VotersAt
from raftlog.errors import StorageError
from raftlog.node.storage.api import NodeIdentity, SnapshotId, VoteState
from raftlog.quorum import events as ev
from raftlog.wire.broker.v1.broker_pb2 import BrokerResponse
from raftlog.wire.data.v1.data_pb2 import ReplicaFetchResponse
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.checks.api import CheckFailedError
from simulation.checks.commitment import Commitment, Durability
from simulation.checks.elections import Elections
from simulation.checks.log_time import LogTime
from simulation.checks.membership import VoterSets, majorities_meet
from simulation.checks.node_log import LogMatching, NodeLog
from simulation.twins.loop import START_OF_TIME_MS

EVERYTHING = (Elections, Commitment, Durability, VoterSets)


def refused(rule: str) -> pytest.RaisesExc[CheckFailedError]:
    return pytest.raises(CheckFailedError, match=rule)


def _led(*checkers: object) -> Trace:
    """c1 leads epoch 1; its first record is everywhere and committed."""
    trace = Trace(*checkers)
    trace.lead("c1", 1)
    for name in ("c2", "c3"):
        trace.replicate("c1", name)
    trace.commit("c1", 1)
    return trace


def test_sound_life_passes_all_checkers() -> None:
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
def test_log_time_is_held_to_the_clocks_of_a_majority(
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


def test_log_time_that_stays_ahead_of_all_clocks_is_refused() -> None:
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


def test_same_offset_and_epoch_with_other_bytes_is_refused() -> None:
    trace = _led()
    trace.append("c1", 1, config("k", "a"))
    with refused("I4"):
        trace.append("c2", 1, config("k", "b"))


def test_same_batch_above_another_prefix_is_refused() -> None:
    trace = _led()
    trace.append("c1", 1, config("k", "a"))
    trace.append("c1", 3, config("k", "c"))
    trace.append("c2", 2, config("k", "b"))
    with refused("I4"):
        trace.append("c2", 3, config("k", "c"))


def test_restart_with_other_bytes_is_refused() -> None:
    trace = _led()
    trace.append("c1", 1, config("k", "a"))
    trace.stop("c1")
    disk = trace.host("c1").disk
    disk.live.chunks[-1] = chunk_of(1, 1, config("k", "z"))
    with refused("I4"):
        trace.start("c1")


def test_log_with_a_hole_is_refused() -> None:
    trace = _led()
    with refused("appends at 5"):
        trace.append_chunk("c1", 5, chunk_of(5, 1, config("k", "a")))


def test_dropping_committed_records_is_refused() -> None:
    trace = _led()
    trace.committed(1, config("k", "a"))
    with refused("I6.*drops"):
        trace.truncate("c3", 1)


def test_deposed_leader_may_have_its_observers_drop_what_a_later_one_commits() -> None:
    trace = _led()
    trace.append("c1", 1, config("k", "a"))
    trace.replicate("c1", "c3")
    # c3 goes on with a leader of epoch 2 that has not got it; c1 leads again in epoch 3, and
    # commits it with c2.
    trace.host("c3").core.epoch = 2
    trace.lead("c1", 3, (1, 2))
    trace.replicate("c1", "c2")
    trace.commit("c1", 3)
    trace.truncate("c3", 1)
    trace.replicate("c1", "c3")
    # In epoch 3 it must not.
    trace.host("c3").core.epoch = 3
    with refused("I6.*drops"):
        trace.truncate("c3", 1)


def test_truncating_below_the_own_high_watermark_is_refused() -> None:
    trace = _led()
    trace.commit("c2", 1)
    with refused("I6.*below its high watermark"):
        trace.truncate("c2", 0)


def test_committing_another_log_is_refused() -> None:
    trace = _led()
    trace.append("c1", 1, config("k", "a"))
    trace.append("c2", 2, config("k", "b"))
    trace.replicate("c1", "c3")
    trace.commit("c1", 2)
    with refused("I6.*not what was committed"):
        trace.commit("c2", 2)


def test_high_watermark_that_goes_back_is_refused() -> None:
    trace = _led()
    trace.committed(1, config("k", "a"))
    with refused("I6.*goes from 2 to 1"):
        trace.commit("c1", 1)


def test_follower_that_knows_more_than_any_leader_is_refused() -> None:
    trace = _led()
    trace.append("c1", 1, config("k", "a"))
    trace.replicate("c1", "c2")
    with refused("I6.*no leader has committed"):
        trace.commit("c2", 2)


def test_snapshot_above_what_is_committed_is_refused() -> None:
    trace = _led()
    with refused("I9"):
        trace.step("c2", ev.LoadSnapshot(SnapshotId(7, 1)))
    trace.step("c2", ev.LoadSnapshot(SnapshotId(1, 1)))
    with refused("I9"):
        trace.step("c2", ev.LoadSnapshot(SnapshotId(1, 9)))


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
    with refused("which ends at 2"):
        trace.step(
            "c1", ev.Append(ev.LogSpan(1, 3, ((1, 1),), chunk_of(1, 1, config("k", "a")), 1))
        )


def test_batch_that_says_another_offset_is_refused() -> None:
    trace = _led()
    with refused("has a batch of 2 at offset 1"):
        trace.ledger.nodes["c1"].log.append(1, chunk_of(2, 1, config("k", "a")))


def test_truncating_into_a_batch_is_refused() -> None:
    trace = _led()
    trace.append("c1", 1, config("k", "a"), config("l", "a"))
    with refused("truncates to 2, which is no end"):
        trace.truncate("c1", 2)
    with refused("truncates to 7, which is no end"):
        trace.truncate("c1", 7)


def test_committing_a_part_of_a_batch_is_refused() -> None:
    trace = _led()
    trace.append("c1", 1, config("k", "a"), config("l", "a"))
    with refused("commits 2, which is no end of a batch"):
        trace.commit("c1", 2)


# --- I1, I2, I3, I7 -----------------------------------------------------------------------------


def test_two_leaders_in_an_epoch_are_refused() -> None:
    trace = _led(Elections)
    with refused("I1"):
        trace.step("c2", ev.BecameLeader(1, (2, 3)))


def test_leading_again_in_an_epoch_after_a_restart_is_refused() -> None:
    trace = _led(Elections)
    trace.stop("c1")
    trace.start("c1")
    with refused("I1"):
        trace.step("c1", ev.BecameLeader(1, (1, 2)))


def test_an_epoch_that_goes_back_is_refused() -> None:
    trace = _led(Elections)
    trace.host("c1").core.epoch = 0
    with refused("I2.*goes back"):
        trace.step("c1")


def test_epoch_forgotten_by_a_restart_is_refused() -> None:
    trace = _led(Elections)
    trace.stop("c1")
    trace.host("c1").disk.vote = VoteState(0)
    with refused("I2.*came back"):
        trace.start("c1")


def test_speaking_in_an_epoch_that_is_not_durable_is_refused() -> None:
    trace = _led(Elections)
    with refused("I2.*speaks"):
        trace.send("c2", "c1", quorum.FetchRequest(current_leader_epoch=2))


def test_vote_told_before_it_is_durable_is_refused() -> None:
    trace = _led(Elections)
    trace.host("c2").disk.vote = VoteState(2, -1)
    with refused("I3.*on its disk"):
        trace.vote("c2", 2, 1, durable=False)


def test_candidate_that_asks_has_not_voted_yet() -> None:
    trace = _led(Elections)
    trace.vote("c2", 2, 2, durable=False)
    trace.stop("c2")
    trace.start("c2")
    trace.vote("c2", 2, 3)


def test_vote_that_was_counted_is_given() -> None:
    trace = _led(Elections)
    trace.lead("c2", 2, (2, 3))
    with refused("I3.*has voted"):
        trace.vote("c2", 2, 3)


def test_second_vote_in_an_epoch_is_refused() -> None:
    trace = _led(Elections)
    trace.vote("c3", 2, 1)
    trace.vote("c3", 2, 1)
    with refused("I3.*has voted"):
        trace.vote("c3", 2, 2)


def test_another_directory_is_another_voter() -> None:
    trace = _led(Elections)
    trace.vote("c3", 2, 1)
    trace.stop("c3")
    trace.host("c3").disk.identity = NodeIdentity("cluster", 3, "another")
    trace.host("c3").disk.vote = VoteState(0)
    trace.start("c3")
    trace.vote("c3", 2, 2)


def test_vote_that_counts_is_that_of_the_voters_own_directory() -> None:
    trace = _led(Elections)
    trace.stop("c3")
    host = trace.host("c3")
    host.disk.identity, host.disk.vote = NodeIdentity("cluster", 3, "another"), VoteState(0)
    trace.start("c3")
    trace.vote("c3", 2, 1)
    trace.vote("c2", 2, 2)
    with refused("I3.*counts a vote of 3.*nothing"):
        trace.step("c2", ev.BecameLeader(2, (2, 3)))
    trace.stop("c3")
    host.disk.identity, host.disk.vote = NodeIdentity("cluster", 3, "dir-3"), VoteState(0)
    trace.start("c3")
    trace.vote("c3", 2, 2)
    trace.step("c2", ev.BecameLeader(2, (2, 3)))


def test_leading_without_a_majority_of_votes_is_refused() -> None:
    trace = _led(Elections)
    trace.vote("c2", 2, 2)
    with refused("I3.*with the votes of"):
        trace.step("c2", ev.BecameLeader(2, (2,)))


def test_counting_a_vote_that_was_not_granted_is_refused() -> None:
    trace = _led(Elections)
    trace.vote("c2", 2, 2)
    with refused("I3.*counts a vote of 3"):
        trace.step("c2", ev.BecameLeader(2, (2, 3)))


def test_counting_the_own_vote_before_it_is_durable_is_refused() -> None:
    trace = _led(Elections)
    trace.vote("c3", 2, 2)
    with refused("I3.*counts a vote of 2"):
        trace.step("c2", ev.BecameLeader(2, (2, 3)))


def test_leader_without_committed_records_is_refused() -> None:
    trace = _led(Elections)
    trace.append("c1", 1, config("k", "a"))
    trace.replicate("c1", "c2")
    trace.commit("c1", 2)
    with refused("I7"):
        trace.lead("c3", 2, (3, 1))


def test_leader_with_another_log_than_the_committed_one_is_refused() -> None:
    trace = _led(Elections)
    trace.append("c1", 1, config("k", "a"))
    trace.append("c3", 2, config("k", "b"))
    trace.replicate("c1", "c2")
    trace.commit("c1", 2)
    with refused("I7"):
        trace.lead("c3", 3, (3, 1))


def test_election_that_is_heard_of_late_is_no_matter() -> None:
    trace = _led(Elections)
    for name in ("c2", "c3"):
        trace.vote(name, 2, 2)
    trace.lead("c1", 3, (1, 3))
    trace.replicate("c1", "c3")
    trace.commit("c1", 2)
    trace.step("c2", ev.BecameLeader(2, (2, 3)))


# --- I5, I8 -------------------------------------------------------------------------------------


def test_committing_without_a_durable_majority_is_refused() -> None:
    trace = _led(Commitment)
    trace.append("c1", 1, config("k", "a"), durable=False)
    trace.replicate("c1", "c2")
    with refused(r"I5.*only on \[2\]"):
        trace.commit("c1", 2)


def test_another_record_at_that_offset_does_not_count() -> None:
    trace = _led(Commitment)
    trace.append("c2", 2, config("k", "b"))
    trace.append("c1", 1, config("k", "a"))
    with refused(r"I5.*only on \[1\]"):
        trace.commit("c1", 2)


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


def test_set_that_counts_is_the_one_appended_last() -> None:
    trace = Trace(Commitment, voters=(*VOTERS, voter(4)))
    trace.lead("c1", 1)
    for name in ("c2", "c3", "c4"):
        trace.replicate("c1", name)
    trace.commit("c1", 1)
    end = trace.append("c1", 1, voters_record(*VOTERS))
    trace.replicate("c1", "c4")
    with refused(r"I5.*durable only on \[1\] of the voters \[1, 2, 3\]"):
        trace.commit("c1", end)


def test_disk_that_was_lost_counts_for_what_it_held() -> None:
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


def test_committing_an_older_epoch_by_counting_is_refused() -> None:
    trace = _led(Commitment)
    trace.append("c1", 1, config("k", "a"))
    trace.replicate("c1", "c2")
    trace.stop("c1")
    trace.lead("c2", 2, (2, 3))
    trace.replicate("c2", "c3")
    with refused("I8"):
        trace.commit("c2", 2)


def test_older_epoch_is_committed_with_a_record_of_the_own() -> None:
    trace = _led(Commitment)
    trace.append("c1", 1, config("k", "a"))
    trace.replicate("c1", "c2")
    trace.stop("c1")
    trace.lead("c2", 2, (2, 3))
    trace.replicate("c2", "c3")
    trace.commit("c2", 3)


# --- flush before acknowledge, I18 --------------------------------------------------------------


def test_acknowledging_before_the_flush_is_refused() -> None:
    trace = _led(Durability)
    trace.append("c1", 1, config("k", "a"))
    trace.replicate("c1", "c2", durable=False)
    trace.fetch("c2", 1, 1)
    with refused("does not hold it durably"):
        trace.fetch("c2", 2, 1)


def test_acknowledging_another_epoch_than_the_disk_has_is_refused() -> None:
    trace = _led(Durability)
    with refused("does not hold it durably"):
        trace.fetch("c2", 1, 7)


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


def test_truncated_records_need_not_survive_a_restart() -> None:
    trace = _led(Durability)
    trace.append("c2", 2, config("k", "b"))
    trace.fetch("c2", 2, 2)
    trace.truncate("c2", 1)
    trace.stop("c2")
    trace.start("c2")


def test_word_after_a_storage_error_is_refused() -> None:
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
def test_broker_may_refuse_who_may_not_read_whatever_its_disk(
    answer: object, rests_on_the_disk: bool
) -> None:
    trace = Trace(Durability, brokers=1)
    trace.host("b1").disk = SimpleNamespace(failure=StorageError("append: EIO"))
    if not rests_on_the_disk:
        trace.send("b1", "client", answer)
        return
    with refused("I18"):
        trace.send("b1", "client", answer)


# --- I19 ----------------------------------------------------------------------------------------


def test_voters_changed_one_at_a_time_pass() -> None:
    trace = _led(VoterSets)
    trace.committed(1, voters_record(*VOTERS))
    trace.committed(1, voters_record(*VOTERS, voter(4)))
    trace.committed(1, voters_record(voter(2), voter(3), voter(4)))
    assert trace.last.changes == 3


def test_second_change_in_flight_is_refused() -> None:
    trace = _led(VoterSets)
    trace.append("c1", 1, voters_record(*VOTERS, voter(4)))
    with refused("I19.*not committed"):
        trace.append("c1", 1, voters_record(*VOTERS))


def test_change_before_the_own_epoch_is_committed_is_refused() -> None:
    trace = _led(VoterSets)
    trace.stop("c1")
    trace.lead("c2", 2, (2, 3))
    with refused("I19.*before a record of its epoch 2"):
        trace.append("c2", 2, voters_record(*VOTERS, voter(4)))


def test_two_members_changed_at_once_are_refused() -> None:
    trace = _led(VoterSets)
    with refused("I19.*majority without"):
        trace.append("c1", 1, voters_record(voter(1), voter(4), voter(5)))


def test_two_sets_in_one_chunk_are_refused() -> None:
    trace = _led(VoterSets)
    chunk = chunk_of(1, 1, voters_record(*VOTERS)) + chunk_of(
        2, 1, voters_record(*VOTERS, voter(4))
    )
    with refused("I19"):
        trace.append_chunk("c1", 1, chunk)


def test_set_that_the_state_machine_was_not_told_of_is_refused() -> None:
    trace = _led(VoterSets)
    with refused("I19.*told of"):
        trace.append_chunk("c1", 1, chunk_of(1, 1, voters_record(*VOTERS)), voters=())
    trace = _led(VoterSets)
    with refused("I19.*not in the log"):
        trace.append_chunk("c1", 1, chunk_of(1, 1, config("k", "a")), voters=(VotersAt(1, VOTERS),))


def test_truncation_reverts_the_set() -> None:
    trace = _led(VoterSets)
    trace.append("c1", 1, voters_record(*VOTERS, voter(4)))
    with refused("I19.*its log names"):
        trace.tell("sample")
    trace.truncate("c1", 1)
    trace.tell("sample")


CAMPAIGNS = quorum.VoteRequest(replica_id=3, replica_epoch=5, last_offset_epoch=1, last_offset=1)
LEADS = quorum.BeginQuorumEpochRequest(leader_id=3, leader_epoch=5, leader_endpoint="c3:9093")
RESIGNS = quorum.EndQuorumEpochRequest(leader_id=3, leader_epoch=5)


def _removed(*, committed: bool) -> Trace:
    """c1 leads and c2 follows; c3 was removed, as both know if that is committed."""
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
    with refused(r"I19.*c1 knows that 3 was removed, and goes from .*'leader', epoch=1"):
        _believed(_removed(committed=True), "c1", request_)
    _believed(_removed(committed=False), "c1", request_)


@pytest.mark.parametrize("request_", [CAMPAIGNS, RESIGNS])
def test_removed_voter_that_raises_a_followers_epoch_is_refused(request_: object) -> None:
    with refused("I19.*c2 knows that 3 was removed"):
        _believed(_removed(committed=True), "c2", request_)
    _believed(_removed(committed=False), "c2", request_)


def test_node_with_a_longer_log_may_be_a_voter_again() -> None:
    trace = _removed(committed=True)
    longer = quorum.VoteRequest(replica_id=3, last_offset_epoch=2, last_offset=1)
    _believed(trace, "c2", longer)
    with refused("I19.*c1 knows that 3 was removed"):
        _believed(trace, "c1", longer)


def test_voter_of_the_committed_set_is_believed() -> None:
    trace = _removed(committed=True)
    _believed(trace, "c1", quorum.VoteRequest(replica_id=2, replica_epoch=5))
    trace.step("c2", event=ev.RequestReceived(CAMPAIGNS, None))


def test_majorities_of_neighbouring_sets_meet_and_of_others_do_not() -> None:
    assert majorities_meet(VOTERS, VOTERS)
    assert majorities_meet(VOTERS, (*VOTERS, voter(4)))
    assert majorities_meet(VOTERS, VOTERS[:2])
    assert not majorities_meet(VOTERS, (*VOTERS, voter(4), voter(5)))
    assert not majorities_meet(VOTERS, (VOTERS[0], voter(4), voter(5)))
    assert not majorities_meet(VOTERS, (voter(4), voter(5), voter(6)))


def test_records_of_the_leader_are_not_taken_for_voter_sets() -> None:
    trace = _led(VoterSets)
    trace.append("c1", 1, pb.LeaderChangeRecord(leader_id=1, generation=1))
    assert trace.last.changes == 0

"""Fetch, divergence, the high watermark, and acknowledgements (KIP-595)."""

import math
from typing import Any

import pytest
from one_node import (
    begin,
    caught_up,
    fetch,
    fetch_request,
    follower_of_two,
    leader_of_three,
    respond,
    vote_request,
)
from quorum_harness import Cluster, effects_of, requests_of, span_of

from raftlog.errors import ErrorCode
from raftlog.node.storage.api import VoteState
from raftlog.quorum import events as ev
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

# --- the leader ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster_id": "other", "fetch_offset": -1}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"fetch_offset": -1}, ErrorCode.INVALID_REQUEST),
        ({"replica_id": -1}, ErrorCode.INVALID_REQUEST),
        ({"replica_id": 1, "replica_directory_id": "dir1"}, ErrorCode.INVALID_REQUEST),
        ({"last_fetched_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_fetched_epoch": 2}, ErrorCode.INVALID_REQUEST),
        ({"current_leader_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"max_wait_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"max_bytes": 0}, ErrorCode.INVALID_REQUEST),
        ({"high_watermark": -2}, ErrorCode.INVALID_REQUEST),
        ({"round": -1}, ErrorCode.INVALID_REQUEST),
        ({"round": 1}, ErrorCode.INVALID_REQUEST),
        ({"current_leader_epoch": 0, "last_fetched_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_invalid_fetch_is_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    node = leader_of_three()
    (reply,) = caught_up(node, **fields)
    assert (reply.response.error_code, reply.max_bytes) == (error, 0)
    assert reply.response.correlation_id == 7
    assert node.up.high_watermark == -1
    assert node.up.describe(node.cluster.now).voters[1].log_end_offset == -1, "acknowledges nothing"


def test_only_a_leader_serves_fetches() -> None:
    node = follower_of_two()
    (reply,) = fetch(node, 3)
    assert reply.response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (reply.response.leader_id, reply.response.leader_epoch) == (2, 3)


def test_fetch_at_the_log_end_waits() -> None:
    node = leader_of_three()
    caught_up(node)
    assert node.up.high_watermark == 1
    assert caught_up(node) == []
    node.after(0.299)
    assert node.up.next_deadline() == pytest.approx(node.cluster.now + 0.001)
    (reply,) = effects_of(node.after(0.002), ev.ReplyFetch)
    assert (reply.max_bytes, reply.response.error_code, reply.response.high_watermark) == (0, 0, 1)


def test_max_wait_and_max_bytes_are_capped_by_the_leader() -> None:
    node = leader_of_three(fetch_max_wait_ms=100, fetch_max_bytes=500)
    (reply,) = fetch(node, max_bytes=10_000)
    assert reply.max_bytes == 500
    caught_up(node)
    assert caught_up(node, max_wait_ms=60_000) == []
    assert effects_of(node.after(0.101), ev.ReplyFetch)
    assert len(caught_up(node, max_wait_ms=0)) == 1, "who does not want to wait need not"


def test_proposal_is_sent_before_it_is_written_to_disk() -> None:
    node = leader_of_three()
    caught_up(node)
    for replica in (2, 3, 9):
        assert caught_up(node, replica) == []
    at = len(node.effects)
    node.propose([50, 51])
    kinds = [type(effect) for effect in node.effects[at:]]
    assert kinds == [ev.Append, ev.ReplyFetch, ev.ReplyFetch, ev.ReplyFetch, ev.Flush]
    replies = node.effects[at + 1 : at + 4]
    assert [(reply.offset, reply.max_bytes) for reply in replies] == [(1, 1000)] * 3
    assert (node.up.log_end_offset, node.up.flushed_end_offset) == (3, 1)


def test_proposals_for_another_epoch_are_dropped() -> None:
    node = leader_of_three()
    at = len(node.effects)
    node.step(ev.Proposed(0, span_of([(0, 99)], 1)))
    node.step(ev.Proposed(2, span_of([(2, 99)], 1)))
    follower = follower_of_two()
    follower.step(ev.Proposed(3, span_of([(3, 99)], 0)))
    assert len(node.effects) == at
    assert not effects_of(follower, ev.Append)


@pytest.mark.parametrize(("base", "epoch"), [(0, 1), (2, 1), (1, 2)])
def test_proposal_that_does_not_fit_is_fatal(base: int, epoch: int) -> None:
    node = leader_of_three()
    node.cluster.fatal_allowed = True
    node.step(ev.Proposed(1, span_of([(epoch, 99)], base)))
    assert "the log ends at 1" in effects_of(node, ev.Fatal)[0].reason


def test_leader_counts_itself_at_its_flushed_end() -> None:
    node = leader_of_three()
    caught_up(node)
    node.propose([50])
    caught_up(node)
    assert node.up.high_watermark == 1, "one of three has it durably"
    node.flush()
    assert node.up.high_watermark == 2


def test_followers_commit_before_the_leader_has_flushed() -> None:
    node = leader_of_three()
    caught_up(node)
    node.propose([50])
    caught_up(node)
    caught_up(node, 3)
    assert (node.up.high_watermark, node.up.flushed_end_offset) == (2, 1)


def test_only_a_record_of_its_own_epoch_commits() -> None:
    """Raft figure 8: records of old epochs on a majority are not committed by counting."""
    node = leader_of_three(VoteState(4), [(2, 1), (4, 2)])
    assert node.up.epoch_start_offset == 2
    fetch(node, fetch_offset=2, last_fetched_epoch=4)
    assert node.up.high_watermark == -1, "the old records are on a majority, the new one is not"
    fetch(node, fetch_offset=3, last_fetched_epoch=5)
    assert node.up.high_watermark == 3


def test_high_watermark_never_decreases() -> None:
    node = leader_of_three()
    node.propose([50, 51])
    node.flush()
    caught_up(node)
    assert node.up.high_watermark == 3
    fetch(node, fetch_offset=1, last_fetched_epoch=1)
    caught_up(node, 3, fetch_offset=2)
    assert node.up.high_watermark == 3
    assert [e.offset for e in effects_of(node, ev.HighWatermarkAdvanced)] == [3]


@pytest.mark.parametrize(
    ("offset", "epoch", "diverging"),
    [
        (0, 0, None),
        (2, 1, None),
        (4, 4, None),
        (7, 5, None),
        (3, 1, (1, 2)),
        (5, 4, (4, 4)),
        (3, 2, (1, 2)),
        (4, 3, (1, 2)),
        (9, 5, (5, 7)),
        (2, 0, (0, 0)),
    ],
)
def test_leader_names_the_point_where_logs_diverge(
    offset: int, epoch: int, diverging: tuple[int, int] | None
) -> None:
    """Only a valid Fetch acknowledges."""
    node = leader_of_three(VoteState(4), [(1, 1), (1, 2), (4, 3), (4, 4)])
    node.propose([8, 9])
    replies = fetch(node, fetch_offset=offset, last_fetched_epoch=epoch)
    assert len(replies) <= 1
    reply = replies[0] if replies else None
    acknowledged = node.up.describe(node.cluster.now).voters[1].log_end_offset
    if diverging is None:
        assert acknowledged == offset
        assert reply is None or not reply.response.HasField("diverging_epoch")
    else:
        assert reply is not None
        found = reply.response.diverging_epoch
        assert (found.epoch, found.end_offset, reply.max_bytes) == (*diverging, 0)
        assert acknowledged == -1
        assert node.up.high_watermark == -1


def test_high_watermark_releases_all_fetches_and_is_sent_at_once() -> None:
    """KIP-1166."""
    node = leader_of_three()
    node.propose([50])
    node.flush()
    assert caught_up(node, 9) == [], "an observer, parked"
    (reply,) = caught_up(node, 3)[-1:]
    assert reply.response.high_watermark == 2
    assert {e.reply_to[0] for e in effects_of(node, ev.ReplyFetch)[-2:]} == {3, 9}
    (late,) = caught_up(node, 2, high_watermark=1)
    assert (late.response.high_watermark, late.max_bytes) == (2, 0)
    assert caught_up(node, 2) == []


def test_replica_has_at_most_one_parked_fetch() -> None:
    node = leader_of_three()
    caught_up(node)
    assert caught_up(node, correlation_id=8) == []
    (replaced,) = caught_up(node, correlation_id=9)
    assert replaced.response.correlation_id == 8
    at = len(node.effects)
    node.propose([50])
    (reply,) = effects_of(node.effects[at:], ev.ReplyFetch)
    assert reply.response.correlation_id == 9


def test_parked_fetches_end_with_the_leadership() -> None:
    node = leader_of_three()
    caught_up(node)
    caught_up(node)
    effects = node.receive(vote_request(1, 3, replica_epoch=9), 3)
    assert [one.epoch for one in effects_of(effects, ev.LostLeadership)] == [1]
    (reply,) = effects_of(effects, ev.ReplyFetch)
    assert reply.response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert node.up.epoch_start_offset == -1


@pytest.mark.parametrize("known", [True, False])
def test_replaced_disk_does_not_count(known: bool) -> None:
    """The new disk's Fetch is served, but does not count."""
    node = leader_of_three(known_directories=known)
    caught_up(node, fetch_offset=0, last_fetched_epoch=0)
    node.propose([50])
    node.flush()
    assert caught_up(node, replica_directory_id="wiped") == []
    assert node.up.high_watermark == -1
    node.cluster.now += 1.6
    caught_up(node, replica_directory_id="wiped")
    node.step(ev.Tick())
    assert node.up.role == "resigned", "nor for check-quorum"


def test_diverging_follower_counts_for_check_quorum() -> None:
    """It acknowledges nothing, but the leader has contact with its majority."""
    node = leader_of_three()
    node.cluster.now += 1.0
    (reply,) = fetch(node, fetch_offset=9, last_fetched_epoch=1)
    assert reply.response.HasField("diverging_epoch")
    node.after(0.6)
    assert node.up.role == "leader"
    node.after(0.91)
    assert node.up.role == "resigned"


def test_observers_are_served_and_never_count() -> None:
    node = leader_of_three()
    node.propose([50])
    node.flush()
    for observer in (7, 8, 9):
        caught_up(node, observer)
    assert node.up.high_watermark == -1
    description = node.up.describe(node.cluster.now)
    assert [(r.node_id, r.log_end_offset) for r in description.observers] == [
        (7, 2),
        (8, 2),
        (9, 2),
    ]
    node.after(1.6)
    assert node.up.role == "resigned"


def test_describe_shows_the_offsets_and_ages_of_replicas() -> None:
    node = leader_of_three()
    caught_up(node)
    node.propose([50])
    node.cluster.now += 0.25
    fetch(node, 3, fetch_offset=0)
    picture = node.up.describe(node.cluster.now + 0.1)
    assert (picture.role, picture.epoch, picture.leader_id, picture.voted_id) == ("leader", 1, 1, 1)
    assert (picture.log_start_offset, picture.flushed_end_offset) == (0, 1)
    assert picture.log_end_offset == 2
    assert (picture.high_watermark, picture.epoch_start_offset) == (1, 0)
    assert [(r.node_id, r.directory_id, r.log_end_offset) for r in picture.voters] == [
        (1, "dir1", 1),
        (2, "dir2", 1),
        (3, "dir3", 0),
    ]
    assert [(r.last_fetch_age_ms, r.last_caught_up_age_ms) for r in picture.voters] == [
        (0, 0),
        (350, 350),
        (100, -1),
    ]
    assert (picture.parked_fetches, picture.hears_leader) == (0, False)
    caught_up(node, 9, fetch_offset=2)
    assert node.up.describe(node.cluster.now).parked_fetches == 1
    follower = follower_of_two().up.describe(0.0)
    assert (follower.role, follower.voters, follower.epoch_start_offset) == ("follower", (), -1)
    assert follower.parked_fetches == 0


def test_begin_quorum_epoch_is_sent_to_silent_voters_only() -> None:
    node = leader_of_three()
    assert [r.voter_id for r in requests_of(node, pb.BeginQuorumEpochRequest)] == [2, 3]
    node.cluster.now += 0.4
    caught_up(node)
    node.after(0.15)
    assert [r.voter_id for r in requests_of(node, pb.BeginQuorumEpochRequest)] == [2, 3, 3]


# --- the follower -------------------------------------------------------------------------------


def test_first_fetch_states_all_fields() -> None:
    node = follower_of_two([(1, 1), (2, 2)], fetch_max_wait_ms=111, fetch_max_bytes=222)
    (send,) = effects_of(node, ev.SendFetch)
    known = {"fetch_offset": 2, "last_fetched_epoch": 2, "max_wait_ms": 111, "max_bytes": 222}
    version = node.config.max_metadata_version
    assert send.peer_id == 2
    assert send.request == fetch_request(
        1, 3, correlation_id=send.correlation_id, max_metadata_version=version, **known
    )


def test_next_fetch_waits_for_the_flush() -> None:
    """The Fetch acknowledges."""
    node = follower_of_two()
    at = len(node.effects)
    respond(node, [(3, 1), (3, 2)], high_watermark=1)
    assert [type(e) for e in node.effects[at:]] == [ev.Append, ev.Flush, ev.HighWatermarkAdvanced]
    assert node.up.next_deadline() > node.cluster.now + 0.9, "nothing to do before the disk is done"
    node.step(ev.Flushed(1))
    assert len(effects_of(node, ev.SendFetch)) == 1, "not all of it"
    node.step(ev.Flushed(2))
    sends = effects_of(node, ev.SendFetch)
    assert len(sends) == 2
    assert (sends[1].request.fetch_offset, sends[1].request.high_watermark) == (2, 1)
    node.step(ev.Flushed(2))
    assert len(effects_of(node, ev.SendFetch)) == 2, "one outstanding"


def test_follower_high_watermark_stays_within_its_log_and_never_falls() -> None:
    node = follower_of_two()
    respond(node, [(3, 1), (3, 2)], high_watermark=9)
    assert node.up.high_watermark == 2, "no more than the own log"
    node.step(ev.Flushed(2))
    respond(node, high_watermark=1)
    respond(node, high_watermark=-1)
    assert node.up.high_watermark == 2, "a new leader may know less"


def test_late_and_repeated_responses_append_nothing() -> None:
    """Late and repeated responses, and resent data that overlaps."""
    node = follower_of_two()
    first = node.last(ev.SendFetch)
    respond(node, [(3, 1), (3, 2)])
    node.step(ev.Flushed(2))
    response, span = pb.FetchResponse(leader_id=2, leader_epoch=3), span_of([(3, 9)], 2)
    node.answer(first, response, span)
    current = node.last(ev.SendFetch)
    node.step(ev.ResponseReceived(3, current.correlation_id, response, span))
    node.answer(current, pb.VoteResponse(vote_granted=True))
    assert node.up.log_end_offset == 2


@pytest.mark.parametrize(
    ("records", "base", "fields"),
    [
        ([(3, 5)], 1, {}),
        ([(3, 5)], 3, {}),
        ([(4, 5)], 2, {}),
        ([(1, 5)], 2, {}),
        ([(3, 5)], 2, {"leader_id": 3, "error_code": int(ErrorCode.BROKER_NOT_AVAILABLE)}),
        ([(3, 5)], 2, {"leader_epoch": 2}),
        ([(3, 5)], 2, {"error_code": int(ErrorCode.UNKNOWN_LEADER_EPOCH)}),
        ([(3, 5)], 2, {"error_code": int(ErrorCode.INVALID_REQUEST)}),
        (None, None, {"records": b"not to be trusted"}),
    ],
)
def test_responses_that_do_not_fit_are_refused_and_fetched_again(
    records: list[tuple[int, int]] | None, base: int | None, fields: dict[str, Any]
) -> None:
    node = follower_of_two([(2, 1), (2, 2)])
    if "leader_id" in fields:
        fields["leader_id"] = 2
    respond(node, records, base, **fields)
    assert not effects_of(node, ev.Append)
    assert node.up.high_watermark == -1
    assert len(effects_of(node, ev.SendFetch)) == 1
    assert node.up.next_deadline() == pytest.approx(node.cluster.now + 0.02)
    node.after(0.021)
    assert len(effects_of(node, ev.SendFetch)) == 2


def test_failed_fetch_is_retried_after_a_pause() -> None:
    node = follower_of_two()
    for tries in range(1, 5):
        send = node.last(ev.SendFetch)
        node.step(ev.RequestFailed(2, send.correlation_id))
        node.step(ev.RequestFailed(2, send.correlation_id))
        assert len(effects_of(node, ev.SendFetch)) == tries
        node.after(0.021)
    assert len(effects_of(node, ev.SendFetch)) == 5


def test_unanswered_fetch_is_given_up() -> None:
    node = follower_of_two(request_timeout_ms=300)
    first = node.last(ev.SendFetch)
    node.after(0.301)
    assert len(effects_of(node, ev.SendFetch)) == 2
    node.answer(first, pb.FetchResponse(leader_id=2, leader_epoch=3), span_of([(3, 9)], 0))
    assert node.up.log_end_offset == 0


def test_log_is_truncated_epoch_by_epoch() -> None:
    node = follower_of_two([(1, 1), (1, 2), (2, 3), (2, 4), (3, 5)], epoch=6)
    respond(node, diverging_epoch=pb.EpochEndOffset(epoch=2, end_offset=8))
    assert effects_of(node, ev.Truncate) == [ev.Truncate(4)], "the smaller of its end and ours"
    assert isinstance(node.effects[-2], ev.Flush)
    assert node.last(ev.SendFetch).request.fetch_offset == 4
    respond(node, diverging_epoch=pb.EpochEndOffset(epoch=1, end_offset=1))
    assert node.last(ev.Truncate) == ev.Truncate(1)
    assert node.up.log_end_offset == node.up.flushed_end_offset == 1
    assert node.last(ev.SendFetch).request.last_fetched_epoch == 1


def test_unknown_epoch_of_the_leader_truncates_to_the_end_of_an_older_one() -> None:
    """The leader's epoch may end inside a batch here: only ends of own epochs are boundaries."""
    node = follower_of_two([(4, 0), (4, 1), (4, 2), (4, 3), (4, 4), (7, 5)], epoch=8)
    respond(node, diverging_epoch=pb.EpochEndOffset(epoch=6, end_offset=3))
    assert effects_of(node, ev.Truncate) == [ev.Truncate(5)]
    request = node.last(ev.SendFetch).request
    assert (request.fetch_offset, request.last_fetched_epoch) == (5, 4)
    respond(node, diverging_epoch=pb.EpochEndOffset(epoch=4, end_offset=2))
    assert node.last(ev.Truncate) == ev.Truncate(2)


def test_truncation_of_unflushed_records_waits_for_the_disk() -> None:
    """A flush from before the truncation is no proof; the one after it is."""
    node = follower_of_two([(1, 1)], epoch=6)
    respond(node, [(2, 2), (3, 3)])
    assert node.up.flushed_end_offset == 1
    node.receive(begin(3, 7), 3)
    fetches = len(effects_of(node, ev.SendFetch))
    assert fetches == 1, "unflushed records are not acknowledged to the new leader"
    node.flush()
    send = node.last(ev.SendFetch)
    assert (send.peer_id, send.request.fetch_offset) == (3, 3)


@pytest.mark.parametrize("hint", [(9, 3), (-1, 3), (2, -1), (2, 99), (3, 5)])
def test_impossible_divergence_is_refused(hint: tuple[int, int]) -> None:
    node = follower_of_two([(2, 1), (2, 2)])
    respond(node, diverging_epoch=pb.EpochEndOffset(epoch=hint[0], end_offset=hint[1]))
    assert not effects_of(node, ev.Truncate)
    assert not effects_of(node, ev.Fatal)
    assert len(effects_of(node, ev.SendFetch)) == 1


@pytest.mark.parametrize("hint", [(2, 1), (1, 5), (0, 0)])
def test_truncation_below_the_high_watermark_is_refused(hint: tuple[int, int]) -> None:
    """The leader lacks committed records: this node stops following, and reports it."""
    node = follower_of_two([(2, 1), (2, 2)])
    respond(node, high_watermark=2)
    deadline = node.role.election_timer
    respond(node, diverging_epoch=pb.EpochEndOffset(epoch=hint[0], end_offset=hint[1]))
    assert not effects_of(node, ev.Truncate)
    assert not effects_of(node, ev.Fatal)
    (refused,) = effects_of(node, ev.Refused)
    assert (refused.field, refused.contradiction) == ("diverging_epoch", True)
    assert "below the high watermark 2" in refused.reason
    assert node.role.election_timer == deadline, "the fetch timer runs on: no answer that counts"
    assert len(effects_of(node, ev.SendFetch)) == 2, "asked again after a pause only"


def test_refused_fetch_names_the_new_leader() -> None:
    node = follower_of_two()
    code = int(ErrorCode.FENCED_LEADER_EPOCH)
    respond(node, error_code=code, leader_id=3, leader_epoch=8)
    assert (node.up.role, node.up.leader_id, node.up.epoch) == ("follower", 3, 8)
    assert node.last(ev.SendFetch).peer_id == 3


def test_fetch_timer_is_reset_only_by_responses_of_the_leader() -> None:
    """Error-free responses of the leader: empty, with data, or diverging. Nothing else."""
    good: list[dict[str, Any]] = [
        {},
        {"data": [(3, 9)]},
        {"diverging_epoch": pb.EpochEndOffset(epoch=1, end_offset=1)},
    ]
    bad: list[dict[str, Any]] = [
        {"error_code": int(ErrorCode.BROKER_NOT_AVAILABLE)},
        {"error_code": int(ErrorCode.UNKNOWN_LEADER_EPOCH)},
        {"leader_epoch": 2},
    ]
    for fields, resets in [(f, True) for f in good] + [(f, False) for f in bad]:
        node = follower_of_two([(1, 1), (2, 2)], request_timeout_ms=60_000)
        node.cluster.now += 0.9
        respond(node, **fields)
        node.after(0.35)
        assert (node.up.role == "follower") is resets, fields


def test_idle_cluster_elects_no_leader_and_fetches_rarely() -> None:
    """No elections, no records; one Fetch per follower and fetch_max_wait_ms."""
    cluster = Cluster(3, connected=True)
    cluster.elect()
    before = len(cluster.history)
    cluster.run(10)
    assert list(cluster.oracle.leader_of) == [1]
    assert len(cluster.history) - before <= 2 * 2 * 26
    assert all(math.isfinite(node.up.next_deadline()) for node in cluster.alive)


def test_high_watermark_alone_is_sent_after_a_short_delay() -> None:
    node = leader_of_three(high_watermark_linger_ms=5)
    assert fetch(node, 2, fetch_offset=1, last_fetched_epoch=1) == []
    assert node.up.high_watermark == 1
    node.after(0.004)
    assert effects_of(node, ev.ReplyFetch) == []
    node.cluster.now += 0.002
    assert node.up.next_deadline() <= node.cluster.now
    node.step(ev.Tick())
    [reply] = effects_of(node, ev.ReplyFetch)
    assert (reply.response.high_watermark, reply.max_bytes) == (1, 0)


def test_data_carries_the_high_watermark() -> None:
    node = leader_of_three(high_watermark_linger_ms=5)
    fetch(node, 2, fetch_offset=1, last_fetched_epoch=1)
    node.propose([50])
    [reply] = effects_of(node, ev.ReplyFetch)
    assert reply.response.high_watermark == 1
    assert reply.max_bytes > 0


@pytest.mark.parametrize(
    ("disk_busy_s", "resigns"), [(1.5, True), (None, True), (1.0, False), (0.0, False)]
)
def test_only_a_disk_busy_for_that_long_hangs(disk_busy_s: float | None, resigns: bool) -> None:
    """[A slow loop learned late of fast flushes: a busy leader was replaced for its disk.]"""
    node = leader_of_three(fetch_timeout_ms=1000)
    node.propose([50])
    for _ in range(4):
        node.cluster.now += 0.4
        if node.up.role != "leader":
            break
        # The others go on, so that nothing but the own disk is in question.
        fetch(node, 2, fetch_offset=2, last_fetched_epoch=1)
        fetch(node, 3, fetch_offset=2, last_fetched_epoch=1)
        node.step(ev.Tick(disk_busy_s))
    assert (node.up.role != "leader") is resigns
    reasons = [effect.reason for effect in effects_of(node, ev.LostLeadership)]
    assert [("disk" in reason) for reason in reasons] == [True] * resigns

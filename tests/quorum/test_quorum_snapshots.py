"""Snapshots (KIP-630)."""

from typing import Any

import pytest
from one_node import (
    caught_up,
    fetch,
    follower_of_two,
    granted,
    leader_of_three,
    respond,
    vote_request,
)
from quorum_harness import CLUSTER, SimNode, effects_of

from raftlog.errors import ErrorCode
from raftlog.node.storage.api import RecoveredLog, SnapshotId, VoteState
from raftlog.quorum import events as ev
from raftlog.quorum.fetcher import MIN_PART_BYTES
from raftlog.quorum.log_state import EpochIndex, LogState
from raftlog.wire.quorum.v1 import quorum_pb2 as pb


def compacted_leader() -> SimNode:
    """Node 1 leads epoch 1 with [0, 6) committed; its log begins at 4."""
    node = leader_of_three()
    node.propose([1, 2, 3, 4, 5])
    node.flush()
    caught_up(node, fetch_offset=6)
    assert node.up.high_watermark == 6
    node.advance_start(node.snapshot(4))
    return node


def serve(node: SimNode, **fields: Any) -> ev.ReplySnapshot | ev.Reply:
    values: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "replica_id": 2,
        "replica_directory_id": "dir2",
        "current_leader_epoch": node.up.epoch,
        "snapshot_id": pb.SnapshotId(end_offset=4, epoch=1),
        "max_bytes": 100,
    }
    effects = node.receive(pb.FetchSnapshotRequest(**(values | fields)))
    (answer,) = (e for e in effects if isinstance(e, ev.Reply | ev.ReplySnapshot))
    return answer


def fetching_follower(log: list[tuple[int, int]] | None = None, end_offset: int = 9) -> SimNode:
    """Node 1 of three; 2 leads epoch 3 and has named a snapshot."""
    node = follower_of_two(log)
    answer(node, snapshot_id=pb.SnapshotId(end_offset=end_offset, epoch=2))
    return node


def answer(node: SimNode, **fields: Any) -> None:
    respond(node, high_watermark=9, **fields)


def part(node: SimNode, data: bytes, **fields: Any) -> None:
    """Return the response to the last FetchSnapshot."""
    send = node.last(ev.SendFetchSnapshot)
    values: dict[str, Any] = {
        "leader_id": 2,
        "leader_epoch": 3,
        "snapshot_id": send.request.snapshot_id,
        "position": send.request.position,
        "size": 10,
        "bytes": data,
    }
    node.answer(send, pb.FetchSnapshotResponse(**(values | fields)))


@pytest.mark.parametrize(
    ("offset", "epoch", "named"),
    [
        (0, 0, True),
        (2, 1, True),
        (4, 0, True),
        (5, 0, True),
        (4, 1, False),
        (5, 1, False),
        (6, 1, False),
    ],
)
def test_follower_needs_a_snapshot_when_the_log_cannot_continue_its_own(
    offset: int, epoch: int, named: bool
) -> None:
    node = compacted_leader()
    answers = fetch(node, 3, fetch_offset=offset, last_fetched_epoch=epoch, max_wait_ms=0)
    response = answers[-1].response
    assert response.HasField("snapshot_id") == named
    assert not response.error_code
    assert answers[-1].max_bytes > 0 or named or offset == 6
    if named:
        assert (response.snapshot_id.end_offset, response.snapshot_id.epoch) == (4, 1)
        assert node.role.progress.voters[3].end_offset == -1, "acknowledges nothing"
        assert node.role.progress.voters[3].fetched_at == node.cluster.now, "but it lives"


def test_empty_follower_gets_a_snapshot_when_it_is_shorter() -> None:
    node = leader_of_three()
    node.propose([1, 2, 3])
    node.flush()
    caught_up(node, fetch_offset=4)
    assert fetch(node, 3)[-1].max_bytes > 0
    node.snapshot(3)
    assert fetch(node, 3)[-1].response.snapshot_id.end_offset == 3, (
        "though the log still begins at 0"
    )
    assert fetch(node, 3, fetch_offset=1, last_fetched_epoch=1)[-1].max_bytes > 0


def test_newest_snapshot_is_named_and_older_ones_are_served_until_dropped() -> None:
    node = compacted_leader()
    node.snapshot(6)
    assert fetch(node, 3)[-1].response.snapshot_id.end_offset == 6
    assert isinstance(serve(node), ev.ReplySnapshot)
    node.advance_start(SnapshotId(6, 1))
    assert serve(node).response.error_code == ErrorCode.SNAPSHOT_NOT_FOUND
    assert node.up.log_start_offset == 6


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"cluster_id": "x", "current_leader_epoch": 9}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"max_bytes": 0}, ErrorCode.INVALID_REQUEST),
        ({"current_leader_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"current_leader_epoch": 0, "position": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (
            {"snapshot_id": pb.SnapshotId(end_offset=4, epoch=2), "position": -1},
            ErrorCode.SNAPSHOT_NOT_FOUND,
        ),
        ({"position": -1}, ErrorCode.POSITION_OUT_OF_RANGE),
    ],
)
def test_invalid_snapshot_fetch_is_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    node = compacted_leader()
    refused = serve(node, **fields)
    assert isinstance(refused, ev.Reply)
    assert refused.response.error_code == error
    known = error != ErrorCode.INCONSISTENT_CLUSTER_ID
    assert (refused.response.leader_id, refused.response.leader_epoch) == (
        (1, 1) if known else (-1, 0)
    )


def test_any_node_serves_snapshots_to_replicas_without_an_epoch() -> None:
    node = follower_of_two([(1, 1), (1, 2), (3, 3)])
    answer(node)
    node.snapshot(2)
    assert serve(node, snapshot_id=pb.SnapshotId(end_offset=2, epoch=1)).response.error_code == 6
    served = serve(
        node,
        snapshot_id=pb.SnapshotId(end_offset=2, epoch=1),
        current_leader_epoch=-1,
        replica_id=-1,
    )
    assert isinstance(served, ev.ReplySnapshot)
    assert (served.position, served.max_bytes) == (0, 100)


def test_snapshot_fetches_count_for_check_quorum() -> None:
    node = compacted_leader()
    for _ in range(10):
        node.cluster.now += 0.4
        serve(node)
        node.step(ev.Tick())
    assert node.up.role == "leader"
    for _ in range(10):
        node.cluster.now += 0.4
        serve(node, current_leader_epoch=-1)
        node.step(ev.Tick())
    assert node.up.role != "leader", "who follows no epoch proves nothing"


def test_snapshot_installation_replaces_the_log() -> None:
    node = fetching_follower([(1, 1), (1, 2)])
    part(node, b"abcdef")
    part(node, b"ghij")
    stored = effects_of(node, ev.StoreSnapshot)
    snapshot_id = SnapshotId(9, 2)
    assert stored == [
        ev.StoreSnapshot(snapshot_id, 0, b"abcdef", False),
        ev.StoreSnapshot(snapshot_id, 6, b"ghij", True),
    ]
    sends = len(effects_of(node, ev.SendFetch)) + len(effects_of(node, ev.SendFetchSnapshot))
    node.after(0.3)
    assert (
        len(effects_of(node, ev.SendFetch)) + len(effects_of(node, ev.SendFetchSnapshot)) == sends
    ), "waits for the disk"
    at = len(node.effects)
    node.step(ev.SnapshotStored(snapshot_id, voters := node.cluster.voters[:2]))
    kinds = [type(effect).__name__ for effect in node.effects[at:]]
    assert kinds == [
        "LoadSnapshot",
        "HighWatermarkAdvanced",
        "VotersChanged",
        "PeersChanged",
        "Flush",
        "SendFetch",
    ]
    core = node.up
    assert (core.log_start_offset, core.log_end_offset, core.high_watermark) == (9, 9, 9)
    assert core.voters == voters
    request = node.effects[-1].request
    assert (request.fetch_offset, request.last_fetched_epoch) == (9, 2), (
        "the epoch of an empty log is the snapshot's"
    )


def test_damaged_snapshot_is_fetched_again() -> None:
    node = fetching_follower()
    part(node, b"abcdefghij")
    node.step(ev.SnapshotStored(SnapshotId(9, 2), error="a byte has changed"))
    assert node.up.log_end_offset == 0
    node.after(0.02)
    assert node.last(ev.SendFetch).request.fetch_offset == 0
    assert not effects_of(node, ev.LoadSnapshot)
    answer(node, snapshot_id=pb.SnapshotId(end_offset=9, epoch=2))
    assert node.last(ev.SendFetchSnapshot).request.position == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"position": 1},
        {"snapshot_id": pb.SnapshotId(end_offset=9, epoch=1)},
        {"size": 3},
        {"bytes": b""},
        {"error_code": ErrorCode.SNAPSHOT_NOT_FOUND},
        {"error_code": ErrorCode.POSITION_OUT_OF_RANGE},
    ],
)
def test_unexpected_snapshot_part_restarts_the_installation(fields: dict[str, Any]) -> None:
    node = fetching_follower()
    part(node, b"abcdef")
    part(node, **({"data": b"ghij"} | fields))
    assert effects_of(node, ev.DropSnapshot) == [ev.DropSnapshot(SnapshotId(9, 2))]
    assert len(effects_of(node, ev.StoreSnapshot)) == 1
    fetches = len(effects_of(node, ev.SendFetch))
    node.after(0.02)
    assert len(effects_of(node, ev.SendFetch)) == fetches + 1


def test_smaller_parts_are_requested_over_a_slow_link() -> None:
    """KIP-1219: otherwise the same part would be requested forever, and never arrive."""
    node = fetching_follower()
    sizes = []
    for _ in range(8):
        sizes.append(node.last(ev.SendFetchSnapshot).request.max_bytes)
        node.role._fetch_deadline += 10
        node.after(1)
    assert (sizes[:3], sizes[-1]) == ([1 << 20, 1 << 19, 1 << 18], MIN_PART_BYTES)


@pytest.mark.parametrize(("end_offset", "epoch"), [(2, 1), (1, 1), (9, 4), (9, 0), (0, 1)])
def test_impossible_snapshot_is_refused(end_offset: int, epoch: int) -> None:
    node = follower_of_two([(1, 1), (1, 2)])
    answer(node)
    assert node.up.high_watermark == 2
    answer(node, snapshot_id=pb.SnapshotId(end_offset=end_offset, epoch=epoch))
    assert not effects_of(node, ev.SendFetchSnapshot)
    assert node.up.log_end_offset == 2


def test_diverging_log_is_kept_until_the_snapshot_is_complete() -> None:
    """Part of it may be committed, and a majority may rest on this copy: this node cannot tell."""
    node = fetching_follower([(1, 1)] + [(2, at) for at in range(11)])
    assert len(effects_of(node, ev.SendFetchSnapshot)) == 1
    assert not effects_of(node, ev.Truncate)
    assert node.up.log_end_offset == 12
    part(node, b"abcdefghij")
    assert node.up.log_end_offset == 12
    node.step(ev.SnapshotStored(SnapshotId(9, 2)))
    assert (node.up.log_start_offset, node.up.log_end_offset, node.up.high_watermark) == (9, 9, 9)


def test_new_epoch_drops_received_parts() -> None:
    node = fetching_follower()
    part(node, b"abcdef")
    node.receive(vote_request(1, 3), 3)
    assert effects_of(node, ev.DropSnapshot) == [ev.DropSnapshot(SnapshotId(9, 2))]


def test_replica_does_not_lead_during_snapshot_installation() -> None:
    node = fetching_follower()
    part(node, b"abcdefghij")
    at = node.cluster.now
    while node.up.role != "prospective":
        node.wait_for_deadline()
        assert node.cluster.now < at + 5
    for _ in range(3):
        for send in effects_of(node, ev.Send):
            if isinstance(send.request, pb.VoteRequest):
                node.answer(send, granted(send.peer_id, 3, pre_vote=True))
        node.wait_for_deadline()
        assert node.up.epoch == 3, "it won the pre-vote, and opens no epoch"
    node.step(ev.SnapshotStored(SnapshotId(9, 2)))
    assert (node.up.log_end_offset, node.up.high_watermark) == (9, 9)


def test_core_stops_at_an_invalid_snapshot_event() -> None:
    node = compacted_leader()
    node.cluster.fatal_allowed = True
    node.step(ev.SnapshotFrozen(SnapshotId(7, 1)))
    assert "above the high watermark" in node.fatal
    node = compacted_leader()
    node.cluster.fatal_allowed = True
    node.step(ev.LogStartAdvanced(SnapshotId(5, 1)))
    assert "but there is no such snapshot" in node.fatal


def test_log_start_is_in_the_epoch_index() -> None:
    index = EpochIndex([(1, 0), (3, 4), (5, 9)])
    index.drop_before(4, 12)
    assert list(index.entries) == [(3, 4), (5, 9)]
    index.drop_before(10, 12)
    assert list(index.entries) == [(5, 10)]
    assert index.end_offset_for_epoch(4, log_start=10, log_end=12, start_epoch=4) == (4, 10)
    assert index.end_offset_for_epoch(3, log_start=10, log_end=12, start_epoch=4) == (0, 10)
    index.drop_before(12, 12)
    assert index.entries == ()


def test_log_state_continues_after_a_snapshot() -> None:
    log = LogState(RecoveredLog(VoteState(), 10, 12, ((5, 10),), 0, 3, (SnapshotId(10, 3),)))
    assert log.snapshot_for(10, 3) is None
    assert log.snapshot_for(10, 4) == SnapshotId(10, 3)
    assert log.snapshot_for(11, 2) == SnapshotId(10, 3)
    assert log.divergence(11, 4) == (3, 10)
    assert log.divergence(10, 3) is None
    assert log.divergence(12, 5) is None
    log.reset(SnapshotId(20, 6), (8, 9))
    assert (log.lineage.current, log.lineage.recoveries) == (9, 1)
    assert log.last_epoch == 6
    assert not log.is_up_to_date(5, 30)
    assert log.is_up_to_date(6, 20)

"""Log generations: a directory follows only logs that descend from its own, and only all voters
start a new quorum.
"""

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from one_node import caught_up, fetch, leader_of_three, vote_request
from quorum_harness import CLUSTER, Cluster, Disk, effects_of, span_of, voter

from raftlog.errors import ErrorCode
from raftlog.metadata.control_records import GenerationAt, Lineage, new_generation
from raftlog.node.storage.api import RecoveredLog, VoteState
from raftlog.quorum import events as ev
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.quorum.core import QuorumCore
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

MINE, OTHER = 11, 22


def without_directory(name: str) -> Voter:
    """A voter as named by ``controller.quorum.voters``."""
    return replace(voter(name), directory_id="")


def node_of(generation: int, *, epoch: int = 3, log: tuple[tuple[int, int], ...] = ()) -> Any:
    """Node 1 follows node 2; its directory belongs to ``generation``."""
    config = QuorumConfig(CLUSTER, 1, "dir1", tuple(voter(name) for name in "123"))
    end = 10 if log else 0
    recovered = RecoveredLog(
        VoteState(epoch, -1, "", 2),
        0,
        end,
        log,
        generations=(GenerationAt(0, generation),) if log else (),
        bound_generation=generation,
    )
    return QuorumCore(config, recovered, random.Random(1), 100.0)


def test_lineage_names_ancestors_and_drops_truncated_ones() -> None:
    lineage = Lineage([GenerationAt(0, 5), GenerationAt(7, 5), GenerationAt(9, 0)])
    assert (lineage.current, lineage.recoveries, lineage.below(9)) == (0, 1, (5,))
    lineage.append([GenerationAt(11, 8)])
    assert (lineage.current, lineage.recoveries) == (8, 1)
    assert (lineage.at(9), lineage.at(10), lineage.at(12)) == (5, 0, 8)
    assert 5 in lineage
    assert 0 not in Lineage([GenerationAt(0, 5)])
    lineage.truncate(9)
    assert (lineage.current, lineage.recoveries, lineage.below(100)) == (5, 0, (5,))
    lineage.reset((1, 2))
    lineage.truncate(0)
    assert (lineage.current, lineage.recoveries) == (2, 1), "no truncation reaches a snapshot"


def test_generation_depends_on_every_part_of_its_origin() -> None:
    origin = ("cluster", "directory", 3, 17, 1_700_000_000_000)
    others = [(*origin[:at], f"{origin[at]}1", *origin[at + 1 :]) for at in range(len(origin))]
    found = {new_generation(*origin), *(new_generation(*other) for other in others)}
    assert len(found) == 6
    assert all(0 < one < 2**53 for one in found)
    assert new_generation(*origin) == new_generation(*origin)


def test_directory_is_bound_when_a_generation_is_committed() -> None:
    node = leader_of_three()
    assert effects_of(node, ev.BindGeneration) == []
    node.step(ev.Tick())
    span = replace_generations(span_of([(1, 5)], 1), (GenerationAt(1, MINE),))
    node.step(ev.Proposed(1, span))
    node.flush()
    assert node.up.generation == 0, "appended, not committed"
    caught_up(node)
    assert (node.up.high_watermark, node.up.generation) == (2, MINE)
    assert effects_of(node, ev.BindGeneration) == [ev.BindGeneration(MINE)]


def replace_generations(span: Any, generations: tuple[GenerationAt, ...]) -> Any:
    return msgspec.structs.replace(span, generations=generations)


@pytest.mark.parametrize(("generation", "served"), [(0, True), (MINE, True), (OTHER, False)])
def test_leader_serves_only_logs_that_its_own_descends_from(generation: int, served: bool) -> None:
    node = leader_of_three()
    node.up.lineage.append([GenerationAt(0, MINE), GenerationAt(1, 0), GenerationAt(2, 33)])
    (reply,) = fetch(node, generation=generation, max_wait_ms=0)
    expected = ErrorCode.NONE if served else ErrorCode.INCONSISTENT_GENERATION
    assert reply.response.error_code == expected
    assert [one.field for one in effects_of(node, ev.Refused)] == ([] if served else ["generation"])


def test_follower_keeps_its_log_when_the_leader_has_another_log() -> None:
    core = node_of(MINE, log=((3, 0),))
    effects = core.step(ev.Tick(), 100.0)
    (send,) = effects_of(effects, ev.SendFetch)
    assert send.request.generation == MINE
    response = pb.FetchResponse(
        error_code=ErrorCode.INCONSISTENT_GENERATION, leader_id=2, leader_epoch=3, high_watermark=-1
    )
    effects = core.step(ev.ResponseReceived(2, send.correlation_id, response, None), 100.1)
    assert not effects_of(effects, ev.Truncate) + effects_of(effects, ev.Append)
    assert core.log_end_offset == 10
    assert f"belongs to generation {MINE}, from which the log of node" in core.log_conflict
    (refused,) = effects_of(effects, ev.Refused)
    assert (refused.field, refused.contradiction) == ("generation", True)


def test_leader_reports_where_the_last_batch_of_a_follower_differs() -> None:
    node = leader_of_three()
    node.propose([50, 51])
    node.flush()
    batch = pb.LogBatch(base_offset=1, crc=7)
    (reply,) = caught_up(node, last_batch=batch)
    found = reply.response.diverging_epoch
    assert (found.epoch, found.end_offset) == (1, 1)
    assert node.up.high_watermark == -1, "it acknowledges nothing"


def test_follower_has_its_log_compared_in_each_epoch_until_the_leader_has_it() -> None:
    core = node_of(MINE, log=((3, 0),))
    (send,) = [one for one in core.step(ev.Tick(), 100.0) if isinstance(one, ev.SendFetch)]
    assert send.compare
    end = pb.EpochEndOffset(epoch=3, end_offset=4)
    response = pb.FetchResponse(leader_id=2, leader_epoch=3, high_watermark=2, diverging_epoch=end)
    effects = core.step(ev.ResponseReceived(2, send.correlation_id, response, None), 100.1)
    assert [one.end_offset for one in effects if isinstance(one, ev.Truncate)] == [4]
    (send,) = effects_of(effects, ev.SendFetch)
    assert send.compare
    response = pb.FetchResponse(leader_id=2, leader_epoch=3, high_watermark=2)
    effects = core.step(ev.ResponseReceived(2, send.correlation_id, response, None), 100.3)
    (send,) = effects_of(effects, ev.SendFetch)
    assert not send.compare


def test_second_leader_of_an_epoch_that_this_node_led_is_reported_as_a_conflict() -> None:
    node = leader_of_three()
    response = pb.BeginQuorumEpochResponse(leader_id=3, leader_epoch=1, voter_id=2)
    send = next(
        one
        for one in effects_of(node, ev.Send)
        if isinstance(one.request, pb.BeginQuorumEpochRequest) and one.peer_id == 2
    )
    node.answer(send, response)
    assert node.up.role == "leader"
    assert "two leaders in epoch 1: 1 and 3" in node.up.log_conflict


@pytest.mark.parametrize(
    ("bound", "theirs", "granted"),
    [(0, OTHER, True), (MINE, 0, True), (MINE, MINE, True), (MINE, OTHER, False)],
)
def test_voter_refuses_a_candidate_of_another_log(bound: int, theirs: int, granted: bool) -> None:
    config = QuorumConfig(CLUSTER, 1, "dir1", tuple(voter(name) for name in "123"))
    recovered = RecoveredLog(VoteState(3), 0, 0, (), bound_generation=bound)
    core = QuorumCore(config, recovered, random.Random(1), 100.0)
    whole = {"last_offset_epoch": 3, "last_offset": 50}
    request = vote_request(1, replica_epoch=4, generation=theirs, **whole)
    effects = core.step(ev.RequestReceived(request, "asker"), 100.1)
    (reply,) = effects_of(effects, ev.Reply)
    assert reply.response.vote_granted is granted
    if not granted:
        assert reply.response.error_code == ErrorCode.INCONSISTENT_GENERATION


@pytest.mark.parametrize(
    ("known_directories", "alive", "elects"),
    [(False, (1, 2), False), (False, (1, 2, 3), True), (True, (1, 2), True)],
)
def test_configured_voter_set_starts_a_quorum_with_the_votes_of_all(
    known_directories: bool, alive: tuple[int, ...], elects: bool
) -> None:
    """``known_directories``: the set names the directories of its voters."""
    cluster = Cluster(3, start=False, known_directories=known_directories)
    for node_id in alive:
        cluster[node_id].start()
    cluster.connect_all()
    cluster.run(20.0)
    assert bool(cluster.leaders()) is elects


@pytest.mark.parametrize(("generations", "elects"), [((11, 0), False), ((11, 0, 12), True)])
def test_restored_log_of_configured_voters_requires_all_votes_for_its_first_leader(
    generations: tuple[int, ...], elects: bool
) -> None:
    """[One of three was not started yet, and another one has a new disk: the two elect the first,
    and the acknowledged writes of the others are lost.] 0: a restore ended the previous generation.
    """
    config = QuorumConfig(CLUSTER, 1, "dir1", tuple(map(without_directory, "123")))
    log = tuple(GenerationAt(5 + at, one) for at, one in enumerate(generations))
    recovered = RecoveredLog(VoteState(3), 5, 10, ((3, 5),), start_epoch=2, generations=log)
    core = QuorumCore(config, recovered, random.Random(1), 100.0)
    assert (core._node.votes_needed < 3) is elects


def test_voters_with_new_disks_elect_no_leader_while_another_voter_has_records() -> None:
    """[They start a new quorum, and the records of the third are lost.]"""
    cluster = Cluster(3, known_directories=False, connected=True)
    leader = cluster.elect()
    cluster.propose(3)
    cluster.run(2.0)
    survivor = cluster.others(leader)[0]
    kept = list(survivor.log)
    assert len(kept) == 4
    others = cluster.others(survivor)
    for node in list(cluster.alive):
        cluster.crash(node.id, keep=1000)
    for node in others:
        node.disk = Disk()
        node.config = replace(node.config, directory_id=f"new{node.id}")
        cluster.restart(node.id)
    cluster.run(20.0)
    assert cluster.leaders() == []
    cluster.restart(survivor.id)
    cluster.run(20.0)
    assert cluster.leaders() == [survivor]
    assert all(node.log[: len(kept)] == kept for node in cluster.alive)

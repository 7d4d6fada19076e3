"""Detection of a voter's data directory that was restored from a copy, or is used twice."""

import asyncio
import math
import random
from dataclasses import replace
from typing import Any

import pytest
from scenarios import simulated
from structlog.testing import capture_logs
from test_replica import Node, World
from test_shell_rules import FakeLink

from raftlog.bounds import DIRECTORY_NONCES_MAX
from raftlog.errors import DirectoryInUseElsewhereError, DirectorySetBackError, ErrorCode
from raftlog.node.replica.directory_starts import MAX_DIRECTORIES, VoterStarts
from raftlog.node.replica.peer_acceptor import FetchAddresses, ReplyTo
from raftlog.node.storage.api import DirectoryStart, KnownStart, NodeIdentity
from raftlog.quorum.config import Voter
from raftlog.quorum.core import QuorumCore
from raftlog.wire.quorum.v1 import quorum_pb2 as pb
from simulation.twins.disk import SimDisk

VOTERS = tuple(Voter(i, f"c{i}:9093", f"dir-{i}") for i in (1, 2, 3))


def started(*nonces: int) -> pb.DirectoryStart:
    """Return the last of these starts."""
    return pb.DirectoryStart(count=len(nonces), nonces=nonces[::-1][:DIRECTORY_NONCES_MAX])


def starts_of(voters: tuple[Voter, ...] = VOTERS) -> VoterStarts:
    store = SimDisk(NodeIdentity("c", 1, "dir-1"), random.Random(1)).open()
    store.recover()
    store.begin_start()
    found = VoterStarts(store)
    found.set_voters(voters)
    return found


def code(starts: VoterStarts, told: pb.DirectoryStart, directory_id: str = "dir-2") -> int:
    refusal = starts.refusal(2, directory_id, told)
    return refusal.code if refusal is not None else 0


# --- the decision ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (started(7, 8, 9), 0),  # the same start
        (started(7, 8, 9, 4), 0),  # the next one
        (started(7, 8, 9, *range(DIRECTORY_NONCES_MAX + 5)), 0),  # far ahead: nobody can tell
        (started(7, 8), ErrorCode.DIRECTORY_SET_BACK),  # an older copy
        (started(7, 8, 5), ErrorCode.DIRECTORY_SET_BACK),  # an older copy, started once
        (started(7, 8, 5, 6), ErrorCode.DIRECTORY_SET_BACK),  # an older copy, started twice
    ],
)
def test_start_is_refused_for_an_older_directory(told: pb.DirectoryStart, expected: int) -> None:
    starts = starts_of()
    assert code(starts, started(7, 8, 9)) == 0
    starts.remember(2, "dir-2", 3, 9)
    assert code(starts, told) == expected
    assert starts.known("dir-2") == KnownStart("dir-2", 3, 9)


def test_refusal_names_both_starts() -> None:
    starts = starts_of()
    starts.remember(2, "dir-2", 3, 0x99)
    refusal = starts.refusal(2, "dir-2", started(7, 0x55))
    assert refusal is not None
    assert "start 2 (nonce 55)" in refusal.reason
    assert "start 3 (nonce 99)" in refusal.reason
    assert refusal.field == "start"


def test_own_directory_started_by_another_process_is_in_use() -> None:
    starts = starts_of()
    assert code(starts, starts.own_message, "dir-1") == 0
    assert code(starts, started(1, 2), "dir-1") == ErrorCode.DIRECTORY_IN_USE


@pytest.mark.parametrize(
    "told",
    [
        pb.DirectoryStart(),
        pb.DirectoryStart(count=-1, nonces=[1]),
        pb.DirectoryStart(count=1),
        pb.DirectoryStart(count=2**53, nonces=[1]),
        pb.DirectoryStart(count=99, nonces=range(DIRECTORY_NONCES_MAX + 1)),
    ],
)
def test_malformed_start_is_refused(told: pb.DirectoryStart) -> None:
    assert code(starts_of(), told) == ErrorCode.INVALID_REQUEST


def test_only_starts_of_voters_are_remembered() -> None:
    starts = starts_of()
    starts.remember(2, "dir-9", 3, 9)
    starts.remember(4, "dir-2", 3, 9)
    starts.remember(1, "dir-1", 3, 9)
    starts.learn([pb.KnownStart(directory_id="dir-8", count=3, nonce=9)])
    assert [starts.known(f"dir-{i}") for i in (1, 2, 8, 9)] == [None] * 4


def test_start_passed_on_by_a_leader_is_remembered_if_newer() -> None:
    starts = starts_of()
    starts.remember(2, "dir-2", 3, 9)
    starts.learn(
        [
            pb.KnownStart(directory_id="dir-2", count=2, nonce=8),
            pb.KnownStart(directory_id="dir-3", count=5, nonce=50),
            pb.KnownStart(directory_id="dir-3", count=2**60, nonce=51),
        ]
    )
    assert starts.known("dir-2") == KnownStart("dir-2", 3, 9)
    assert starts.known("dir-3") == KnownStart("dir-3", 5, 50)
    told = {(one.directory_id, one.count) for one in starts.passed_on()}
    assert told == {("dir-2", 3), ("dir-3", 5), ("dir-1", 1)}


def test_directories_of_unnamed_voters_are_bounded() -> None:
    starts = starts_of(tuple(replace(voter, directory_id="") for voter in VOTERS))
    for number in range(100):
        starts.remember(2, f"disk-{number}", 1, number)
    known = [one for one in starts.passed_on() if one.directory_id != "dir-1"]
    assert (len(known), known[-1].directory_id) == (MAX_DIRECTORIES * len(VOTERS), "disk-99")
    # The set names them now: what is remembered of other directories goes with the next start.
    starts.set_voters(VOTERS)
    starts.remember(2, "dir-2", 1, 1)
    assert [one.directory_id for one in starts.passed_on()] == ["dir-2", "dir-1"]


def test_refused_start_is_retried_until_a_leader_serves_it() -> None:
    disk = SimDisk(NodeIdentity("c", 1, "dir-1"), random.Random(1))

    def begin() -> tuple[DirectoryStart, VoterStarts]:
        disk.crash(random.Random(1))
        store = disk.open()
        store.recover()
        store.begin_start()
        return store.starts.own, VoterStarts(store)

    (first, _), (second, starts) = begin(), begin()
    assert (first.count, second.count) == (1, 2)
    assert second.follows(KnownStart("dir-1", 1, first.nonces[0]))
    starts.refused()
    third, starts = begin()
    assert third == second
    starts.accepted()
    assert begin()[0].count == 3


# --- three replicas -------------------------------------------------------------------------------


async def caught_up(world: World, end: int, nodes: list[Node]) -> None:
    await world.until(lambda: all(n.replica.log_end_offset >= end for n in nodes))


async def restarted(world: World, node: Node, leader: Node) -> None:
    """Restart a follower, and write until all voters know of its start."""
    count = node.disk.starts.count
    node.kill()
    node.start()
    await world.until(
        lambda: all(
            any((one.directory_id, one.count) == (f"dir-{node.id}", count + 1) for one in known)
            for known in (n.disk.starts.known for n in world.nodes if n is not node)
        )
    )
    await caught_up(world, leader.propose(2), world.nodes)


def copy_of(node: Node, name: str = "twin") -> Node:
    """Start a second process with a copy of a node's directory, on another machine."""
    return Node(node.world, node.id, disk=node.disk.copied(), name=name)


async def failure_of(node: Node) -> DirectoryInUseElsewhereError:
    """Wait until a node has stopped because another process uses its directory."""
    failure = await node.world.until(lambda: node.recorder.failure, within_s=60.0)
    assert isinstance(failure, DirectoryInUseElsewhereError)
    return failure


async def begun() -> tuple[World, Node, Node, Node]:
    """Return a world, its leader and its followers."""
    world = World(VOTERS)
    leader = await world.leader()
    follower, other = (n for n in world.nodes if n is not leader)
    return world, leader, follower, other


@simulated
async def test_start_of_a_follower_reaches_every_voter() -> None:
    world, leader, follower, _ = await begun()
    await restarted(world, follower, leader)
    assert follower.recorder.failure is None
    # The leader's own start is passed on, too.
    others = [n for n in world.nodes if n is not leader]
    await world.until(
        lambda: all(
            any(one.directory_id == f"dir-{leader.id}" for one in n.disk.starts.known)
            for n in others
        )
    )


@simulated
async def test_restored_follower_stops_and_acknowledges_nothing() -> None:
    world, leader, follower, witness = await begun()
    await caught_up(world, leader.propose(2), world.nodes)
    older = follower.disk.copied()
    await restarted(world, follower, leader)
    follower.kill()
    witness.kill()
    follower.disk.put_back(older)
    follower.start()
    high_watermark = leader.recorder.high_watermark
    leader.propose()
    failure = await world.until(lambda: follower.recorder.failure)
    assert isinstance(failure, DirectorySetBackError)
    assert f"node {leader.id} refuses it: directory dir-{follower.id} of node" in str(failure)
    assert leader.recorder.high_watermark == high_watermark
    witness.start()
    await world.until(lambda: leader.recorder.high_watermark > high_watermark)
    # A restart changes nothing: it is the same start still.
    for _ in range(DIRECTORY_NONCES_MAX + 1):
        follower.kill()
        follower.start()
        assert isinstance(await world.until(lambda: follower.recorder.failure), type(failure))
        assert follower.disk.starts.count == older.starts.count + 1


@simulated
async def test_restored_voter_elects_nobody_and_is_not_elected() -> None:
    """A third voter lacks their committed records: without the leader they must not go on."""
    world, leader, follower, lagging = await begun()
    await caught_up(world, leader.propose(2), world.nodes)
    older = follower.disk.copied()
    await restarted(world, follower, leader)
    lagging.kill()
    end = leader.propose(5)
    await world.until(lambda: leader.recorder.high_watermark >= end)
    leader.kill()
    follower.kill()
    follower.disk.put_back(older)
    lagging.start()
    follower.start()
    await asyncio.sleep(60.0)
    assert not follower.recorder.leads
    assert not lagging.recorder.leads
    refused = {key for n in (follower, lagging) for key in n.replica.refusals.counts}
    assert {("VoteRequest", "start"), ("VoteResponse", "start")} & refused
    # The leader is back: with the one that lagged it is a majority, and nothing is lost.
    leader.start()
    await world.until(lambda: leader.recorder.high_watermark >= end)
    assert isinstance(await world.until(lambda: follower.recorder.failure), DirectorySetBackError)


@simulated
async def test_follower_that_lost_its_acknowledgements_of_this_epoch_counts_as_restored() -> None:
    """The copy was made while the node ran: its start is the same."""
    world, leader, follower, _ = await begun()
    await caught_up(world, leader.propose(2), world.nodes)
    older = follower.disk.copied()
    await caught_up(world, leader.propose(5), world.nodes)
    await asyncio.sleep(1.0)
    follower.kill()
    follower.disk.put_back(older)
    follower.start()
    failure = await world.until(lambda: follower.recorder.failure)
    assert isinstance(failure, DirectorySetBackError)
    assert "its log ends at" in str(failure)


@simulated
async def test_second_process_with_a_directory_exits_and_the_first_continues() -> None:
    world, leader, follower, _ = await begun()
    await caught_up(world, leader.propose(2), world.nodes)
    twin = copy_of(follower)
    failure = await failure_of(twin)
    assert "another process fetches with directory" in str(failure)
    await caught_up(world, leader.propose(5), world.nodes)
    assert follower.recorder.failure is None


@simulated
async def test_copy_that_was_started_briefly_does_not_exclude_the_voter() -> None:
    world, leader, follower, witness = await begun()
    await caught_up(world, leader.propose(2), world.nodes)
    twin = copy_of(follower)
    await failure_of(twin)
    await restarted(world, follower, leader)
    leader.kill()
    await world.until(lambda: follower.recorder.leads or witness.recorder.leads)
    assert follower.recorder.failure is None


@simulated
async def test_candidate_keeps_no_fetch_of_a_later_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a copy: only a leader sees that the voter fetches, too."""
    _, leader, follower, _ = await begun()
    known, stepped, link = leader.disk.starts, list[Any](), FakeLink()
    monkeypatch.setattr(QuorumCore, "role", property(lambda _: "candidate"))
    monkeypatch.setattr(QuorumCore, "acknowledged", lambda *_: (-1, -math.inf))
    monkeypatch.setattr(leader.replica, "_step", stepped.append)
    same = follower.replica._starts.own_message
    request = pb.FetchRequest(
        cluster_id="c",
        replica_id=follower.id,
        replica_directory_id=f"dir-{follower.id}",
        clock_ms=1,
        start=pb.DirectoryStart(count=same.count + 1, nonces=[5, *same.nonces]),
    )
    leader.replica._requested(request, ReplyTo(link, 1))
    assert [one.error_code for one in link.sent] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert (leader.disk.starts, stepped) == (known, [])
    request.start.CopyFrom(same)
    leader.replica._requested(request, ReplyTo(link, 1))
    assert (len(link.sent), len(stepped)) == (1, 1)


@simulated
async def test_second_process_becomes_the_voter_once_the_first_has_exited() -> None:
    world, leader, follower, _ = await begun()
    others = [n for n in world.nodes if n is not follower]
    await caught_up(world, leader.propose(2), world.nodes)
    twin = copy_of(follower)
    with capture_logs() as logs:
        await world.until(lambda: any("in use elsewhere" in line["event"] for line in logs))
    follower.kill()
    await caught_up(world, leader.propose(2), [*others, twin])
    assert leader.replica.fetch_address(follower.id, f"dir-{follower.id}").startswith("twin:")
    third = copy_of(twin, "third")
    await failure_of(third)
    assert third.disk.starts.refused
    assert twin.recorder.failure is None
    # It goes on where the second one ends, and its starts count again.
    twin.kill()
    third.kill()
    third.start()
    await caught_up(world, leader.propose(2), [*others, third])
    await world.until(lambda: not third.disk.starts.refused)


@simulated
async def test_copy_of_the_leaders_directory_exits() -> None:
    world = World(VOTERS)
    leader = await world.leader()
    twin = copy_of(leader)
    await failure_of(twin)
    await caught_up(world, leader.propose(5), world.nodes)


@simulated
async def test_refusal_by_a_non_leader_stops_no_node() -> None:
    _, leader, follower, _ = await begun()
    forged: dict[str, Any] = {"error_code": ErrorCode.DIRECTORY_SET_BACK, "error_message": "x"}
    for leader_id, epoch in ((leader.id, 0), (follower.id, 99), (-1, 99)):
        response = pb.FetchResponse(leader_id=leader_id, leader_epoch=epoch, **forged)
        follower.replica.answered(leader.id, 12345, response)
    await asyncio.sleep(2.0)
    assert follower.recorder.failure is None


@simulated
async def test_start_of_another_cluster_is_not_remembered() -> None:
    _, leader, follower, _ = await begun()
    known = leader.disk.starts
    request = pb.VoteRequest(
        cluster_id="other",
        voter_id=leader.id,
        replica_epoch=1,
        replica_id=follower.id,
        replica_directory_id=f"dir-{follower.id}",
        start=pb.DirectoryStart(count=9000, nonces=[1]),
    )
    leader.replica._requested(request, ReplyTo(FakeLink(), 1))
    assert leader.disk.starts == known


@simulated
async def test_start_in_the_response_of_another_node_is_not_the_voters() -> None:
    world = World(VOTERS)
    leader = await world.leader()
    asked, other = (n for n in world.nodes if n is not leader)
    known = leader.disk.starts
    start = pb.DirectoryStart(count=9000, nonces=[1])
    for response in (
        pb.VoteResponse(voter_id=other.id, start=start, voter_directory_id=f"dir-{other.id}"),
        pb.VoteResponse(voter_id=asked.id, start=start, voter_directory_id="wiped"),
        pb.VoteResponse(voter_id=asked.id, start=start),
    ):
        leader.replica.answered(asked.id, 12345, response)
    assert leader.disk.starts == known
    response = pb.VoteResponse(voter_id=asked.id, start=start, voter_directory_id=f"dir-{asked.id}")
    leader.replica.answered(asked.id, 12345, response)
    assert leader.disk.starts != known


@simulated
async def test_refusal_waits_until_its_epoch_is_durable() -> None:
    _, leader, follower, _ = await begun()
    link = FakeLink()
    leader.replica._held.append(object())
    request = pb.FetchRequest(
        cluster_id="c",
        replica_id=follower.id,
        replica_directory_id=f"dir-{follower.id}",
        current_leader_epoch=leader.replica.core.epoch,
        clock_ms=1,
        start=pb.DirectoryStart(),
    )
    leader.replica._requested(request, ReplyTo(link, 1))
    assert link.sent == []
    assert len(leader.replica._held) == 2
    leader.replica._held.clear()
    leader.replica._requested(request, ReplyTo(link, 1))
    (response,) = link.sent
    assert response.error_code == ErrorCode.INVALID_REQUEST


def test_links_with_one_start_are_of_one_process() -> None:
    """[A node that had followed as an observer was refused when it joined the voters.]"""
    addresses = FetchAddresses()
    first: Any = object()
    second: Any = object()
    addresses.accept(first, 2, "dir", 7)
    addresses.add(first, 2, "dir")
    assert not addresses.others(second, 2, "dir", 7)
    assert addresses.others(second, 2, "dir", 8)
    third: Any = object()
    addresses.add(third, 2, "dir")
    assert addresses.others(second, 2, "dir", 7), "a start that is unknown may be another"

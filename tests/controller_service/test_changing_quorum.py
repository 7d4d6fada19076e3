"""Quorums whose voters change, on simulated disks and network."""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace

import pytest
from quorum_world import Node, QuorumWorld
from scenarios import simulated

from controller.service.status import ready
from raftlog import batch
from raftlog.client.controller_client import ControllerClient
from raftlog.endpoint import Voter
from raftlog.errors import ApiError
from raftlog.identity import ANONYMOUS_PRINCIPAL
from raftlog.metadata.records import RecordType
from raftlog.wire.controller.v1 import controller_pb2 as pb


def add(node_id: int, directory: str = "") -> pb.AddRaftVoterRequest:
    return pb.AddRaftVoterRequest(
        voter_id=node_id,
        voter_directory_id=directory or f"dir-{node_id}-1",
        endpoint=f"c{node_id}:9093",
    )


def remove(node_id: int, directory: str = "") -> pb.RemoveRaftVoterRequest:
    return pb.RemoveRaftVoterRequest(
        voter_id=node_id, voter_directory_id=directory or f"dir-{node_id}-1"
    )


@pytest.mark.parametrize("auto_join", [False, True])
@simulated
async def test_quorum_grows_from_one(auto_join: bool) -> None:
    world = QuorumWorld(auto_join=auto_join)
    await world.voters_are("dir-1-1")
    await world.write("a")
    for node_id in (2, 3):
        world.join(node_id)
    for node_id in () if auto_join else (2, 3):
        while node_id not in world.nodes[1].voter_set:
            with suppress(ApiError):
                await world.ask(add(node_id))
            await asyncio.sleep(0.2)
    replica = (await world.voters_are(1, 2, 3)).service.replica
    chunk = replica.read(0, replica.log_end_offset, 1 << 20)
    principals = {
        header.principal
        for header in batch.headers(chunk)
        if RecordType.VOTERS in {one.type for one in batch.records(chunk, header)}
    }
    # A node that joins by itself has no name but its certificate's.
    assert principals == ({""} if auto_join else {"", ANONYMOUS_PRINCIPAL})
    world.nodes[1].kill()
    await world.write("b")
    world.nodes[1].start()
    await world.converged()


@simulated
async def test_observer_stays_an_observer_until_it_is_added() -> None:
    world = QuorumWorld()
    await world.write("a")
    observer = world.join(2)
    await world.converged()
    await asyncio.sleep(10)
    assert observer.service.replica.core.role == "observer"
    assert observer.voter_set == {1: "dir-1-1"}
    is_ready, why = ready(observer.service)
    assert not is_ready, "another voter must not be stopped because this one is there"
    assert why == (
        "following node 1 in epoch 1 as an observer, not as a voter: run raftlog quorum add-voter"
    )


@simulated
async def test_spare_is_ready_unless_its_own_seat_is_dead() -> None:
    world = QuorumWorld()
    await world.write("a")
    service = world.join(2).service
    await world.converged()
    service.quorum = replace(service.quorum, is_spare=True)
    assert ready(service) == (True, "following node 1 in epoch 1 as a spare")
    service.quorum = replace(service.quorum, node_id=1)
    own_seat = "following node 1 in epoch 1: autopilot will make it a voter"
    assert ready(service) == (False, own_seat)


@pytest.mark.parametrize("joining", [True, False])
@simulated
async def test_replaced_disk_is_a_new_voter(joining: bool) -> None:
    world = QuorumWorld(voters=3, auto_join=True)
    await world.voters_are(1, 2, 3)
    await world.write("a")
    lost = world.nodes[3]
    lost.kill()
    await world.write("b")
    lost.new_disk(joining=joining)
    lost.start()
    await world.voters_are("dir-1-1", "dir-2-1", "dir-3-2")
    await world.converged()
    assert lost.service.replica.core.role in ("follower", "leader")


async def endpoints_known(world: QuorumWorld) -> None:
    """Wait until all running nodes know each node at its present endpoint."""
    present = {node.id: node.endpoint for node in world.nodes.values()}
    await world.until(
        lambda: all(
            {voter.node_id: voter.endpoint for voter in node.service.node.voters} == present
            for node in world.up()
        )
    )


async def move_all(world: QuorumWorld, *, named: bool) -> None:
    for node in world.nodes.values():
        node.kill()
        node.port = 9500 + node.id
    endpoints = tuple(node.endpoint for node in world.nodes.values())
    world.bootstrap = () if named else endpoints
    if named:
        world.configured = tuple(Voter(one.id, one.endpoint) for one in world.nodes.values())
    world.client.close()
    world.client = ControllerClient(
        world.network.transport_for("client"), endpoints, rng=random.Random(9)
    )


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("ids_known", [True, False])
@simulated
async def test_voters_elect_a_leader_at_all_new_addresses(ids_known: bool, named: bool) -> None:
    """[Peers were dialed only at their addresses in the log: no leader forever.]"""
    world = QuorumWorld(auto_join=ids_known, voters=0 if ids_known else 3)
    for node_id in (2, 3) if ids_known else ():
        world.join(node_id)
    await world.voters_are(1, 2, 3)
    await world.write("before")
    await move_all(world, named=named)
    begun = asyncio.get_running_loop().time()
    for node in world.nodes.values():
        node.start()
    await world.active()
    assert asyncio.get_running_loop().time() - begun < 10.0
    await world.write("after")

    await endpoints_known(world)
    await world.converged()


@simulated
async def test_voter_at_another_address_is_identified_by_id_and_directory() -> None:
    """One of the addresses belongs to a node of another cluster, one to a voter with a new disk."""
    world = QuorumWorld(voters=3)
    await world.voters_are("dir-1-1", "dir-2-1", "dir-3-1")
    await world.write("before")
    await move_all(world, named=False)
    stranger = Node(world, 7, voters=(Voter(7, "c7:9093"),), cluster_id="other")
    stranger.start()
    await world.until(lambda: stranger.service.node.decider is not None)
    world.bootstrap = (stranger.endpoint, *world.bootstrap)
    world.nodes[3].new_disk(joining=False)
    for node in world.nodes.values():
        node.start()
    await world.active()
    await world.write("after")
    await world.converged()


@simulated
async def test_leader_is_removed_while_writes_continue() -> None:
    world = QuorumWorld(voters=3)
    old = await world.voters_are(1, 2, 3)
    writing = asyncio.ensure_future(_write_on(world))
    await world.ask(remove(old.id))
    rest = sorted({1, 2, 3} - {old.id})
    await world.voters_are(*rest)
    await world.until(lambda: old.service.replica.core.role == "observer")
    count = len(world.acknowledged)
    await world.until(lambda: len(world.acknowledged) > count + 20)
    writing.cancel()
    await world.converged()


async def _write_on(world: QuorumWorld) -> None:
    for number in range(100_000):
        await world.write(f"on-{number}")


@simulated
async def test_moved_voter_reports_its_address() -> None:
    world = QuorumWorld(voters=3)
    await world.voters_are(1, 2, 3)
    for node_id in (2, 1):
        moved = world.nodes[node_id]
        moved.kill()
        await asyncio.sleep(0.1)
        moved.port = 9193
        moved.start()
    await endpoints_known(world)
    await world.converged()


@simulated
async def test_addition_is_not_confirmed_before_it_is_committed() -> None:
    world = QuorumWorld(voters=3)
    leader = await world.voters_are(1, 2, 3)
    world.join(4)
    await world.converged()
    for node in world.up():
        if node.id not in (leader.id, 4):
            world.network.partition(leader.name, node.name)
    asked = add(4)
    asked.ack_when_appended = True
    response = await world.ask(asked, timeout_s=1.0)
    assert not response.HasField("write")
    assert 4 in leader.voter_set
    active = leader.service.node.decider
    assert active is not None
    assert [voter.id for voter in active.state.log.committed.voters.voters] == [1, 2, 3]

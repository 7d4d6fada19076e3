"""The life of a quorum: started by one node, grown by two, left by the first, restarted one by one."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster_kit import (
    ControllerProcess,
    Load,
    committed_image,
    controllers_of,
    lost,
    on_files,
    raftlog,
    until_true,
)

from raftlog.client.controller_client import ControllerClient
from raftlog.client.quorum_queries import ask_quorum
from raftlog.local.cluster import free_ports
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

GAP_S = 5.0
"""Timeout in seconds for operations that take some 50 ms on an idle machine."""


class Quorum:
    def __init__(self, directory: Path) -> None:
        ports = free_ports(3)
        self.endpoints = [f"127.0.0.1:{port}" for port in ports]
        settings = (
            f"controller.quorum.bootstrap.servers = {json.dumps(self.endpoints)}\n"
            "controller.quorum.auto.join.enable = true\n"
        )
        self.nodes = [
            ControllerProcess(directory, node_id, port, cluster_id="life", settings=settings)
            for node_id, port in enumerate(ports, 1)
        ]
        self.at = ("--bootstrap-controller", ",".join(self.endpoints))

    async def start(self) -> None:
        """Format and start three voters, and wait for them."""
        initial = ",".join(
            f"{node.id}@{node.endpoint}:00000000-0000-0000-0000-00000000000{node.id}"
            for node in self.nodes
        )
        for node in self.nodes:
            on_files("storage format -c", node.config, "--initial-controllers", initial)
            node.start()
        await self.wait_voters(1, 2, 3)

    async def wait_voters(self, *ids: int) -> pb.DescribeQuorumResponse:
        """Wait until the log names these voters and all have it; return the description."""
        found: list[pb.DescribeQuorumResponse] = []

        async def there() -> bool:
            leader = (await ask_quorum(self.endpoints, 2.0)).leader
            if (
                leader is None
                or leader.voters_offset < 0
                or [one.replica_id for one in leader.voters] != list(ids)
            ):
                return False
            found.append(leader)
            return all(0 <= one.last_caught_up_age_ms < 2_000 for one in leader.voters)

        await until_true(there, f"the voters are {ids}")
        return found[-1]


@contextmanager
def quorum_in(directory: Path) -> Iterator[Quorum]:
    made = Quorum(directory)
    try:
        yield made
    finally:
        for node in made.nodes:
            node.kill()


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Quorum]:
    with quorum_in(tmp_path) as made:
        yield made


@pytest.fixture
async def client(quorum: Quorum) -> AsyncIterator[ControllerClient]:
    async with controllers_of(quorum.endpoints) as made:
        yield made


@pytest.mark.nightly
async def test_quorum_grows_shrinks_and_restarts(quorum: Quorum, client: ControllerClient) -> None:
    first, second, third = quorum.nodes
    on_files("storage format --standalone -c", first.config)
    for node in (second, third):
        on_files("storage format --no-initial-controllers -c", node.config)
    first.start()
    await quorum.wait_voters(1)
    load = Load(client, prefix="life", writers=4)
    await load.more(50)

    # Two join by themselves.
    second.start()
    await quorum.wait_voters(1, 2)
    third.start()
    await quorum.wait_voters(1, 2, 3)
    await load.more(50)

    # The first leaves: told so, it would come back by itself, so it is stopped before.
    await asyncio.to_thread(first.stop)
    removed = await asyncio.to_thread(raftlog, "quorum remove-voter --voter-id 1", *quorum.at)
    assert (removed.code, removed.err) == (0, "")
    await quorum.wait_voters(2, 3)
    await load.more(50)

    # It may come back, as an observer that becomes a voter again.
    first.start()
    await quorum.wait_voters(1, 2, 3)

    # One that runs is back within seconds, and the command says so.
    removed = await asyncio.to_thread(raftlog, "quorum remove-voter --voter-id 3", *quorum.at)
    assert "warning: node 3 runs with controller.quorum.auto.join.enable" in removed.err
    await quorum.wait_voters(1, 2, 3)

    # One by one.
    load.longest_gap_s = 0.0
    for node in quorum.nodes:
        await asyncio.to_thread(node.stop)
        await load.more(20)
        node.start()
        await quorum.wait_voters(1, 2, 3)
    await load.more(20)
    await load.stop()
    assert load.longest_gap_s < GAP_S
    image = await committed_image(quorum.endpoints)
    assert image.voters is not None
    assert [voter.id for voter in image.voters.voters] == [1, 2, 3]
    assert lost(load.acknowledged, image) == []

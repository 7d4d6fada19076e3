"""The whole life of a quorum with real processes: begun by one node, grown by two, left by the
first, restarted one by one.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from cluster_kit import ControllerProcess, Load, raftlog, until_true

from raftlog.client.controller_client import ControllerClient
from raftlog.client.log_reader import LogReader
from raftlog.client.quorum_queries import ask_quorum
from raftlog.local.cluster import free_ports
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.quorum.v1 import quorum_pb2 as pb

GAP_S = 5.0
"""Of what takes some 50 ms on a machine that has nothing else to do."""


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

    async def wait_voters(self, *ids: int) -> pb.DescribeQuorumResponse:
        """Wait until the log names these voters, and all of them have all of it; what the leader
        says then.
        """
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


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[Quorum]:
    made = Quorum(tmp_path)
    try:
        yield made
    finally:
        for node in made.nodes:
            node.kill()


async def committed(quorum: Quorum) -> Image:
    transport = GrpcTransport()
    reader = LogReader(transport, quorum.endpoints, rng=random.Random(0))
    try:
        end = (await reader.info()).high_watermark
        builder = ImageBuilder(Image())
        async for chunk in reader.chunks(0, end):
            builder.apply_chunk(chunk, verify=True)
        return builder.snapshot()
    finally:
        reader.close()
        await transport.close()


@pytest.fixture
async def client(quorum: Quorum) -> AsyncIterator[ControllerClient]:
    transport = GrpcTransport()
    made = ControllerClient(transport, quorum.endpoints, rng=random.Random(0))
    yield made
    made.close()
    await transport.close()


@pytest.mark.nightly
async def test_life_of_a_quorum(quorum: Quorum, client: ControllerClient) -> None:
    first, second, third = quorum.nodes
    assert raftlog("storage", "format", "-c", first.config, "--standalone").code == 0
    for node in (second, third):
        assert raftlog("storage", "format", "-c", node.config, "--no-initial-controllers").code == 0
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
    removed = await asyncio.to_thread(
        raftlog, "quorum", "remove-voter", "--voter-id", 1, *quorum.at
    )
    assert (removed.code, removed.err) == (0, "")
    await quorum.wait_voters(2, 3)
    await load.more(50)

    # It may come back, as an observer that becomes a voter again.
    first.start()
    await quorum.wait_voters(1, 2, 3)

    # One that runs is back within seconds, and the command says so.
    removed = await asyncio.to_thread(
        raftlog, "quorum", "remove-voter", "--voter-id", 3, *quorum.at
    )
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
    image = await committed(quorum)
    assert image.voters is not None
    assert [voter.id for voter in image.voters.voters] == [1, 2, 3]
    missing = [
        name for name in load.acknowledged if image.configs.get((16, name)) != {"match": name}
    ]
    assert missing == []


@pytest.mark.nightly
async def test_leadership_moves_on_demand(quorum: Quorum, client: ControllerClient) -> None:
    initial = []
    for number, node in enumerate(quorum.nodes, start=1):
        initial.append(f"{node.id}@{node.endpoint}:00000000-0000-0000-0000-00000000000{number}")
    for node in quorum.nodes:
        assert (
            raftlog(
                "storage", "format", "-c", node.config, "--initial-controllers", ",".join(initial)
            ).code
            == 0
        )
        node.start()
    await quorum.wait_voters(1, 2, 3)
    load = Load(client, prefix="moves", writers=4)
    await load.more(50)
    for target in (1, 2, 3):
        moved = await asyncio.to_thread(
            raftlog, "quorum", "transfer", "--to", target, "--json", *quorum.at
        )
        assert moved.code == 0, moved.err
        assert moved.json == {"target_id": target}
        await load.more(50)
        assert (await quorum.wait_voters(1, 2, 3)).node_id == target
    await load.stop()
    assert load.longest_gap_s < GAP_S

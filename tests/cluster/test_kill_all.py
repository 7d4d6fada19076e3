"""Real processes, real disks: all three controllers die at once in the middle of a burst, and
nothing acknowledged is lost.
"""

import asyncio
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiers import nightly

from raftlog.client.controller_client import ControllerClient
from raftlog.client.log_reader import LogReader
from raftlog.errors import ApiError
from raftlog.local.cluster import LocalCluster
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.controller.v1 import controller_pb2 as pb

ROUNDS = int(os.environ.get("RAFTLOG_KILL_ROUNDS", "10"))
IN_FLIGHT = 64


def write(name: str, value: str) -> pb.IncrementalAlterConfigsRequest:
    config = pb.AlterableConfig(name="match", value=value)
    resource = pb.AlterConfigsResource(resource_type=16, resource_name=name, configs=[config])
    return pb.IncrementalAlterConfigsRequest(resources=[resource])


async def burst(cluster: LocalCluster, round_: int) -> dict[str, int]:
    """Write until everything is dead; the offset of each acknowledged write."""
    transport = GrpcTransport()
    client = ControllerClient(
        transport, [n.endpoint for n in cluster.controllers], rng=random.Random(round_)
    )
    acknowledged: dict[str, int] = {}
    dead = asyncio.Event()

    async def writer(number: int) -> None:
        count = 0
        while not dead.is_set():
            count += 1
            name = f"r{round_}-w{number}-{count}"
            try:
                response = await client.call(write(name, name), timeout_s=2.0)
            except ApiError:
                continue
            acknowledged[name] = response.write.token.offset

    writers = [asyncio.create_task(writer(i)) for i in range(IN_FLIGHT)]
    while len(acknowledged) < 500:
        await asyncio.sleep(0.01)
    await asyncio.sleep(random.Random(round_).random() * 0.2)
    for node in cluster.controllers:
        cluster.kill(node.name, signal.SIGKILL)
    dead.set()
    await asyncio.gather(*writers)
    client.close()
    await transport.close()
    return acknowledged


async def committed_image(cluster: LocalCluster) -> Image:
    """The whole committed log, read back and folded."""
    transport = GrpcTransport()
    reader = LogReader(transport, [n.endpoint for n in cluster.controllers], rng=random.Random(0))
    try:
        until = (await reader.info()).high_watermark
        builder = ImageBuilder(Image())
        async for chunk in reader.chunks(0, until):
            builder.apply_chunk(chunk, verify=True)
        return builder.snapshot()
    finally:
        reader.close()
        await transport.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster", controllers=3, brokers=0)
    cluster.generate()
    yield cluster
    cluster.stop_all(timeout_s=5)


@pytest.mark.parametrize("rounds", [2, nightly(ROUNDS)])
def test_acknowledged_writes_survive_the_death_of_all_controllers(
    cluster: LocalCluster, rounds: int
) -> None:
    acknowledged: dict[str, int] = {}
    for round_ in range(rounds):
        cluster.start_controllers()
        cluster.wait_leader()
        acknowledged |= asyncio.run(burst(cluster, round_))
        for node in cluster.controllers:
            assert cluster.wait_gone(node.name)
    cluster.start_controllers()
    cluster.wait_leader()
    # A committed write makes the new leader's high watermark cover all that was committed before
    # it.
    asyncio.run(_settle(cluster))
    image = asyncio.run(committed_image(cluster))
    print(f"{len(acknowledged)} writes acknowledged before {rounds} deaths of all nodes")
    lost = [name for name in acknowledged if image.configs.get((16, name)) != {"match": name}]
    assert len(acknowledged) >= 500 * rounds
    assert not lost, (
        f"{len(lost)} of {len(acknowledged)} acknowledged writes are lost, for instance {lost[:3]}"
    )


async def _settle(cluster: LocalCluster) -> None:
    transport = GrpcTransport()
    client = ControllerClient(
        transport, [n.endpoint for n in cluster.controllers], rng=random.Random(0)
    )
    await client.call(write("settled", "yes"), timeout_s=20)
    client.close()
    await transport.close()

"""A client beside an attack: writes, reads and health checks until its stdin ends; prints the
longest durations, also of a phase before the attack.
"""

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Any

from raftlog.transport import grpc_runtime  # noqa: F401  (before grpc)
from raftlog.wire.broker.v1 import broker_pb2, broker_pb2_grpc
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.controller.v1 import controller_pb2_grpc

import grpc.aio  # isort: skip

TIMEOUT_S = 20.0
PAUSE_S = 0.02
CALM_ROUNDS = 10


def health(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/readyz", timeout=TIMEOUT_S) as response:
        assert response.status == 200


async def calls(addresses: list[str], goes_on: Callable[[int], bool]) -> list[tuple[float, str]]:
    """Call round after round on its own connections; return the duration and name of each call."""
    controller, broker, controller_http, broker_http = addresses
    took: list[tuple[float, str]] = []
    options = [("grpc.use_local_subchannel_pool", 1)]

    async def timed(name: str, call: Awaitable[Any]) -> None:
        begun = time.perf_counter()
        await call
        took.append((time.perf_counter() - begun, name))

    async with (
        grpc.aio.insecure_channel(controller, options=options) as to_controller,
        grpc.aio.insecure_channel(broker, options=options) as to_broker,
    ):
        writes = controller_pb2_grpc.ControllerStub(to_controller)
        reads = broker_pb2_grpc.BrokerStub(to_broker)
        config = pb.AlterableConfig(name="match", value="x")
        resource = pb.AlterConfigsResource(
            resource_type=16, resource_name="probe", configs=[config]
        )
        write = pb.IncrementalAlterConfigsRequest(resources=[resource])
        rounds = 0
        while goes_on(rounds):
            rounds += 1
            await timed("write", writes.IncrementalAlterConfigs(write, timeout=TIMEOUT_S))
            await timed(
                "read",
                reads.DescribeCluster(broker_pb2.DescribeClusterRequest(), timeout=TIMEOUT_S),
            )
            await timed("controller's /readyz", asyncio.to_thread(health, controller_http))
            await timed("broker's /readyz", asyncio.to_thread(health, broker_http))
            await asyncio.sleep(PAUSE_S)
    return sorted(took, reverse=True)


async def probe(addresses: list[str]) -> None:
    calm = await calls(addresses, lambda rounds: rounds < CALM_ROUNDS)
    print(f"ready {calm[0][0]:.3f}", flush=True)
    stopping = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(json.dumps(await calls(addresses, lambda _: not stopping.done())))


asyncio.run(probe(sys.argv[1:]))

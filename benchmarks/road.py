"""``python -m benchmarks.road``: the number of files, functions and calls that one request takes on
the leader.

Runs the shipped controllers and brokers on a simulated network and disk, so that the same code
gives the same figures on every machine. Counts only the product's files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from controller.settings import ControllerSettings
from raftlog.client.controller_client import ControllerClient
from raftlog.endpoint import Voter
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.quorum.config import QuorumConfig
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.hosts import CLUSTER_ID, BrokerHost, ControllerHost, broker_settings
from simulation.twins.loop import host_of, run
from simulation.twins.network import SimNetwork
from simulation.watching import Watch

ROOT = Path(__file__).parents[1]
PRODUCT = tuple(f"{ROOT / name}/" for name in ("raftlog", "controller", "broker"))
CONTROLLERS, BROKERS = (1, 2, 3), (11, 12)
QUIET_S = 0.35
"""Pause of the cluster before a request, in seconds, so that no heartbeat or tick falls into the
request.
"""
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Road:
    """The calls for one request on the leader."""

    calls: dict[str, int]
    """Calls by ``file:function``, in the order of the first call."""

    @property
    def files(self) -> list[str]:
        """The files, in the order of their first call."""
        return list(dict.fromkeys(key.partition(":")[0] for key in self.calls))

    def figures(self) -> dict[str, int]:
        """The numbers of files, functions and calls."""
        return {
            "files": len(self.files),
            "functions": len(self.calls),
            "calls": sum(self.calls.values()),
        }


class _Recorder:
    """A counter of the calls in one host's callbacks."""

    def __init__(self) -> None:
        self._host = ""
        self._calls: Counter[CodeType] = Counter()

    async def road(self, host: str, work: Awaitable[Any]) -> Road:
        """Count calls until ``work`` is done."""
        self._host = host
        self._calls.clear()
        sys.setprofile(self._count)
        try:
            await work
        finally:
            sys.setprofile(None)
        counts: Counter[str] = Counter()
        for code, count in self._calls.items():
            file = code.co_filename.removeprefix(f"{ROOT}/")
            counts[f"{file}:{code.co_qualname}"] += count
        return Road(dict(counts))

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PRODUCT) and host_of() == self._host:
            self._calls[code] += 1


class _Cluster:
    """Three controllers and two brokers, and a client of the leader."""

    def __init__(self) -> None:
        rng = random.Random(1)
        self._network = SimNetwork(random.Random(2))
        endpoints = {node_id: f"c{node_id}:9093" for node_id in CONTROLLERS}
        voters = tuple(Voter(node_id, endpoint, "") for node_id, endpoint in endpoints.items())
        watch = Watch([], on_failure=_raise)
        self._controllers = [
            ControllerHost(
                self._network,
                QuorumConfig(
                    CLUSTER_ID, voter.node_id, f"dir-{voter.node_id}", voters,
                    max_metadata_version=LATEST_METADATA_VERSION,
                ),
                ControllerSettings(), rng, _ignore, watch,
            )
            for voter in voters
        ]  # fmt: skip
        addresses = tuple(endpoints.values())
        self._brokers = [
            BrokerHost(self._network, broker_settings(broker_id, addresses), rng, watch)
            for broker_id in BROKERS
        ]
        transport = self._network.transport_for("client")
        self.client = ControllerClient(transport, addresses, rng=random.Random(3))

    async def start(self) -> ControllerHost:
        """Start all nodes. Returns the leader, once both brokers are unfenced."""
        for controller in self._controllers:
            controller.start()
        for broker in self._brokers:
            broker.start()
        while True:
            await asyncio.sleep(0.1)
            for host in self._controllers:
                service = host.service
                if service is None or service.node.decider is None:
                    continue
                brokers = service.image.brokers.values()
                if sum(not broker.fenced for broker in brokers) == len(BROKERS):
                    # Only tests have it: the shipped program does not check each step.
                    for each in self._controllers:
                        assert each.core is not None
                        each.core.validate_each_step = False
                    return host


async def _roads() -> dict[str, Road]:
    cluster, recorder = _Cluster(), _Recorder()
    leader = await cluster.start()
    service = leader.service
    assert service is not None

    async def call(body: Any) -> None:
        await cluster.client.call(body, timeout_s=TIMEOUT_S)

    async def lao_moves() -> None:
        before = service.node.lowest_acknowledged_offset
        while service.node.lowest_acknowledged_offset == before:
            await asyncio.sleep(0.0001)

    roads: dict[str, Road] = {}
    requests: tuple[tuple[str, Callable[[int], Any]], ...] = (
        ("create_topics", _create_topic), ("config write", _alter_config)
    )  # fmt: skip
    for name, body in requests:
        # The first one fills caches and opens connections.
        for number in range(3):
            await asyncio.sleep(QUIET_S)
            roads[name] = await recorder.road(leader.name, call(body(number)))
    await call(_alter_config(0))
    roads["fetch report"] = await recorder.road(leader.name, lao_moves())
    return roads


def roads() -> dict[str, Road]:
    """Return the calls for each kind of request."""
    found: list[dict[str, Road]] = []

    async def keep() -> None:
        found.append(await _roads())

    run(keep())
    return found[0]


def _create_topic(number: int) -> pb.CreateTopicsRequest:
    topic = pb.CreatableTopic(name=f"topic-{number}", num_partitions=1, replication_factor=1)
    return pb.CreateTopicsRequest(topics=[topic])


def _alter_config(number: int) -> pb.IncrementalAlterConfigsRequest:
    config = pb.AlterableConfig(name="match", value=f"value-{number}")
    resource = pb.AlterConfigsResource(resource_type=16, resource_name="name", configs=[config])
    return pb.IncrementalAlterConfigsRequest(resources=[resource])


def _raise(failure: BaseException) -> None:
    raise failure


def _ignore(host: str, happened: str) -> None:
    """Ignore an event, as the transcript is not read."""


def main() -> None:
    """Print the figures; with --files also the files."""
    parser = argparse.ArgumentParser(prog="benchmarks/run road", description=__doc__)
    parser.add_argument("--json", action="store_true", help="Print JSON.")
    parser.add_argument("--files", action="store_true", help="Also list files and functions.")
    arguments = parser.parse_args()
    found = roads()
    if arguments.json:
        print(json.dumps({name: road.figures() for name, road in found.items()}))
        return
    for name, road in found.items():
        print(f"{name}: " + ", ".join(f"{count} {what}" for what, count in road.figures().items()))
        if arguments.files:
            for key, count in road.calls.items():
                print(f"{count:6}  {key}")


if __name__ == "__main__":
    main()

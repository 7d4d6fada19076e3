"""A real cluster under attack: others are served meanwhile, and nothing that was refused is there
afterwards.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from raftlog import batch
from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.client.log_reader import LogReader
from raftlog.errors import ApiError
from raftlog.local.authority import SOMEBODY, Authority
from raftlog.local.cluster import LocalCluster, Node
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2

SERVED_WITHIN_S = 1.0
PROBE_EVERY_S = 0.1
TOPIC = "sieged"
CLIENT_METRICS = 16
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Siege:
    """The result of a siege. ``slow``: calls longer than SERVED_WITHIN_S, without the lateness of
    the machine.
    """

    attack: dict[str, Any] = field(default_factory=dict)
    probes: int = 0
    longest_probe_s: float = 0.0
    slow: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)
    """Values that the prober wrote and that were acknowledged as visible everywhere."""
    died: list[str] = field(default_factory=list)
    grown_bytes: dict[str, int] = field(default_factory=dict)
    """Resident memory after the attack, less that before it, by node."""
    refused_and_written: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    epochs: int = 0
    """Increase of the epoch."""

    @property
    def faults(self) -> list[str]:
        """Return every broken promise; empty if there is none."""
        return [
            *(f"died: {name}" for name in self.died),
            *self.slow,
            *self.failures,
            *(f"refused, and in the log: {marker}" for marker in self.refused_and_written),
            *(f"acknowledged, and not there: {key}" for key in self.lost),
        ]


class MachineLag:
    """The wake-up delay of a thread that only sleeps, which no node causes."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._late: list[tuple[float, float]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            time.sleep(0.02)
            now = time.monotonic()
            if now - begun > 0.05:
                self._late.append((now, now - begun))

    def since(self, begun: float) -> float:
        """Return the seconds of lateness since then."""
        return sum(late for at, late in self._late if at >= begun)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class Prober:
    """An honest client beside the attack, which writes, reads and checks readiness, and records the
    durations.
    """

    def __init__(self, cluster: LocalCluster, siege: Siege, lag: MachineLag) -> None:
        self._cluster, self._siege, self._lag = cluster, siege, lag
        self.stopping = False

    async def run(self) -> None:
        transport = GrpcTransport(tls=self._cluster.tls)
        brokers = BrokerClient(
            transport, [node.endpoint for node in self._cluster.brokers], rng=random.Random()
        )
        controllers = ControllerClient(
            transport, [node.endpoint for node in self._cluster.controllers], rng=random.Random()
        )
        try:
            await asyncio.gather(self._writes(brokers), self._asks(controllers), self._readiness())
        finally:
            brokers.close()
            controllers.close()
            await transport.close()

    async def _timed(self, what: str, work: Any) -> None:
        begun = time.monotonic()
        try:
            await work
        except (ApiError, OSError) as error:
            self._siege.failures.append(f"{what}: {error}")
        took_s = time.monotonic() - begun
        self._siege.probes += 1
        self._siege.longest_probe_s = max(self._siege.longest_probe_s, took_s)
        late_s = self._lag.since(begun)
        if took_s - late_s > SERVED_WITHIN_S:
            self._siege.slow.append(
                f"{what} took {took_s:.2f} s ({late_s:.2f} s of them the machine's)"
            )
        await asyncio.sleep(PROBE_EVERY_S)

    async def _writes(self, client: BrokerClient) -> None:
        count = 0
        while not self.stopping:
            count += 1
            await self._timed(
                f"visible write {count}", self._write(client, f"probe-{count % 50}", f"v{count}")
            )

    async def _write(self, client: BrokerClient, key: str, value: str) -> None:
        config = controller_pb2.AlterableConfig(name="match", value=value)
        resource = controller_pb2.AlterConfigsResource(
            resource_type=CLIENT_METRICS, resource_name=key, configs=[config]
        )
        request = controller_pb2.IncrementalAlterConfigsRequest(resources=[resource])
        await client.write(request, acks=common_pb2.ACKS_VISIBLE, timeout_s=5.0)
        self._siege.written[key] = value
        wanted = broker_pb2.DescribeConfigsResource(resource_type=CLIENT_METRICS, resource_name=key)
        response = await client.read(
            broker_pb2.DescribeConfigsRequest(resources=[wanted]), timeout_s=5.0
        )
        found = {one.name: one.value for one in response.describe_configs.results[0].configs}
        if found.get("match") != value:
            self._siege.failures.append(f"read {found} of {key} after a visible write of {value}")

    async def _asks(self, client: ControllerClient) -> None:
        while not self.stopping:
            body = controller_pb2.ListExportCursorsRequest()
            await self._timed("a question to the controller", client.call(body, timeout_s=5.0))

    async def _readiness(self) -> None:
        while not self.stopping:
            for node in self._cluster.nodes:
                await self._timed(
                    f"readyz of {node.name}", asyncio.to_thread(self._ready, node.http)
                )

    @staticmethod
    def _ready(http: str) -> None:
        with _OPENER.open(f"{http}/readyz", timeout=10) as response:
            response.read()


async def besiege(cluster: LocalCluster, *, messages: int, seed: int, attackers: int = 4) -> Siege:
    """Attack a running cluster with the topic TOPIC while others are served; then check what is
    left.
    """
    siege, lag = Siege(), MachineLag()
    pids = {node.name: cluster.pid(node.name) for node in cluster.nodes}
    before = {name: psutil.Process(pid).memory_info().rss for name, pid in pids.items()}
    epoch = (await asyncio.to_thread(cluster.quorum)).leader.leader_epoch
    prober = Prober(cluster, siege, lag)
    probing = asyncio.ensure_future(prober.run())
    try:
        siege.attack = await _attack(cluster, messages, seed, attackers)
    finally:
        prober.stopping = True
        await probing
        lag.close()
    for node in cluster.nodes:
        if cluster.pid(node.name) != pids[node.name]:
            siege.died.append(f"{node.name}: {cluster.log_path(node.name).read_text()[-2000:]}")
        else:
            siege.grown_bytes[node.name] = (
                psutil.Process(pids[node.name]).memory_info().rss - before[node.name]
            )
    if not siege.died:
        leader = (await asyncio.to_thread(cluster.quorum)).leader
        siege.epochs = leader.leader_epoch - epoch
        await _look_at_log(cluster, siege)
    siege.attack["refused"] = len(siege.attack["refused"])
    return siege


async def _attack(
    cluster: LocalCluster, messages: int, seed: int, attackers: int
) -> dict[str, Any]:
    topic_id = await _topic_id(cluster)
    options = {
        "controllers": [node.endpoint for node in cluster.controllers],
        "brokers": [node.endpoint for node in cluster.brokers],
        "messages": messages,
        "seed": seed,
        "attackers": attackers,
        "tls": None if cluster.tls is None else [str(one) for one in cluster.tls.paths],
        "known": {
            "cluster_id": [cluster.cluster_id, ""],
            "topic_id": [topic_id, ""],
            "topic": [TOPIC, "other"],
            "partition_index": [0, 1],
            # A transfer to whoever is most complete is an administrator's right, as things are.
            "target_id": [77],
        },
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("hostile_attack.py")),
        json.dumps(options),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[1:3]))},
    )
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the attacker ended with {process.returncode}")
    found: dict[str, Any] = json.loads(out)
    return found


async def _topic_id(cluster: LocalCluster) -> str:
    transport = GrpcTransport(tls=cluster.tls)
    client = BrokerClient(
        transport, [node.endpoint for node in cluster.brokers], rng=random.Random()
    )
    try:
        with closing(client):
            response = await client.read(
                broker_pb2.MetadataRequest(topics=[TOPIC]), mode=broker_pb2.LATEST
            )
    finally:
        await transport.close()
    found: str = response.metadata.topics[0].topic_id.hex()
    return found


async def _look_at_log(cluster: LocalCluster, siege: Siege) -> None:
    """Check that the log has no refused message and every write acknowledged to the prober."""
    transport = GrpcTransport(tls=cluster.tls)
    reader = LogReader(
        transport, [node.endpoint for node in cluster.controllers], rng=random.Random()
    )
    try:
        with closing(reader):
            until = (await reader.info()).high_watermark
            log = b"".join([chunk async for chunk in reader.chunks(0, until)])
    finally:
        await transport.close()
    siege.refused_and_written = [
        marker for marker in siege.attack["refused"] if marker.encode() in log
    ]
    bodies = b"\n".join(
        record.body for header in batch.headers(log) for record in batch.records(log, header)
    )
    siege.lost = [
        key
        for key, value in siege.written.items()
        if key.encode() not in bodies or value.encode() not in bodies
    ]


def start(directory: Path, *, tls: bool = False) -> LocalCluster:
    """Start three controllers and two brokers; with TLS every certificate is accepted."""
    authority = Authority(directory.parent / "pki")

    def files(node: Node) -> Mapping[str, Any]:
        settings = authority.settings(node) if tls else {}
        return {key: value for key, value in settings.items() if key.startswith('"tls.')}

    cluster = LocalCluster(directory, controllers=3, brokers=2, settings_of=files)
    if tls:
        authority.make()
        cluster.tls = authority.tls(SOMEBODY)
    cluster.generate()
    cluster.start_controllers()
    cluster.wait_leader(120)
    cluster.start_brokers()
    cluster.wait_ready([node.name for node in cluster.nodes], 120)
    return cluster


async def create_topic(cluster: LocalCluster) -> None:
    """TOPIC, with two partitions."""
    transport = GrpcTransport(tls=cluster.tls)
    client = BrokerClient(
        transport, [node.endpoint for node in cluster.brokers], rng=random.Random()
    )
    topic = controller_pb2.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=2)
    try:
        with closing(client):
            await client.write(
                controller_pb2.CreateTopicsRequest(topics=[topic]), acks=common_pb2.ACKS_VISIBLE
            )
    finally:
        await transport.close()

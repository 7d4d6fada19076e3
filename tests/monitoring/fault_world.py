"""Simulated clusters that are scraped on virtual time."""

import asyncio
import shutil
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from prometheus_client.core import Metric
from promql import STALE, Labels, Storage, labels
from rule_runs import EVERY_S, Firing, RuleRun

sys.path.insert(0, str(Path(__file__).parents[1] / "broker_replication"))

from data_cluster import DataCluster

import broker.run
import controller.http_side
from raftlog.node.observability.figures import LoopLag
from raftlog.node.observability.registry import MetricsRegistry
from raftlog.transport.api import TransportLimits
from raftlog.transport.bounds import Bounds

RESERVE_BYTES = 10_000_000
DISK_BYTES = 100 * RESERVE_BYTES
BUILD = {"version": "0.1.0", "revision": "one"}
Usage = namedtuple("Usage", "total used free")


class World:
    def __init__(self, *names: str) -> None:
        self.clusters = {
            name: DataCluster(seed=number, reserve_bytes=RESERVE_BYTES)
            for number, name in enumerate(names or ("a",), 1)
        }
        self.storage = Storage()
        self.rules = RuleRun(self.storage)
        self.at = -EVERY_S
        """Seconds since the first scrape."""
        self.fired: dict[int, set[Firing]] = {}
        self._shown: dict[str, set[Labels]] = {}
        self._busy: list[asyncio.Task[None]] = []

    @property
    def a(self) -> DataCluster:
        return self.clusters["a"]

    async def start(self) -> None:
        for cluster in self.clusters.values():
            for host in cluster.hosts:
                host.disk.capacity_bytes = DISK_BYTES
            await cluster.start()
            await cluster.create(partitions=4, min_insync_replicas="2")

    async def run(self, seconds: int) -> None:
        """Scrape and evaluate for this time."""
        for _ in range(seconds // EVERY_S):
            await asyncio.sleep(EVERY_S)
            self.at += EVERY_S
            for name, cluster in self.clusters.items():
                for host in cluster.hosts:
                    self._scrape(name, cluster, host)
            self.fired[self.at] = self.rules.evaluate(self.at)

    def write_always(self, every_s: float = 3.0, writers: int = 1) -> None:
        """Write configs and records of each cluster for the life of the world."""
        loop = asyncio.get_running_loop()
        for cluster in self.clusters.values():
            for _ in range(writers):
                self._busy.append(loop.create_task(_write(cluster, every_s)))

    def close(self) -> None:
        for task in self._busy:
            task.cancel()
        for cluster in self.clusters.values():
            cluster.close()

    def pages(self, since: int = 0) -> set[Firing]:
        """Return all alerts of severity page that have fired since then."""
        return {one for one in self._all(since) if one.severity == "critical"}

    def tickets(self, since: int = 0) -> set[str]:
        """Return the names of the other alerts."""
        return {one.name for one in self._all(since) if one.severity == "warning"}

    def _all(self, since: int) -> Iterator[Firing]:
        for at, firing in self.fired.items():
            if at >= since:
                yield from firing

    def _scrape(self, cluster_id: str, cluster: DataCluster, host: Any) -> None:
        target = {"job": "raftlog", "instance": f"{host.name}.{cluster_id}"}
        up = host.service is not None and not cluster.network.is_paused(host.name)
        shown: set[Labels] = set()
        for family in _families(cluster_id, host) if up else ():
            for sample in family.samples:
                key = labels(sample.name, **sample.labels, **target)
                self.storage.add(key, self.at, sample.value)
                shown.add(key)
        self.storage.add(labels("up", **target), self.at, float(up))
        for gone in self._shown.get(target["instance"], set()) - shown:
            self.storage.add(gone, self.at, STALE)
        self._shown[target["instance"]] = shown


async def _write(cluster: DataCluster, every_s: float) -> None:
    import contextlib

    from raftlog.errors import ApiError
    from raftlog.wire.controller.v1 import controller_pb2 as pb

    producer = cluster.producer()
    number = 0
    while True:
        number += 1
        config = pb.AlterableConfig(name="match", value=str(number))
        resource = pb.AlterConfigsResource(
            resource_type=16, resource_name="rules", configs=[config]
        )
        with contextlib.suppress(ApiError):
            await cluster.controller.call(
                pb.IncrementalAlterConfigsRequest(resources=[resource]), timeout_s=5
            )
        with contextlib.suppress(ApiError):
            await producer.send("orders", b"%d" % number)
        await asyncio.sleep(every_s)


def _families(cluster_id: str, host: Any) -> list[Metric]:
    """Return the metric families that the shipped program makes; the disk size is the simulated
    one's.
    """
    config = SimpleNamespace(
        cluster_id=cluster_id, node_id=host.id, directory=Path(host.name), certificates=()
    )
    transport = SimpleNamespace(bounds=Bounds(asyncio.get_running_loop(), TransportLimits()))
    free = host.disk.free_bytes()
    with mock.patch.object(shutil, "disk_usage", return_value=Usage(DISK_BYTES, 0, free)):
        given = [config, host.service, transport, None]
        shell: Any = controller.http_side
        if not host.name.startswith("c"):
            shell = broker.run
            given.append(host.service.data._store)
        registry: MetricsRegistry = shell.metrics_registry(*given, BUILD, LoopLag())
        return [
            family
            for family in registry.registry.collect()
            if not family.name.startswith(("process_", "python_"))
        ]

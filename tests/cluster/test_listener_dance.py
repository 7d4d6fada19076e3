"""A running plaintext cluster moves to TLS node by node: a second listener, then the nodes, then
the clients, then the first listener is removed.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import PATIENCE_S, configure, raftlog, running, setting, succeed, until
from matrix_cluster import Authorities, environment

from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.local.cluster import LocalCluster, Node, free_ports
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import TlsConfig

HOST = "127.0.0.1"
WRITE_EVERY_S = 0.02
Keys = dict[str, Any]


class Dance:
    """A cluster, a second port of each node, and all certificates."""

    def __init__(self, directory: Path) -> None:
        self.cluster = LocalCluster(directory / "c", controllers=3, brokers=3)
        self.cluster.generate()
        self.nodes = self.cluster.nodes
        self.secured = dict(
            zip((one.node_id for one in self.nodes), free_ports(len(self.nodes)), strict=True)
        )
        self.authorities = Authorities(directory / "pki")
        self.client = self.authorities.client_files("client")

    def addresses(self, role: str, *, secured: bool) -> list[str]:
        return [
            f"{HOST}:{self.secured[one.node_id] if secured else one.port}"
            for one in self.nodes
            if one.role == role
        ]

    def beside(self, node: Node) -> Keys:
        """First: add a listener with TLS beside the one without, which nodes still use."""
        return {
            **self.authorities.files(node, of_nodes=True),
            "listeners": [
                f"PLAINTEXT://{node.endpoint}",
                f"SSL://{HOST}:{self.secured[node.node_id]}",
            ],
            "controller.listener.names": self.names(node, "PLAINTEXT", "SSL"),
            "inter.broker.listener.name": "PLAINTEXT",
        }

    def change_over(self, node: Node) -> Keys:
        """Second: nodes use the one with TLS."""
        return {
            "controller.listener.names": self.names(node, "SSL", "PLAINTEXT"),
            "inter.broker.listener.name": "SSL",
            "controller.quorum.voters": [
                f"{number}@{address}"
                for number, address in enumerate(self.addresses("controller", secured=True), 1)
            ],
        }

    def alone(self, node: Node) -> Keys:
        """Third: remove the listeners without TLS."""
        return {
            "listeners": [f"SSL://{HOST}:{self.secured[node.node_id]}"],
            "controller.listener.names": ["SSL"],
        }

    @staticmethod
    def names(node: Node, *names: str) -> Sequence[str]:
        """A broker names the listener that it connects to; a controller all that nodes may use."""
        return names if node.role == "controller" else names[:1]

    async def roll(self, step: Callable[[Node], Keys]) -> None:
        """Give each node in turn the next configuration."""
        everybody = [node.name for node in self.nodes]
        for node in self.nodes:
            keys = step(node)
            if node.role == "controller":
                keys.pop("inter.broker.listener.name", None)
            configure(self.cluster, node, keys)
            assert await asyncio.to_thread(self.cluster.stop, [node.name], 30) == []
            self.cluster.start(node.name)
            await asyncio.to_thread(self.cluster.wait_ready, everybody, PATIENCE_S)

    def voters(self, *, secured: bool) -> list[set[str]]:
        """Return the listener names of each voter in the leader's log."""
        at = ",".join(self.addresses("controller", secured=secured))
        shown = environment(self.client) if secured else {}
        ran = raftlog("quorum describe --json", controllers=at, environment=shown)
        if ran.code != 0:
            return []
        return [
            {one.partition("://")[0] for one in voter["endpoints"]} for voter in ran.json["voters"]
        ]


class Writers:
    """Writers through controllers and brokers, until stopped. A write is retried only if it
    certainly was not executed, or is numbered.
    """

    def __init__(self, dance: Dance, name: str, *, tls: TlsConfig | None) -> None:
        self._name, self._tls = name, tls
        self._stopping = False
        self.written = [0, 0]
        self._tasks = [
            asyncio.create_task(
                self._to_controllers(dance.addresses("controller", secured=bool(tls)))
            ),
            asyncio.create_task(
                self._through_brokers(dance.addresses("broker", secured=bool(tls)))
            ),
        ]

    async def _to_controllers(self, addresses: list[str]) -> None:
        transport = GrpcTransport(tls=self._tls)
        client = ControllerClient(transport, addresses, rng=random.Random(1))
        try:
            while not self._stopping:
                await client.call(self._body(0), timeout_s=PATIENCE_S)
                self.written[0] += 1
                await asyncio.sleep(WRITE_EVERY_S)
        finally:
            client.close()
            await transport.close()

    async def _through_brokers(self, addresses: list[str]) -> None:
        transport = GrpcTransport(tls=self._tls)
        client = BrokerClient(transport, addresses, rng=random.Random(2))
        session = client.session(self._name)
        try:
            while not self._stopping:
                await session.write(self._body(1), timeout_s=PATIENCE_S)
                self.written[1] += 1
                await asyncio.sleep(WRITE_EVERY_S)
        finally:
            client.close()
            await transport.close()

    def _body(self, way: int) -> Any:
        return setting(f"{self._name}-{way}", str(self.written[way]))

    def check(self) -> None:
        """Raises the first error of the calls."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)
        assert min(self.written) > 0


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_plaintext_cluster_moves_to_tls_without_a_failed_write(tmp_path: Path) -> None:
    dance = Dance(tmp_path)
    with running(dance.cluster) as cluster:
        create = "topics create orders --partitions 3 --replication-factor 3"
        await asyncio.to_thread(succeed, create, brokers=cluster)
        plain = Writers(dance, "plain", tls=None)
        await dance.roll(dance.beside)
        plain.check()

        def both() -> bool:
            return dance.voters(secured=False) == [{"PLAINTEXT", "SSL"}] * 3

        await asyncio.to_thread(until, both, "all voters are known by both listeners")
        await dance.roll(dance.change_over)
        plain.check()
        secured = Writers(dance, "secured", tls=dance.client)
        await plain.stop()
        await dance.roll(dance.alone)
        await secured.stop()
        await asyncio.to_thread(all_is_well, dance)


def all_is_well(dance: Dance) -> None:
    """Assert that everything is replicated over TLS, and nothing answers without."""
    client = environment(dance.client)
    plain, secured = (",".join(dance.addresses("controller", secured=one)) for one in (False, True))
    brokers = ",".join(dance.addresses("broker", secured=True))
    succeed("produce orders --value hello", brokers=brokers, environment=client)
    consume = "consume orders --from-beginning --max-messages 1"
    succeed(consume, brokers=brokers, environment=client)
    succeed("partitions isr --compare", controllers=secured, environment=client)
    isrs = raftlog("partitions isr --json", brokers=brokers, environment=client).json
    assert [len(one["isr"]) for one in isrs["partitions"]] == [3, 3, 3]
    for at in (plain, secured):
        raftlog("quorum describe --timeout 2", controllers=at).refused(4)

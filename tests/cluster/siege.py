"""A cluster under attack: one that believes everybody or one that authenticates; what it says
about itself, its operator, and how it is mended.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import msgspec
from cluster_kit import CLIENT_METRICS, PATIENCE_S, running, setting, until_true
from prometheus_client.parser import text_string_to_metric_families
from stranger import Stranger
from test_node_certificates import RULE, Files

from raftlog import batch
from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.client.log_reader import LogReader
from raftlog.client.options import ClientSecurity
from raftlog.client.quorum_queries import ask_node
from raftlog.errors import ApiError, ErrorCode
from raftlog.local.cluster import HOST, LocalCluster, Node
from raftlog.metadata.entities import Broker, Partition
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.node.security.authority import Authority, Issued, new_authority
from raftlog.node.security.certificate_files import PairPaths, make_private_directory, write_pair
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import TlsConfig
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.data.v1 import data_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

TOPIC = "orders"
ASK_S = 2.0


@dataclass(frozen=True)
class State:
    """What an attack could change, as the cluster and the stranger see it at one moment."""

    leader: quorum_pb2.DescribeQuorumResponse
    log_ends: dict[int, int]
    """Controller -> the end of its log, by its own account."""
    image: Image
    principals: frozenset[str]
    """Who has written, as the log says."""
    led: data_pb2.LedPartition | None
    """The topic's partition, by its leader's account."""
    loot: tuple[str, ...] = ()

    @property
    def epoch(self) -> int:
        return self.leader.leader_epoch

    @property
    def voters(self) -> dict[int, str]:
        return {one.replica_id: one.endpoint for one in self.leader.voters}

    @property
    def partition(self) -> Partition | None:
        topic_id = self.image.topic_ids.get(TOPIC)
        return None if topic_id is None else self.image.partitions[topic_id, 0]

    @property
    def configs(self) -> frozenset[str]:
        """The names that ``setting`` was written under."""
        return frozenset(name for kind, name in self.image.configs if kind == CLIENT_METRICS)

    def broker(self, broker_id: int) -> Broker | None:
        return self.image.brokers.get(broker_id)


@dataclass
class Siege:
    """``tls``: what its operator shows; it may do everything."""

    cluster: LocalCluster
    tls: TlsConfig | None = None
    paused: set[str] = field(default_factory=set)

    def up(self, role: str) -> list[Node]:
        return [
            one for one in self.cluster.nodes if one.role == role and one.name not in self.paused
        ]

    def node(self, node_id: int) -> Node:
        return next(one for one in self.cluster.nodes if one.node_id == node_id)

    @contextmanager
    def pausing(self, *node_ids: int) -> Iterator[None]:
        """These stand still meanwhile."""
        names = [self.node(one).name for one in node_ids]
        self.paused.update(names)
        for name in names:
            self.cluster.kill(name, signal.SIGSTOP)
        try:
            yield
        finally:
            for name in names:
                self.cluster.kill(name, signal.SIGCONT)
            self.paused.clear()

    @asynccontextmanager
    async def operator(self) -> AsyncIterator[Operator]:
        transport = GrpcTransport(tls=self.tls)
        made = Operator(self, transport)
        try:
            yield made
        finally:
            made.close()
            await transport.close()


class Operator:
    """Looks, writes and mends."""

    def __init__(self, siege: Siege, transport: GrpcTransport) -> None:
        self._siege, self._transport = siege, transport
        rng = random.Random(0)
        controllers, brokers = siege.cluster.controllers, siege.cluster.brokers
        self.controllers = ControllerClient(
            transport, [one.endpoint for one in controllers], rng=rng
        )
        self._brokers = {
            one.node_id: BrokerClient(transport, [one.endpoint], rng=rng) for one in brokers
        }

    def close(self) -> None:
        self.controllers.close()
        for one in self._brokers.values():
            one.close()

    async def look(self, stranger: Stranger | None = None) -> State:
        """As soon as somebody leads."""
        found: list[State] = []

        async def seen() -> bool:
            state = await self._look(stranger)
            found.extend([] if state is None else [state])
            return bool(found)

        await until_true(seen, "the cluster says how it is")
        return found[-1]

    async def write(
        self, name: str, client: common_pb2.ClientIdentity | None = None
    ) -> pb.ControllerResponse:
        """A value under this name; ``client``: what it says about itself."""
        request = pb.ControllerRequest(incremental_alter_configs=setting(name, "x"), client=client)
        return await self.controllers.call(request, timeout_s=PATIENCE_S)

    async def produce(self, leader_id: int, topic_id: bytes, value: bytes) -> Any:
        """A record that all in sync are to have."""
        record = data_pb2.DataRecord(value=value).SerializeToString()
        partition = data_pb2.ProducePartition(
            topic_id=topic_id, current_leader_epoch=-1, records=[record]
        )
        request = data_pb2.ProduceRequest(acks=-1, timeout_ms=60_000, partitions=[partition])
        return await self._brokers[leader_id].read(request, timeout_s=PATIENCE_S)

    async def mend(self, like: State) -> None:
        """Until the cluster is as it was: voters, brokers, the topic and its ISR.

        A broker that was stopped or thrown out is begun anew.
        """
        cluster, now = self._siege.cluster, await self.look()
        for node in cluster.brokers:
            broker = now.broker(node.node_id)
            if broker is None or not broker.active or broker.endpoint != node.endpoint:
                await asyncio.to_thread(cluster.stop, [node.name])
                await asyncio.to_thread(cluster.start, node.name)

        async def mended() -> bool:
            now = await self._look(None)
            return now is not None and not await self._fix(now, like)

        await until_true(mended, "the cluster is mended")

    async def _fix(self, now: State, like: State) -> bool:
        """Mend one thing; whether there was one."""
        if now.voters != like.voters:
            await self._fix_voters(now, like)
            return True
        brokers = [now.broker(one.node_id) for one in self._siege.cluster.brokers]
        if not all(one is not None and one.active for one in brokers):
            return True
        if now.partition is None:
            topic = pb.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=2)
            await self.controllers.call(pb.CreateTopicsRequest(topics=[topic]))
            return True
        return len(now.partition.isr) < 2 or now.partition.leader < 0 or now.led is None

    async def _fix_voters(self, now: State, like: State) -> None:
        directories = {
            one.replica_id: one.replica_directory_id
            for state in (like, now)
            for one in state.leader.voters
        }
        node_id = next(
            one
            for one in like.voters.keys() | now.voters
            if like.voters.get(one) != now.voters.get(one)
        )
        names: dict[str, Any] = {"voter_id": node_id, "voter_directory_id": directories[node_id]}
        endpoint = like.voters.get(node_id, "")
        if not endpoint:
            request: Any = pb.RemoveRaftVoterRequest(**names)
        elif node_id in now.voters:
            request = pb.UpdateRaftVoterRequest(**names, endpoint=endpoint)
        else:
            request = pb.AddRaftVoterRequest(**names, endpoint=endpoint)
        await self.controllers.call(request, timeout_s=ASK_S)

    async def _look(self, stranger: Stranger | None) -> State | None:
        security = ClientSecurity(self._siege.tls)
        answers = await asyncio.gather(
            *(ask_node(one.endpoint, ASK_S, security) for one in self._siege.up("controller"))
        )
        said = [one.description for one in answers if one.description is not None]
        leaders = [one for one in said if one.role == "leader"]
        leader = max(leaders, key=lambda one: one.leader_epoch, default=None)
        if leader is None or leader.leader_epoch < max(one.leader_epoch for one in said):
            return None
        try:
            image, principals = await self._log(self._siege.node(leader.node_id).endpoint)
        except ApiError:
            return None
        return State(
            leader,
            {one.node_id: one.log_end_offset for one in said},
            image,
            principals,
            await self._led(image),
            () if stranger is None else tuple(stranger.loot),
        )

    async def _log(self, endpoint: str) -> tuple[Image, frozenset[str]]:
        reader = LogReader(self._transport, [endpoint], rng=random.Random(0), timeout_s=ASK_S)
        builder, principals = ImageBuilder(Image()), set[str]()
        try:
            end = (await reader.info()).high_watermark
            async for chunk in reader.chunks(0, end):
                builder.apply_chunk(chunk)
                principals.update(one.principal for one in batch.headers(chunk, verify=False))
        finally:
            reader.close()
        return builder.snapshot(), frozenset(principals)

    async def _led(self, image: Image) -> data_pb2.LedPartition | None:
        topic_id = image.topic_ids.get(TOPIC)
        if topic_id is None or (leader := image.partitions[topic_id, 0].leader) < 0:
            return None
        key = data_pb2.PartitionKey(topic_id=topic_id)
        request = data_pb2.BrokerMetadataRequest(partitions=[key])
        try:
            answer = await self._brokers[leader].read(request, timeout_s=ASK_S)
        except ApiError:
            return None
        (found,) = answer.broker_metadata.partitions
        return None if found.error_code != ErrorCode.NONE else found


_DAYS = 1
_OPERATOR = "operator"
SETTINGS = {
    # Pauses are part of some attacks.
    "controller.quorum.fetch.timeout.ms": 4_000,
    "broker.heartbeat.interval.ms": 300,
    # So long a broker that is unregistered may have a lease.
    "broker.session.timeout.ms": 6_000,
}


class Pki:
    """An authority in a directory, and what it issues."""

    def __init__(self, directory: Path) -> None:
        issued = new_authority("tests", _DAYS, datetime.now(UTC))
        make_private_directory(directory)
        self._directory = directory
        self._write("ca", issued)
        self._authority = Authority.load(directory)

    def node(self, node_id: int) -> Files:
        issued = self._authority.issue_node(node_id, [HOST], _DAYS, datetime.now(UTC))
        return self._write(f"node-{node_id}", issued)

    def client(self, name: str) -> Files:
        issued = self._authority.issue_client(name, _DAYS, datetime.now(UTC))
        return self._write(f"client-{name}", issued)

    def _write(self, name: str, issued: Issued) -> Files:
        paths = PairPaths.of(self._directory, name)
        write_pair(paths, issued.certificate, issued.key, replace=True)
        return Files(paths.certificate, paths.key, self._directory / "ca.pem")


class Intruder(NamedTuple):
    """``principal``: as the audit log names it, empty: nobody gets to know it."""

    name: str
    credentials: Any
    principal: str = ""


@dataclass(frozen=True)
class Guarded:
    """``nodes``: their certificates; ``client``: that of one who may do nothing; ``foreign``: one of
    another authority.
    """

    siege: Siege
    nodes: Mapping[int, Files]
    client: Files
    foreign: Files
    forged: list[str] = field(default_factory=list)
    """Requests refused so far that are counted."""

    def without_certificate(self) -> list[Intruder]:
        """Those who show none that counts."""
        ca, foreign = self.client.ca.read_bytes(), self.foreign
        shown = grpc.ssl_channel_credentials(
            ca, foreign.key.read_bytes(), foreign.certificate.read_bytes()
        )
        return [
            Intruder("in plain text", None),
            Intruder("without a certificate", grpc.ssl_channel_credentials(ca)),
            Intruder("of another authority", shown),
        ]

    def thief_of(self, files: Files) -> Intruder:
        name = files.certificate.stem.removeprefix("client-")
        return Intruder(name, tls_of(files).channel_credentials(), f"User:{name}")

    def refusals(self, principal: str) -> int:
        """How often the audit logs say that something was refused to somebody."""
        lines = [
            msgspec.json.decode(line)
            for node in self.siege.cluster.nodes
            for line in _audit_log(self.siege.cluster, node).read_bytes().splitlines()
        ]
        return sum(
            one["actor"]["user"]["name"] == principal and one["status"] == "Failure"
            for one in lines
        )

    def counted(self) -> int:
        """What the nodes' metrics say was forbidden."""
        return sum(_forbidden(node) for node in self.siege.cluster.nodes)


def _forbidden(node: Node) -> int:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{node.http}/metrics", timeout=PATIENCE_S) as response:
        (sample,) = (
            sample
            for family in text_string_to_metric_families(response.read().decode())
            for sample in family.samples
            if sample.name == "raftlog_transport_complaints_total"
            and sample.labels == {"kind": "forbidden"}
        )
    return int(sample.value)


def _audit_log(cluster: LocalCluster, node: Node) -> Path:
    return cluster.directory / f"{node.name}.audit.log"


@contextmanager
def believing(directory: Path) -> Iterator[Siege]:
    """Without TLS, on loopback."""
    cluster = LocalCluster(directory, controllers=3, brokers=2, settings=SETTINGS)
    with running(cluster):
        yield Siege(cluster)


@contextmanager
def asking(directory: Path) -> Iterator[Guarded]:
    """With a certificate for each node, and an authorizer."""
    pki, nodes = Pki(directory / "pki"), dict[int, Files]()

    def settings_of(node: Node) -> Mapping[str, Any]:
        files = nodes[node.node_id] = pki.node(node.node_id)
        settings = {
            **files.settings(),
            "node.principal.rule": RULE,
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
            "authorizer.class.name": "StandardAuthorizer",
            "super.users": f"User:{_OPERATOR};User:admin",
            "audit.log.file": str(_audit_log(cluster, node)),
        }
        return {json.dumps(key): value for key, value in settings.items()}

    cluster = LocalCluster(
        directory / "c", controllers=3, brokers=2, settings=SETTINGS, settings_of=settings_of
    )
    operator = tls_of(pki.client(_OPERATOR))
    cluster.tls = operator
    with running(cluster):
        yield Guarded(
            Siege(cluster, operator),
            nodes,
            pki.client("mallory"),
            Pki(directory / "foreign").client("mallory"),
        )


def tls_of(files: Files) -> TlsConfig:
    return TlsConfig(files.certificate, files.key, files.ca)

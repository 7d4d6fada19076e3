"""The cluster of the permission matrix: four controllers (one removed from the voters), two
brokers, three listeners each.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import cluster_kit
import grpc
import grpc.aio
from cluster_kit import PATIENCE_S, configure, until_true
from matrix_callers import (
    CLIENTS,
    INTERNAL,
    LISTENERS,
    MINE,
    SUPER_USERS,
    THEIRS,
    TOKENS,
    Caller,
    Certificate,
    Listener,
    Method,
    Nodes,
    Token,
    callers,
    entries,
    types_of,
)
from matrix_requests import MY_TOPIC, THEIR_TOPIC, Facts
from tls_files import write
from token_issuer import AUDIENCE, ISSUER, Issuer

from raftlog.local.cluster import HOST, LocalCluster, Node, free_ports
from raftlog.node.security.authority import Authority, Issued, new_authority
from raftlog.transport.tls import TlsConfig
from raftlog.wire.broker.v1 import broker_pb2 as broker
from raftlog.wire.controller.v1 import controller_pb2 as controller
from raftlog.wire.data.v1 import data_pb2 as data
from raftlog.wire.quorum.v1 import quorum_pb2 as quorum


class Authorities:
    """The certificate authorities of nodes and of clients."""

    def __init__(self, directory: Path) -> None:
        self._made: dict[bool, tuple[Issued, Authority]] = {}
        self._directory = directory
        self._issued: dict[tuple[bool, str, bool], Issued] = {}
        now = datetime.now(UTC)
        for of_nodes in (True, False):
            place = directory / ("nodes" if of_nodes else "clients")
            place.mkdir(parents=True)
            made = new_authority(place.name, 30, now - timedelta(days=20))
            (place / "ca.pem").write_bytes(made.certificate)
            (place / "ca.key").write_bytes(made.key)
            (place / "ca.key").chmod(0o600)
            self._made[of_nodes] = made, Authority.load(place)

    def ca(self, *, of_nodes: bool) -> bytes:
        return self._made[of_nodes][0].certificate

    def issue(self, name: str, *, of_nodes: bool, expired: bool = False) -> Issued:
        """Return the same certificate for the same name."""
        key = (of_nodes, name, expired)
        if key not in self._issued:
            now = datetime.now(UTC) - timedelta(days=10 if expired else 0)
            authority, days = self._made[of_nodes][1], 1 if expired else 2
            before, _, number = name.partition("-")
            self._issued[key] = (
                authority.issue_node(int(number), [HOST], days, now)
                if before == "node"
                else authority.issue_client(name, days, now)
            )
        return self._issued[key]

    def files(self, node: Node, *, of_nodes: bool, expired: bool = False) -> dict[str, str]:
        """Keys of the configuration of a node, whose files are written here."""
        issued = self.issue(f"node-{node.node_id}", of_nodes=of_nodes, expired=expired)
        place = self._directory / ("nodes" if of_nodes else "clients")
        tls = TlsConfig(place / f"{node.name}.pem", place / f"{node.name}.key", place / "ca.pem")
        write(tls, issued.certificate, issued.key, self.ca(of_nodes=of_nodes))
        keys = ("tls.certificate.file", "tls.key.file", "tls.ca.file")
        return {key: str(path) for key, path in zip(keys, tls.paths, strict=True)}

    def client_files(self, name: str, *, expired: bool = False) -> TlsConfig:
        """Write a client's certificate by the authority of nodes; return its files."""
        issued, place = self.issue(name, of_nodes=True, expired=expired), self._directory / "nodes"
        tls = TlsConfig(place / f"{name}.pem", place / f"{name}.key", place / "ca.pem")
        if not tls.certificate_path.exists():
            write(tls, issued.certificate, issued.key, self.ca(of_nodes=True))
        return tls


def environment(tls: TlsConfig) -> dict[str, str]:
    """Return the environment by which commands use these files."""
    names = ("CERTIFICATE", "KEY", "CA")
    return {
        f"RAFTLOG_TLS_{name}_FILE": str(path) for name, path in zip(names, tls.paths, strict=True)
    }


def tokens_of(issuer: Issuer, names: Iterable[str]) -> dict[tuple[Token, str], str]:
    """One of each kind for each name."""
    other, now = Issuer(), int(time.time())
    past = now - 3_600
    tokens: dict[tuple[Token, str], str] = {}
    for name in names:
        tokens[Token.GOOD, name] = issuer.token(sub=name, exp=now + 3_600)
        tokens[Token.EXPIRED, name] = issuer.token(sub=name, iat=past, exp=past + 60)
        tokens[Token.FORGED, name] = other.token(sub=name)
        tokens[Token.ELSEWHERE, name] = issuer.token(sub=name, aud="somebody-else")
    return tokens


ROOT = Caller("root", Certificate.GOOD, "admin")
QUIET_S = 0.5
DESCRIBE_QUORUM = Method("raftlog.wire.quorum.v1.Quorum", "DescribeQuorum", streams=False)
DESCRIBE_BROKER = Method("raftlog.wire.broker.v1.Broker", "DescribeBroker", streams=False)
LIST_OFFSETS = Method("raftlog.wire.broker.v1.Broker", "ListOffsets", streams=False)


@dataclass(frozen=True)
class Reach:
    """The addresses of nodes. ``ports``: by node and listener."""

    cluster: LocalCluster
    authorities: Authorities
    ports: Mapping[tuple[str, str], int]

    def channel_to(self, caller: Caller, listener: Listener, node: str) -> Any:
        """A connection of its own."""
        address = f"{HOST}:{self.ports[node, listener.name]}"
        shown = self._shown(caller, listener)
        credentials = grpc.ssl_channel_credentials(
            self.authorities.ca(of_nodes=listener.of_nodes),
            None if shown is None else shown.key,
            None if shown is None else shown.certificate,
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(address, credentials, options=options)

    def _shown(self, caller: Caller, listener: Listener) -> Issued | None:
        if caller.certificate is Certificate.NONE:
            return None
        foreign = caller.certificate is Certificate.FOREIGN
        return self.authorities.issue(
            caller.common_name, of_nodes=listener.of_nodes is not foreign,
            expired=caller.certificate is Certificate.EXPIRED,
        )  # fmt: skip

    async def describe_quorum(self, node: str) -> Any:
        return await self.ask(node, DESCRIBE_QUORUM, quorum.DescribeQuorumRequest())

    async def ask(self, node: str, method: Method, request: Any) -> Any:
        """Send a request as the administrator."""
        path = f"/{method.service}/{method.name}"
        response_type = types_of(method)[1]
        async with self.channel_to(ROOT, CLIENTS, node) as channel:
            call = channel.unary_unary(path)
            data = await call(request.SerializeToString(), timeout=PATIENCE_S, wait_for_ready=True)
        return response_type.FromString(data)


class Tip(NamedTuple):
    """The leader, its epoch, and the ends of its log and image."""

    leader_id: int
    epoch: int
    log_end_offset: int
    state_hash: str


@dataclass(frozen=True)
class World(Reach):
    """The cluster, with the resources that requests name."""

    tokens: Mapping[tuple[Token, str], str]
    facts: Facts

    def metadata(self, caller: Caller) -> tuple[tuple[str, str], ...]:
        if caller.token is Token.NONE:
            return ()
        return (("authorization", f"Bearer {self.tokens[caller.token, caller.subject]}"),)

    def channel(self, caller: Caller, listener: Listener, role: str) -> Any:
        """Return a channel to the active controller, or to the broker that leads all partitions."""
        node_id = self.facts.leader_id if role == "controller" else self.facts.nodes.broker
        return self.channel_to(caller, listener, f"{role}-{node_id}")

    async def state(self) -> Any:
        """Return all that a request could have changed, as every remaining node knows it. The state
        hash is that of the committed image, the log end that of the log.
        """
        controllers = []
        for node_id in (self.facts.leader_id, self.facts.nodes.controller,
                        self.facts.nodes.victim_controller):  # fmt: skip
            one = await self.describe_quorum(f"controller-{node_id}")
            voters = [(v.replica_id, v.replica_directory_id, v.endpoints) for v in one.voters]
            controllers.append((
                one.leader_id, one.leader_epoch, one.voted_id, voters, one.log_end_offset,
                one.image_offset, one.state_hash.hex(),
            ))  # fmt: skip
        brokers = []
        for node in self.cluster.brokers:
            described = await self.ask(node.name, DESCRIBE_BROKER, broker.DescribeBrokerRequest())
            brokers.append((
                described.broker_epoch, described.state, described.applied_offset,
                described.state_hash,
            ))  # fmt: skip
        wanted = [
            data.ListOffsetsPartition(topic_id=id_, current_leader_epoch=-1, timestamp=-1)
            for id_ in self.facts.topics
        ]
        leader = f"broker-{self.facts.nodes.broker}"
        ends = await self.ask(leader, LIST_OFFSETS, data.ListOffsetsRequest(partitions=wanted))
        return controllers, brokers, [(one.error_code, one.offset) for one in ends.partitions]

    async def tip(self) -> Tip:
        """Return the tip that the leader reports."""
        one = await self.describe_quorum(f"controller-{self.facts.leader_id}")
        return Tip(one.leader_id, one.leader_epoch, one.log_end_offset, one.state_hash.hex())

    async def published(self) -> None:
        """Wait until each voter has published its listeners: one at a time does, others retry."""
        leader = f"controller-{self.facts.leader_id}"

        async def all_are_known() -> bool:
            voters = (await self.describe_quorum(leader)).voters
            return all(one.endpoints.count("://") >= len(LISTENERS) for one in voters)

        await until_true(all_are_known, "each voter publishes its listeners")

    async def settled(self) -> Any:
        """Return the state once every node knows it and its record is in the log."""
        await self.published()
        last = await self.state()
        quiet_since = time.monotonic()
        deadline = quiet_since + PATIENCE_S
        while time.monotonic() - quiet_since < QUIET_S:
            await asyncio.sleep(0.1)
            now = await self.state()
            if now != last:
                last, quiet_since = now, time.monotonic()
            assert time.monotonic() < deadline, "the cluster does not come to rest"
        return last


CONTROLLERS = 4
WRITES = "raftlog.wire.controller.v1.Controller"
RULES = {
    "node.principal.rule": "CN=node-{id}",
    "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
    "authorizer.class.name": "StandardAuthorizer",
    "super.users": ",".join(SUPER_USERS),
    "grpc.reflection.enable": True,
    # So that the cluster comes to rest soon.
    "progress.interval.ms": 50,
    "sasl.oauthbearer.expected.issuer": ISSUER,
    "sasl.oauthbearer.expected.audience": AUDIENCE,
}


def _configure(
    cluster: LocalCluster, authorities: Authorities, jwks: Path
) -> dict[tuple[str, str], int]:
    """Write the configurations; which port is whose."""
    free = iter(free_ports(2 * len(cluster.nodes)))
    ports: dict[tuple[str, str], int] = {}
    for node in cluster.nodes:
        ports[node.name, INTERNAL.name] = node.port
        ports[node.name, CLIENTS.name], ports[node.name, TOKENS.name] = next(free), next(free)
        inside = authorities.files(node, of_nodes=True)
        outside = authorities.files(node, of_nodes=False)
        keys: dict[str, Any] = {
            "listeners": [f"{one.name}://{HOST}:{ports[node.name, one.name]}" for one in LISTENERS],
            "listener.security.protocol.map": ",".join(f"{one.name}:SSL" for one in LISTENERS),
            "controller.listener.names": INTERNAL.name,
            **inside,
            **{f"listener.name.clients.{key}": value for key, value in outside.items()},
            **{f"listener.name.tokens.{key}": value for key, value in outside.items()},
            "listener.name.tokens.ssl.client.auth": "none",
            "sasl.oauthbearer.jwks.endpoint.url": jwks.as_uri(),
            **RULES,
        }
        if node.role == "broker":
            keys["inter.broker.listener.name"] = INTERNAL.name
        configure(cluster, node, keys)
    return ports


@contextmanager
def running(directory: Path) -> Iterator[World]:
    """The world, kept until the context ends."""
    authorities, issuer = Authorities(directory / "pki"), Issuer()
    jwks = directory / "jwks.json"
    jwks.write_bytes(issuer.jwks())
    cluster = LocalCluster(directory / "c", controllers=CONTROLLERS, brokers=2)
    cluster.generate()
    reach = Reach(cluster, authorities, _configure(cluster, authorities, jwks))
    with cluster_kit.running(cluster):
        yield asyncio.run(_furnished(reach, issuer))


async def _furnished(reach: Reach, issuer: Issuer) -> World:
    leader_id, directories = await _without_one_voter(reach)
    leader = f"controller-{leader_id}"
    left = [one for one in range(1, CONTROLLERS + 1) if one != leader_id]
    first, second = (node.node_id for node in reach.cluster.brokers)
    nodes = Nodes(first, second, left[0], left[1], removed=left[2])
    assignment = controller.CreatableReplicaAssignment(broker_ids=[first, second])
    topics = [
        controller.CreatableTopic(name=name, assignments=[assignment])
        for name in (MY_TOPIC, THEIR_TOPIC)
    ]
    made = await _write(
        reach, leader, "CreateTopics", controller.CreateTopicsRequest(topics=topics)
    )
    hosts = [
        controller.HostnameAlteration(hostname=f"{one}host", broker_id=first)
        for one in (MINE, THEIRS)
    ]
    await _write(
        reach, leader, "AlterHostnames", controller.AlterHostnamesRequest(alterations=hosts)
    )
    cursors = [
        controller.ExportCursorAlteration(name=f"{one}cursor", end_offset=1)
        for one in (MINE, THEIRS)
    ]
    await _write(
        reach, leader, "AlterExportCursors",
        controller.AlterExportCursorsRequest(alterations=cursors),
    )  # fmt: skip
    keys = [controller.KeyValueAlteration(key=f"{one}key", value=b"v") for one in (MINE, THEIRS)]
    await _write(
        reach, leader, "AlterKeyValues", controller.AlterKeyValuesRequest(alterations=keys)
    )
    found = entries()
    creations = [controller.AccessControlEntry(**one._asdict()) for one in found]
    await _write(reach, leader, "CreateAcls", controller.CreateAclsRequest(creations=creations))
    described = await _write(reach, leader, "DescribeBrokers", controller.DescribeBrokersRequest())
    now = await reach.describe_quorum(leader)
    facts = Facts(
        cluster_id=reach.cluster.cluster_id,
        epoch=now.leader_epoch,
        nodes=nodes,
        leader_id=leader_id,
        topics={one.topic_id: one.name for one in made.topics},
        directories=directories,
        broker_epochs={one.broker_id: one.broker_epoch for one in described.brokers},
        entries=found,
        generation=now.generation,
    )
    tokens = tokens_of(issuer, {one.subject for one in callers(nodes)})
    world = World(reach.cluster, reach.authorities, reach.ports, tokens, facts)
    await world.settled()
    return world


async def _write(reach: Reach, leader: str, name: str, request: Any) -> Any:
    response = await reach.ask(leader, Method(WRITES, name, streams=False), request)
    for field, value in response.ListFields():
        if field.is_repeated and field.message_type is not None:
            wrong = [one.error for one in value if hasattr(one, "error") and one.error.error_code]
            assert not wrong, wrong
    return response


async def _without_one_voter(reach: Reach) -> tuple[int, dict[int, str]]:
    """Remove a controller from the voters: its process ends, its certificate stays. Return the
    leader, and the directories of all former voters.
    """

    async def named() -> Any:
        """The leader's description, once the log names the voters."""
        for node in reach.cluster.controllers:
            one = await reach.describe_quorum(node.name)
            if one.leader_id == one.node_id and one.voters_offset >= 0:
                return one
        return None

    found: list[Any] = []

    async def is_named() -> bool:
        found[:] = [await named()]
        return found[0] is not None

    await until_true(is_named, "the log names the voters")
    directories = {one.replica_id: one.replica_directory_id for one in found[0].voters}
    leader_id = found[0].leader_id
    removed = max(set(directories) - {leader_id})
    reach.cluster.stop([f"controller-{removed}"])
    await reach.ask(
        f"controller-{leader_id}", Method(WRITES, "RemoveRaftVoter", streams=False),
        controller.RemoveRaftVoterRequest(
            voter_id=removed, voter_directory_id=directories[removed]
        ),
    )  # fmt: skip
    return leader_id, directories

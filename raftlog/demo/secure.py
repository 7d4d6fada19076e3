"""The demo with mutual TLS and an authorizer: certificates of its own, and an act about rights."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raftlog.client.broker_client import BrokerClient
from raftlog.demo.world import DemoError, World
from raftlog.errors import ErrorCode
from raftlog.local.cluster import HOST, LocalCluster, Node
from raftlog.metadata.acls import (
    ANY_HOST,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    Resource,
)
from raftlog.security.permissions import topic
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import TlsConfig
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

ADMINISTRATOR, SOMEBODY = "admin", "alice"
_DAYS = 1
_TOPIC = "orders"


class Authority:
    """A certificate authority in a directory, and what it has issued."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def make(self) -> None:
        """Make it, and certificates for the administrator and somebody else; the demo's own clients
        and commands show the administrator's from here on.
        """
        from raftlog.security.authority import new_authority
        from raftlog.security.certificate_files import PairPaths, make_private_directory, write_pair

        issued = new_authority("raftlog demo", _DAYS, datetime.now(UTC))
        make_private_directory(self._directory)
        paths = PairPaths.of(self._directory, "ca")
        write_pair(paths, issued.certificate, issued.key, replace=False)
        for name in (ADMINISTRATOR, SOMEBODY):
            self._issue(name)
        for key, value in self._files(ADMINISTRATOR).items():
            os.environ[f"RAFTLOG_{key.upper().replace('.', '_')}"] = value

    def settings(self, node: Node) -> Mapping[str, Any]:
        """A node's certificate, and what the nodes ask of everybody."""
        name = f"node-{node.node_id}"
        self._issue(name, node.node_id)
        return {
            json.dumps(key): value
            for key, value in {
                **self._files(name),
                "node.principal.rule": "CN=node-{id}",
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]*).*$/$1/,DEFAULT",
                "authorizer.class.name": "StandardAuthorizer",
                "super.users": f"User:{ADMINISTRATOR}",
                "audit.log.file": str(self.audit_log(node)),
            }.items()
        }

    def audit_log(self, node: Node) -> Path:
        """Where a node writes who asked for what."""
        return self._directory.parent / f"{node.name}.audit.log"

    def tls(self, name: str) -> TlsConfig:
        """For a client with the certificate of this name."""
        return TlsConfig(*map(Path, self._files(name).values()))

    def _files(self, name: str) -> dict[str, str]:
        own = name if name.startswith("node-") else f"client-{name}"
        return {
            "tls.certificate.file": str(self._directory / f"{own}.pem"),
            "tls.key.file": str(self._directory / f"{own}.key"),
            "tls.ca.file": str(self._directory / "ca.pem"),
        }

    def _issue(self, name: str, node_id: int | None = None) -> None:
        from raftlog.security import authority
        from raftlog.security.certificate_files import PairPaths, write_pair

        loaded, now = authority.Authority.load(self._directory), datetime.now(UTC)
        if node_id is None:
            issued = loaded.issue_client(name, _DAYS, now)
        else:
            issued = loaded.issue_node(node_id, [HOST], _DAYS, now)
        paths = PairPaths.of(self._directory, Path(self._files(name)["tls.key.file"]).stem)
        write_pair(paths, issued.certificate, issued.key, replace=False)


class Rights:
    """The act: what somebody may do, before and after."""

    def __init__(
        self, world: World, cluster: LocalCluster, authority: Authority, say: Callable[[str], None]
    ) -> None:
        self._world, self._cluster, self._authority, self._say = world, cluster, authority, say

    async def play(self) -> str:
        """What it has shown. Raises DemoError."""
        transport = GrpcTransport(tls=self._authority.tls(SOMEBODY))
        brokers = {
            node.node_id: BrokerClient(transport, [node.endpoint], rng=random.Random())
            for node in self._cluster.brokers
        }
        try:
            await self._shown(brokers, [])
            self._say(f"{SOMEBODY}, without a right: no broker shows a topic")
            entry = allowing(SOMEBODY, AclOperation.READ, topic(_TOPIC))
            offset = await self._change(pb.CreateAclsRequest(creations=[entry]))
            await self._shown(brokers, [_TOPIC])
            self._say(f"{ADMINISTRATOR} allows to read {_TOPIC} (offset {offset}): all show it")
            error = await self._delete(brokers)
            self._say(f"{SOMEBODY} deletes it: {error}")
            wanted = pb.AccessControlEntryFilter(
                resource_type=AclResourceType.ANY,
                pattern_type=PatternType.ANY,
                principal=f"User:{SOMEBODY}",
                operation=AclOperation.ANY,
                permission_type=AclPermission.ANY,
            )
            offset = await self._change(pb.DeleteAclsRequest(filters=[wanted]))
            await self._shown(brokers, [])
            self._say(f"taken away, and acknowledged at offset {offset}: no broker shows it")
            return f"taken away at offset {offset}, refused on all brokers at once"
        finally:
            for client in brokers.values():
                client.close()
            await transport.close()

    async def _change(self, body: Any) -> int:
        response = await self._world.controllers.call(body, acks=common_pb2.ACKS_ACKNOWLEDGED)
        if response.write.reached < common_pb2.ACKS_ACKNOWLEDGED:
            raise DemoError("not every broker has acknowledged the change of rights in time")
        return int(response.write.token.offset)

    async def _shown(self, brokers: Mapping[int, BrokerClient], expected: list[str]) -> None:
        for broker_id, client in brokers.items():
            response = await client.read(broker_pb2.MetadataRequest())
            shown = [topic.name for topic in response.metadata.topics]
            if shown != expected:
                raise DemoError(f"broker {broker_id} shows {shown}, not {expected}")

    async def _delete(self, brokers: Mapping[int, BrokerClient]) -> str:
        client = next(iter(brokers.values()))
        response = await client.write(pb.DeleteTopicsRequest(names=[_TOPIC]), raise_refused=False)
        error = response.delete_topics.topics[0].error
        if error.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise DemoError(f"{SOMEBODY} may delete {_TOPIC}: {error.error_message}")
        return str(error.error_message)


def allowing(
    name: str,
    operation: AclOperation,
    resource: Resource,
    pattern_type: PatternType = PatternType.LITERAL,
) -> pb.AccessControlEntry:
    """The entry that allows a user of this name an operation, from any host."""
    return pb.AccessControlEntry(
        resource_type=resource.type,
        resource_name=resource.name,
        pattern_type=pattern_type,
        principal=f"User:{name}",
        host=ANY_HOST,
        operation=operation,
        permission_type=AclPermission.ALLOW,
    )

"""The demo with mutual TLS and an authorizer: its certificates, and an act about rights."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from raftlog.client.broker_client import BrokerClient
from raftlog.demo.world import DemoError, World
from raftlog.errors import ErrorCode
from raftlog.local.authority import ADMINISTRATOR, SOMEBODY, Authority
from raftlog.local.cluster import LocalCluster
from raftlog.metadata.acls import (
    ANY_HOST,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    Resource,
)
from raftlog.node.security.permissions import topic
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb

_TOPIC = "orders"


class Rights:
    """The act about rights: what a user may do before and after a change."""

    def __init__(
        self, world: World, cluster: LocalCluster, authority: Authority, say: Callable[[str], None]
    ) -> None:
        self._world, self._cluster, self._authority, self._say = world, cluster, authority, say

    async def play(self) -> str:
        """Play the act, and return its result. Raises DemoError."""
        transport = GrpcTransport(tls=self._authority.tls(SOMEBODY))
        brokers = {
            node.node_id: BrokerClient(transport, [node.endpoint], rng=random.Random())
            for node in self._cluster.brokers
        }
        try:
            await self._shown(brokers, [])
            self._say(f"{SOMEBODY} has no rights: no broker shows a topic")
            entry = allowing(SOMEBODY, AclOperation.READ, topic(_TOPIC))
            offset = await self._change(pb.CreateAclsRequest(creations=[entry]))
            await self._shown(brokers, [_TOPIC])
            self._say(
                f"{ADMINISTRATOR} grants read on {_TOPIC} (offset {offset}): all brokers show it"
            )
            error = await self._delete(brokers)
            self._say(f"{SOMEBODY} tries to delete it: {error}")
            wanted = pb.AccessControlEntryFilter(
                resource_type=AclResourceType.ANY,
                pattern_type=PatternType.ANY,
                principal=f"User:{SOMEBODY}",
                operation=AclOperation.ANY,
                permission_type=AclPermission.ANY,
            )
            offset = await self._change(pb.DeleteAclsRequest(filters=[wanted]))
            await self._shown(brokers, [])
            self._say(f"right revoked, and acknowledged at offset {offset}: no broker shows it")
            return f"revoked at offset {offset}, refused on all brokers at once"
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
    """Return an entry that allows a user an operation from any host."""
    return pb.AccessControlEntry(
        resource_type=resource.type,
        resource_name=resource.name,
        pattern_type=pattern_type,
        principal=f"User:{name}",
        host=ANY_HOST,
        operation=operation,
        permission_type=AclPermission.ALLOW,
    )

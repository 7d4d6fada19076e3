"""Mutual TLS and an authorizer with many entries, for what is measured with them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raftlog.cli.local import Node
from raftlog.client.controller_client import ControllerClient
from raftlog.demo.secure import ADMINISTRATOR, SOMEBODY, Authority
from raftlog.metadata.acls import (
    ANY_HOST,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import TlsConfig
from raftlog.wire.controller.v1 import controller_pb2 as pb

TIMEOUT_S = 60.0
OTHERS = 100
"""Principals that have all entries but one."""
A_REQUEST = 1_000


class Rights:
    """An authority, and what the measured client may do: by one entry among many, not as a super
    user.
    """

    def __init__(self, directory: Path, count: int, *, audited: bool) -> None:
        self.authority = Authority(directory)
        self._count, self._audited = count, audited

    def settings(self, node: Node) -> Mapping[str, Any]:
        """Of a node."""
        audit = json.dumps("audit.log.file")
        settings = self.authority.settings(node)
        return {key: to for key, to in settings.items() if self._audited or key != audit}

    @property
    def administrator(self) -> TlsConfig:
        """May do everything."""
        return self.authority.tls(ADMINISTRATOR)

    @property
    def client(self) -> TlsConfig:
        """May alter the configs of the cluster."""
        return self.authority.tls(SOMEBODY)

    def grant(self, controllers: list[str]) -> None:
        """Write the entries."""
        asyncio.run(self._grant(controllers))

    async def _grant(self, controllers: list[str]) -> None:
        transport = GrpcTransport(tls=self.administrator)
        client = ControllerClient(transport, controllers, rng=random.Random(0))
        entries = list(self._entries())
        try:
            for begin in range(0, len(entries), A_REQUEST):
                some = entries[begin : begin + A_REQUEST]
                await client.call(pb.CreateAclsRequest(creations=some), timeout_s=TIMEOUT_S)
        finally:
            client.close()
            await transport.close()

    def _entries(self) -> Iterator[pb.AccessControlEntry]:
        yield _entry(f"User:{SOMEBODY}", AclResourceType.CLUSTER, "kafka-cluster", literal=True)
        for number in range(1, self._count):
            # Of topics and of the cluster itself, literal and prefixed: each read has to pass them.
            principal = f"User:other-{number % OTHERS}"
            name = f"topic-{number // 2}"
            yield _entry(principal, AclResourceType.TOPIC, name, literal=bool(number % 2))


def _entry(
    principal: str, kind: AclResourceType, name: str, *, literal: bool
) -> pb.AccessControlEntry:
    return pb.AccessControlEntry(
        resource_type=kind,
        resource_name=name,
        pattern_type=PatternType.LITERAL if literal else PatternType.PREFIXED,
        principal=principal,
        host=ANY_HOST,
        operation=AclOperation.ALTER_CONFIGS,
        permission_type=AclPermission.ALLOW,
    )

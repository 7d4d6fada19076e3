"""Mutual TLS and an authorizer with many entries, for measuring their cost."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raftlog.client.controller_client import ControllerClient
from raftlog.demo.secure import allowing
from raftlog.local.authority import ADMINISTRATOR, SOMEBODY, Authority
from raftlog.local.cluster import Node
from raftlog.metadata.acls import CLUSTER, AclOperation, PatternType
from raftlog.node.security.permissions import topic
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import TlsConfig
from raftlog.wire.controller.v1 import controller_pb2 as pb

TIMEOUT_S = 60.0
OTHERS = 100
"""Number of principals that have all entries but one."""
A_REQUEST = 1_000


class Rights:
    """An authority, and the rights of the measured client, which come from one entry among many,
    not from being a super user.
    """

    def __init__(self, directory: Path, count: int, *, audited: bool) -> None:
        self.authority = Authority(directory)
        self._count, self._audited = count, audited

    def settings(self, node: Node) -> Mapping[str, Any]:
        """Return the settings of a node that differ from the defaults."""
        audit = json.dumps("audit.log.file")
        settings = self.authority.settings(node)
        return {key: to for key, to in settings.items() if self._audited or key != audit}

    @property
    def administrator(self) -> TlsConfig:
        """The TLS configuration of a super user."""
        return self.authority.tls(ADMINISTRATOR)

    @property
    def client(self) -> TlsConfig:
        """The TLS configuration of a principal that may only alter the cluster's configs."""
        return self.authority.tls(SOMEBODY)

    def grant(self, controllers: list[str]) -> None:
        """Make the quorum write the entries; return once they are committed."""
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
        alters = AclOperation.ALTER_CONFIGS
        yield allowing(SOMEBODY, alters, CLUSTER)
        for number in range(1, self._count):
            pattern = PatternType.LITERAL if number % 2 else PatternType.PREFIXED
            yield allowing(
                f"other-{number % OTHERS}", alters, topic(f"topic-{number // 2}"), pattern
            )

"""Which broker runs on which host, for brokers without an id of their own (KIP-426)."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.client.conditions import UNCONDITIONAL, Expected
from raftlog.client.conditions import expected_offset as condition
from raftlog.client.enums import AcksLike
from raftlog.client.namespace import Namespace
from raftlog.outcome import WriteResult
from raftlog.wire.controller.v1 import controller_pb2


@dataclass(frozen=True, slots=True)
class Hostname:
    """A host, and the id of the broker that runs there."""

    hostname: str
    broker_id: int
    address: str | None
    """Where that broker is registered; None: it is not."""
    reason: str
    """Why the id is this one, for people."""
    offset: int
    """Of its record: what ``expected_offset`` is compared with."""


Hostnames = list[Hostname]
"""By its own name: a method is called ``list``."""


class AsyncHostnames(Namespace):
    """``client.hostnames``."""

    async def list(self, *, timeout_s: float | None = None) -> Hostnames:
        """All mappings by host: asked of the controller."""
        body = controller_pb2.ListHostnamesRequest()
        response = await self._core.ask_controller(body, timeout_s)
        return [
            Hostname(one.hostname, one.broker_id, one.endpoint or None, one.reason, one.offset)
            for one in response.list_hostnames.hostnames
        ]

    async def set(
        self,
        hostname: str,
        broker_id: int,
        *,
        expected_offset: Expected = UNCONDITIONAL,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Reserve an id for a host: a broker that starts there without an id gets it.

        ``expected_offset``: only if the mapping was made there; ABSENT: if there is none.
        """
        change = controller_pb2.HostnameAlteration(
            hostname=hostname,
            broker_id=broker_id,
            expected_offset=condition(expected_offset, "expected_offset"),
        )
        return await self._alter(change, validate_only, acks, timeout_s)

    async def delete(
        self,
        hostname: str,
        *,
        expected_offset: Expected = UNCONDITIONAL,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Forget a mapping. The broker is not affected, and is mapped again when it registers."""
        change = controller_pb2.HostnameAlteration(
            hostname=hostname, expected_offset=condition(expected_offset, "expected_offset")
        )
        return await self._alter(change, validate_only, acks, timeout_s)

    async def _alter(
        self,
        change: controller_pb2.HostnameAlteration,
        validate_only: bool,
        acks: AcksLike | None,
        timeout_s: float | None,
    ) -> WriteResult:
        body = controller_pb2.AlterHostnamesRequest(
            alterations=[change], validate_only=validate_only
        )
        result, _ = await self._core.write(body, acks, timeout_s)
        return result

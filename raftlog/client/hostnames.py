"""Which broker runs on which host, for brokers without an id of their own (KIP-426)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raftlog.client.conditions import UNCONDITIONAL, Expected
from raftlog.client.conditions import expected_offset as condition
from raftlog.client.enums import AcksLike
from raftlog.client.namespace import Namespace
from raftlog.client.values import Listing, OffsetResult
from raftlog.client.wire import known, refusal
from raftlog.metadata.causes import HostnameCause, cause_name
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
    cause: str | None
    """The same, for programs."""
    offset: int
    """Of its record: what ``expected_offset`` is compared with."""
    version: int = 0
    """Of the form of the mapping (KIP-426)."""


@dataclass(frozen=True, slots=True)
class AbsentId:
    """An id that holds replicas, and whose broker is absent."""

    broker_id: int
    address: str | None
    """Where the broker is registered; None: it is not."""
    replica_count: int
    absent_for_ms: int
    missing: bool
    """A broker without an id may get it."""
    missing_in_ms: int


@dataclass(frozen=True, slots=True)
class WaitingBroker:
    """A broker without an id that waits for one."""

    address: str
    waiting_for_ms: int
    awaited_broker_id: int
    remaining_ms: int


class HostnameListing(Listing[Hostname]):
    """The mappings by host, and the ids and brokers that lack one."""

    absent_ids: tuple[AbsentId, ...]
    waiting_brokers: tuple[WaitingBroker, ...]


class AsyncHostnames(Namespace):
    """``client.hostnames``."""

    async def list(self, *, timeout_s: float | None = None) -> HostnameListing:
        """All mappings by host: asked of the controller."""
        body = controller_pb2.ListHostnamesRequest()
        response = await self._core.ask_controller(body, timeout_s)
        answer = response.list_hostnames
        return HostnameListing(
            (
                Hostname(
                    one.hostname,
                    one.broker_id,
                    one.endpoint or None,
                    one.reason,
                    cause_name(HostnameCause, one.cause),
                    one.offset,
                    one.version,
                )
                for one in answer.hostnames
            ),
            answer.offset,
            absent_ids=tuple(
                AbsentId(
                    one.broker_id,
                    one.endpoint or None,
                    one.replica_count,
                    one.absent_for_ms,
                    one.missing,
                    one.missing_in_ms,
                )
                for one in answer.absent_ids
            ),
            waiting_brokers=tuple(
                WaitingBroker(
                    one.endpoint,
                    one.waiting_for_ms,
                    one.awaited_id.broker_id,
                    one.awaited_id.remaining_ms,
                )
                for one in answer.waiting_brokers
            ),
        )

    async def set(
        self,
        hostname: str,
        broker_id: int,
        *,
        expected_offset: Expected = UNCONDITIONAL,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult[OffsetResult]:
        """Reserve an id for a host: a broker that starts there without an id gets it.

        ``expected_offset``: only if the mapping was made there; ABSENT: if there is none.
        """
        change = controller_pb2.HostnameAlteration(
            hostname=hostname,
            broker_id=broker_id,
            expected_offset=condition(expected_offset, "expected_offset"),
        )
        return await self._alter([change], validate_only, acks, timeout_s)

    async def delete(
        self,
        hostname: str,
        *,
        expected_offset: Expected = UNCONDITIONAL,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult[OffsetResult]:
        """Forget a mapping. The broker is not affected, and is mapped again when it registers."""
        expected = {hostname: expected_offset}
        return await self.delete_all(
            expected, validate_only=validate_only, acks=acks, timeout_s=timeout_s
        )

    async def delete_all(
        self,
        expected: Mapping[str, Expected],
        *,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult[OffsetResult]:
        """Delete several mappings at once, each on its condition: all, or none."""
        changes = [
            controller_pb2.HostnameAlteration(
                hostname=name, expected_offset=condition(one, "expected")
            )
            for name, one in expected.items()
        ]
        return await self._alter(changes, validate_only, acks, timeout_s)

    async def _alter(
        self,
        changes: Sequence[controller_pb2.HostnameAlteration],
        validate_only: bool,
        acks: AcksLike | None,
        timeout_s: float | None,
    ) -> WriteResult[OffsetResult]:
        body = controller_pb2.AlterHostnamesRequest(
            alterations=changes, validate_only=validate_only
        )
        return await self._core.write(
            body,
            acks,
            timeout_s,
            lambda answer: (
                OffsetResult(one.hostname, refusal(one), known(one.offset))
                for one in answer.alter_hostnames.results
            ),
        )

"""Access control entries: which principal may do what."""

from __future__ import annotations

from raftlog.client.enums import AcksLike
from raftlog.client.namespace import Namespace
from raftlog.client.values import Acl, AclFilter
from raftlog.client.wire import acl_to_wire, acls_from_wire, filter_to_wire
from raftlog.outcome import WriteResult
from raftlog.wire.controller.v1 import controller_pb2

_EVERYTHING = AclFilter()
Acls = list[Acl]
"""By its own name: a method is called ``list``."""


class AsyncAcls(Namespace):
    """``client.acls``."""

    async def list(
        self, chosen: AclFilter = _EVERYTHING, *, timeout_s: float | None = None
    ) -> Acls:
        """The entries that a filter chooses; without one, all."""
        body = controller_pb2.DescribeAclsRequest(filter=filter_to_wire(chosen))
        response = await self._core.ask_controller(body, timeout_s)
        return [*acls_from_wire(response.describe_acls.entries)]

    async def create(
        self,
        *acls: Acl,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Add entries. One that is there already changes nothing."""
        body = controller_pb2.CreateAclsRequest(
            creations=map(acl_to_wire, acls), validate_only=validate_only
        )
        result, _ = await self._core.write(body, acks, timeout_s)
        return result

    async def delete(
        self,
        *filters: AclFilter,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult:
        """Remove the entries that any of the filters chooses. ``AclFilter()`` chooses all.

        With acks "acknowledged", every unfenced broker refuses from then on what only these
        entries allowed.
        """
        body = controller_pb2.DeleteAclsRequest(
            filters=map(filter_to_wire, filters), validate_only=validate_only
        )
        result, _ = await self._core.write(body, acks, timeout_s)
        return result

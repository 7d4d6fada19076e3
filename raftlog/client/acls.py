"""Access control entries: which principal may do what."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.client.enums import AcksLike
from raftlog.client.namespace import Namespace
from raftlog.client.values import Acl, AclFilter, ItemResult, Listing
from raftlog.client.wire import acl_to_wire, acls_from_wire, filter_to_wire, refusal
from raftlog.outcome import WriteResult
from raftlog.wire.controller.v1 import controller_pb2

_EVERYTHING = AclFilter()


@dataclass(frozen=True, slots=True)
class AclResult(ItemResult):
    """What became of an entry that was to be created, or an entry that was deleted."""

    acl: Acl | None = None
    existed: bool = False
    """The entry was there already."""


class AclListing(Listing[Acl]):
    """The entries that a filter chooses, and what else the active controller decides by."""

    authorizer_enabled: bool
    super_users: tuple[str, ...]
    allow_everyone_if_no_acl_found: bool


class AsyncAcls(Namespace):
    """``client.acls``."""

    async def list(
        self, chosen: AclFilter = _EVERYTHING, *, timeout_s: float | None = None
    ) -> AclListing:
        """The entries that a filter chooses; without one, all."""
        body = controller_pb2.DescribeAclsRequest(filter=filter_to_wire(chosen))
        response = await self._core.ask_controller(body, timeout_s)
        answer = response.describe_acls
        return AclListing(
            acls_from_wire(answer.entries),
            answer.offset,
            authorizer_enabled=answer.authorizer_enabled,
            super_users=tuple(answer.super_users),
            allow_everyone_if_no_acl_found=answer.allow_everyone_if_no_acl_found,
        )

    async def create(
        self,
        *acls: Acl,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult[AclResult]:
        """Add entries. One that is there already changes nothing."""
        body = controller_pb2.CreateAclsRequest(
            creations=map(acl_to_wire, acls), validate_only=validate_only
        )
        return await self._core.write(
            body,
            acks,
            timeout_s,
            lambda answer: (
                AclResult(str(acl), refusal(one), acl, one.existed)
                for acl, one in zip(acls, answer.create_acls.results, strict=False)
            ),
        )

    async def delete(
        self,
        *filters: AclFilter,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
    ) -> WriteResult[AclResult]:
        """Remove the entries that any of the filters chooses. ``AclFilter()`` chooses all.

        With acks "acknowledged", every unfenced broker refuses from then on what only these
        entries allowed.
        """
        body = controller_pb2.DeleteAclsRequest(
            filters=map(filter_to_wire, filters), validate_only=validate_only
        )
        return await self._core.write(
            body,
            acks,
            timeout_s,
            lambda answer: (
                AclResult(str(acl), refusal(one), acl, True)
                for one in answer.delete_acls.results
                for acl in acls_from_wire(one.matching_acls)
            ),
        )

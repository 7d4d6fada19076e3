"""The administration of a cluster: brokers, feature levels, quorum, export cursors, hostnames
(KIP-426) and access control entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from google.protobuf.message import Message
from typing_extensions import Unpack

from raftlog.client.core import Namespace
from raftlog.client.requests import item_error
from raftlog.client.values import (
    UNCONDITIONAL,
    Acl,
    AclFilter,
    Api,
    ApiVersions,
    Broker,
    BrokerStatus,
    Cluster,
    Expected,
    Feature,
    FeatureUpdate,
    ItemResult,
    Listing,
    OffsetResult,
    PartitionCounts,
    QuorumInfo,
    QuorumNode,
    ReadOptions,
    Visibility,
    Voter,
    WaitOptions,
    WriteOptions,
)
from raftlog.client.values import expected_offset as condition
from raftlog.client.wire import known, reader
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.metadata.entities import Cause, HostnameCause, cause_name
from raftlog.outcome import WriteResult
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2

_broker = reader(Broker, id="broker_id", epoch="broker_epoch", fenced="is_fenced")
_api = reader(Api, key="api_key")
_counts = reader(PartitionCounts)
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


class AsyncCluster(Namespace):
    """Calls about the cluster as a whole: ``client.cluster``."""

    async def describe(self, **how: Unpack[ReadOptions]) -> Cluster:
        """Return the cluster id, the controller and the brokers, including fenced ones."""
        body = broker_pb2.DescribeClusterRequest(include_fenced_brokers=True)
        response = await self._core.read(body, **how)
        cluster = response.describe_cluster
        return Cluster(
            cluster.cluster_id, known(cluster.controller_id), tuple(map(_broker, cluster.brokers))
        )


class AsyncBrokers(Namespace):
    """Calls about registered brokers: ``client.brokers``."""

    async def list(self, **how: Unpack[ReadOptions]) -> Listing[Broker]:
        """Return the registered brokers sorted by id, including fenced ones."""
        body = broker_pb2.DescribeClusterRequest(include_fenced_brokers=True)
        response = await self._core.read(body, **how)
        brokers = map(_broker, response.describe_cluster.brokers)
        return Listing(brokers, response.token.offset)

    async def visibility(self, *, timeout_s: float | None = None) -> Visibility:
        """Return the controller's view of how far each broker has applied the log, and which hold
        LAO back.
        """
        body = controller_pb2.DescribeBrokersRequest()
        response = await self._core.ask_controller(body, timeout_s)
        return _visibility(response.describe_brokers)

    async def api_versions(self, *, timeout_s: float | None = None) -> ApiVersions:
        """Return the request versions and feature levels of the answering broker."""
        answer = await self._core.offered(timeout_s)
        return ApiVersions(
            tuple(map(_api, answer.api_keys)),
            _features(answer),
            known(answer.finalized_features_epoch),
        )

    async def unregister(self, id: int, **how: Unpack[WaitOptions]) -> WriteResult:
        """Remove a broker permanently. Raises BrokerIdNotRegisteredError."""
        body = controller_pb2.UnregisterBrokerRequest(broker_id=id)
        return await self._core.write(body, how, lambda _: (ItemResult(f"broker {id}"),))


def _visibility(answer: controller_pb2.DescribeBrokersResponse) -> Visibility:
    """Return the brokers in the controller's answer, with each broker's lag."""
    broker = reader(
        BrokerStatus,
        id="broker_id",
        epoch="broker_epoch",
        address="endpoint",
        cause=lambda one: cause_name(Cause, one.cause),
        lag=lambda one: (
            None
            if one.applied_offset < 0
            else max(0, answer.high_watermark - 1 - one.applied_offset)
        ),
        holds_lao_back=lambda one: one.broker_id in answer.held_back_by,
    )
    return reader(
        Visibility,
        unknown_reason="lao_unknown_reason",
        partitions=lambda answer: _counts(answer.partitions),
        brokers=lambda answer: tuple(map(broker, answer.brokers)),
    )(answer)


class AsyncFeatures(Namespace):
    """Calls about feature levels: ``client.features``."""

    async def describe(self, *, timeout_s: float | None = None) -> dict[str, Feature]:
        """Return the finalized level of each feature, and the levels that the answering broker
        supports.
        """
        return {one.name: one for one in _features(await self._core.offered(timeout_s))}

    async def update(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: bool = False,
        unsafe: bool = False,
        **how: Unpack[WriteOptions],
    ) -> FeatureUpdate:
        """Raise levels, all or none; with ``downgrade``, lower them.

        Raises InvalidUpdateVersionError, whose message states what prevents the change. ``unsafe``
        requests an unsafe downgrade (KIP-584), which is refused for the same reasons.
        """
        kind = _UNSAFE_DOWNGRADE if unsafe else _SAFE_DOWNGRADE if downgrade else _UPGRADE
        body = controller_pb2.UpdateFeaturesRequest(
            updates=[
                controller_pb2.FeatureUpdate(name=name, max_version_level=level, upgrade_type=kind)
                for name, level in levels.items()
            ]
        )
        result, response = await self._core.write_and_answer(
            body, how, lambda _: (ItemResult(f"{name}={level}") for name, level in levels.items())
        )
        return FeatureUpdate(
            result.token,
            result.reached,
            result.waiting_for_brokers,
            result.duplicate,
            result.items,
            tuple(response.update_features.warnings),
        )


class AsyncQuorum(Namespace):
    """Calls about the controllers and their voter set: ``client.quorum``."""

    async def transfer(self, to: int | None = None, *, timeout_s: float | None = None) -> int:
        """Transfer the leadership to a voter, by default the one with the most complete log, and
        return its id.

        No accepted write is lost; writes are delayed briefly. The request is sent once: after an
        UnknownOutcomeError, ``describe`` shows which node leads.
        """
        body = controller_pb2.TransferLeadershipRequest(target_id=-1 if to is None else to)
        response = await self._once(body, timeout_s)
        return response.transfer_leadership.target_id

    async def add_voter(
        self, id: int, directory_id: str, address: str, *, timeout_s: float | None = None
    ) -> None:
        """Make a running observer a voter. It must have caught up."""
        body = controller_pb2.AddRaftVoterRequest(
            voter_id=id, voter_directory_id=directory_id, endpoint=address
        )
        await self._once(body, timeout_s)

    async def remove_voter(
        self, id: int, directory_id: str, *, timeout_s: float | None = None
    ) -> None:
        """Remove a voter, dead or alive. ``describe`` shows its directory id."""
        body = controller_pb2.RemoveRaftVoterRequest(voter_id=id, voter_directory_id=directory_id)
        await self._once(body, timeout_s)

    async def _once(self, body: Message, timeout_s: float | None) -> Any:
        core = self._core
        with core.until_closed():
            return await core.send(
                body, timeout_s=core.timeout_s(timeout_s), principal=core.options.principal
            )

    async def describe(self, *, timeout_s: float | None = None) -> QuorumInfo:
        """Return each controller's view of the quorum. Needs no leader.

        Raises ConfigError without ``controllers``, and NetworkError if none of them answers.
        """
        from raftlog.client.quorum_queries import ask_quorum
        from raftlog.client.security import ClientSecurity

        options = self._core.options
        if not options.controllers:
            raise ConfigError(
                "quorum.describe queries the controllers directly: pass controllers=host:port,…"
            )
        security = ClientSecurity(options.tls, options.token)
        quorum = await ask_quorum(options.controllers, self._core.timeout_s(timeout_s), security)
        if not quorum.descriptions:
            reasons = "; ".join(f"{one.endpoint}: {one.failure}" for one in quorum.answers)
            raise ApiError(
                ErrorCode.NETWORK_EXCEPTION, f"no node of the quorum answers ({reasons})"
            )
        leader = quorum.leader
        described = leader or max(quorum.descriptions, key=lambda one: one.leader_epoch)
        return QuorumInfo(
            leader.node_id if leader is not None else None,
            leader.leader_epoch if leader is not None else None,
            known(described.high_watermark),
            tuple(map(_replica, described.voters)),
            tuple(map(_replica, described.observers)),
            tuple(map(_node, quorum.answers)),
        )


def _features(answer: broker_pb2.ApiVersionsResponse) -> tuple[Feature, ...]:
    finalized = {one.name: one.level for one in answer.finalized_features}
    supported = {one.name: one for one in answer.supported_features}
    return tuple(
        Feature(
            name,
            finalized.get(name, 0),
            supported[name].min_version if name in supported else 0,
            supported[name].max_version if name in supported else 0,
        )
        for name in sorted(finalized.keys() | supported.keys())
    )


_replica = reader(
    Voter,
    id="replica_id",
    directory_id="replica_directory_id",
    address="endpoint",
)


def _node(answer: Any) -> QuorumNode:
    one = answer.description
    if one is None:
        return QuorumNode(answer.endpoint, None, "", None, None, None, answer.failure)
    return QuorumNode(
        answer.endpoint,
        one.node_id,
        one.role,
        one.leader_epoch,
        one.log_end_offset,
        known(one.high_watermark),
    )


class _Alterable(Namespace):
    """Entities that are set and deleted by name, conditionally."""

    _alteration: Any
    _name: str
    """The field with the name in an alteration."""
    _requests: Any
    _answers: str

    async def delete(
        self, name: str, *, expected_offset: Expected = UNCONDITIONAL, **how: Unpack[WriteOptions]
    ) -> WriteResult[OffsetResult]:
        """Delete one entity. ``expected_offset``: see ``set``."""
        return await self._alter({name: expected_offset}, how)

    async def delete_all(
        self, expected: Mapping[str, Expected], **how: Unpack[WriteOptions]
    ) -> WriteResult[OffsetResult]:
        """Delete several entities, all or none. ``expected``: the condition of each, by name."""
        return await self._alter(expected, how, argument="expected")

    async def _alter(
        self,
        expected: Mapping[str, Expected],
        how: WriteOptions,
        *,
        argument: str = "expected_offset",
        **values: Any,
    ) -> WriteResult[OffsetResult]:
        changes = [
            self._alteration(
                **{self._name: name}, expected_offset=condition(one, argument), **values
            )
            for name, one in expected.items()
        ]
        return await self._core.write(
            self._requests(alterations=changes),
            how,
            lambda answer: (
                OffsetResult(getattr(one, self._name), item_error(one), known(one.offset))
                for one in getattr(answer, self._answers).results
            ),
        )


@dataclass(frozen=True, slots=True)
class ExportCursor:
    """The progress of one export. ``lag``: number of committed records that it does not
    have yet.
    """

    name: str
    end_offset: int
    """End of the exported part, exclusive; nodes keep their logs from this offset onwards."""
    lag: int
    passed: bool
    """Whether the answering controller has already deleted records that the export needs next."""
    target: str
    """Location of the export, as its owner named it."""
    offset: int
    """Offset of the cursor's record; ``expected_offset`` is compared with it."""
    timestamp_ms: int


class CursorListing(Listing[ExportCursor]):
    """The export cursors."""

    log_start_offset: int
    """First offset of the answering controller's log."""


class AsyncExportCursors(_Alterable):
    """Calls about export cursors: ``client.export_cursors``. Nodes keep the log for an export only
    if it has a cursor.
    """

    _alteration, _name = controller_pb2.ExportCursorAlteration, "name"
    _requests, _answers = controller_pb2.AlterExportCursorsRequest, "alter_export_cursors"

    async def list(self, *, timeout_s: float | None = None) -> CursorListing:
        """Return all export cursors sorted by name, from the controller."""
        body = controller_pb2.ListExportCursorsRequest()
        response = await self._core.ask_controller(body, timeout_s)
        answer = response.list_export_cursors
        cursor = reader(
            ExportCursor,
            lag=lambda one: max(0, answer.high_watermark - one.end_offset),
            passed=lambda one: one.end_offset < answer.log_start_offset,
        )
        return CursorListing(
            map(cursor, answer.cursors),
            answer.high_watermark - 1,
            log_start_offset=answer.log_start_offset,
        )

    async def set(
        self,
        name: str,
        end_offset: int,
        *,
        target: str = "",
        expected_offset: Expected = UNCONDITIONAL,
        **how: Unpack[WriteOptions],
    ) -> WriteResult[OffsetResult]:
        """Keep the log from this offset onwards.

        ``expected_offset``: only if the cursor was last set at that offset, or ABSENT if it must
        not exist; otherwise raises InvalidUpdateVersionError. A cursor with another ``target`` is
        moved only with ``expected_offset``.
        """
        return await self._alter({name: expected_offset}, how, end_offset=end_offset, target=target)


@dataclass(frozen=True, slots=True)
class Hostname:
    """A host, and the id of its broker."""

    hostname: str
    broker_id: int
    address: str | None
    """Address of the registered broker, or None if it is not registered."""
    reason: str
    """Why the host has this id, as text."""
    cause: str | None
    """Why the host has this id, as a code; or None."""
    offset: int
    """Offset of the mapping's record; ``expected_offset`` is compared with it."""
    version: int = 0
    """Format version of the mapping (KIP-426)."""


@dataclass(frozen=True, slots=True)
class AbsentId:
    """A broker id that has replicas assigned, but whose broker is absent."""

    broker_id: int
    address: str | None
    """Address of the registered broker, or None if it is not registered."""
    replica_count: int
    absent_for_ms: int
    missing: bool
    """Whether a broker without an id may get this one."""
    missing_in_ms: int


@dataclass(frozen=True, slots=True)
class WaitingBroker:
    """A broker without an id that is waiting for one."""

    address: str
    waiting_for_ms: int
    awaited_broker_id: int
    remaining_ms: int


class HostnameListing(Listing[Hostname]):
    """The mappings sorted by host, and the ids without a host and brokers without an id."""

    absent_ids: tuple[AbsentId, ...]
    waiting_brokers: tuple[WaitingBroker, ...]


_hostname = reader(
    Hostname, address="endpoint", cause=lambda one: cause_name(HostnameCause, one.cause)
)
_absent_id = reader(AbsentId, address="endpoint")
_waiting_broker = reader(
    WaitingBroker,
    address="endpoint",
    awaited_broker_id="awaited_id.broker_id",
    remaining_ms="awaited_id.remaining_ms",
)


class AsyncHostnames(_Alterable):
    """Calls about the mapping of hosts to broker ids: ``client.hostnames``. A broker whose mapping
    is deleted is mapped again when it registers.
    """

    _alteration, _name = controller_pb2.HostnameAlteration, "hostname"
    _requests, _answers = controller_pb2.AlterHostnamesRequest, "alter_hostnames"

    async def list(self, *, timeout_s: float | None = None) -> HostnameListing:
        """Return all mappings sorted by host, from the controller."""
        body = controller_pb2.ListHostnamesRequest()
        response = await self._core.ask_controller(body, timeout_s)
        answer = response.list_hostnames
        return HostnameListing(
            map(_hostname, answer.hostnames),
            answer.offset,
            absent_ids=tuple(map(_absent_id, answer.absent_ids)),
            waiting_brokers=tuple(map(_waiting_broker, answer.waiting_brokers)),
        )

    async def set(
        self,
        hostname: str,
        broker_id: int,
        *,
        expected_offset: Expected = UNCONDITIONAL,
        **how: Unpack[WriteOptions],
    ) -> WriteResult[OffsetResult]:
        """Reserve an id for a host: a broker that starts there without an id gets it.

        ``expected_offset``: only if the mapping was last set at that offset, or ABSENT if it must
        not exist; otherwise raises InvalidUpdateVersionError.
        """
        return await self._alter({hostname: expected_offset}, how, broker_id=broker_id)


_EVERYTHING = AclFilter()
_Entry, _Filter = controller_pb2.AccessControlEntry, controller_pb2.AccessControlEntryFilter


@dataclass(frozen=True, slots=True)
class AclResult(ItemResult):
    """The result of creating an entry, or an entry that was deleted."""

    acl: Acl | None = None
    existed: bool = False
    """Whether the entry already existed."""


class AclListing(Listing[Acl]):
    """The entries that match a filter, and the authorizer's other settings."""

    authorizer_enabled: bool
    super_users: tuple[str, ...]
    allow_everyone_if_no_acl_found: bool


_acl = reader(Acl, permission="permission_type")


def _acl_to_wire(kind: Any, acl: Acl | AclFilter) -> Any:
    values = asdict(acl)
    return kind(permission_type=values.pop("permission"), **values)


class AsyncAcls(Namespace):
    """Calls about access control entries: ``client.acls``."""

    async def list(
        self, chosen: AclFilter = _EVERYTHING, *, timeout_s: float | None = None
    ) -> AclListing:
        """Return the entries that match a filter, or all entries without one."""
        body = controller_pb2.DescribeAclsRequest(filter=_acl_to_wire(_Filter, chosen))
        response = await self._core.ask_controller(body, timeout_s)
        answer = response.describe_acls
        return AclListing(
            map(_acl, answer.entries),
            answer.offset,
            authorizer_enabled=answer.authorizer_enabled,
            super_users=tuple(answer.super_users),
            allow_everyone_if_no_acl_found=answer.allow_everyone_if_no_acl_found,
        )

    async def create(self, *acls: Acl, **how: Unpack[WriteOptions]) -> WriteResult[AclResult]:
        """Add entries. An existing one is left unchanged."""
        body = controller_pb2.CreateAclsRequest(
            creations=[_acl_to_wire(_Entry, one) for one in acls]
        )
        return await self._core.write(
            body,
            how,
            lambda answer: (
                AclResult(str(acl), item_error(one), acl, one.existed)
                for acl, one in zip(acls, answer.create_acls.results, strict=False)
            ),
        )

    async def delete(
        self, *filters: AclFilter, **how: Unpack[WriteOptions]
    ) -> WriteResult[AclResult]:
        """Remove the entries that match any of the filters; ``AclFilter()`` matches all.

        With acks "acknowledged", every unfenced broker has stopped granting what only these entries
        allowed.
        """
        body = controller_pb2.DeleteAclsRequest(
            filters=[_acl_to_wire(_Filter, one) for one in filters]
        )
        return await self._core.write(
            body,
            how,
            lambda answer: (
                AclResult(str(acl), item_error(one), acl, True)
                for one in answer.delete_acls.results
                for acl in map(_acl, one.matching_acls)
            ),
        )

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
    """``client.cluster``."""

    async def describe(self, **how: Unpack[ReadOptions]) -> Cluster:
        """Return the cluster's id, its controller and its brokers, fenced ones included."""
        body = broker_pb2.DescribeClusterRequest(include_fenced_brokers=True)
        response = await self._core.read(body, **how)
        cluster = response.describe_cluster
        return Cluster(
            cluster.cluster_id, known(cluster.controller_id), tuple(map(_broker, cluster.brokers))
        )


class AsyncBrokers(Namespace):
    """``client.brokers``."""

    async def list(self, **how: Unpack[ReadOptions]) -> Listing[Broker]:
        """Return the registered brokers by id, fenced ones included."""
        body = broker_pb2.DescribeClusterRequest(include_fenced_brokers=True)
        response = await self._core.read(body, **how)
        brokers = map(_broker, response.describe_cluster.brokers)
        return Listing(brokers, response.token.offset)

    async def visibility(self, *, timeout_s: float | None = None) -> Visibility:
        """Ask the controller how far each broker has applied the log, and which hold LAO back."""
        body = controller_pb2.DescribeBrokersRequest()
        response = await self._core.ask_controller(body, timeout_s)
        return _visibility(response.describe_brokers)

    async def api_versions(self, *, timeout_s: float | None = None) -> ApiVersions:
        """Return the request versions and feature levels that the answering broker offers."""
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
    """Return the brokers in the controller's answer, with how far each is behind."""
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
    """``client.features``."""

    async def describe(self, *, timeout_s: float | None = None) -> dict[str, Feature]:
        """Return the finalized level of each feature, and the support of the answering broker."""
        return {one.name: one for one in _features(await self._core.offered(timeout_s))}

    async def update(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: bool = False,
        unsafe: bool = False,
        **how: Unpack[WriteOptions],
    ) -> FeatureUpdate:
        """Raise levels, all or none; with ``downgrade``, lower them. Raises InvalidUpdateVersion
        errors that say what prevents it; ``unsafe`` requests an unsafe downgrade (KIP-584), which
        is refused likewise.
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
    """``client.quorum``."""

    async def transfer(self, to: int | None = None, *, timeout_s: float | None = None) -> int:
        """Transfer the leadership to a voter, by default to the one with the most complete log, and
        return its id.

        No accepted write is lost; writes wait a moment. The request is sent once: after an
        UnknownOutcomeError ``describe`` says which node leads.
        """
        body = controller_pb2.TransferLeadershipRequest(target_id=-1 if to is None else to)
        response = await self._once(body, timeout_s)
        return response.transfer_leadership.target_id

    async def add_voter(
        self, id: int, directory_id: str, address: str, *, timeout_s: float | None = None
    ) -> None:
        """Make a running observer a voter, once it has caught up."""
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
        """Ask the controllers about the quorum, node by node: it needs no leader.

        Raises ConfigError without ``controllers``, and NetworkError if none of them answers.
        """
        from raftlog.client.options import ClientSecurity
        from raftlog.client.quorum_queries import ask_quorum

        options = self._core.options
        if not options.controllers:
            raise ConfigError(
                "quorum.describe asks the controllers themselves: give controllers=host:port,…"
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
    """Entities that are set and deleted by name, on conditions."""

    _alteration: Any
    _name: str
    """Field of an alteration that has the name."""
    _requests: Any
    _answers: str

    async def delete(
        self, name: str, *, expected_offset: Expected = UNCONDITIONAL, **how: Unpack[WriteOptions]
    ) -> WriteResult[OffsetResult]:
        """Delete one. ``expected_offset``: see ``set``."""
        return await self._alter({name: expected_offset}, how)

    async def delete_all(
        self, expected: Mapping[str, Expected], **how: Unpack[WriteOptions]
    ) -> WriteResult[OffsetResult]:
        """Delete several at once, each on its condition: all, or none."""
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
    """How far one export has come. ``lag``: the committed records from there on."""

    name: str
    end_offset: int
    """End of the exported part, exclusive; nodes keep their logs from here on."""
    lag: int
    passed: bool
    """True if the answering controller has dropped records that the export needs next."""
    target: str
    """Place of the export, as its owner named it."""
    offset: int
    """Offset of its record, which ``expected_offset`` is compared with."""
    timestamp_ms: int


class CursorListing(Listing[ExportCursor]):
    """The export cursors."""

    log_start_offset: int
    """First offset of the answering controller's log."""


class AsyncExportCursors(_Alterable):
    """``client.export_cursors``. Without its cursor, the log is not kept for an export."""

    _alteration, _name = controller_pb2.ExportCursorAlteration, "name"
    _requests, _answers = controller_pb2.AlterExportCursorsRequest, "alter_export_cursors"

    async def list(self, *, timeout_s: float | None = None) -> CursorListing:
        """Return all export cursors by name, from the controller."""
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
        """Keep the log from this offset on.

        ``expected_offset``: only if the cursor was set there; ABSENT: if none exists. Else
        InvalidUpdateVersionError.

        A cursor of another ``target`` is moved only with ``expected_offset``.
        """
        return await self._alter({name: expected_offset}, how, end_offset=end_offset, target=target)


@dataclass(frozen=True, slots=True)
class Hostname:
    """A host, and the id of the broker that runs there."""

    hostname: str
    broker_id: int
    address: str | None
    """Address of the registered broker; None if it is not registered."""
    reason: str
    """Reason for this id, for people."""
    cause: str | None
    """Cause, for programs."""
    offset: int
    """Offset of its record, which ``expected_offset`` is compared with."""
    version: int = 0
    """Version of the form of the mapping (KIP-426)."""


@dataclass(frozen=True, slots=True)
class AbsentId:
    """An id that holds replicas, and whose broker is absent."""

    broker_id: int
    address: str | None
    """Address of the registered broker; None if it is not registered."""
    replica_count: int
    absent_for_ms: int
    missing: bool
    """True if a broker without an id may get it."""
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
    """``client.hostnames``. A broker whose mapping is deleted is mapped again when it registers."""

    _alteration, _name = controller_pb2.HostnameAlteration, "hostname"
    _requests, _answers = controller_pb2.AlterHostnamesRequest, "alter_hostnames"

    async def list(self, *, timeout_s: float | None = None) -> HostnameListing:
        """Return all mappings by host, from the controller."""
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

        ``expected_offset``: only if the mapping was made there; ABSENT: if none exists. Else
        InvalidUpdateVersionError.
        """
        return await self._alter({hostname: expected_offset}, how, broker_id=broker_id)


_EVERYTHING = AclFilter()
_Entry, _Filter = controller_pb2.AccessControlEntry, controller_pb2.AccessControlEntryFilter


@dataclass(frozen=True, slots=True)
class AclResult(ItemResult):
    """What became of an entry that was to be created, or an entry that was deleted."""

    acl: Acl | None = None
    existed: bool = False
    """True if the entry existed already."""


class AclListing(Listing[Acl]):
    """The entries that a filter chooses, and the other settings of the authorizer."""

    authorizer_enabled: bool
    super_users: tuple[str, ...]
    allow_everyone_if_no_acl_found: bool


_acl = reader(Acl, permission="permission_type")


def _acl_to_wire(kind: Any, acl: Acl | AclFilter) -> Any:
    values = asdict(acl)
    return kind(permission_type=values.pop("permission"), **values)


class AsyncAcls(Namespace):
    """``client.acls``."""

    async def list(
        self, chosen: AclFilter = _EVERYTHING, *, timeout_s: float | None = None
    ) -> AclListing:
        """Return the entries that a filter chooses; without one, all."""
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
        """Add entries. An existing one changes nothing."""
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
        """Remove the entries that any of the filters chooses. ``AclFilter()`` chooses all.

        With acks "acknowledged", every unfenced broker refuses from then on what only these
        entries allowed.
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

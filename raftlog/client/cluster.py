"""The cluster and its brokers, the feature levels, and the quorum of controllers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from raftlog.client.enums import AcksLike, ReadModeLike
from raftlog.client.namespace import Namespace
from raftlog.client.values import (
    Api,
    ApiVersions,
    Broker,
    Cluster,
    Feature,
    FeatureUpdate,
    ItemResult,
    Listing,
    QuorumInfo,
    QuorumNode,
    Visibility,
    Voter,
)
from raftlog.client.wire import broker_from_wire, known, visibility_from_wire
from raftlog.errors import ApiError, ConfigError, ErrorCode
from raftlog.outcome import WriteResult
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.controller.v1 import controller_pb2

_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


class AsyncCluster(Namespace):
    """``client.cluster``."""

    async def describe(
        self, *, read: ReadModeLike | None = None, timeout_s: float | None = None
    ) -> Cluster:
        """The cluster's id, its controller and its brokers, fenced ones included."""
        body = broker_pb2.DescribeClusterRequest(include_fenced_brokers=True)
        response = await self._core.read(body, read, timeout_s)
        cluster = response.describe_cluster
        return Cluster(
            cluster.cluster_id,
            known(cluster.controller_id),
            tuple(map(broker_from_wire, cluster.brokers)),
        )


class AsyncBrokers(Namespace):
    """``client.brokers``."""

    async def list(
        self, *, read: ReadModeLike | None = None, timeout_s: float | None = None
    ) -> Listing[Broker]:
        """The registered brokers by id, fenced ones included."""
        body = broker_pb2.DescribeClusterRequest(include_fenced_brokers=True)
        response = await self._core.read(body, read, timeout_s)
        brokers = map(broker_from_wire, response.describe_cluster.brokers)
        return Listing(brokers, response.token.offset)

    async def visibility(self, *, timeout_s: float | None = None) -> Visibility:
        """How far each broker has applied the log, and who holds LAO back: asked of the
        controller.
        """
        body = controller_pb2.DescribeBrokersRequest()
        response = await self._core.ask_controller(body, timeout_s)
        return visibility_from_wire(response.describe_brokers)

    async def api_versions(self, *, timeout_s: float | None = None) -> ApiVersions:
        """Which versions of requests and which feature levels the broker that answers offers."""
        answer = await self._core.offered(timeout_s)
        return ApiVersions(
            tuple(
                Api(one.api_key, one.name, one.min_version, one.max_version)
                for one in answer.api_keys
            ),
            _features(answer),
            known(answer.finalized_features_epoch),
        )

    async def unregister(
        self, id: int, *, acks: AcksLike | None = None, timeout_s: float | None = None
    ) -> WriteResult:
        """Remove a broker that does not come back. Raises BrokerIdNotRegisteredError."""
        body = controller_pb2.UnregisterBrokerRequest(broker_id=id)
        return await self._core.write(
            body, acks, timeout_s, lambda _: (ItemResult(f"broker {id}"),)
        )


class AsyncFeatures(Namespace):
    """``client.features``."""

    async def describe(self, *, timeout_s: float | None = None) -> dict[str, Feature]:
        """The finalized level of each feature, and what the broker that answers supports."""
        return {one.name: one for one in _features(await self._core.offered(timeout_s))}

    async def update(
        self,
        levels: Mapping[str, int],
        *,
        downgrade: bool = False,
        unsafe: bool = False,
        validate_only: bool = False,
        acks: AcksLike | None = None,
        timeout_s: float | None = None,
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
            ],
            validate_only=validate_only,
        )
        result, response = await self._core.write_and_answer(
            body,
            acks,
            timeout_s,
            lambda _: (ItemResult(f"{name}={level}") for name, level in levels.items()),
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
        """Hand the leadership to a voter, by default to the one with the most complete log: its id.

        No accepted write is lost; writes wait a moment. It is asked for once: after an
        UnknownOutcomeError see who leads.
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
        """Remove a voter, dead or alive. ``describe`` says its directory id."""
        body = controller_pb2.RemoveRaftVoterRequest(voter_id=id, voter_directory_id=directory_id)
        await self._once(body, timeout_s)

    async def _once(self, body: Message, timeout_s: float | None) -> Any:
        core = self._core
        with core.until_closed():
            return await core.brokers.write(
                body, timeout_s=core.timeout_s(timeout_s), principal=core.options.principal
            )

    async def describe(self, *, timeout_s: float | None = None) -> QuorumInfo:
        """The quorum, asked node by node: it needs no leader.

        Raises ConfigError without ``controllers``, and NetworkError if none of them answers.
        """
        from raftlog.client.quorum_queries import ask_quorum
        from raftlog.client.security import ClientSecurity

        options = self._core.options
        if not options.controllers:
            raise ConfigError(
                "quorum.describe asks the controllers themselves: give controllers=host:port,…"
            )
        security = ClientSecurity(options.tls, options.token)
        quorum = await ask_quorum(options.controllers, self._core.timeout_s(timeout_s), security)
        if not quorum.descriptions:
            reasons = "; ".join(f"{one.address}: {one.failure}" for one in quorum.answers)
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


def _replica(state: Any) -> Voter:
    return Voter(
        state.replica_id,
        state.replica_directory_id,
        state.endpoint,
        known(state.log_end_offset),
        known(state.last_caught_up_age_ms),
    )


def _node(answer: Any) -> QuorumNode:
    one = answer.description
    if one is None:
        return QuorumNode(answer.address, None, "", None, None, None, answer.failure)
    return QuorumNode(
        answer.address,
        one.node_id,
        one.role,
        one.leader_epoch,
        one.log_end_offset,
        known(one.high_watermark),
    )

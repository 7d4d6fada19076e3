"""One node's checked configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raftlog.config.settings import KEYS, Settings, key_of
from raftlog.endpoint import Endpoint
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.storage.api import NO_NODE_ID


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for mutual TLS: this node's chain and key, and the authority of the others' certificates."""

    certificate: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """What only a controller reads. Times in milliseconds."""

    voters: tuple[Voter, ...]
    bootstrap_servers: tuple[str, ...]
    """The addresses to ask for the leader, without this node's own."""
    advertised: str
    """host:port, where the other nodes reach this one."""
    controller_quorum_auto_join_enable: bool
    election_timeout_ms: int
    election_jitter_max_ms: int
    election_backoff_max_ms: int
    fetch_timeout_ms: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    quorum_request_timeout_ms: int
    broker_session_timeout_ms: int
    broker_metadata_lag_max_ms: int
    broker_metadata_lag_probation_ms: int
    broker_metadata_lag_probation_max_ms: int
    broker_id_adopt_after_ms: int
    reserved_broker_max_id: int
    num_partitions: int
    default_replication_factor: int
    auto_leader_rebalance_enable: bool
    leader_imbalance_check_interval_seconds: int
    unclean_leader_election_interval_ms: int
    max_records_per_request: int
    config_value_max_bytes: int
    progress_interval_ms: int
    producer_id_expiration_ms: int
    max_clients: int
    metadata_log_max_record_bytes_between_snapshots: int
    metadata_log_max_snapshot_interval_ms: int
    metadata_max_retention_bytes: int
    metadata_max_retention_ms: int
    metadata_export_cursor_max_bytes: int
    request_timeout_ms: int
    request_timeout_max_ms: int
    metadata_log_free_space_reserve_bytes: int


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What only a broker reads. Times in milliseconds. ``advertised.port`` 0: the port really bound."""

    controllers: tuple[str, ...]
    advertised: Endpoint
    rack: str
    heartbeat_interval_ms: int
    session_timeout_ms: int
    fencing_timeout_ms: int
    registration_timeout_ms: int
    id_generation_force: bool
    shutdown_timeout_ms: int
    request_timeout_ms: int
    request_timeout_max_ms: int
    replica_lag_time_max_ms: int
    replica_fetch_wait_max_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_backoff_ms: int
    replica_socket_timeout_ms: int
    log_free_space_reserve_bytes: int


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One node's configuration: exactly one of ``controller`` and ``broker`` is set, as ``role`` says."""

    settings: Settings
    role: Literal["controller", "broker"]
    cluster_id: str
    node_id: int
    """NO_NODE_ID: a broker's that is not configured."""
    directory: Path
    listener: Endpoint
    http_listener: Endpoint | None
    tls: TlsFiles | None
    max_message_bytes: int
    log_level: str
    log_format: str
    controller: ControllerConfig | None
    broker: BrokerConfig | None

    def quorum_config(self, directory_id: str, voters: tuple[Voter, ...] | None = None) -> QuorumConfig:
        """What the quorum needs to know; ``directory_id`` is that of the formatted directory. Controllers only.

        ``voters``: the set to begin with, as formatted; None: the configured one.
        """
        if self.controller is None:
            raise ValueError("only a controller takes part in the quorum")
        own = self.controller
        return QuorumConfig(
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            directory_id=directory_id,
            voters=own.voters if voters is None else voters,
            election_timeout_ms=own.election_timeout_ms,
            election_jitter_max_ms=own.election_jitter_max_ms,
            fetch_timeout_ms=own.fetch_timeout_ms,
            election_backoff_max_ms=own.election_backoff_max_ms,
            fetch_max_wait_ms=own.fetch_max_wait_ms,
            fetch_max_bytes=own.fetch_max_bytes,
            request_timeout_ms=own.quorum_request_timeout_ms,
            max_metadata_version=LATEST_METADATA_VERSION,
            # Who joins a quorum though the configuration names voters (a new disk) begins with asking those.
            bootstrap_servers=own.bootstrap_servers or (() if voters != () else self._other_voters()),
            endpoint=own.advertised,
        )

    def _other_voters(self) -> tuple[str, ...]:
        assert self.controller is not None
        return tuple(voter.endpoint for voter in self.controller.voters if voter.node_id != self.node_id)

    def items(self) -> Iterator[tuple[str, object]]:
        """(key, effective value) of every key that this role reads, in the order they are documented."""
        for name in Settings.model_fields:
            if self.role in KEYS[name].roles:
                yield key_of(name), getattr(self.settings, name)


def node_config(settings: Settings, base: Path) -> NodeConfig:
    """Build the result from settings that keep all rules; relative paths count from ``base``."""
    role: Literal["controller", "broker"] = "controller" if "controller" in settings.process_roles else "broker"
    node_id = NO_NODE_ID if settings.node_id is None else settings.node_id
    directory = (role == "controller" and settings.metadata_log_dir) or settings.log_dirs[0]
    own = next((voter for voter in settings.controller_quorum_voters if voter.node_id == settings.node_id), None)
    listener = settings.listeners[0] if settings.listeners else _own_endpoint(own)
    return NodeConfig(
        settings=settings,
        role=role,
        cluster_id=settings.cluster_id,
        node_id=node_id,
        directory=base / directory,
        listener=listener,
        http_listener=settings.http_listener[0] if settings.http_listener else None,
        tls=_tls(settings, base),
        max_message_bytes=settings.socket_request_max_bytes,
        log_level=settings.log_level,
        log_format=settings.log_format,
        controller=_controller(settings, own, listener) if role == "controller" else None,
        broker=_broker(settings, listener) if role == "broker" else None,
    )


def _own_endpoint(own: Voter | None) -> Endpoint:
    assert own is not None
    host, _, port = own.endpoint.rpartition(":")
    return Endpoint(host, int(port))


def _tls(settings: Settings, base: Path) -> TlsFiles | None:
    if not settings.tls_certificate_file:
        return None
    return TlsFiles(
        base / settings.tls_certificate_file,
        base / settings.tls_key_file,
        base / settings.tls_ca_file,
    )


def _controller(settings: Settings, own: Voter | None, listener: Endpoint) -> ControllerConfig:
    if settings.advertised_listeners:
        advertised = settings.advertised_listeners[0].address
    else:
        advertised = listener.address if own is None else own.endpoint
    asked = (endpoint.address for endpoint in settings.controller_quorum_bootstrap_servers)
    return ControllerConfig(
        voters=settings.controller_quorum_voters,
        bootstrap_servers=tuple(address for address in asked if address != advertised),
        advertised=advertised,
        controller_quorum_auto_join_enable=settings.controller_quorum_auto_join_enable,
        election_timeout_ms=settings.controller_quorum_election_timeout_ms,
        election_jitter_max_ms=settings.controller_quorum_election_jitter_max_ms,
        election_backoff_max_ms=settings.controller_quorum_election_backoff_max_ms,
        fetch_timeout_ms=settings.controller_quorum_fetch_timeout_ms,
        fetch_max_wait_ms=settings.controller_quorum_fetch_max_wait_ms,
        fetch_max_bytes=settings.controller_quorum_fetch_max_bytes,
        quorum_request_timeout_ms=settings.controller_quorum_request_timeout_ms,
        broker_session_timeout_ms=settings.broker_session_timeout_ms,
        broker_metadata_lag_max_ms=settings.broker_metadata_lag_max_ms,
        broker_metadata_lag_probation_ms=settings.broker_metadata_lag_probation_ms,
        broker_metadata_lag_probation_max_ms=settings.broker_metadata_lag_probation_max_ms,
        broker_id_adopt_after_ms=settings.broker_id_adopt_after_ms,
        reserved_broker_max_id=settings.reserved_broker_max_id,
        num_partitions=settings.num_partitions,
        default_replication_factor=settings.default_replication_factor,
        auto_leader_rebalance_enable=settings.auto_leader_rebalance_enable,
        leader_imbalance_check_interval_seconds=settings.leader_imbalance_check_interval_seconds,
        unclean_leader_election_interval_ms=settings.unclean_leader_election_interval_ms,
        max_records_per_request=settings.max_records_per_request,
        config_value_max_bytes=settings.config_value_max_bytes,
        progress_interval_ms=settings.progress_interval_ms,
        producer_id_expiration_ms=settings.producer_id_expiration_ms,
        max_clients=settings.max_clients,
        metadata_log_max_record_bytes_between_snapshots=settings.metadata_log_max_record_bytes_between_snapshots,
        metadata_log_max_snapshot_interval_ms=settings.metadata_log_max_snapshot_interval_ms,
        metadata_max_retention_bytes=settings.metadata_max_retention_bytes,
        metadata_max_retention_ms=settings.metadata_max_retention_ms,
        metadata_export_cursor_max_bytes=settings.metadata_export_cursor_max_bytes,
        request_timeout_ms=settings.request_timeout_ms,
        request_timeout_max_ms=settings.request_timeout_max_ms,
        metadata_log_free_space_reserve_bytes=settings.metadata_log_free_space_reserve_bytes,
    )


def _broker(settings: Settings, listener: Endpoint) -> BrokerConfig:
    controllers = tuple(endpoint.address for endpoint in settings.controller_quorum_bootstrap_servers)
    advertised = settings.advertised_listeners[0] if settings.advertised_listeners else listener
    return BrokerConfig(
        controllers=controllers or tuple(voter.endpoint for voter in settings.controller_quorum_voters),
        advertised=advertised,
        rack=settings.broker_rack,
        heartbeat_interval_ms=settings.broker_heartbeat_interval_ms,
        session_timeout_ms=settings.broker_session_timeout_ms,
        fencing_timeout_ms=settings.broker_fencing_timeout_ms,
        registration_timeout_ms=settings.initial_broker_registration_timeout_ms,
        id_generation_force=settings.broker_id_generation_force,
        shutdown_timeout_ms=settings.controlled_shutdown_timeout_ms,
        request_timeout_ms=settings.request_timeout_ms,
        request_timeout_max_ms=settings.request_timeout_max_ms,
        replica_lag_time_max_ms=settings.replica_lag_time_max_ms,
        replica_fetch_wait_max_ms=settings.replica_fetch_wait_max_ms,
        replica_fetch_max_bytes=settings.replica_fetch_max_bytes,
        replica_fetch_response_max_bytes=settings.replica_fetch_response_max_bytes,
        replica_fetch_backoff_ms=settings.replica_fetch_backoff_ms,
        replica_socket_timeout_ms=settings.replica_socket_timeout_ms,
        log_free_space_reserve_bytes=settings.log_free_space_reserve_bytes,
    )

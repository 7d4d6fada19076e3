"""One node's checked configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raftlog.config.settings import KEYS, Settings, key_of
from raftlog.endpoint import Endpoint
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.quorum.config import QuorumConfig
from raftlog.storage.api import NO_NODE_ID
from raftlog.voter import Voter


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for mutual TLS: this node's chain and key, and the authority of the others'
    certificates.
    """

    certificate: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """What of the settings is not as it is given, for a controller."""

    voters: tuple[Voter, ...]
    bootstrap_servers: tuple[str, ...]
    """The addresses to ask for the leader, without this node's own."""
    advertised: str
    """host:port, where the other nodes reach this one."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What of the settings is not as it is given, for a broker.

    ``advertised.port`` 0: the port really bound.
    """

    controllers: tuple[str, ...]
    advertised: Endpoint


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One node's configuration: ``settings`` as they are given, and what follows from them.

    Exactly one of ``controller`` and ``broker`` is set, as ``role`` says.
    """

    settings: Settings
    role: Literal["controller", "broker"]
    cluster_id: str
    node_id: int
    """NO_NODE_ID: a broker's that is not configured."""
    directory: Path
    listener: Endpoint
    http_listener: Endpoint | None
    tls: TlsFiles | None
    controller: ControllerConfig | None
    broker: BrokerConfig | None

    def quorum_config(
        self, directory_id: str, voters: tuple[Voter, ...] | None = None
    ) -> QuorumConfig:
        """What the quorum needs to know; ``directory_id`` is that of the formatted directory.

        Controllers only.

        ``voters``: the set to begin with, as formatted; None: the configured one.
        """
        if self.controller is None:
            raise ValueError("only a controller takes part in the quorum")
        own, settings = self.controller, self.settings
        return QuorumConfig(
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            directory_id=directory_id,
            voters=own.voters if voters is None else voters,
            election_timeout_ms=settings.controller_quorum_election_timeout_ms,
            election_jitter_max_ms=settings.controller_quorum_election_jitter_max_ms,
            fetch_timeout_ms=settings.controller_quorum_fetch_timeout_ms,
            election_backoff_max_ms=settings.controller_quorum_election_backoff_max_ms,
            fetch_max_wait_ms=settings.controller_quorum_fetch_max_wait_ms,
            fetch_max_bytes=settings.controller_quorum_fetch_max_bytes,
            request_timeout_ms=settings.controller_quorum_request_timeout_ms,
            max_metadata_version=LATEST_METADATA_VERSION,
            # Who joins a quorum though the configuration names voters (a new disk) begins with
            # asking those.
            bootstrap_servers=own.bootstrap_servers
            or (() if voters != () else self._other_voters()),
            endpoint=own.advertised,
        )

    def _other_voters(self) -> tuple[str, ...]:
        assert self.controller is not None
        return tuple(
            voter.endpoint for voter in self.controller.voters if voter.node_id != self.node_id
        )

    def items(self) -> Iterator[tuple[str, object]]:
        """(key, effective value) of every key that this role reads, in the order they are
        documented.
        """
        for name, info in KEYS.items():
            if self.role in info.roles:
                yield key_of(name), getattr(self.settings, name)


def node_config(settings: Settings, base: Path) -> NodeConfig:
    """Build the result from settings that keep all rules; relative paths count from ``base``."""
    role: Literal["controller", "broker"] = (
        "controller" if "controller" in settings.process_roles else "broker"
    )
    node_id = NO_NODE_ID if settings.node_id is None else settings.node_id
    directory = (role == "controller" and settings.metadata_log_dir) or settings.log_dirs[0]
    own = next(
        (voter for voter in settings.controller_quorum_voters if voter.node_id == settings.node_id),
        None,
    )
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
    )


def _broker(settings: Settings, listener: Endpoint) -> BrokerConfig:
    controllers = tuple(
        endpoint.address for endpoint in settings.controller_quorum_bootstrap_servers
    )
    advertised = settings.advertised_listeners[0] if settings.advertised_listeners else listener
    return BrokerConfig(
        controllers=controllers
        or tuple(voter.endpoint for voter in settings.controller_quorum_voters),
        advertised=advertised,
    )

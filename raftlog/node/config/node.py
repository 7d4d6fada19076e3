"""The checked configuration of one node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from raftlog.endpoint import Endpoint, Voter, endpoints_text
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.node.config.listeners import (
    HTTPS,
    NodeListener,
    Security,
    TlsFiles,
    controllers_name,
    is_controller,
    listeners_of,
    security_of,
    serves_https,
    tls_files,
)
from raftlog.node.config.settings import KEYS, Settings, key_of
from raftlog.node.storage.api import NO_NODE_ID
from raftlog.quorum.config import QuorumConfig


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The derived configuration of a controller."""

    voters: tuple[Voter, ...]
    bootstrap_servers: tuple[str, ...]
    """Addresses of controllers that may know the leader, without this node's own."""
    advertised: str
    """Address of this node for the other nodes, host:port."""
    endpoints: str
    """Endpoints of all listeners of this node, in the format of ``endpoints_text``."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The derived configuration of a broker.

    ``advertised``: endpoint of the listener for brokers; port 0 stands for the port actually bound.
    """

    controllers: tuple[str, ...]
    advertised: Endpoint


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """One node's configuration: ``settings`` as given, and the values derived from them.

    Exactly one of ``controller`` and ``broker`` is set, depending on ``role``.
    """

    settings: Settings
    role: Literal["controller", "broker"]
    cluster_id: str
    node_id: int
    """Id of the node, or NO_NODE_ID for a broker without a configured one."""
    directory: Path
    listeners: tuple[NodeListener, ...]
    """Listeners, at least one; those for nodes first."""
    peers: Mapping[str, Security]
    """Security of other nodes' listeners, by name; "" stands for controllers without a listener
    name.
    """
    http_listener: Endpoint | None
    http_tls: TlsFiles | None
    """TLS files of the HTTP listener, or None without TLS."""
    console_token: Path | None
    """File with the console's token, or None if the console needs none."""
    controller: ControllerConfig | None
    broker: BrokerConfig | None

    @property
    def listener(self) -> Endpoint:
        """Endpoint of the listener for nodes."""
        return self.listeners[0].bind

    @property
    def tls(self) -> TlsFiles | None:
        """TLS files of the listener for nodes, or None without TLS."""
        return self.listeners[0].security.tls

    def quorum_config(
        self, directory_id: str, voters: tuple[Voter, ...] | None = None
    ) -> QuorumConfig:
        """Return the quorum's configuration. Controllers only.

        ``directory_id``: the formatted directory's. ``voters``: the initial voter set recorded at
        formatting, or None for the configured one.
        """
        if self.controller is None:
            raise ValueError(f"node {self.node_id} is a broker: only a controller is in the quorum")
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
            # A node with a new disk joins the quorum although its configuration lists voters: it
            # first looks for the leader there.
            bootstrap_servers=own.bootstrap_servers
            or (() if voters != () else self._other_voters()),
            configured_voters=own.voters,
            endpoint=own.endpoints,
            is_spare=settings.controller_quorum_voter_replace_after_ms > 0,
            leader_priority=settings.controller_quorum_leader_priority,
        )

    def _other_voters(self) -> tuple[str, ...]:
        assert self.controller is not None
        return tuple(
            voter.endpoint for voter in self.controller.voters if voter.node_id != self.node_id
        )

    @property
    def certificates(self) -> frozenset[Path]:
        """Files of this node's certificates, on all listeners and links."""
        used = [one.security.tls for one in self.listeners]
        used += [one.tls for one in self.peers.values()]
        used.append(self.http_tls)
        return frozenset(one.certificate for one in used if one is not None)

    def items(self) -> Iterator[tuple[str, object]]:
        """Yield (key, effective value) for every key of this role, in the order of the
        documentation.
        """
        for name, info in KEYS.items():
            if self.role in info.roles:
                yield key_of(name), getattr(self.settings, name)


def node_config(settings: Settings, base: Path) -> NodeConfig:
    """Build the configuration from settings that satisfy all rules; relative paths start at
    ``base``.
    """
    role: Literal["controller", "broker"] = (
        "controller" if "controller" in settings.process_roles else "broker"
    )
    node_id = NO_NODE_ID if settings.node_id is None else settings.node_id
    directory = (role == "controller" and settings.metadata_log_dir) or settings.log_dirs[0]
    listeners = listeners_of(settings, base)
    return NodeConfig(
        settings=settings,
        role=role,
        cluster_id=settings.cluster_id,
        node_id=node_id,
        directory=base / directory,
        listeners=listeners,
        peers=_peers(settings, base, listeners),
        http_listener=_http_listener(settings),
        http_tls=tls_files(settings, base, HTTPS) if serves_https(settings) else None,
        console_token=base / settings.http_console_token_file
        if settings.http_console_token_file
        else None,
        controller=_controller(settings, listeners) if role == "controller" else None,
        broker=_broker(settings, listeners[0]) if role == "broker" else None,
    )


def _peers(
    settings: Settings, base: Path, listeners: tuple[NodeListener, ...]
) -> Mapping[str, Security]:
    peers = {one.name: one.security for one in listeners}
    name = controllers_name(settings)
    if is_controller(settings):
        controllers = listeners[0].security
    elif name:
        controllers = peers.setdefault(name, security_of(settings, base, name))
    elif settings.tls_certificate_file:
        controllers = Security(tls_files(settings, base, name), settings.ssl_client_auth)
    else:
        controllers = Security(None, settings.ssl_client_auth)
    return {**peers, "": controllers}


def _controller(settings: Settings, listeners: tuple[NodeListener, ...]) -> ControllerConfig:
    reached = [replace(one.advertised, name=one.name) for one in listeners]
    asked = (endpoint.address for endpoint in settings.controller_quorum_bootstrap_servers)
    return ControllerConfig(
        voters=settings.controller_quorum_voters,
        bootstrap_servers=tuple(
            one for one in asked if one not in {own.address for own in reached}
        ),
        advertised=reached[0].address,
        endpoints=endpoints_text(reached),
    )


def _broker(settings: Settings, listener: NodeListener) -> BrokerConfig:
    controllers = tuple(
        endpoint.address for endpoint in settings.controller_quorum_bootstrap_servers
    )
    return BrokerConfig(
        controllers=controllers
        or tuple(voter.endpoint for voter in settings.controller_quorum_voters),
        advertised=listener.advertised,
    )


def _http_listener(settings: Settings) -> Endpoint | None:
    """Return the HTTP endpoint. If no host is configured it is on loopback."""
    if not settings.http_listener:
        return None
    one = settings.http_listener[0]
    return one if one.host else replace(one, host="127.0.0.1")

"""The network as a node's configuration wants it."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from raftlog.config.listeners import Security, TlsFiles
from raftlog.config.node import NodeConfig
from raftlog.config.sources import CUTS_VARIABLE
from raftlog.errors import ConfigError
from raftlog.resource_limits import CONTROLLER_TURN_MAX_MS
from raftlog.transport.api import TransportLimits
from raftlog.transport.complaints import Complaint
from raftlog.transport.descriptors import connections_allowed, lanes_allowed
from raftlog.transport.grpc_server_transport import GrpcServerTransport
from raftlog.transport.listener_security import ListenerSecurity, Routes
from raftlog.transport.tls import TlsConfig


def transport_of(config: NodeConfig) -> GrpcServerTransport:
    """The transport of a node of either role. Raises ConfigError for unreadable TLS files."""
    settings = config.settings
    message_bytes = settings.socket_request_max_bytes
    defaults = TransportLimits()
    limits = replace(
        defaults,
        max_message_bytes=message_bytes,
        max_queued_bytes=max(defaults.max_queued_bytes, message_bytes),
        max_queued_total_bytes=max(settings.queued_max_response_bytes, message_bytes),
        max_unfinished_total_bytes=max(defaults.max_unfinished_total_bytes, 2 * message_bytes),
        max_connections=connections_allowed(settings.max_connections),
        max_connections_per_address=settings.connections_max_per_ip,
        max_connections_per_principal=settings.connections_max_per_principal,
        connection_max_idle_ms=settings.connections_max_idle_ms,
    )
    if config.controller is not None:
        # A turn of the loop holds a turn of decisions there, which is no message's cost.
        limits = replace(limits, long_turn_ms=limits.long_turn_ms + CONTROLLER_TURN_MAX_MS)
        taken = limits.max_connections
        of_brokers = lanes_allowed(limits.max_observer_lanes, taken, "brokers")
        limits = replace(
            limits.within(settings.controller_quorum_fetch_timeout_ms),
            max_observer_lanes=of_brokers,
            max_client_lanes=lanes_allowed(limits.max_client_lanes, taken + of_brokers, "clients"),
        )
    fetch_port = settings.controller_quorum_fetch_port
    make: Callable[..., GrpcServerTransport] = GrpcServerTransport
    if cuts_file := os.environ.get(CUTS_VARIABLE):
        from raftlog.transport.link_cuts import CuttableTransport

        make = partial(CuttableTransport, cuts_file=Path(cuts_file))
    return make(
        limits,
        lane_port=None if config.controller is None or fetch_port < 0 else fetch_port,
        asks_for_lanes=config.controller is None,
        routes=Routes(
            {name: _tls(security) for name, security in config.peers.items()},
            tuple(one.name for one in config.listeners if one.for_nodes),
        ),
        listeners={
            one.name: _served_with(one.security, reflects=settings.grpc_reflection_enable)
            for one in config.listeners
        },
    )


def _served_with(security: Security, *, reflects: bool) -> ListenerSecurity:
    tls = _tls(security)
    return ListenerSecurity(tls, security.client_auth, reflection=reflects or tls is None)


def http_contexts(config: NodeConfig) -> Callable[[], ssl.SSLContext] | None:
    """What HTTP is served with; None: without TLS. Raises ConfigError for unreadable TLS files."""
    tls = _config_of(config.http_tls)
    return None if tls is None else tls.rereading_server_contexts()


def check_tls_files(config: NodeConfig) -> None:
    """Raises ConfigError, which names everything that is wrong with the files of all listeners and
    of the connections to other nodes.
    """
    dialing = [one.tls for one in config.peers.values()]
    mistakes = []
    for files in dict.fromkeys(
        (*dialing, *(one.security.tls for one in config.listeners), config.http_tls)
    ):
        try:
            if files is not None:
                tls = TlsConfig(files.certificate, files.key, files.ca)
                tls.check(dials=files in dialing)
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("; ".join(mistakes))


def http_complaints(transport: GrpcServerTransport) -> Callable[[str, str], None]:
    """What counts what HTTP clients do that they must not do."""
    return partial(transport.bounds.complaints.add, Complaint.HTTP)


def peer_tls(config: NodeConfig) -> TlsConfig | None:
    """How this node connects to controllers; None: in plain text."""
    return _tls(config.peers[""])


def _tls(security: Security) -> TlsConfig | None:
    return _config_of(security.tls)


def _config_of(files: TlsFiles | None) -> TlsConfig | None:
    return None if files is None else TlsConfig(files.certificate, files.key, files.ca)

"""The network as a node's configuration wants it."""

from __future__ import annotations

from dataclasses import replace

from raftlog.config.node import NodeConfig
from raftlog.resource_limits import CONTROLLER_TURN_MAX_MS
from raftlog.transport.api import TransportLimits
from raftlog.transport.descriptors import connections_allowed
from raftlog.transport.grpc_server_transport import GrpcServerTransport
from raftlog.transport.tls import TlsConfig


def transport_of(config: NodeConfig) -> GrpcServerTransport:
    """The transport of a node of either role. Raises ConfigError for unreadable TLS files."""
    tls = config.tls and TlsConfig(config.tls.certificate, config.tls.key, config.tls.ca)
    settings = config.settings
    message_bytes = settings.socket_request_max_bytes
    defaults = TransportLimits()
    limits = replace(
        defaults,
        max_message_bytes=message_bytes,
        max_queued_bytes=max(defaults.max_queued_bytes, message_bytes),
        max_queued_total_bytes=max(settings.queued_max_response_bytes, message_bytes),
        max_connections=connections_allowed(settings.max_connections),
        connection_max_idle_ms=settings.connections_max_idle_ms,
    )
    if config.controller is not None:
        # A turn of the loop holds a turn of decisions there, which is no message's cost.
        limits = replace(limits, long_turn_ms=limits.long_turn_ms + CONTROLLER_TURN_MAX_MS)
        limits = limits.within(settings.controller_quorum_fetch_timeout_ms)
    return GrpcServerTransport(limits, tls=tls or None)

"""The network as a node's configuration wants it."""

from __future__ import annotations

from raftlog.config.node import NodeConfig
from raftlog.transport.api import TransportLimits
from raftlog.transport.grpc_transport import GrpcTransport
from raftlog.transport.tls import TlsConfig


def transport_of(config: NodeConfig) -> GrpcTransport:
    """The transport of a node of either role. Raises ConfigError for unreadable TLS files."""
    tls = config.tls and TlsConfig(config.tls.certificate, config.tls.key, config.tls.ca)
    limits = TransportLimits(max_message_bytes=config.max_message_bytes)
    if config.controller is not None:
        limits = limits.within(config.controller.fetch_timeout_ms)
    return GrpcTransport(limits, tls=tls or None)

"""Build the transport of a node from its configuration: limits, file descriptors, TLS, metrics."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, Metric

from raftlog.bounds import CONTROLLER_TURN_MAX_MS, RESERVED_DESCRIPTORS, memory_bounds
from raftlog.errors import ConfigError
from raftlog.logger import get_logger
from raftlog.node.config.listeners import Security, TlsFiles
from raftlog.node.config.node import NodeConfig
from raftlog.node.config.sources import CUTS_VARIABLE
from raftlog.node.observability.registry import gauge
from raftlog.transport.api import TransportLimits
from raftlog.transport.bounds import Bounds, Complaint
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.lane_tickets import LANED
from raftlog.transport.tls import ListenerSecurity, Routes, TlsConfig

log = get_logger(__name__)

if sys.platform != "win32":
    import resource


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit; the soft limit is often 1,024, for
    programs that use select().
    """
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            log.warning(
                "cannot raise the limit of open files", limit=soft, allowed=hard, error=str(error)
            )


def connections_allowed(wanted: int) -> int:
    """Return the number of connections that leaves file descriptors for the disk, HTTP and other
    nodes.
    """
    if sys.platform == "win32":
        return wanted
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    # At least half of them: RocksDB opens files as it needs them.
    allowed = min(wanted, max(soft - RESERVED_DESCRIPTORS, soft // 2))
    if allowed < wanted:
        log.warning(
            "accepting fewer connections than max.connections",
            accepted=allowed,
            open_files_limit=soft,
        )
    return allowed


def lanes_allowed(wanted: int, taken: int, peers: str) -> int:
    """Return how many of these peers (brokers, clients, watches) may have a lane (a second
    connection) within the limit of open files.

    ``taken`` is the number of file descriptors reserved for connections and other peers' lanes.
    """
    if sys.platform == "win32":
        return wanted
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    allowed = min(wanted, max(0, soft - RESERVED_DESCRIPTORS - taken))
    if allowed < wanted:
        log.info(
            "fewer peers than usual may use lanes, TCP connections in addition to gRPC",
            peers=peers,
            allowed=allowed,
            open_files_limit=soft,
        )
    return allowed


def transport_of(config: NodeConfig) -> GrpcServerTransport:
    """Return the transport of a node in any role. Raises ConfigError if a TLS file cannot
    be read.
    """
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
        # There one iteration of the event loop may include a round of decisions, whose time is not
        # the cost of a message.
        limits = replace(limits, long_turn_ms=limits.long_turn_ms + CONTROLLER_TURN_MAX_MS)
        taken = limits.max_connections
        of_brokers = lanes_allowed(limits.max_observer_lanes, taken, "brokers")
        limits = replace(
            limits.within(settings.controller_quorum_fetch_timeout_ms),
            max_observer_lanes=of_brokers,
            max_client_lanes=lanes_allowed(limits.max_client_lanes, taken + of_brokers, "clients"),
        )
    else:
        taken = limits.max_connections
        of_clients = lanes_allowed(limits.max_client_lanes, taken, "clients")
        of_watches = lanes_allowed(limits.max_watch_lanes, taken + of_clients, "watches")
        limits = replace(limits, max_client_lanes=of_clients, max_watch_lanes=of_watches)
    make: Callable[..., GrpcServerTransport] = GrpcServerTransport
    if cuts_file := os.environ.get(CUTS_VARIABLE):
        from raftlog.transport.link_cuts import CuttableTransport

        make = partial(CuttableTransport, cuts_file=Path(cuts_file))
    return make(
        limits,
        lane_port_offset=settings.lane_port_offset,
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
    """Return a function that returns the TLS context for HTTP, or None without TLS.

    Raises ConfigError if a TLS file cannot be read.
    """
    tls = _config_of(config.http_tls)
    return None if tls is None else tls.rereading_server_contexts()


def check_tls_files(config: NodeConfig) -> None:
    """Raise ConfigError with all errors in the TLS files of the listeners, of HTTP and of the
    connections to other nodes.
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
    """Return a function that counts violations by HTTP clients."""
    return partial(transport.bounds.complaints.add, Complaint.HTTP)


def peer_tls(config: NodeConfig) -> TlsConfig | None:
    """Return the TLS files for connections to controllers, or None for plain text."""
    return _tls(config.peers[""])


def _tls(security: Security) -> TlsConfig | None:
    return _config_of(security.tls)


def _config_of(files: TlsFiles | None) -> TlsConfig | None:
    return None if files is None else TlsConfig(files.certificate, files.key, files.ca)


def transport_metrics(bounds: Bounds, role: str) -> Sequence[Metric]:
    """Return the metrics for the registry of a node in this role."""
    refused = CounterMetricFamily(
        "raftlog_transport_complaints",
        "Violations by peers, by kind.",
        labels=("kind",),
    )
    for kind in Complaint:
        refused.add_metric((str(kind),), bounds.complaints.counts[kind])
    lane_failures = CounterMetricFamily(
        "raftlog_transport_lane_failures",
        "Failed attempts to move a link from gRPC to a TCP connection; the link stays on gRPC.",
        value=bounds.lanes.failures,
    )
    return (
        refused,
        gauge(
            "raftlog_transport_unsent_bytes",
            "Bytes queued for sending, on all links.",
            bounds.send_budget.total_bytes,
        ),
        gauge(
            "raftlog_transport_waiting_bytes",
            "Bytes of received messages that wait for processing, on all links.",
            bounds.waiting.total,
        ),
        gauge(
            "raftlog_transport_unfinished_bytes",
            "Bytes of partly received messages, on all connections and lanes.",
            bounds.unfinished.total_bytes + bounds.unfinished_frames.total,
        ),
        gauge(
            "raftlog_memory_bound_bytes",
            "Memory limit of each part of the node, without metadata.",
            *(((part,), most) for part, most in memory_bounds(bounds.limits, role).items()),
            labels=("part",),
        ),
        gauge(
            "raftlog_transport_lanes",
            "Links of replication, observers, clients and watches that have moved from gRPC to a"
            " TCP connection, served here and dialed here.",
            *(
                ((side, conversation.name.lower()), counted[conversation])
                for side, counted in (
                    ("served", bounds.lanes.served),
                    ("dialed", bounds.lanes.dialed),
                )
                for conversation in LANED
            ),
            labels=("side", "conversation"),
        ),
        lane_failures,
        gauge(
            "raftlog_transport_streams",
            "Open streams and unary calls that peers have started on this node.",
            *(((pool.lower(),), shares.total) for pool, shares in bounds.streams.items()),
            labels=("conversation",),
        ),
    )

"""A controller's metrics and health over HTTP.

Imported once the node runs, as importing the HTTP server takes a large part of the startup time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from controller.service.service import ControllerService
from controller.service.status import describe_quorum, known_brokers, ready, status
from raftlog.node.config.node import NodeConfig
from raftlog.node.observability.figures import LoopLag
from raftlog.node.observability.http_rules import HttpRules, names_of
from raftlog.node.observability.http_server import HttpServer
from raftlog.node.observability.node_metrics import (
    add_audit_metrics,
    add_controller_metrics,
    add_log_metrics,
    add_mending_metrics,
    add_quorum_metrics,
    add_refusal_metrics,
    add_snapshot_metrics,
    add_space_metrics,
)
from raftlog.node.observability.process_metrics import (
    add_certificate_metrics,
    add_disk_metrics,
    add_node_metrics,
    add_request_metrics,
    build_labels,
)
from raftlog.node.observability.registry import MetricsRegistry
from raftlog.node.recovery.mending import MendingState
from raftlog.node.security.audit import Auditor
from raftlog.node.transport import transport_metrics
from raftlog.ops.console import Local, console_of
from raftlog.transport.certificates import first_end
from raftlog.transport.grpc_server import GrpcServerTransport

__all__ = [
    "HttpRules",
    "build_labels",
    "http_server",
    "mending_server",
    "metrics_registry",
    "names_of",
]


def _registry_of_node(
    config: NodeConfig,
    transport: GrpcServerTransport,
    build: Mapping[str, str],
    loop_lag: LoopLag,
) -> MetricsRegistry:
    """Return a registry with the metrics that a controller has in every state."""
    registry = MetricsRegistry()
    add_node_metrics(
        registry, "controller", config.node_id, config.cluster_id, build, loop_lag.latency
    )
    registry.collect(lambda: transport_metrics(transport.bounds, "controller"))
    return registry


def metrics_registry(
    config: NodeConfig,
    service: ControllerService,
    transport: GrpcServerTransport,
    auditor: Auditor | None,
    build: Mapping[str, str],
    loop_lag: LoopLag,
) -> MetricsRegistry:
    """Return the registry of a controller's metrics, served at /metrics."""
    registry = _registry_of_node(config, transport, build, loop_lag)
    add_audit_metrics(registry, lambda: 0 if auditor is None else auditor.sink.dropped)
    add_quorum_metrics(registry, lambda: describe_quorum(service))
    replica = service.replica
    add_refusal_metrics(registry, lambda: replica.refusals.counts)
    registry.latency(
        "raft_metrics_commit_latency_seconds",
        "Time from a proposal to its commit.",
        replica.commit_latency,
    )
    registry.latency(
        "raftlog_log_sync_seconds", "Duration of a sync of the log.", replica.sync_latency
    )
    add_controller_metrics(
        registry,
        active=lambda: service.node.decider is not None,
        image=lambda: service.image,
        describe_brokers=lambda: known_brokers(service),
        lowest_known_lao=lambda: service.node.lowest_known_lao,
    )
    add_request_metrics(registry, service.request_figures, service.queue_depths)
    add_disk_metrics(registry, config.directory, lambda: replica.disk_busy_s)
    certificates = config.certificates
    add_certificate_metrics(registry, lambda: first_end(certificates))
    add_space_metrics(registry, lambda: service.node.space.low)
    add_log_metrics(registry, lambda: bool(service.log_contradiction))
    add_snapshot_metrics(registry, lambda: service.snapshots.figures(service.node.now()))
    return registry


def mending_server(
    config: NodeConfig,
    transport: GrpcServerTransport,
    state: Callable[[], MendingState],
    bound: socket.socket,
    rules: HttpRules,
    build: Mapping[str, str],
) -> HttpServer:
    """Return the HTTP server of a controller that is mending its log; the caller starts it."""
    loop_lag = LoopLag()
    loop_lag.start()
    registry = _registry_of_node(config, transport, build, loop_lag)
    add_mending_metrics(registry, state)
    host, port = bound.getsockname()[:2]
    return HttpServer(
        host,
        port,
        registry,
        lambda: (False, str(state())),
        title=f"raftlog controller {config.node_id}",
        status=lambda: {"role": "damaged: neither votes nor leads"},
        rules=rules,
        bound=bound,
    )


def http_server(
    config: NodeConfig,
    service: ControllerService,
    transport: GrpcServerTransport,
    auditor: Auditor | None,
    bound: socket.socket,
    rules: HttpRules,
    build: Mapping[str, str],
) -> HttpServer:
    """Return an HTTP server for a listening socket; the caller starts it."""
    loop_lag = LoopLag()
    loop_lag.start()
    host, port = bound.getsockname()[:2]
    return HttpServer(
        host,
        port,
        metrics_registry(config, service, transport, auditor, build, loop_lag),
        lambda: ready(service),
        title=f"raftlog controller {config.node_id}",
        status=lambda: status(service),
        rules=rules,
        bound=bound,
        console=console_of(config, _local(config, service)),
    )


def _local(config: NodeConfig, service: ControllerService) -> Local:
    def controllers() -> list[str]:
        voters = (voter.endpoint for voter in describe_quorum(service).voters)
        own = () if config.controller is None else (config.controller.advertised,)
        return [one for one in dict.fromkeys((*own, *voters)) if one]

    return Local(
        "controller",
        config.node_id,
        image=lambda: service.image,
        newest_chunks=service.replica.newest,
        committed_end=lambda: service.node.committed_end,
        controllers=controllers,
    )

"""A broker as a process: its directory, its ports, its signals."""

from __future__ import annotations

import asyncio
import random
import signal
import uuid

import structlog

from broker.directory import open_directory
from broker.lifecycle import Exit
from broker.service import BrokerService
from broker.settings import BrokerSettings, LifecycleSettings
from broker.unary_reply import answer
from raftlog.config.node import NodeConfig
from raftlog.errors import FatalError
from raftlog.observability.http_server import HttpServer
from raftlog.observability.node_metrics import add_broker_metrics
from raftlog.observability.registry import MetricsRegistry
from raftlog.transport import grpc_env
from raftlog.transport.configured import transport_of
from raftlog.transport.unary import unary_handler
from raftlog.wire.broker.v1 import broker_pb2

log = structlog.get_logger(__name__)

EXIT_FAILED = 1


def settings_of(config: NodeConfig) -> BrokerSettings:
    """The broker's settings in a node's configuration. Raises ConfigError if times do not fit each other."""
    own = config.broker
    assert own is not None, "not the configuration of a broker"
    return BrokerSettings(
        broker_id=config.node_id,
        cluster_id=config.cluster_id,
        controllers=own.controllers,
        listen=config.listener.address,
        advertised_host=own.advertised.host,
        advertised_port=own.advertised.port,
        rack=own.rack,
        log_dirs=(str(config.directory),),
        request_timeout_ms=own.request_timeout_ms,
        lifecycle=LifecycleSettings(
            heartbeat_interval_ms=own.heartbeat_interval_ms,
            session_timeout_ms=own.session_timeout_ms,
            fencing_timeout_ms=own.fencing_timeout_ms,
            registration_timeout_ms=own.registration_timeout_ms,
            shutdown_timeout_ms=own.shutdown_timeout_ms,
        ),
    )


async def run_broker(config: NodeConfig) -> int:
    """Run until a signal, until the broker was replaced, or a fatal error; the exit code. Raises ConfigError at the start."""
    settings = settings_of(config)
    directory = open_directory(config.directory, cluster_id=config.cluster_id, broker_id=config.node_id)
    transport = transport_of(config)
    http: HttpServer | None = None
    try:
        service = BrokerService(
            settings, transport, process=directory.process, incarnation_id=str(uuid.uuid4()), rng=random.Random()
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, service.stop)
        try:
            # The ports first: a broker that is about to give up must not begin to register.
            http = await _start_http(config, service)
            await service.start(extra_handlers=[_unary_handler(service)])
            log.info(
                "broker started",
                node=config.node_id,
                cluster=config.cluster_id,
                listener=service.address,
                http=http.address if http else "",
                event_engine=grpc_env.event_engine_state(),
            )
            ended = await _ended(service)
        finally:
            await service.close()
    finally:
        if http is not None:
            await http.stop()
        await transport.close()
        directory.close()
    if ended.clean:
        log.info("broker stopped", node=config.node_id, reason=ended.reason)
        return 0
    log.critical("stopped by an error", node=config.node_id, error=ended.reason)
    return EXIT_FAILED


async def _ended(service: BrokerService) -> Exit:
    try:
        return await service.ended()
    except FatalError as error:
        return Exit(str(error), clean=False)


def _unary_handler(service: BrokerService) -> object:
    async def ask(request: broker_pb2.BrokerRequest) -> broker_pb2.BrokerResponse:
        return await answer(service.requests, request)

    return unary_handler(broker_pb2.DESCRIPTOR.services_by_name["Broker"], broker_pb2.BrokerRequest, ask)


async def _start_http(config: NodeConfig, service: BrokerService) -> HttpServer | None:
    """Metrics and health, if the configuration wants them."""
    if config.http_listener is None:
        return None
    registry = MetricsRegistry()
    add_broker_metrics(registry, service.describe)
    server = HttpServer(
        config.http_listener.host,
        config.http_listener.port,
        registry,
        service.ready,
        title=f"raftlog broker {config.node_id}",
        status=service.status,
    )
    await server.start()
    return server

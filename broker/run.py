"""The process of a broker: its directory, its ports, its signals."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog

from broker.partition.host import PartitionSettings
from broker.registration.broker_id import known_id, seek_id
from broker.registration.directory import BrokerDirectory, open_directory
from broker.registration.lifecycle import Exit
from broker.replication.data_plane import effective_reserve_bytes
from broker.replication.metrics import add_data_metrics
from broker.service.requests import answer_unary
from broker.service.service import BrokerService, Serving
from broker.settings import (
    BrokerSettings,
    ClientListener,
    LifecycleSettings,
    ReplicationSettings,
    WatchSettings,
)
from raftlog import tracing
from raftlog.cli.exits import Exit as ExitCode
from raftlog.cli.exits import exit_code
from raftlog.cli.nodes import remedy
from raftlog.errors import FatalError
from raftlog.node.config.listeners import NodeListener
from raftlog.node.config.node import NodeConfig
from raftlog.node.config.settings import values_of
from raftlog.node.observability.figures import LoopLag, RequestFigures
from raftlog.node.observability.http_rules import HttpRules, names_of
from raftlog.node.observability.http_server import HttpServer
from raftlog.node.observability.node_metrics import (
    add_audit_metrics,
    add_broker_metrics,
    add_log_metrics,
    add_space_metrics,
    add_watch_metrics,
)
from raftlog.node.observability.node_self import NodeSelf, may_see
from raftlog.node.observability.process_metrics import (
    add_certificate_metrics,
    add_disk_metrics,
    add_node_metrics,
    add_request_metrics,
    build_labels,
)
from raftlog.node.observability.registry import MetricsRegistry
from raftlog.node.security import client_listeners
from raftlog.node.security.audit import Auditor
from raftlog.node.security.authorization import authorization_of
from raftlog.node.security.configured import (
    accesses_of,
    audit_of,
    authentication_of,
    client_rules_of,
    quotas_of,
    warn_of_plaintext,
)
from raftlog.node.security.guard import Authentication, Duties, LogReaders, guarded, guarded_handler
from raftlog.node.storage.api import NO_NODE_ID
from raftlog.node.storage.directory import disk_bytes
from raftlog.node.storage.opening import open_partition_store
from raftlog.node.storage.partition_store import RocksPartitionStore
from raftlog.node.transport import (
    http_complaints,
    http_contexts,
    raise_file_limit,
    transport_metrics,
    transport_of,
)
from raftlog.ops.console import Local, console_of
from raftlog.process import StopSignals
from raftlog.transport import grpc_runtime
from raftlog.transport.api import Acceptors, Conversation, LinkHandler, ServerTransport
from raftlog.transport.certificates import first_end
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.unary import Caller, unary_handler
from raftlog.wire.broker.v1 import broker_pb2

log = structlog.get_logger(__name__)


def settings_of(config: NodeConfig) -> BrokerSettings:
    """Return the broker's settings in a node's configuration.

    Raises ConfigError if timeouts contradict each other.
    """
    own, settings = config.broker, config.settings
    assert own is not None, "not the configuration of a broker"
    of_brokers, *of_clients = config.listeners
    name = of_brokers.name
    return BrokerSettings(
        broker_id=config.node_id,
        cluster_id=config.cluster_id,
        controllers=own.controllers,
        listen=config.listener.address,
        advertised_host=own.advertised.host,
        advertised_port=own.advertised.port,
        listener_name=name,
        client_listeners=tuple(_client_listener(one) for one in of_clients),
        rack=settings.broker_rack,
        id_generation_force=settings.broker_id_generation_force,
        log_dirs=(str(config.directory),),
        request_timeout_ms=settings.request_timeout_ms,
        request_timeout_max_ms=settings.request_timeout_max_ms,
        lifecycle=LifecycleSettings(
            heartbeat_interval_ms=settings.broker_heartbeat_interval_ms,
            session_timeout_ms=settings.broker_session_timeout_ms,
            fencing_timeout_ms=settings.broker_fencing_timeout_ms,
            registration_timeout_ms=settings.initial_broker_registration_timeout_ms,
            shutdown_timeout_ms=settings.controlled_shutdown_timeout_ms,
        ),
        replication=ReplicationSettings(
            **values_of(ReplicationSettings, settings),
            free_space_reserve_bytes=_reserve_bytes(config),
        ),
        watch=WatchSettings(**values_of(WatchSettings, settings)),
        partitions=PartitionSettings(
            broker_id=config.node_id,
            inter_broker_listener=name,
            **values_of(PartitionSettings, settings),
        ),
    )


def _client_listener(one: NodeListener) -> ClientListener:
    return ClientListener(one.name, one.bind.address, one.advertised.host, one.advertised.port)


def _reserve_bytes(config: NodeConfig) -> int:
    """Return the disk space to keep free, in bytes."""
    reserve_bytes = config.settings.log_free_space_reserve_bytes
    if not reserve_bytes or not config.directory.is_dir():
        return 0
    return effective_reserve_bytes(reserve_bytes, disk_bytes(config.directory))


async def run_broker(config: NodeConfig) -> int:
    """Run until a signal, the broker's replacement or a fatal error; return the exit code.

    Raises ConfigError at the start.
    """
    settings = settings_of(config)
    stop_tracing = tracing.enable_from_environment("raftlog-broker", str(config.node_id))
    directory = open_directory(
        config.directory, cluster_id=config.cluster_id, broker_id=config.node_id
    )
    raise_file_limit()
    transport = transport_of(config)
    incarnation_id = str(uuid.uuid4())
    node = config.node_id
    stopping = asyncio.Event()
    signals = StopSignals(stopping.set)
    try:
        found = await _identified(config, settings, directory, transport, incarnation_id, stopping)
        ended: Exit | FatalError
        if isinstance(found, Exit):
            ended = found
        else:
            node = found.broker_id
            ended = await _live(config, found, directory, transport, incarnation_id, signals)
    finally:
        await transport.close()
        directory.close()
        stop_tracing()
    if isinstance(ended, FatalError):
        code = exit_code(ended)
        log.critical("stopped by an error", node=node, error=str(ended), **remedy(ended, "broker"))
        return code
    if ended.clean:
        log.info("broker stopped", node=node, reason=ended.reason)
        return signals.exit_code
    log.critical("stopped by an error", node=node, error=ended.reason)
    return ExitCode.REFUSED


async def _identified(
    config: NodeConfig,
    settings: BrokerSettings,
    directory: BrokerDirectory,
    transport: ServerTransport,
    incarnation_id: str,
    stopping: asyncio.Event,
) -> BrokerSettings | Exit:
    """Return the settings with the broker's id, which is then in the directory's meta.json.

    Raises ConfigError, StorageError.
    """
    broker_id = known_id(settings.broker_id, directory.broker_id, settings.log_dirs[0])
    if broker_id != NO_NODE_ID:
        directory.claim(broker_id)
        return replace(settings, broker_id=broker_id)
    why = ["the controller has not answered"]
    http = await _start_waiting_http(config, lambda: (False, f"has no broker id yet: {why[-1]}"))
    try:
        found = await seek_id(
            settings,
            transport,
            process=directory.process,
            incarnation_id=incarnation_id,
            rng=random.Random(),
            stopping=stopping,
            previous_broker_epoch=directory.previous_broker_epoch,
            on_wait=lambda reason: why.__setitem__(0, reason),
        )
    finally:
        if http is not None:
            await http.stop()
    if isinstance(found, Exit):
        return found
    # Durable before any use of the id: after a crash in between, the controller finds the id by the
    # directory id.
    directory.claim(found.broker_id)
    return found


async def _start_waiting_http(
    config: NodeConfig, ready: Callable[[], tuple[bool, str]]
) -> HttpServer | None:
    """Serve health while the broker has no id: it is alive and not ready."""
    if config.http_listener is None:
        return None
    title = "raftlog broker without an id"
    server = HttpServer(
        config.http_listener.host,
        config.http_listener.port,
        MetricsRegistry(),
        ready,
        title=title,
        rules=HttpRules(http_contexts(config), names_of(config)),
    )
    await server.start()
    return server


async def _live(
    config: NodeConfig,
    settings: BrokerSettings,
    directory: BrokerDirectory,
    transport: GrpcServerTransport,
    incarnation_id: str,
    signals: StopSignals,
) -> Exit | FatalError:
    """Run a broker that has an id; return why it stopped."""
    store = open_partition_store(config.directory, asyncio.get_running_loop())
    authentication = authentication_of(config.settings)
    http: HttpServer | None = None

    async def metrics() -> bytes:
        return await http.metrics() if http else b""

    own = NodeSelf(
        config,
        settings.broker_id,
        http=lambda: http.address if http else "",
        metrics=metrics,
        low_on_space=lambda: service.data is not None and service.data.space.low,
        log_contradiction=lambda: service.report.log_contradiction,
    )
    service = BrokerService(
        settings,
        transport,
        process=directory.process,
        incarnation_id=incarnation_id,
        rng=random.Random(),
        store=store,
        wall_clock_ms=lambda: time.time_ns() // 1_000_000,
        stopwatch=time.perf_counter,
        client_rules=client_rules_of(config.settings),
        request_figures=RequestFigures(time.perf_counter),
        journal=own.journal,
        generation=directory.identity.generation,
        bind_generation=directory.bind_generation,
        previous_broker_epoch=directory.previous_broker_epoch,
    )
    own.keep_to(service.time.now_ms)
    signals.call(service.stop)
    audit = contextlib.ExitStack()
    in_order = False
    try:
        # The ports first: a broker that is about to fail must not begin to register.
        make_auditor = audit.enter_context(audit_of(config.settings, config.cluster_id))
        auditor = make_auditor(settings.broker_id, lambda: service.image)
        duties = Duties(None, auditor, quotas_of(config.settings))
        authorization = authorization_of(config.settings)
        readers = None if authorization is None else LogReaders(authorization, service.known_image)
        # To a broker, a node is a client like any other.
        of_node = duties._replace(readers=readers, accepts_nodes=False)
        rules = HttpRules(
            http_contexts(config),
            names_of(config),
            may_see(config, authentication, of_node),
            http_complaints(transport),
        )
        http = await _start_http(
            config, settings.broker_id, service, transport, auditor, store, rules
        )
        accesses = accesses_of(config)
        for_clients = {one.name: not one.for_nodes for one in config.listeners}
        await service.start(
            serving=lambda name, acceptors: _serving(
                service,
                authentication,
                duties,
                name,
                acceptors,
                for_clients=for_clients[name],
                also=own.handler(name, authentication, of_node),
            )._replace(access=accesses[name])
        )
        own.started()
        warn_of_plaintext(config.settings)
        log.info(
            "broker started",
            node=settings.broker_id,
            cluster=config.cluster_id,
            listener=",".join(service.addresses),
            http=http.address if http else "",
            event_engine=grpc_runtime.event_engine_state(),
        )
        ended = await _ended(service)
        clean = not isinstance(ended, FatalError) and ended.clean
        own.stopped(str(ended) if isinstance(ended, FatalError) else ended.reason, clean=clean)
        in_order = not isinstance(ended, FatalError)
        return ended
    except Exception as error:
        own.stopped(str(error), clean=False)
        raise
    finally:
        await service.close()
        audit.close()
        store.close()
        if in_order:
            directory.record_clean_shutdown(service.last_broker_epoch)
        own.close()
        if http is not None:
            await http.stop()


async def _ended(service: BrokerService) -> Exit | FatalError:
    try:
        return await service.ended()
    except FatalError as error:
        return error


def _serving(
    service: BrokerService,
    authentication: Authentication | None,
    duties: Duties,
    name: str,
    acceptors: Acceptors,
    *,
    for_clients: bool,
    also: object,
) -> Serving:
    """Return a listener's services, guarded; a client listener has no services for nodes."""
    served: LinkHandler = service.requests
    if for_clients:
        acceptors = client_listeners.for_clients(acceptors)
        served = client_listeners.handler_for_clients(served, Conversation.BROKER)
    duties = duties._replace(accepts_nodes=not for_clients)
    handler = guarded_handler(served, Conversation.BROKER, authentication, duties)
    return Serving(
        guarded(acceptors, authentication, duties), [_unary_handler(handler, name), also]
    )


def _unary_handler(handler: LinkHandler, listener: str) -> object:

    async def ask(request: broker_pb2.BrokerRequest, caller: Caller) -> broker_pb2.BrokerResponse:
        return await answer_unary(handler, request, caller)

    return unary_handler(
        broker_pb2.DESCRIPTOR.services_by_name["Broker"],
        broker_pb2.BrokerRequest,
        ask,
        listener=listener,
    )


def metrics_registry(
    config: NodeConfig,
    service: BrokerService,
    transport: GrpcServerTransport,
    auditor: Auditor | None,
    store: RocksPartitionStore,
    build: Mapping[str, str],
    loop_lag: LoopLag,
) -> MetricsRegistry:
    """Return the registry of the metrics that a broker shows at /metrics."""
    registry = MetricsRegistry()
    node_id = service.settings.broker_id
    add_node_metrics(registry, "broker", node_id, config.cluster_id, build, loop_lag.latency)
    registry.collect(lambda: transport_metrics(transport.bounds, "broker"))
    add_audit_metrics(registry, lambda: 0 if auditor is None else auditor.sink.dropped)
    add_broker_metrics(registry, service.report.describe)
    add_log_metrics(registry, lambda: bool(service.report.log_contradiction))
    hub = service.watches.hub
    add_watch_metrics(
        registry,
        watchers=lambda: len(hub),
        live=lambda: hub.live,
        told=lambda: hub.changes_sent,
        compacted=lambda: hub.compacted,
        too_slow=lambda: hub.too_slow,
    )
    add_request_metrics(registry, service.requests.figures, service.requests.queue_depths)
    add_disk_metrics(registry, config.directory, lambda: store.busy_s)
    certificates = config.certificates
    add_certificate_metrics(registry, lambda: first_end(certificates))
    if service.data is not None:
        space = service.data.space
        add_data_metrics(registry, service.data)
        add_space_metrics(registry, lambda: space.low)
    return registry


def _local(broker_id: int, service: BrokerService) -> Local:
    """Return the part of this broker's memory that the console shows."""
    return Local(
        "broker",
        broker_id,
        image=lambda: service.view.tip,
        newest_chunks=service.watches.hub.history.newest,
        committed_end=lambda: service.view.high_watermark,
        controllers=lambda: service.settings.controllers,
    )


async def _start_http(
    config: NodeConfig,
    broker_id: int,
    service: BrokerService,
    transport: GrpcServerTransport,
    auditor: Auditor | None,
    store: RocksPartitionStore,
    rules: HttpRules,
) -> HttpServer | None:
    """Serve metrics and health, if the configuration enables it."""
    if config.http_listener is None:
        return None
    build = await asyncio.to_thread(build_labels)
    loop_lag = LoopLag()
    loop_lag.start()
    registry = metrics_registry(config, service, transport, auditor, store, build, loop_lag)
    server = HttpServer(
        config.http_listener.host,
        config.http_listener.port,
        registry,
        service.report.ready,
        title=f"raftlog broker {broker_id}",
        status=service.report.status,
        rules=rules,
        console=console_of(config, _local(broker_id, service)),
    )
    await server.start()
    return server

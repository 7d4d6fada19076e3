"""The process of a controller: its directory, its ports, its signals."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable

import structlog

from controller.disk.space import effective_reserve_bytes
from controller.late_http import Described, LateHttp
from controller.mending import QUORUM, Healed, Records, WholeRecords, heal, serve_records
from controller.rejoin import may_rejoin
from controller.service.service import ControllerService
from controller.service.status import describe_quorum, ready
from controller.settings import ControllerSettings
from raftlog import tracing
from raftlog.cli.exits import exit_code
from raftlog.cli.nodes import remedy
from raftlog.config_writes import codec
from raftlog.errors import CorruptLogError, DamagedIdentityError, FatalError
from raftlog.node.config.listeners import NodeListener
from raftlog.node.config.node import NodeConfig
from raftlog.node.config.settings import values_of
from raftlog.node.observability.figures import RequestFigures
from raftlog.node.observability.node_self import NodeSelf, may_see
from raftlog.node.security.authorization import authorization_of
from raftlog.node.security.client_listeners import OF_NODES, for_clients, handler_for_clients
from raftlog.node.security.configured import (
    accesses_of,
    audit_of,
    authentication_of,
    quotas_of,
    warn_of_plaintext,
)
from raftlog.node.security.guard import Authentication, Duties, LogReaders, guarded, guarded_handler
from raftlog.node.security.single_calls import check_call
from raftlog.node.storage.api import LogStore
from raftlog.node.storage.directory import disk_bytes
from raftlog.node.storage.files import NO_BOOTSTRAP, Bootstrap, read_bootstrap
from raftlog.node.storage.opening import open_store
from raftlog.node.transport import raise_file_limit, transport_of
from raftlog.process import StopSignals
from raftlog.transport import grpc_runtime
from raftlog.transport.api import Conversation, LinkHandler
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.unary import Caller, UnaryLink, answer, unary_handler
from raftlog.wire.controller.v1 import controller_pb2
from raftlog.wire.quorum.v1 import quorum_pb2

log = structlog.get_logger(__name__)

TRANSFER_S = 1.0
"""Maximum time in seconds that a stopping leader waits for its successor."""


def settings_of(config: NodeConfig, bootstrap: Bootstrap = NO_BOOTSTRAP) -> ControllerSettings:
    """Return the settings: the configuration's keys, the choices made at formatting, and the
    free-space reserve.
    """
    reserve_bytes = config.settings.metadata_log_free_space_reserve_bytes
    return ControllerSettings(
        **values_of(ControllerSettings, config.settings),
        bootstrap_metadata_version=bootstrap.metadata_version,
        bootstrap_super_users=bootstrap.super_users,
        free_space_reserve_bytes=effective_reserve_bytes(
            reserve_bytes, disk_bytes(config.directory)
        ),
    )


async def run_controller(config: NodeConfig) -> int:
    """Run until a signal or a fatal error; return the exit code.

    A node that finds its log damaged mends it, or joins anew once, if it may
    (:mod:`controller.mending`). Raises ConfigError, StorageError, CorruptLogError at the start.
    """
    stop = asyncio.Event()
    signals = StopSignals(stop.set)
    may, healed = may_rejoin(config), None
    while True:
        try:
            return await _run(config, signals, raises_damage=may, healed=healed)
        except (CorruptLogError, DamagedIdentityError) as error:
            if not may:
                raise
            damage: CorruptLogError | DamagedIdentityError = error
        signals.call(stop.set)
        healed = await heal(config, damage, stop)
        if healed is None:
            return signals.exit_code
        may = healed.mended


async def _run(
    config: NodeConfig,
    signals: StopSignals,
    *,
    raises_damage: bool = False,
    healed: Healed | None = None,
) -> int:
    """Run until a signal or a fatal error; return the exit code.

    ``healed``: result of the healing that preceded this run, or None. Raises ConfigError,
    StorageError, CorruptLogError at the start; with ``raises_damage`` also CorruptLogError for
    damage detected later.
    """
    stop_tracing = tracing.enable_from_environment("raftlog-controller", str(config.node_id))
    stop = asyncio.Event()
    signals.call(stop.set)
    failure: list[FatalError] = []

    def failed(error: FatalError) -> None:
        failure.append(error)
        stop.set()

    bootstrap = read_bootstrap(config.directory)
    store = open_store(
        config.directory,
        expect_cluster_id=config.cluster_id,
        expect_node_id=config.node_id,
        loop=asyncio.get_running_loop(),
    )
    raise_file_limit()
    transport = transport_of(config)
    authentication = authentication_of(config.settings)
    http: LateHttp | None = None
    audit = contextlib.ExitStack()

    async def metrics() -> bytes:
        return await http.metrics() if http else b""

    own = NodeSelf(
        config,
        config.node_id,
        http=lambda: http.address if http else "",
        metrics=metrics,
        low_on_space=lambda: service.node.space.low,
        log_contradiction=lambda: service.log_contradiction,
    )
    try:
        service = _service_of(config, bootstrap, store, transport, own, failed)
        # The log, then the ports, then the quorum: no peer may reach a node whose log is damaged,
        # and a node that cannot be reached, or is about to give up, must not ask for votes.
        service.recover()
        authorization = authorization_of(config.settings)
        readers = None if authorization is None else LogReaders(authorization, service.known_image)
        make_auditor = audit.enter_context(audit_of(config.settings, config.cluster_id))
        auditor = make_auditor(config.node_id, lambda: service.image)
        duties = Duties(readers, auditor, quotas_of(config.settings), is_broker=service.is_broker)
        records = WholeRecords(service.replica, lambda: store.identity)
        listening = await _listen(config, service, records, transport, authentication, duties, own)
        http = LateHttp(config)
        own.started(*healed or ())
        service.start()
        described = Described(
            lambda: ready(service),
            lambda side, *how: side.http_server(config, service, transport, auditor, *how),
        )
        http.serve(described, transport, may_see(config, authentication, duties), failed)
        warn_of_plaintext(config.settings)
        log.info(
            "controller started",
            node=config.node_id,
            cluster=config.cluster_id,
            listener=listening,
            http=http.address,
            event_engine=grpc_runtime.event_engine_state(),
            codec=codec.NAME,
        )
        await stop.wait()
        await _end(service, failure, own)
    except Exception as error:
        own.stopped(str(error), clean=False)
        raise
    finally:
        # The gRPC ports first: a closed service sends no answers, so later requests must find no
        # listener, and not wait for slower work [a write that was sent meanwhile is cut off, and
        # its outcome is unknown].
        await transport.close()
        if http is not None:
            await http.stop()
        audit.close()
        store.close()
        own.close()
        stop_tracing()
    if raises_damage and failure and isinstance(failure[0], CorruptLogError):
        raise failure[0]
    return _exit_code(config, failure, signals)


def _exit_code(config: NodeConfig, failure: list[FatalError], signals: StopSignals) -> int:
    """Log why the node stops; return its exit code."""
    if failure:
        error = failure[0]
        log.critical("stopped by an error", error=str(error), **remedy(error, "controller"))
        return exit_code(error)
    log.info("controller stopped", node=config.node_id)
    return signals.exit_code


async def _end(service: ControllerService, failure: list[FatalError], own: NodeSelf) -> None:
    """Stop in order, if nothing has failed."""
    if not failure:
        await _transfer_leadership(service)
        await service.drain()
    service.close()
    own.stopped(str(failure[0]) if failure else "asked to stop", clean=not failure)


def _service_of(
    config: NodeConfig,
    bootstrap: Bootstrap,
    store: LogStore,
    transport: GrpcServerTransport,
    own: NodeSelf,
    failed: Callable[[FatalError], None],
) -> ControllerService:
    """Return the service, with real time and randomness."""
    service = ControllerService(
        settings_of(config, bootstrap),
        config.quorum_config(store.identity.directory_id, bootstrap.voters),
        store,
        transport,
        rng=random.Random(),
        wall_clock_ms=lambda: time.time_ns() // 1_000_000,
        on_failure=failed,
        stopwatch=time.perf_counter,
        cpu_clock=time.thread_time,
        request_figures=RequestFigures(time.perf_counter),
        journal=own.journal,
    )
    own.keep_to(service.replica.time_ms)
    return service


async def _transfer_leadership(service: ControllerService) -> None:
    """Transfer the leadership, and wait until another node leads, so that no client waits for a
    timeout.
    """
    if service.node.leadership is None:
        return
    await service.leave("the node is shutting down")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(TRANSFER_S):
            await service.successor.wait()


async def _listen(
    config: NodeConfig,
    service: ControllerService,
    records: Records,
    transport: GrpcServerTransport,
    authentication: Authentication | None,
    duties: Duties,
    own: NodeSelf,
) -> str:
    """Serve on all listeners; return their endpoints.

    Raises ConfigError.
    """
    bound: list[str] = []
    accesses = accesses_of(config)
    for one in config.listeners:
        served = service.acceptors() if one.for_nodes else for_clients(service.acceptors())
        duties = duties._replace(accepts_nodes=one.for_nodes)
        listener = await transport.listen(
            one.bind.address,
            guarded(served, authentication, duties),
            name=one.name,
            extra_handlers=[
                *_unary_handlers(service, records, authentication, duties, one),
                own.handler(one.name, authentication, duties),
            ],
            access=accesses[one.name],
        )
        bound.append(listener.address)
    return ",".join(bound)


def _unary_handlers(
    service: ControllerService,
    records: Records,
    authentication: Authentication | None,
    duties: Duties,
    listener: NodeListener,
) -> list[object]:
    conversation = Conversation.CONTROLLER
    served: LinkHandler = service.reception
    if not listener.for_nodes:
        served = handler_for_clients(served, conversation)
    handler = guarded_handler(served, conversation, authentication, duties)

    async def ask(
        request: controller_pb2.ControllerRequest, caller: Caller
    ) -> controller_pb2.ControllerResponse:
        response: controller_pb2.ControllerResponse = await answer(handler, request, caller)
        return response

    async def describe(
        request: quorum_pb2.DescribeQuorumRequest, caller: Caller
    ) -> quorum_pb2.DescribeQuorumResponse:
        if authentication is not None:
            check_call("DescribeQuorum", request, UnaryLink(caller), authentication, duties)
        return describe_quorum(service, listener.name)

    return [
        unary_handler(
            controller_pb2.DESCRIPTOR.services_by_name["Controller"],
            controller_pb2.ControllerRequest,
            ask,
            listener=listener.name,
            without=() if listener.for_nodes else OF_NODES,
        ),
        unary_handler(
            QUORUM,
            explicit={
                "DescribeQuorum": describe,
                "FetchMissingRecords": serve_records(records, authentication, duties),
            },
        ),
    ]

"""The real network of a node: one gRPC server per listener, with conversations, unary methods,
health and reflection.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio

from raftlog.bounds import MAX_CALLS_NOT_BEGUN, STREAM_WINDOW_BYTES, UNARY_MAX_BYTES
from raftlog.errors import ApiError, ConfigError
from raftlog.identity import CERTIFICATES_ALONE, Access, Admitted, TokenCheck
from raftlog.transport.admission import METADATA_MAX_BYTES, Admission, ExpiryTimer, admit
from raftlog.transport.api import Acceptor, Conversation, TransportLimits
from raftlog.transport.bounds import Bounds, Complaint
from raftlog.transport.grpc_link import GrpcLink
from raftlog.transport.grpc_runtime import take_all_wakeups
from raftlog.transport.grpc_transport import LINK_METADATA_KEY, GrpcTransport
from raftlog.transport.lane_link import SERVED
from raftlog.transport.lane_tickets import (
    LANED,
    OF_BROKERS,
    OF_NODES,
    LaneListener,
    LaneMetadata,
    Lanes,
    asks_for_lane,
)
from raftlog.transport.links import PEER_ENDED, log
from raftlog.transport.probe import split_address
from raftlog.transport.statuses import abort, peer_address, refusal_metadata, status_of
from raftlog.transport.tls import ListenerSecurity, Routes, TlsConfig

from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # isort: skip
from grpc_reflection.v1alpha import reflection  # isort: skip

_IDENTITY_ALONE = 1
"""Bit set of accepted compression algorithms: none, because a compressed message of kilobytes can
expand to gigabytes.
"""


def receive_max_bytes(limits: TransportLimits, conversations: Iterable[Conversation]) -> int:
    """Return the size of the largest message that a server with these conversations accepts."""
    return max(
        (limits.request_max_bytes(one.name) for one in conversations), default=UNARY_MAX_BYTES
    )


def server_options(
    limits: TransportLimits, conversations: Iterable[Conversation]
) -> list[tuple[str, int]]:
    """Return the gRPC options of a server with these conversations."""
    return [
        # Otherwise two nodes could silently share one port.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", limits.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
        ("grpc.http2.max_pings_without_data", 0),
        # Clients choose their own keepalive time; the default would disconnect them for pinging too
        # often.
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_send_message_length", limits.max_message_bytes),
        ("grpc.max_receive_message_length", receive_max_bytes(limits, conversations)),
        # Otherwise a fast sender gets windows of up to 64 MiB, even on calls without a reader.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", STREAM_WINDOW_BYTES),
        ("grpc.server.max_pending_requests_hard_limit", MAX_CALLS_NOT_BEGUN),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ALONE),
        ("grpc.max_allowed_incoming_connections", limits.max_connections),
        ("grpc.max_concurrent_streams", limits.max_streams_per_connection),
        ("grpc.server_handshake_timeout_ms", limits.handshake_timeout_ms),
        ("grpc.max_connection_idle_ms", limits.connection_max_idle_ms),
    ]


def _metadata_options(access: Access) -> list[tuple[str, int]]:
    return [] if access.tokens is None else [("grpc.max_metadata_size", METADATA_MAX_BYTES)]


class NodeHealth(health.aio.HealthServicer):  # type: ignore[misc]
    """The health service. Check and Watch are the library's; ``List`` is in the contract but not in
    the library's servicer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._services = {"": None}

    async def set(self, service: str, status: Any) -> None:
        """Set the status of a service for all methods."""
        self._services[service] = None
        await super().set(service, status)

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802  (the contract's name)
        """Return the status of every service."""
        asked = [(one, health_pb2.HealthCheckRequest(service=one)) for one in self._services]
        return health_pb2.HealthListResponse(
            statuses={service: await self.Check(one, context) for service, one in asked}
        )


class GrpcListener:
    """A bound server and its live links. Created by :func:`open_listener`."""

    def __init__(
        self,
        server: Any,
        address: str,
        health_servicer: Any,
        bounds: Bounds,
        name: str,
        access: Access,
        lanes: LaneListener | None,
    ) -> None:
        self._server = server
        self._lanes = lanes
        self._address = address
        self._name = name
        self._health = health_servicer
        self._bounds = bounds
        self._access = access
        # A dict for its order: links are closed in the order in which they were opened.
        self._links: dict[GrpcLink, None] = {}
        self._closing: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """See ``Listener``."""
        return self._address

    async def set_serving(self, service: str, serving: bool) -> None:
        """Set the health status of a service ("" is the node as a whole). It is SERVING
        initially.
        """
        status = health_pb2.HealthCheckResponse
        await self._health.set(service, status.SERVING if serving else status.NOT_SERVING)

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop listening and close all links; pending unary calls have ``grace_s`` seconds to
        finish. Idempotent.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(grace_s))
        await asyncio.shield(self._closing)

    async def _close(self, grace_s: float) -> None:
        await self._health.enter_graceful_shutdown()
        stopped = asyncio.get_running_loop().create_task(self._server.stop(grace_s))
        for link in list(self._links):
            link.close("the server stops")
        await stopped

    def stream_handler(
        self, conversation: Conversation, acceptor: Acceptor
    ) -> Callable[[Any, Any], Awaitable[None]]:
        """Return the coroutine function that serves one conversation's streams."""
        places = self._bounds.streams[conversation.name]

        async def serve(_: Any, context: Any) -> None:
            peer = peer_address(context)
            if not places.take(peer):
                message = (
                    f"no more {conversation.name} streams are accepted: {places.held(peer)} are"
                    f" open on this connection, {places.total} on all connections"
                )
                await abort(
                    context, self._bounds.throttled(Complaint.TOO_MANY_STREAMS, peer, message)
                )
            try:
                await self._converse(conversation, acceptor, peer, context)
            finally:
                places.give_back(peer)

        return serve

    async def _converse(
        self, conversation: Conversation, acceptor: Acceptor, peer: str, context: Any
    ) -> None:
        try:
            caller = await admit(context, self._access, self._bounds)
        except ApiError as error:
            await abort(context, error)
            return
        with self._bounds.connection(peer, caller.identity) as why_not:
            if why_not is not None:
                await abort(context, why_not)
            await self._run(conversation, acceptor, peer, context, caller)

    async def _run(
        self,
        conversation: Conversation,
        acceptor: Acceptor,
        peer: str,
        context: Any,
        caller: Admitted,
    ) -> None:
        with self._link(conversation, peer, context, caller) as (link, metadata):
            await context.send_initial_metadata(((LINK_METADATA_KEY, "1"), *metadata))
            await self._carry(link, conversation, acceptor, context, caller)

    @contextmanager
    def _link(
        self, conversation: Conversation, peer: str, context: Any, caller: Admitted
    ) -> Iterator[tuple[GrpcLink, LaneMetadata]]:
        """Yield a link, and the lane metadata for its client."""
        asks = conversation in LANED and asks_for_lane(context.invocation_metadata())
        if self._lanes is None or not asks:
            plain = GrpcLink(context, peer, conversation, self._bounds, serves=True)
            plain.identity, plain.listener = caller.identity, self._name
            yield plain, ()
            return
        link = SERVED[conversation](context, peer, conversation, self._bounds)
        link.identity, link.listener = caller.identity, self._name
        with self._lanes.offered(link, conversation) as metadata:
            yield link, metadata

    async def _carry(
        self,
        link: GrpcLink,
        conversation: Conversation,
        acceptor: Acceptor,
        context: Any,
        caller: Admitted,
    ) -> None:
        try:
            handler = acceptor(link)
        except Exception:
            log.exception("an acceptor failed", conversation=conversation.name, peer=link.peer)
            await context.abort(grpc.StatusCode.INTERNAL, "the acceptor failed")
        link.attach(handler.received, handler.closed)
        self._links[link] = None
        expiry = ExpiryTimer(caller, self._access, link.refuse)
        try:
            await link.run()
        finally:
            del self._links[link]
            expiry.cancel()
        if link.refusal is not None:
            context.set_trailing_metadata(refusal_metadata(link.refusal))
            context.set_code(status_of(link.refusal))
            context.set_details(link.close_reason or "")
        # A client that ends its sending side ends the link: pending responses are dropped.
        elif link.close_reason != PEER_ENDED:
            context.set_code(grpc.StatusCode.UNAVAILABLE)
            context.set_details(link.close_reason or "")


async def open_listener(
    address: str,
    acceptors: dict[Conversation, Acceptor],
    *,
    name: str,
    extra_handlers: Sequence[Any],
    bounds: Bounds,
    limits: TransportLimits,
    credentials: Any | None,
    access: Access,
    reflects: bool,
    lanes: LaneListener | None = None,
) -> GrpcListener:
    """Bind and start a listener. ``bounds`` are the node's, ``limits`` this listener's.

    ``lanes``: the lane listener for its clients, or None. Raises ConfigError if the address cannot
    be bound.
    """
    host, port = split_address(address)
    take_all_wakeups(asyncio.get_running_loop())
    server = grpc.aio.server(
        interceptors=(Admission(bounds, access, receive_max_bytes(limits, acceptors)),),
        options=[*server_options(limits, acceptors), *_metadata_options(access)],
    )
    health_servicer = NodeHealth()
    try:
        bound = (
            server.add_insecure_port(address)
            if credentials is None
            else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise ConfigError(
            f"cannot listen on {address}: {_why_not(host, port) or 'gRPC cannot bind it'}"
        ) from error
    shown_host = f"[{host}]" if ":" in host else host
    listener = GrpcListener(
        server, f"{shown_host}:{bound}", health_servicer, bounds, name, access, lanes
    )
    generic = [*_conversation_handlers(listener, acceptors), *extra_handlers]
    server.add_generic_rpc_handlers(tuple(generic))
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    named = [one for one in generic if isinstance(one, grpc.ServiceRpcHandler)]
    services = sorted({one.service_name() for one in named})
    if reflects:
        reflection.enable_server_reflection(
            [*services, health.SERVICE_NAME, reflection.SERVICE_NAME], server
        )
    for service in ["", *services]:
        await listener.set_serving(service, True)
    await server.start()
    return listener


def _conversation_handlers(
    listener: GrpcListener, acceptors: dict[Conversation, Acceptor]
) -> Iterable[Any]:
    for conversation, acceptor in acceptors.items():
        _, service, method = conversation.value.split("/")
        handler = grpc.stream_stream_rpc_method_handler(
            listener.stream_handler(conversation, acceptor)
        )
        yield grpc.method_handlers_generic_handler(service, {method: handler})


def _why_not(host: str, port: int) -> str:
    """Return why an address cannot be bound, which gRPC writes only to its log, or empty if
    it can.
    """
    try:
        with socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        ):
            return ""
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "port in use"
        return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)


class GrpcServerTransport(GrpcTransport):
    """The gRPC implementation of :class:`raftlog.transport.api.ServerTransport`.

    Created and used on one running event loop. ``listeners``: security of each of the node's
    listeners, by name; without it every listener uses ``tls``, or plain text if that is None.
    ``lane_port_offset``: difference between the lane port (lanes.py) and the port of each listener;
    0 for no lanes, so that all messages stay on gRPC. ``asks_for_lanes``: request lanes from the
    dialed servers even without a local lane port.
    """

    def __init__(
        self,
        limits: TransportLimits | None = None,
        *,
        tls: TlsConfig | None = None,
        rng: random.Random | None = None,
        routes: Routes | None = None,
        listeners: Mapping[str, ListenerSecurity] | None = None,
        lane_port_offset: int = 0,
        asks_for_lanes: bool = False,
    ) -> None:
        super().__init__(limits, tls=tls, rng=rng, routes=routes)
        self._lane_port_offset = lane_port_offset
        self._laned = OF_BROKERS if asks_for_lanes else OF_NODES if lane_port_offset else ()
        self._lanes = Lanes(self.bounds)
        self._secured = listeners or {"": ListenerSecurity(tls, reflection=tls is None)}
        for security in self._secured.values():
            # Report unusable files now, not when the node starts to listen.
            security.server_credentials()
        # gRPC counts the connections of each server separately: equal shares keep their sum within
        # the node's limit, and guarantee some connections to each listener.
        share = max(1, self._limits.max_connections // len(self._secured))
        self._listener_limits = replace(self._limits, max_connections=share)
        self._listeners: list[GrpcListener] = []
        self._token_checks: list[TokenCheck] = []

    async def listen(
        self,
        address: str,
        acceptors: dict[Conversation, Acceptor],
        *,
        name: str = "",
        extra_handlers: Sequence[Any] = (),
        access: Access = CERTIFICATES_ALONE,
    ) -> GrpcListener:
        """Serve these conversations, these generic gRPC handlers, health, and reflection if the
        listener has it.

        ``access``: the admitted callers; its token checker is closed with this transport. Raises
        ConfigError.
        """
        # Checked before gRPC tries, which would write to stderr, and before the lanes' port, which
        # the same mistake affects.
        if why := _why_not(*split_address(address)):
            raise ConfigError(f"cannot listen on {address}: {why}")
        security = self._secured[name]
        if access.tokens is not None:
            self._token_checks.append(access.tokens)
            if security.tls is None:
                raise ConfigError(
                    f"listener {name!r} accepts tokens but has no TLS: anyone who reads a token on"
                    " the network could use it"
                )
        credentials = security.server_credentials(require_certificates=access.certificates)
        listener = await open_listener(
            address,
            acceptors,
            name=name,
            extra_handlers=extra_handlers,
            bounds=self.bounds,
            limits=self._listener_limits,
            credentials=credentials,
            access=access,
            reflects=security.reflection,
            lanes=await self._lanes_of(address, acceptors, security, access),
        )
        self._listeners.append(listener)
        return listener

    async def _lanes_of(
        self,
        address: str,
        acceptors: dict[Conversation, Acceptor],
        security: ListenerSecurity,
        access: Access,
    ) -> LaneListener | None:
        """Return the lane listener for a gRPC listener, or None if that serves nothing on lanes."""
        if not self._lane_port_offset or LANED.keys().isdisjoint(acceptors):
            return None
        host, port = split_address(address)
        tls = security.lane_tls(require_certificates=access.certificates)
        # If the listener uses any free port, so do its lanes.
        return await self._lanes.listen(host, port and port + self._lane_port_offset, tls)

    async def _close_listeners(self) -> None:
        self._lanes.close()
        for check in self._token_checks:
            check.close()
        listeners, self._listeners = self._listeners, []
        await asyncio.gather(*(listener.close() for listener in listeners))

"""Two communicating processes, real or simulated, with recording handlers."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import uvloop

from raftlog.transport.api import Conversation, Link, ServerTransport, Transport, TransportLimits
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.transport.tls import TlsConfig
from raftlog.wire.controller.v1 import controller_pb2
from simulation.twins.loop import run as run_virtual
from simulation.twins.network import NetworkParams, SimNetwork

LIMITS = TransportLimits(connect_timeout_ms=10_000)


class Medium:
    """The medium of the present test. ``tls`` None: plain text."""

    tls: TlsConfig | None = None


@dataclass
class World:
    """``bind`` and ``nowhere``: a free port to listen on, and an address where nobody listens."""

    server: ServerTransport
    client: Transport
    bind: str
    nowhere: str


Scenario = Callable[[World], Awaitable[None]]


def run_real(
    scenario: Scenario, limits: TransportLimits = LIMITS, tls: TlsConfig | None = None
) -> None:
    async def main() -> None:
        server, client = GrpcServerTransport(limits, tls=tls), GrpcServerTransport(limits, tls=tls)
        try:
            async with asyncio.timeout(60):
                await scenario(World(server, client, "127.0.0.1:0", "127.0.0.1:1"))
        finally:
            await client.close()
            await server.close()
        # At once but for gRPC's own, which its thread ends a moment later.
        await until(lambda: asyncio.all_tasks() <= {asyncio.current_task()})

    uvloop.run(main())


def run_simulated(scenario: Scenario, limits: TransportLimits = LIMITS) -> None:
    async def main() -> None:
        network = SimNetwork(random.Random(7), NetworkParams(limits=limits))
        server, client = network.transport_for("server"), network.transport_for("client")
        await scenario(World(server, client, "server:0", "server:1"))
        await client.close()
        await server.close()

    run_virtual(main())


@dataclass
class Recorder:
    """A handler of either side; ``on_received`` is called after recording."""

    on_received: Callable[[Link, Sequence[Any]], None] | None = None
    links: list[Link] = field(default_factory=list)
    envelopes: list[list[Any]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def accept(self, link: Link) -> Recorder:
        self.links.append(link)
        return self

    def opened(self, link: Link) -> None:
        self.links.append(link)
        self.events.append("opened")

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        self.envelopes.append(list(messages))
        self.events.append("received")
        if self.on_received is not None:
            self.on_received(link, messages)

    def closed(self, link: Link, reason: str) -> None:
        self.reasons.append(reason)
        self.events.append("closed")

    @property
    def ids(self) -> list[int]:
        return [message.correlation_id for envelope in self.envelopes for message in envelope]


def echo(link: Link, messages: Sequence[Any]) -> None:
    for message in messages:
        link.send(controller_pb2.ControllerResponse(correlation_id=message.correlation_id))


def request(correlation_id: int = 0) -> controller_pb2.ControllerRequest:
    return controller_pb2.ControllerRequest(correlation_id=correlation_id)


def still_open(connections: Sequence[socket.socket]) -> list[socket.socket]:
    """Return the connections that the server, which sends its settings at once, has not closed."""
    found = []
    for one in connections:
        one.setblocking(False)
        with suppress(ConnectionError):
            try:
                while one.recv(4096):
                    pass
            except BlockingIOError:
                found.append(one)
    return found


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait for a condition, on the loop's clock."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)


async def connect(world: World, server: Recorder, client: Recorder) -> tuple[Any, Any]:
    """A listener and an open dialer for the controller's conversation."""
    listener = await world.server.listen(world.bind, {Conversation.CONTROLLER: server.accept})
    dialer = world.client.dial(listener.address, Conversation.CONTROLLER, client)
    # The server has sent its metadata, which opens the client's link, before it accepts its own.
    await until(lambda: client.links and server.links)
    return listener, dialer


async def connected(
    world: World, on_received: Callable[[Link, Sequence[Any]], None] | None = None
) -> tuple[Recorder, Recorder]:
    """Return the recorders of a server, with this callback, and of its connected client."""
    server, client = Recorder(on_received), Recorder()
    await connect(world, server, client)
    return server, client

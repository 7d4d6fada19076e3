"""Scripted servers on a simulated network."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ErrorCode
from raftlog.transport.api import Conversation, Link
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2
from simulation.round_robin import RoundRobinClient
from simulation.twins.loop import run
from simulation.twins.network import SimNetwork

Answer = Callable[[Any], Any]
"""Request -> response without its correlation id; None: no answer."""


class Server:
    def __init__(
        self, network: SimNetwork, host: str, conversation: Conversation, answer: Answer
    ) -> None:
        self.network, self.host, self.conversation, self.answer = (
            network,
            host,
            conversation,
            answer,
        )
        self.address = f"{host}:1"
        self.asked: list[Any] = []
        self.links: list[Link] = []

    async def start(self) -> Server:
        transport = self.network.transport_for(self.host)
        await transport.listen(self.address, {self.conversation: lambda link: self})
        return self

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        if link not in self.links:
            self.links.append(link)
        for request in messages:
            self.asked.append(request)
            response = self.answer(request)
            if response is not None:
                response.correlation_id = request.correlation_id
                link.send(response)

    def closed(self, link: Link, reason: str) -> None:
        pass

    def hang_up(self) -> None:
        for link in self.links:
            link.close("test")


class World:
    def __init__(self) -> None:
        self.network = SimNetwork(random.Random(5))
        self.transport = self.network.transport_for("client")
        self.loop: Any = asyncio.get_running_loop()
        self.clients: list[ControllerClient | BrokerClient] = []

    async def controller(self, host: str, answer: Answer) -> Server:
        return await Server(self.network, host, Conversation.CONTROLLER, answer).start()

    async def broker(self, host: str, answer: Answer) -> Server:
        return await Server(self.network, host, Conversation.BROKER, answer).start()

    async def at_controllers(self, known: str = "", **answers: Answer) -> tuple[Any, ...]:
        """Return a client and its servers; ``known``: hosts that it is configured with, if not all."""
        servers = [await self.controller(host, answer) for host, answer in answers.items()]
        return self.controller_client(*(known.split() or answers)), *servers

    async def at_brokers(self, known: str = "", **answers: Answer) -> tuple[Any, ...]:
        servers = [await self.broker(host, answer) for host, answer in answers.items()]
        return self.broker_client(*(known.split() or answers)), *servers

    def controller_client(self, *hosts: str, **kwargs: Any) -> ControllerClient:
        client = ControllerClient(
            self.transport, [f"{host}:1" for host in hosts], rng=random.Random(1), **kwargs
        )
        self.clients.append(client)
        return client

    def broker_client(self, *hosts: str, round_robin: bool = False, **kwargs: Any) -> BrokerClient:
        client = (RoundRobinClient if round_robin else BrokerClient)(
            self.transport, [f"{host}:1" for host in hosts], rng=random.Random(1), **kwargs
        )
        self.clients.append(client)
        return client


def simulate(test: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        await test(world)
        for client in world.clients:
            client.close()
        assert world.network.handler_failures == []

    run(main())


def leader(request: controller_pb2.ControllerRequest) -> controller_pb2.ControllerResponse:
    return controller_pb2.ControllerResponse(
        leader_id=1,
        create_topics=controller_pb2.CreateTopicsResponse(),
        write=common_pb2.WriteResult(token=common_pb2.MetadataToken(epoch=1, offset=40)),
    )


def silent(request: Any) -> None:
    return None


def not_controller(host: str = "", *, unknown: bool = False) -> Answer:
    def answer(request: controller_pb2.ControllerRequest) -> controller_pb2.ControllerResponse:
        return controller_pb2.ControllerResponse(
            error=common_pb2.Error(
                error_code=ErrorCode.NOT_CONTROLLER, error_message="not me", outcome_unknown=unknown
            ),
            leader_id=1 if host else -1,
            leader_endpoint=f"{host}:1" if host else "",
        )

    return answer


def refuses(code: ErrorCode, *, field: str = "", unknown: bool = False) -> Answer:
    error = common_pb2.Error(
        error_code=code, error_message="no", field=field, outcome_unknown=unknown
    )

    def answer(request: Any) -> Any:
        if isinstance(request, broker_pb2.BrokerRequest):
            return broker_pb2.BrokerResponse(error=error)
        return controller_pb2.ControllerResponse(error=error)

    return answer


def create(name: str = "t") -> controller_pb2.CreateTopicsRequest:
    return controller_pb2.CreateTopicsRequest(topics=[controller_pb2.CreatableTopic(name=name)])

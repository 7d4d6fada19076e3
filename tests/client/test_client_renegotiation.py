"""A client learns of newer features, and finishes what is under way."""

from __future__ import annotations

import asyncio
from typing import Any

from client_world import Server, World, create, leader, simulate
from scenarios import scenario

from raftlog.client.broker_client import BrokerClient
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2


def offer(version: int, epoch: int) -> pb.ApiVersionsResponse:
    keys = [pb.ApiVersion(api_key=1, name="Fetch", max_version=version)]
    return pb.ApiVersionsResponse(api_keys=keys, finalized_features_epoch=epoch)


async def offered(client: BrokerClient) -> int:
    """The highest version of Fetch, as the client knows it."""
    (fetch,) = (await client.api_versions()).api_keys
    return fetch.max_version


class Broker:
    """Answers reads at once, and writes when the test releases them."""

    def __init__(self) -> None:
        self.offered = offer(0, 5)
        self.held: list[tuple[Any, pb.BrokerResponse]] = []
        self.server: Server
        self.hold = False

    async def start(self, world: World, host: str) -> Broker:
        self.server = await world.broker(host, self.answer)
        return self

    def answer(self, request: pb.BrokerRequest) -> pb.BrokerResponse | None:
        if request.HasField("api_versions"):
            return pb.BrokerResponse(api_versions=self.offered)
        if request.HasField("write"):
            response = pb.BrokerResponse(
                write=leader(request.write), correlation_id=request.correlation_id
            )
            if self.hold:
                self.held.append((self.server.links[-1], response))
                return None
            return response
        return pb.BrokerResponse(
            token=common_pb2.MetadataToken(epoch=1, offset=1), metadata=pb.MetadataResponse()
        )

    def tell(self, offered: pb.ApiVersionsResponse) -> None:
        self.offered = offered
        for link in self.server.links:
            link.send(pb.BrokerResponse(api_versions=offered))

    def let_go(self) -> None:
        for link, response in self.held:
            link.send(response)


@scenario(simulate)
async def test_calls_in_flight_finish_on_the_old_connection_and_new_ones_use_a_new_one(
    world: World,
) -> None:
    broker = await Broker().start(world, "a")
    client = world.broker_client("a")
    assert await offered(client) == 0
    broker.hold = True
    write = asyncio.ensure_future(client.write(create(), timeout_s=5))
    await asyncio.sleep(0.1)
    assert len(broker.server.links) == 1
    broker.tell(offer(1, 9))
    await asyncio.sleep(0.1)
    assert await offered(client) == 1
    await client.read(pb.MetadataRequest(), timeout_s=1)
    assert len(broker.server.links) == 2, "a new connection"
    assert not write.done()
    broker.let_go()
    await write
    await asyncio.sleep(0.1)
    assert len(world.network._connections) == 1, "the old one is closed when all is answered there"


@scenario(simulate)
async def test_newest_response_decides_whichever_broker_sent_it(world: World) -> None:
    a, b = await Broker().start(world, "a"), await Broker().start(world, "b")
    client = world.broker_client("a", "b", round_robin=True)
    await client.api_versions()
    for _ in range(4):
        await client.read(pb.MetadataRequest())
    a.tell(offer(1, 9))
    await asyncio.sleep(0.1)
    b.tell(offer(0, 7))
    await asyncio.sleep(0.1)
    assert await offered(client) == 1


@scenario(simulate)
async def test_client_renegotiates_on_its_next_connection(world: World) -> None:
    broker = await Broker().start(world, "a")
    client = world.broker_client("a")
    assert await offered(client) == 0
    broker.offered = offer(1, 9)
    broker.server.hang_up()
    await asyncio.sleep(1)
    await client.read(pb.MetadataRequest())
    await asyncio.sleep(0.1)
    assert await offered(client) == 1

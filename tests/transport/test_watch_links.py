"""The conversation of watches: one request, and responses for as long as the client stays."""

from __future__ import annotations

import asyncio

from scenarios import scenario
from transport_worlds import Recorder, World, run_real, run_simulated, until

from raftlog.transport.api import Conversation
from raftlog.transport.conversations import Encoded
from raftlog.wire.broker.v1 import broker_pb2 as pb

import grpc  # isort: skip
import grpc.aio  # isort: skip


def response(offset: int) -> pb.WatchResponse:
    return pb.WatchResponse(token=pb.WatchToken(offset=offset))


@scenario(run_real)
async def test_a_client_of_grpc_alone_says_all_and_ends_its_side(world: World) -> None:
    server = Recorder()
    listener = await world.server.listen(world.bind, {Conversation.WATCH: server.accept})
    async with grpc.aio.insecure_channel(listener.address) as channel:
        watch = channel.unary_stream(
            Conversation.WATCH.value,
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )
        call = watch(pb.WatchRequest(selectors=["topics"]))
        await until(lambda: server.envelopes)
        assert server.envelopes == [[pb.WatchRequest(selectors=["topics"])]]
        # It has ended its side by now, and goes on to read.
        await asyncio.sleep(0.05)
        assert server.reasons == []
        server.links[0].send(response(1))
        assert await call.read() == response(1)
        server.links[0].send(Encoded(response(2).SerializeToString()))
        assert await call.read() == response(2)
        call.cancel()
        await until(lambda: server.reasons)
    await listener.close()


def test_bytes_that_are_made_already_arrive_as_the_message() -> None:
    async def scenario(world: World) -> None:
        server, client = Recorder(), Recorder()
        listener = await world.server.listen(world.bind, {Conversation.WATCH: server.accept})
        dialer = world.client.dial(listener.address, Conversation.WATCH, client)
        await until(lambda: client.links and server.links)
        client.links[0].send(pb.WatchRequest())
        await until(lambda: server.envelopes)
        link = server.links[0]
        for offset in range(3):
            link.send(Encoded(response(offset).SerializeToString()))
        assert link.unsent_bytes > 0  # type: ignore[attr-defined]
        await until(lambda: len(client.envelopes) == 3)
        assert client.envelopes == [[response(offset)] for offset in range(3)]
        await until(lambda: link.unsent_bytes == 0)  # type: ignore[attr-defined]
        dialer.close()
        await until(lambda: server.reasons)
        await listener.close()

    run_real(scenario)
    run_simulated(scenario)

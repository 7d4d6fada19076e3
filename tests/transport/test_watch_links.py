"""The conversation of watches: one request, and responses for as long as the client stays."""

from __future__ import annotations

import asyncio

from transport_worlds import Recorder, World, run_real, run_simulated, until

from raftlog.transport.api import Conversation
from raftlog.transport.conversations import Encoded
from raftlog.transport.shared_channels import SharedChannels
from raftlog.wire.broker.v1 import broker_pb2 as pb

import grpc  # isort: skip
import grpc.aio  # isort: skip


def response(offset: int) -> pb.WatchResponse:
    return pb.WatchResponse(token=pb.WatchToken(offset=offset))


def test_a_client_of_grpc_alone_says_all_and_ends_its_side() -> None:
    async def scenario(world: World) -> None:
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

    run_real(scenario)


def test_watches_share_connections_and_a_lost_one_is_not_used_again() -> None:
    async def scenario(world: World) -> None:
        server = Recorder()
        listener = await world.server.listen(world.bind, {Conversation.WATCH: server.accept})
        clients = [Recorder() for _ in range(150)]
        dialers = [
            world.client.dial(listener.address, Conversation.WATCH, client) for client in clients
        ]
        await until(lambda: all(client.links for client in clients))
        peers = [link.peer for link in server.links]
        assert sorted(map(peers.count, set(peers))) == [50, 100]
        # One that ends leaves the others, and its place, on the connection.
        dialers[0].close()
        await until(lambda: len(server.reasons) == 1)
        another = Recorder()
        dialers.append(world.client.dial(listener.address, Conversation.WATCH, another))
        await until(lambda: another.links)
        assert {link.peer for link in server.links} == set(peers)
        assert not any(client.reasons for client in clients[1:])
        # A server that is lost: all come back to the next one, on new connections.
        address = listener.address
        await listener.close()
        await until(lambda: all(client.reasons for client in (*clients, another)))
        again = Recorder()
        second = await world.server.listen(address, {Conversation.WATCH: again.accept})
        await until(lambda: len(again.links) == 150)
        assert len({link.peer for link in again.links}) == 2
        for dialer in dialers:
            dialer.close()
        await until(lambda: len(again.reasons) == 150)
        await second.close()

    run_real(scenario)


class Channel:
    def __init__(self) -> None:
        self.closed = False

    async def close(self) -> None:
        self.closed = True


async def test_a_channel_that_has_failed_is_given_to_nobody_else() -> None:
    """[Its peer hangs: whoever is given it waits in vain, until the last of those that have it has
    noticed.]
    """
    channels = SharedChannels()
    first, second = (channels.take("a:1", Channel) for _ in range(2))
    assert first is second
    assert channels.take("b:1", Channel) is not first
    await channels.give_back(first, failed=True)
    another = channels.take("a:1", Channel)
    assert another is not second
    assert not second.channel.closed
    await channels.give_back(second, failed=True)
    assert second.channel.closed
    await channels.give_back(another, failed=False)
    assert another.channel.closed
    assert channels.take("a:1", Channel) is not another


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

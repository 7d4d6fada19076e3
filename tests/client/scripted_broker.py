"""A broker that accepts every write unless the test says otherwise. As a program it listens on a
real socket, prints its address, and ends with its stdin.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from client_world import Server, World, refuses, simulate

import raftlog
from raftlog.errors import ErrorCode
from raftlog.transport.api import Conversation, Link, Transport
from raftlog.transport.grpc_server import GrpcServerTransport
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as rpc


class Scripted:
    """A broker that accepts every write, unless a test sets another answer."""

    server: Server

    def __init__(self) -> None:
        self.writes: list[rpc.ControllerRequest] = []
        self.reads: list[pb.BrokerRequest] = []
        self.body: dict[str, Any] = {}
        self.reached = common_pb2.ACKS_VISIBLE
        self.opening: ErrorCode = ErrorCode.NONE
        self.refusals: list[ErrorCode] = []
        self.throttle_time_ms = 0
        self.offset = 40

    def __call__(self, request: pb.BrokerRequest) -> pb.BrokerResponse | None:
        if not request.HasField("write"):
            return self.read(request)
        write = request.write
        if write.HasField("open_client"):
            if self.opening:
                return pb.BrokerResponse(write=refuses(self.opening)(write))
            opened = rpc.OpenClientResponse(client_id=7)
            return pb.BrokerResponse(
                write=rpc.ControllerResponse(open_client=opened, write=self.result())
            )
        if write.HasField("close_client"):
            return pb.BrokerResponse(write=rpc.ControllerResponse(write=self.result()))
        copy = rpc.ControllerRequest()
        copy.CopyFrom(write)
        self.writes.append(copy)
        response = rpc.ControllerResponse(**self.body)
        if not getattr(getattr(write, str(write.WhichOneof("body"))), "validate_only", False):
            response.write.CopyFrom(self.result())
        return pb.BrokerResponse(write=response)

    def reply(self, request: pb.BrokerRequest) -> None:
        """Answer a request that a test has held back."""
        response = self(request)
        assert response is not None
        response.correlation_id = request.correlation_id
        self.server.links[0].send(response)

    def read(self, request: pb.BrokerRequest) -> pb.BrokerResponse:
        if request.metadata.cursor == "~":
            return pb.BrokerResponse(metadata=pb.MetadataResponse())  # It learns the brokers.
        copy = pb.BrokerRequest()
        copy.CopyFrom(request)
        self.reads.append(copy)
        if self.refusals:
            code = self.refusals.pop(0)
            error = common_pb2.Error(error_code=code, throttle_time_ms=self.throttle_time_ms)
            return pb.BrokerResponse(error=error)
        token = common_pb2.MetadataToken(epoch=1, offset=self.offset)
        topic = pb.MetadataTopic(name="t", topic_id=b"\1" * 16)
        topic.partitions.add(partition_index=0, leader_id=-1, replica_nodes=[4, 5])
        return pb.BrokerResponse(token=token, metadata=pb.MetadataResponse(topics=[topic]))

    def result(self) -> common_pb2.WriteResult:
        self.offset += 1
        return common_pb2.WriteResult(
            token=common_pb2.MetadataToken(epoch=1, offset=self.offset),
            reached=self.reached,
            waiting_for_brokers=[3],
        )


class SimClient(raftlog.AsyncClient):
    """A client on the network of a test."""

    world: World

    def _transport(self) -> Transport:
        return self.world.transport


def client_of(world: World, **options: Any) -> SimClient:
    client = SimClient("a:1", **options)
    client.world = world
    return client


def with_client(test: Any, make: Callable[[], Any] = Scripted, **options: Any) -> None:
    """Run a test with a client of one broker on a simulated network."""

    async def in_world(world: World) -> None:
        broker = make()
        broker.server = await world.broker("a", broker)
        async with client_of(world, **options) as client:
            await test(client, broker)

    simulate(in_world)


class Listening:
    """The handler of its links. Topic ``exists`` exists; ``slow`` is never answered."""

    def __init__(self) -> None:
        self.broker = Scripted()

    def received(self, link: Link, messages: Sequence[pb.BrokerRequest]) -> None:
        for request in messages:
            topics = [one.name for one in request.write.create_topics.topics]
            topics += request.metadata.topics
            if "slow" in topics:
                continue
            taken = ErrorCode.TOPIC_ALREADY_EXISTS if "exists" in topics else ErrorCode.NONE
            error = common_pb2.Error(error_code=taken, error_message="it exists") if taken else None
            result = rpc.CreatableTopicResult(name="t", error=error)
            self.broker.body = {"create_topics": rpc.CreateTopicsResponse(topics=[result])}
            response = self.broker(request)
            assert response is not None
            response.correlation_id = request.correlation_id
            link.send(response)

    def closed(self, link: Link, reason: str) -> None:
        pass


async def serve() -> None:
    transport = GrpcServerTransport()
    listener = await transport.listen(
        "127.0.0.1:0", {Conversation.BROKER: lambda link: Listening()}
    )
    print(listener.address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await transport.close()


@contextmanager
def listening() -> Iterator[str]:
    """Return the address of a listening one."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            assert process.stdin is not None
            process.stdin.close()


if __name__ == "__main__":
    asyncio.run(serve())

"""Fake brokers with partitions in memory, which refuse requests as the test orders."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from raftlog import batch
from raftlog.client.consumer import Consumer, ConsumerSettings
from raftlog.client.producer import Producer, ProducerSettings
from raftlog.errors import ErrorCode
from raftlog.transport.api import Conversation, Link
from raftlog.wire.broker.v1 import broker_pb2 as pb
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.data.v1 import data_pb2
from simulation.twins.loop import run
from simulation.twins.network import SimNetwork

TOPIC_ID = bytes(15) + b"\x01"
TOPIC = "orders"


C = TypeVar("C", Producer, Consumer)


class Log:
    """One partition: its records, leader and epoch."""

    def __init__(self, leader: int) -> None:
        self.leader, self.epoch = leader, 1
        self.chunks: list[bytes] = []
        self.end = 0
        self.high_watermark: int | None = None

    def append(self, records: Sequence[bytes]) -> int:
        base = self.end
        self.chunks.append(
            batch.encode(
                [(1, 0, one) for one in records], base_offset=base, epoch=self.epoch, timestamp_ms=0
            )
        )
        self.end += len(records)
        return base

    @property
    def committed(self) -> int:
        return self.end if self.high_watermark is None else self.high_watermark

    def read(self, offset: int) -> bytes:
        found = [
            c
            for c in self.chunks
            for h in batch.headers(c)
            if h.end_offset > offset and h.end_offset <= self.committed
        ]
        return b"".join(found)

    def values(self) -> list[bytes]:
        return [
            data_pb2.DataRecord.FromString(record.body).value
            for chunk in self.chunks
            for header in batch.headers(chunk)
            for record in batch.records(chunk, header)
        ]


class DataBroker:
    """One broker.

    ``refuse``: (partition -> result error) of the next produces; ``mute``: requests are executed,
    not answered.
    """

    def __init__(self, world: DataWorld, broker_id: int) -> None:
        self.world, self.id, self.host = world, broker_id, f"b{broker_id}"
        self.asked: list[pb.BrokerRequest] = []
        self.links: list[Link] = []
        self.refuse: list[tuple[ErrorCode, bool]] = []
        self.message = ""
        """Message of the refusals of produces."""
        self.fenced = self.mute = self.deaf = False
        self.throttle: dict[str, list[int]] = {}
        """Values of throttle_time_ms for the next refusals, by body of a request."""

    async def start(self) -> None:
        await self.world.network.transport_for(self.host).listen(
            f"{self.host}:1", {Conversation.BROKER: self.accept}
        )

    def accept(self, link: Link) -> DataBroker:
        self.links.append(link)
        return self

    def closed(self, link: Link, reason: str) -> None:
        pass

    def received(self, link: Link, messages: Sequence[pb.BrokerRequest]) -> None:
        for request in messages:
            self.asked.append(request)
            if self.deaf:
                continue
            response = self.answer(request)
            response.correlation_id = request.correlation_id
            if not self.mute:
                link.send(response)

    def answer(self, request: pb.BrokerRequest) -> pb.BrokerResponse:
        body = request.WhichOneof("body")
        if self.throttle.get(body):
            wait_ms = self.throttle[body].pop(0)
            code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            return pb.BrokerResponse(
                error=common_pb2.Error(error_code=code, throttle_time_ms=wait_ms)
            )
        if body == "metadata":
            token = common_pb2.MetadataToken(generation=0, epoch=1, offset=self.world.offset)
            return pb.BrokerResponse(token=token, metadata=self.world.metadata(request.metadata))
        if self.fenced:
            return pb.BrokerResponse(error=common_pb2.Error(error_code=ErrorCode.BROKER_FENCED))
        return pb.BrokerResponse(**{body: getattr(self, body)(getattr(request, body))})

    def refusal(self, asked: Any) -> tuple[ErrorCode, bool]:
        log = self.world.logs.get(asked.partition_index)
        if asked.topic_id != self.world.topic_id or log is None:
            return ErrorCode.UNKNOWN_TOPIC_ID, False
        if log.leader != self.id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, False
        if asked.current_leader_epoch < log.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH, False
        return ErrorCode.NONE, False

    def result(self, type_: Any, asked: Any, code: ErrorCode, **fields: Any) -> Any:
        key = {"topic_id": asked.topic_id, "partition_index": asked.partition_index}
        result = type_(**key, error_code=code, **fields)
        log = self.world.logs.get(asked.partition_index)
        if code and self.world.names_leaders and log is not None:
            result.current_leader.leader_id = log.leader
            result.current_leader.leader_epoch = log.epoch
        return result

    def produce(self, request: data_pb2.ProduceRequest) -> data_pb2.ProduceResponse:
        results = []
        for asked in request.partitions:
            code, unknown = self.refusal(asked)
            if not code and self.refuse:
                code, unknown = self.refuse.pop(0)
            base = -1
            if not code or unknown:
                base = self.world.logs[asked.partition_index].append(asked.records)
            fields: dict[str, Any] = {}
            if code:
                fields = {"error_message": self.message, "outcome_unknown": unknown}
            fields["base_offset"] = -1 if code else base
            results.append(self.result(data_pb2.ProducePartitionResult, asked, code, **fields))
        return data_pb2.ProduceResponse(partitions=results)

    def fetch(self, request: data_pb2.FetchRequest) -> data_pb2.FetchResponse:
        results = []
        for asked in request.partitions:
            log = self.world.logs.get(asked.partition_index)
            code, _ = self.refusal(asked)
            fields: dict[str, Any] = {}
            if log is not None and not code:
                if asked.fetch_offset > log.end:
                    code = ErrorCode.OFFSET_OUT_OF_RANGE
                else:
                    records = log.read(asked.fetch_offset)
                    fields = {"high_watermark": log.committed, "records": records}
            results.append(self.result(data_pb2.FetchPartitionResult, asked, code, **fields))
        return data_pb2.FetchResponse(partitions=results)

    def list_offsets(self, request: data_pb2.ListOffsetsRequest) -> data_pb2.ListOffsetsResponse:
        results = []
        for asked in request.partitions:
            code, _ = self.refusal(asked)
            log = self.world.logs[asked.partition_index]
            offset = log.committed if asked.timestamp == -1 else 0
            results.append(
                self.result(data_pb2.ListOffsetsPartitionResult, asked, code, offset=offset)
            )
        return data_pb2.ListOffsetsResponse(partitions=results)


class DataWorld:
    def __init__(self) -> None:
        self.network = SimNetwork(random.Random(5))
        self.transport = self.network.transport_for("client")
        self.loop = asyncio.get_running_loop()
        self.brokers: dict[int, DataBroker] = {}
        self.logs: dict[int, Log] = {}
        self.topic_id, self.topic = TOPIC_ID, TOPIC
        self.offset = 10
        self.names_leaders = True
        self.clients: list[Producer | Consumer] = []
        self.stale: dict[int, tuple[int, int]] = {}

    async def start(self, leaders: Sequence[int], brokers: int = 3) -> None:
        for broker_id in range(1, brokers + 1):
            self.brokers[broker_id] = DataBroker(self, broker_id)
            await self.brokers[broker_id].start()
        self.logs = {index: Log(leader) for index, leader in enumerate(leaders)}

    def elect(self, index: int, leader: int, *, told: bool = True) -> None:
        """``told``: whether brokers' metadata shows the new leader at once."""
        log = self.logs[index]
        if not told:
            self.stale.setdefault(index, (log.leader, log.epoch))
        log.leader, log.epoch = leader, log.epoch + 1

    def metadata(self, request: pb.MetadataRequest) -> pb.MetadataResponse:
        response = pb.MetadataResponse()
        for one in self.brokers.values():
            if not one.fenced:
                response.brokers.add(node_id=one.id, host=one.host, port=1)
        for name in request.topics:
            topic = response.topics.add(name=name)
            if name != self.topic:
                topic.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            topic.topic_id = self.topic_id
            for index, log in self.logs.items():
                leader, epoch = self.stale.get(index, (log.leader, log.epoch))
                topic.partitions.add(partition_index=index, leader_id=leader, leader_epoch=epoch)
        return response

    def producer(self, *bootstrap: int, **settings: Any) -> Producer:
        return self._made(Producer, ProducerSettings(**settings), bootstrap)

    def consumer(self, *bootstrap: int, **settings: Any) -> Consumer:
        return self._made(Consumer, ConsumerSettings(**settings), bootstrap)

    def _made(self, kind: Callable[..., C], settings: Any, bootstrap: Sequence[int]) -> C:
        """Return a client that is closed at the end."""
        addresses = [f"b{one}:1" for one in bootstrap or (1,)]
        made = kind(self.transport, addresses, rng=random.Random(1), settings=settings)
        self.clients.append(made)
        return made

    def requests(self, broker_id: int, body: str) -> list[Any]:
        return [getattr(one, body) for one in self.brokers[broker_id].asked if one.HasField(body)]


def simulate_data(
    test: Callable[[DataWorld], Awaitable[None]], leaders: Sequence[int] = (1,)
) -> None:
    async def main() -> None:
        world = DataWorld()
        await world.start(leaders)
        await test(world)
        for client in world.clients:
            client.close()
        assert world.network.handler_failures == []

    run(main())

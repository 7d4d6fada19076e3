"""A data plane on a simulated disk and network, with scripted replicas."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from broker.partition import events as ev
from broker.replication.data_plane import DataPlane
from broker.settings import ReplicationSettings
from raftlog import batch
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import FatalError
from raftlog.node.storage.partition_api import PartitionKey, RecoveredPartition
from raftlog.transport.api import Conversation, Link
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.data.v1 import data_pb2 as pb
from simulation.twins.loop import run
from simulation.twins.network import SimNetwork
from simulation.twins.partition_disk import SimPartitionDisk

KEY: PartitionKey = (bytes(15) + b"\x01", 0)


def chunk(base: int, *values: bytes) -> bytes:
    records = [(1, 0, pb.DataRecord(value=value).SerializeToString()) for value in values]
    return batch.encode(records, base_offset=base, epoch=1, timestamp_ms=0)


class Script:
    """Replicas that answer each type of event with scripted effects."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.on: dict[type[Any], Callable[[Any], Iterable[ev.Effect]]] = {}
        self.deadline = float("inf")
        self.found: Sequence[RecoveredPartition] = ()

    def step(self, event: ev.Event, now: float) -> list[ev.Effect]:
        self.events.append(event)
        return list(self.on[type(event)](event)) if type(event) in self.on else []

    def next_deadline(self) -> float:
        return self.deadline

    def of(self, type_: type[Any]) -> list[Any]:
        return [event for event in self.events if type(event) is type_]

    def list_offsets(self, request: pb.ListOffsetsRequest, now: float) -> pb.ListOffsetsResponse:
        return pb.ListOffsetsResponse(partitions=[pb.ListOffsetsPartitionResult(offset=7)])

    def describe_led(
        self, request: pb.BrokerMetadataRequest, now: float
    ) -> pb.BrokerMetadataResponse:
        return pb.BrokerMetadataResponse(broker_id=1)

    def counters(self) -> dict[str, int]:
        return {"PartitionCount": 1}

    def end_offset(self, key: PartitionKey) -> int:
        return -1

    def keys(self) -> Iterable[PartitionKey]:
        return ()


class Peer:
    """The other side of a link: records what it receives, and sends scripted responses."""

    def __init__(self, answer: Callable[[Any], Any] | None = None) -> None:
        self.heard: list[Any] = []
        self.links: list[Link] = []
        self.lost: list[str] = []
        self.answer = answer

    def accept(self, link: Link) -> Peer:
        self.links.append(link)
        return self

    def opened(self, link: Link) -> None:
        self.links.append(link)

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        for message in messages:
            self.heard.append(message)
            if self.answer is not None:
                response = self.answer(message)
                response.correlation_id = message.correlation_id
                link.send(response)

    def closed(self, link: Link, reason: str) -> None:
        self.lost.append(reason)


class PlaneWorld:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.network = SimNetwork(random.Random(3))
        self.transport = self.network.transport_for("b1")
        self.disk = SimPartitionDisk("dir-1", random.Random(4), latency_s=(0.01, 0.01))
        self.store = self.disk.open()
        self.script = Script()
        self.failures: list[FatalError] = []
        self.disk_hangs: list[int] = []
        """Durations in milliseconds that the plane reported of its disk, 0 when it was back."""
        self.broker_status = ev.BrokerStatusChanged(5, 100.0)
        self.controller = Peer()
        self.plane: DataPlane

    async def start(self, **settings: Any) -> None:
        await self.network.transport_for("c1").listen(
            "c1:1", {Conversation.CONTROLLER: self.controller.accept}
        )
        self.plane = self.unrecovered(**settings)
        self.plane.recover()
        await self.transport.listen("b1:1", {Conversation.REPLICA_FETCH: self.plane.accept})

    def unrecovered(self, **settings: Any) -> DataPlane:
        """The broker's data plane before it has recovered its store."""

        def make(found: Sequence[RecoveredPartition], now: float) -> Any:
            self.script.found = found
            return self.script

        return DataPlane(
            ReplicationSettings(**settings),
            self.transport,
            self.store,
            ControllerClient(self.transport, ["c1:1"], rng=random.Random(1)),
            cluster_id="c",
            make_replicas=make,
            broker_status=lambda: self.broker_status,
            time_ms=lambda: 1234,
            failed=self.failures.append,
            disk_changed=lambda: self.disk_hangs.append(self.plane.disk_hangs_ms),
        )

    def ask(self, **body: Any) -> list[dict[str, Any]]:
        """Send one request; return the future of its response."""
        answers: list[dict[str, Any]] = []
        self.plane.request(
            broker_pb2.BrokerRequest(**body), lambda **fields: answers.append(fields)
        )
        return answers

    def durable(self) -> int:
        """Return the end offset of the test's replica on disk after a power failure."""
        chunks = self.disk.durable.get(KEY)
        return (
            0
            if chunks is None
            else sum(h.record_count for one in chunks.chunks for h in batch.headers(one))
        )

    async def until(self, condition: Callable[[], object], within_s: float = 10.0) -> None:
        deadline = self.loop.time() + within_s
        while not condition():
            assert self.loop.time() < deadline, "it never happened"
            await asyncio.sleep(0.001)


def on_plane(test: Callable[[PlaneWorld], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        world = PlaneWorld()
        await world.start(**settings)
        await test(world)
        world.plane.close()
        await asyncio.sleep(0)

    run(main())

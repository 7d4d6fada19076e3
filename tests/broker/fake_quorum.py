"""Fake controllers on a simulated network: one shared log whose records are committed at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from broker_log import LogMaker

from broker.service.service import BrokerService
from broker.settings import BrokerSettings, LifecycleSettings
from raftlog.client.broker_client import BrokerClient
from raftlog.errors import ErrorCode
from raftlog.metadata.entities import Process
from raftlog.transport.api import Acceptor, Conversation, Link
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.twins.loop import run
from simulation.twins.network import SimNetwork

CLUSTER = "c-1"
HOSTS = ("c1", "c2", "c3")
FENCED_SOON = LifecycleSettings(
    heartbeat_interval_ms=100, session_timeout_ms=600, fencing_timeout_ms=900
)


class Quorum:
    """The log, its leader, and brokers' reports. ``hold_lao``: only the test moves LAO."""

    def __init__(self, network: SimNetwork) -> None:
        self.network = network
        self.log = LogMaker()
        self.leader: str | None = None
        self.generation = 1
        self.previous_generations: tuple[int, ...] = ()
        self.lao = -1
        self.hold_lao = False
        self.read_lease_ms = 6_000
        self.registration_says_ms = self.heartbeats_say_ms = (
            0  # The controllers' session timeout; 0: not known.
        )
        self.records_max: int | None = None  # In an answer.
        self.fetches: list[pb.MetadataFetchRequest] = []
        self.stale: set[int] = set()
        self.deaf_to_heartbeats = False
        self.heartbeat_delay_s = 0.0  # Of answers.
        # The epoch and generation of answers to heartbeats, if not the real ones.
        self.heartbeat_epoch: int | None = None
        self.heartbeat_generation: int | None = None
        self.applied: dict[int, int] = {}
        self.known_lao: dict[int, int] = {}
        self.registrations: list[pb.RegisterBrokerRequest] = []
        self.heartbeats: list[pb.BrokerHeartbeatRequest] = []
        self.writes: list[pb.ControllerRequest] = []
        self.parked: dict[Link, pb.MetadataFetchRequest] = {}
        self.links: dict[str, list[Link]] = {host: [] for host in HOSTS}

    async def start(self) -> Quorum:
        for host in HOSTS:
            await self.up(host)
        self.elect("c1")
        return self

    async def up(self, host: str) -> None:
        node = Node(self, host)
        acceptors: dict[Conversation, Acceptor] = {
            Conversation.CONTROLLER: node.accept,
            Conversation.OBSERVER: node.accept,
        }
        await self.network.transport_for(host).listen(f"{host}:1", acceptors)

    def elect(self, host: str | None) -> None:
        self.leader = host
        if host is not None:
            self.log.epoch += 1
            self.lao = -1
            self.applied.clear()
            self.known_lao.clear()
            self.log.leader(HOSTS.index(host) + 1)
        self.release()

    def restore(self) -> None:
        """Begin another generation with an empty log, as a recovery does."""
        epoch, self.log = self.log.epoch, LogMaker()
        self.log.epoch = epoch
        self.previous_generations, self.generation = (self.generation,), self.generation + 1
        self.elect("c1")

    def commit(self, *messages: Any) -> int:
        self.log.append(*messages)
        self.release()
        return self.log.last

    def registration(self, broker_id: int) -> Any:
        return self.log.image(self.log.last).brokers.get(broker_id)

    def members(self) -> list[int]:
        return sorted(b.id for b in self.log.image(self.log.last).brokers.values() if not b.fenced)

    # --- what brokers say ------------------------------------------------------------------------

    def report(
        self, broker_id: int, broker_epoch: int, controller_epoch: int, applied: int, known_lao: int
    ) -> None:
        current = self.registration(broker_id)
        if current is None or current.epoch != broker_epoch or controller_epoch != self.log.epoch:
            return
        self.applied[broker_id] = max(applied, self.applied.get(broker_id, -1))
        self.known_lao[broker_id] = max(known_lao, self.known_lao.get(broker_id, -1))
        if (
            current.fenced
            and applied >= max(self.lao, broker_epoch)
            and broker_id not in self.stale
        ):
            self.log.unfence(broker_id, broker_epoch)
        self.move_lao()
        self.release()

    def move_lao(self) -> None:
        members = self.members()
        if (
            members
            and not self.hold_lao
            and all(broker_id in self.applied for broker_id in members)
        ):
            self.lao = max(self.lao, min(self.applied[broker_id] for broker_id in members))

    def release(self) -> None:
        for link, fetch in list(self.parked.items()):
            news = self.log.end > fetch.fetch_offset or self.log.end != fetch.high_watermark
            if self.leader is None or news or self.lao != fetch.told_lowest_acknowledged_offset:
                del self.parked[link]
                self.answer_fetch(link, fetch)

    def answer_fetch(self, link: Link, fetch: pb.MetadataFetchRequest) -> None:
        if self.leader is None:
            link.send(self.not_leading(pb.MetadataFetchResponse()))
            return
        error = None
        if fetch.generation not in (0, self.generation):
            error = common_pb2.Error(error_code=ErrorCode.INCONSISTENT_GENERATION)
        until = None if self.records_max is None else fetch.fetch_offset + self.records_max
        link.send(
            pb.MetadataFetchResponse(
                error=error,
                leader_id=HOSTS.index(self.leader) + 1,
                controller_epoch=self.log.epoch,
                generation=self.generation,
                previous_generations=self.previous_generations,
                high_watermark=self.log.end,
                lowest_acknowledged_offset=self.lao,
                records=b"" if error else self.log.since(fetch.fetch_offset, until),
                cluster_id=CLUSTER,
            )
        )

    def not_leading(self, response: Any) -> Any:
        response.error.error_code = ErrorCode.NOT_CONTROLLER
        response.leader_id = -1 if self.leader is None else HOSTS.index(self.leader) + 1
        response.leader_endpoint = "" if self.leader is None else f"{self.leader}:1"
        return response


class Node:
    def __init__(self, quorum: Quorum, host: str) -> None:
        self.quorum, self.host = quorum, host

    def accept(self, link: Link) -> Node:
        self.quorum.links[self.host].append(link)
        return self

    def closed(self, link: Link, reason: str) -> None:
        self.quorum.parked.pop(link, None)

    def received(self, link: Link, messages: Sequence[Any]) -> None:
        for message in messages:
            if isinstance(message, pb.MetadataFetchRequest):
                self.fetch(link, message)
            else:
                response = self.request(message)
                if response is not None:
                    response.correlation_id = message.correlation_id
                    response.controller_epoch = self.quorum.log.epoch
                    if response.HasField("broker_heartbeat") and self.quorum.heartbeat_delay_s:
                        asyncio.get_running_loop().call_later(
                            self.quorum.heartbeat_delay_s, link.send, response
                        )
                    else:
                        link.send(response)

    def fetch(self, link: Link, fetch: pb.MetadataFetchRequest) -> None:
        quorum = self.quorum
        if quorum.leader != self.host:
            link.send(quorum.not_leading(pb.MetadataFetchResponse(cluster_id=CLUSTER)))
            return
        quorum.fetches.append(fetch)
        quorum.parked[link] = fetch
        quorum.report(
            fetch.replica_id,
            fetch.broker_epoch,
            fetch.controller_epoch,
            fetch.applied_offset,
            fetch.told_lowest_acknowledged_offset,
        )
        quorum.release()
        asyncio.get_running_loop().call_later(fetch.max_wait_ms / 1000, self.expire, link, fetch)

    def expire(self, link: Link, fetch: pb.MetadataFetchRequest) -> None:
        if self.quorum.parked.get(link) is fetch:
            del self.quorum.parked[link]
            self.quorum.answer_fetch(link, fetch)

    def request(self, request: pb.ControllerRequest) -> pb.ControllerResponse | None:
        quorum = self.quorum
        if quorum.leader != self.host:
            return quorum.not_leading(pb.ControllerResponse())
        body = request.WhichOneof("body")
        if body == "register_broker":
            return self.register(request.register_broker)
        if body == "broker_heartbeat":
            return None if quorum.deaf_to_heartbeats else self.heartbeat(request.broker_heartbeat)
        quorum.writes.append(request)
        topic = request.create_topics.topics[0].name
        if topic == "silent":
            return None
        quorum.log.topic(topic, ([1], 1))
        quorum.release()
        token = common_pb2.MetadataToken(
            generation=quorum.generation, epoch=quorum.log.epoch, offset=quorum.log.last
        )
        return pb.ControllerResponse(
            create_topics=pb.CreateTopicsResponse(),
            write=common_pb2.WriteResult(token=token, reached=request.acks),
        )

    def register(self, request: pb.RegisterBrokerRequest) -> pb.ControllerResponse:
        quorum = self.quorum
        quorum.registrations.append(request)
        current = quorum.registration(request.broker_id)
        if current is not None and current.incarnation_id == request.incarnation_id:
            epoch = current.epoch
        else:
            epoch = quorum.log.register(
                request.broker_id, request.incarnation_id, listeners=request.listeners
            )
            quorum.applied.pop(request.broker_id, None)
            quorum.release()
        return pb.ControllerResponse(
            register_broker=pb.RegisterBrokerResponse(
                generation=quorum.generation,
                broker_id=request.broker_id,
                broker_epoch=epoch,
                broker_session_timeout_ms=quorum.registration_says_ms,
            )
        )

    def heartbeat(self, request: pb.BrokerHeartbeatRequest) -> pb.ControllerResponse:
        quorum = self.quorum
        quorum.heartbeats.append(request)
        current = quorum.registration(request.broker_id)
        if current is None or current.epoch != request.broker_epoch:
            return pb.ControllerResponse(
                error=common_pb2.Error(error_code=ErrorCode.STALE_BROKER_EPOCH)
            )
        quorum.report(
            request.broker_id,
            request.broker_epoch,
            request.controller_epoch,
            request.current_metadata_offset,
            request.told_lowest_acknowledged_offset,
        )
        if request.want_shut_down and not current.fenced:
            quorum.log.fence(request.broker_id, request.broker_epoch)
            quorum.release()
        return pb.ControllerResponse(
            broker_heartbeat=pb.BrokerHeartbeatResponse(
                should_shut_down=request.want_shut_down,
                broker_session_timeout_ms=quorum.heartbeats_say_ms,
                lowest_acknowledged_offset=quorum.lao,
                controller_epoch=quorum.log.epoch
                if quorum.heartbeat_epoch is None
                else quorum.heartbeat_epoch,
                generation=quorum.heartbeat_generation or quorum.generation,
                read_lease_ms=quorum.read_lease_ms if request.want_read_lease else 0,
                read_lease_refusal="" if quorum.read_lease_ms else "not now",
            )
        )


class Cluster:
    def __init__(self) -> None:
        self.loop: Any = asyncio.get_running_loop()
        self.network = SimNetwork(random.Random(11))
        self.quorum = Quorum(self.network)
        self.brokers: dict[int, BrokerService] = {}
        self.clients: list[BrokerClient] = []

    async def broker(self, broker_id: int, incarnation: str = "", **settings: Any) -> BrokerService:
        host = f"b{broker_id}"
        lifecycle = settings.pop("lifecycle", LifecycleSettings())
        service = BrokerService(
            BrokerSettings(
                broker_id=broker_id,
                cluster_id=CLUSTER,
                controllers=settings.pop("controllers", tuple(f"{name}:1" for name in HOSTS)),
                listen=f"{host}:0",
                lifecycle=lifecycle,
                **settings,
            ),
            self.network.transport_for(host),
            process=Process("boot", f"dir-{broker_id}", 1, 2),
            incarnation_id=incarnation or f"i-{broker_id}",
            rng=random.Random(broker_id),
        )
        await service.start()
        self.brokers[broker_id] = service
        return service

    async def active(self, *broker_ids: int) -> list[BrokerService]:
        services = [await self.broker(broker_id) for broker_id in broker_ids]
        await self.until(lambda: all(not service.why_fenced() for service in services))
        return services

    def client(self, *services: BrokerService) -> BrokerClient:
        transport = self.network.transport_for(f"client{len(self.clients)}")
        client = BrokerClient(
            transport, [service.address for service in services], rng=random.Random(9)
        )
        self.clients.append(client)
        return client

    async def until(self, condition: Callable[[], bool], within_s: float = 60.0) -> None:
        deadline = self.loop.time() + within_s
        while not condition():
            assert self.loop.time() < deadline, "it never happened"
            await asyncio.sleep(0.005)

    def isolate(self, host: str) -> None:
        """Cut a broker's host off from all controllers."""
        for controller in HOSTS:
            self.network.partition(host, controller)

    async def close(self) -> None:
        for client in self.clients:
            client.close()
        for broker_id in sorted(self.brokers):
            await self.brokers[broker_id].close()


def on_cluster(test: Callable[[Cluster], Awaitable[None]]) -> None:
    async def main() -> None:
        cluster = Cluster()
        await cluster.quorum.start()
        await test(cluster)
        await cluster.close()
        assert cluster.network.handler_failures == []

    run(main())


def topics() -> broker_pb2.MetadataRequest:
    return broker_pb2.MetadataRequest()


def create(name: str) -> pb.CreateTopicsRequest:
    return pb.CreateTopicsRequest(topics=[pb.CreatableTopic(name=name)])


def config(cluster: Cluster, value: str, topic: str = "orders") -> int:
    """Commit a config value of a topic, and return its offset."""
    cluster.quorum.log.config(value, kind=2, resource=topic)
    cluster.quorum.release()
    return cluster.quorum.log.last

"""Clients whose permissions change: on four hosts, of three principals (``CALLERS``). Each requests
what it may and what it may not, and sometimes claims another principal, host or node.
``checks/rights.py`` and ``checks/shown.py`` judge the results.
"""

import asyncio
from typing import Any

from raftlog.client.broker_client import BrokerClient
from raftlog.client.controller_client import ControllerClient
from raftlog.client.requests import controller_request
from raftlog.errors import ApiError
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.transport.api import Conversation
from raftlog.transport.statuses import error_from_wire
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.administrator import set_config
from simulation.checks.api import Operation
from simulation.checks.linearizability import TOPIC_KINDS
from simulation.forger import WAITS_S, SendsOne
from simulation.hosts import CLUSTER_ID
from simulation.round_robin import RoundRobinClient
from simulation.swarm.identities import CALLERS, OPERATOR
from simulation.world import Actors, World

TOPIC, BROKER, GROUP = 2, 4, 32
GROUP_KEY = "consumer.session.timeout.ms"
NAMES = ("alice-0", "alice-1", "alice", "bob-0", "common")
UNDER_WAY_MAX = 6
FORGED_P = 0.15
NUMBERED_P, OPENS_P = 0.3, 0.25
"""Probabilities that a write is numbered, and that a client is opened for it."""
MODES = (broker_pb2.REPEATABLE, broker_pb2.LATEST, broker_pb2.STRICT)
LEVELS = (common_pb2.ACKS_COMMITTED, common_pb2.ACKS_ACKNOWLEDGED, common_pb2.ACKS_VISIBLE)
LISTINGS: tuple[type[Any], ...] = (
    pb.ListHostnamesRequest,
    pb.ListExportCursorsRequest,
    pb.DescribeBrokersRequest,
    pb.ListPartitionReassignmentsRequest,
    pb.DescribeAclsRequest,
)


class Callers(Actors):
    """All callers of a run; without an authorizer none."""

    def __init__(self, world: World) -> None:
        super().__init__(world, *(CALLERS if world.config.authorizer and world.members else ()))
        self.world = world
        self.opened: dict[str, int] = {}
        self.values = 0

    def begin(self) -> None:
        for host in self.hosts():
            self.spawn(Caller(self, host).live(), host)


class Caller:
    """A host with one caller."""

    def __init__(self, all_: Callers, host: str) -> None:
        self._all, self._host, self._world = all_, host, all_.world
        world = all_.world
        self._rng = world.rng(host)
        transport = world.network.transport_for(host)
        self._brokers = RoundRobinClient(
            transport,
            [member.endpoint for member in world.members],
            rng=world.rng(f"{host} router"),
        )
        self._controllers = ControllerClient(
            transport, world.fleet.endpoints, rng=world.rng(f"{host} controllers")
        )
        self._transport = transport
        self._leaders: dict[str, BrokerClient] = {}
        self._session = self._brokers.session(host)
        self._under_way = 0
        self._calls = (
            (0.2, self._read_topics),
            (0.2, self._read_configs),
            (0.05, self._read_cluster),
            (0.14, self._list),
            (0.25, self._write_groups),
            (0.1, self._change_topics),
            (0.03, self._grant),
            (0.08, self._use_client_of_another),
            (0.02, self._read_log),
            (0.1 * bool(world.config.data_per_s), self._read_records),
        )

    async def live(self) -> None:
        rate = self._world.config.callers_per_s / len(CALLERS)
        calls = [call for _, call in self._calls]
        weights = [weight for weight, _ in self._calls]
        while True:
            await asyncio.sleep(self._rng.expovariate(rate))
            if self._under_way < UNDER_WAY_MAX:
                self._under_way += 1
                (call,) = self._rng.choices(calls, weights)
                self._all.spawn(self._one(call), self._host)

    async def _one(self, call: Any) -> None:
        try:
            await call()
        finally:
            self._under_way -= 1

    def _names(self) -> list[str]:
        return self._rng.sample(NAMES, self._rng.randint(1, 2))

    async def _read_topics(self) -> None:
        topics = self._names() if self._rng.random() < 0.4 else []
        await self._read("topics", broker_pb2.MetadataRequest(topics=topics))

    async def _read_configs(self) -> None:
        rng = self._rng
        resources = [
            broker_pb2.DescribeConfigsResource(
                resource_type=rng.choice((GROUP, GROUP, TOPIC)), resource_name=name
            )
            for name in self._names()
        ]
        if rng.random() < 0.2:
            resources.append(broker_pb2.DescribeConfigsResource(resource_type=BROKER))
        await self._read("configs", broker_pb2.DescribeConfigsRequest(resources=resources))

    async def _read_cluster(self) -> None:
        body: Any = self._rng.choice(
            (broker_pb2.DescribeClusterRequest(), broker_pb2.DescribeBrokerRequest())
        )
        await self._read("cluster", body)

    async def _read_log(self) -> None:
        """Fetch the log as a client that is not a node."""
        fetch = pb.MetadataFetchRequest(
            cluster_id=CLUSTER_ID,
            replica_id=-1,
            max_bytes=1000,
            high_watermark=-1,
            applied_offset=-1,
            told_lowest_acknowledged_offset=-1,
            generation=NO_GENERATION,
        )
        address = self._rng.choice(self._world.controllers).endpoint
        dialer = self._transport.dial(address, Conversation.OBSERVER, SendsOne(fetch))
        await asyncio.sleep(WAITS_S)
        dialer.close()

    async def _read_records(self) -> None:
        """Fetch from a partition that is most likely empty: the fetch waits."""
        world, rng = self._world, self._rng
        service = world.active()
        if service is None or not len(service.image.partitions):
            return
        topic_id, index = rng.choice(sorted(service.image.partitions))
        partition = service.image.partitions[topic_id, index]
        leader = next((one for one in world.members if one.id == partition.leader), None)
        if leader is None:
            return
        named = {
            "topic_id": topic_id,
            "partition_index": index,
            "current_leader_epoch": partition.leader_epoch,
        }
        request = broker_pb2.BrokerRequest()
        if rng.random() < 0.3:
            request.list_offsets.partitions.add(**named, timestamp=-1)
        else:
            request.fetch.max_wait_ms, request.fetch.min_bytes = 500, 1
            request.fetch.max_bytes = 1000
            request.fetch.partitions.add(**named, partition_max_bytes=1000)
        client = self._leaders.get(leader.endpoint)
        if client is None:
            client = self._leaders[leader.endpoint] = BrokerClient(
                self._transport, [leader.endpoint], rng=world.rng(f"{self._host} {leader.endpoint}")
            )
        operation = self._operation("read records")

        async def work() -> None:
            operation.response = await client.send(request, world.config.timeout_s)

        await self._carry_out([operation], work)

    async def _read(self, key: str, body: Any) -> None:
        if self._rng.random() < 0.5:
            self._brokers.forget()
        mode = self._rng.choice(MODES)
        timeout_s = self._world.config.timeout_s
        token = self._brokers.token
        operation = self._operation(
            f"read {key}", mode=mode, at_least=token.offset if token is not None else -1
        )

        async def work() -> None:
            response = await self._brokers.read(body, mode=mode, timeout_s=timeout_s)
            operation.response = response
            operation.offset = response.token.offset if response.HasField("token") else -1
            operation.generation = response.token.generation

        await self._carry_out([operation], work)

    async def _list(self) -> None:
        body = self._rng.choice(LISTINGS)()
        if isinstance(body, pb.DescribeAclsRequest):
            body.filter.resource_type = body.filter.operation = body.filter.permission_type = 1
            body.filter.pattern_type = 1
        await self._write([self._operation(f"list {type(body).__name__}")], body)

    async def _write_groups(self) -> None:
        names = self._names()
        self._all.values += 1
        value = str(self._all.values)
        operation = self._operation(f"groups {' '.join(names)}", value=value)
        await self._write([operation], set_config(GROUP, names, GROUP_KEY, value))

    async def _change_topics(self) -> None:
        names, rng = self._names(), self._rng
        body: Any
        if rng.random() < 0.6:
            kind = "create_topic"
            body = pb.CreateTopicsRequest()
            for name in names:
                body.topics.add(name=name, num_partitions=1, replication_factor=1)
        else:
            kind, body = "delete_topic", pb.DeleteTopicsRequest(names=names)
        # A topic's history is judged call by call: each name is one.
        await self._write([self._operation(name, kind=kind) for name in names], body)

    async def _grant(self) -> None:
        entry = pb.AccessControlEntry(
            resource_type=GROUP_RESOURCE,
            resource_name=self._rng.choice(NAMES),
            pattern_type=LITERAL,
            principal=CALLERS[self._host].principal,
            host="*",
            operation=ALL,
            permission_type=ALLOW,
        )
        operation = self._operation("grant itself")
        await self._write([operation], pb.CreateAclsRequest(creations=[entry]))

    async def _use_client_of_another(self) -> None:
        rng = self._rng
        others = sorted(
            client_id for host, client_id in self._all.opened.items() if host != self._host
        )
        if not others:
            return
        client_id = rng.choice(others)
        operation = self._operation(f"client {client_id}", client_id=client_id)
        if rng.random() < 0.3:
            request = controller_request(pb.CloseClientRequest(client_id=client_id))
        else:
            self._all.values += 1
            operation.value = str(self._all.values)
            body = set_config(GROUP, self._names(), GROUP_KEY, operation.value)
            request = controller_request(body)
            token = self._brokers.token
            request.client.generation = token.generation if token is not None else 0
            request.client.client_id, request.client.sequence = client_id, rng.randint(1, 20)
        await self._carry_out([operation], lambda: self._send([operation], request))

    async def _write(self, operations: list[Operation], body: Any) -> None:
        rng, timeout_s = self._rng, self._world.config.timeout_s
        acks = rng.choice(LEVELS)
        for operation in operations:
            operation.acks = acks
        numbered = rng.random() < (NUMBERED_P if self._session.client_id else OPENS_P)

        async def work() -> None:
            if numbered:
                try:
                    response = await self._session.write(
                        body, acks=acks, timeout_s=timeout_s, raise_refused=False
                    )
                finally:
                    if self._session.client_id:
                        self._all.opened[self._host] = self._session.client_id
                _note(operations, response)
                return
            request = controller_request(body, acks=acks)
            if rng.random() < FORGED_P:
                self._forge(request.client)
            await self._send(operations, request)

        await self._carry_out(operations, work)

    def _forge(self, client: common_pb2.ClientIdentity) -> None:
        rng = self._rng
        site = rng.choice([site for site in CALLERS.values() if site != CALLERS[self._host]])
        if rng.random() < 0.6:
            client.principal = rng.choice((OPERATOR, OPERATOR, site.principal))
        if rng.random() < 0.5:
            client.host = site.address
        if rng.random() < 0.4:
            client.node_id = rng.choice(self._world.members).id

    async def _send(self, operations: list[Operation], request: pb.ControllerRequest) -> None:
        timeout_s = self._world.config.timeout_s
        if self._rng.random() < 0.7:
            response = await self._brokers.write(request, timeout_s=timeout_s, raise_refused=False)
        else:
            response = await self._controllers.call(
                request, timeout_s=timeout_s, raise_refused=False
            )
        _note(operations, response)

    def _operation(self, key: str, kind: Any = "access", **fields: Any) -> Operation:
        return self._world.operation(client=self._host, kind=kind, key=key, **fields)

    async def _carry_out(self, operations: list[Operation], work: Any) -> None:
        try:
            await work()
        except ApiError as error:
            for operation in operations:
                operation.refused(error)
        else:
            for operation in operations:
                if operation.outcome == "pending":
                    operation.outcome = "ok"
        for operation in operations:
            self._world.answered(operation)


LITERAL, GROUP_RESOURCE, ALL, ALLOW = 3, 3, 2, 3


def _note(operations: list[Operation], response: pb.ControllerResponse) -> None:
    """Record a response in its operations; a response about topics has a result for each."""
    for index, operation in enumerate(operations):
        operation.response = response
        if response.HasField("write"):
            operation.wrote(response.write)
        if operation.kind not in TOPIC_KINDS:
            continue
        if response.write.duplicate:
            # Of an earlier attempt, whose answer is lost; or of a write of somebody who may use the
            # client, too.
            operation.outcome = "unknown"
            continue
        body = (
            response.create_topics if operation.kind == "create_topic" else response.delete_topics
        )
        result = body.topics[index]
        if result.HasField("error"):
            operation.refused(error_from_wire(result.error))
            operation.offset = -1

"""An administrator client: reassignments and their cancellation, more partitions, leader elections,
unclean ones allowed.

What is asked for is drawn from the newest image of a broker, so most of it makes sense, and some
comes too late.
"""

from __future__ import annotations

import asyncio
from typing import Any

from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.config_keys import UNCLEAN_ELECTION
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.records.v1 import records_pb2
from simulation.world import World

TOPIC = 2
MAX_PARTITIONS = 6
MAX_REPLICAS = 4
UNDER_WAY_MAX = 8


class Administrator:
    """One for a world; without brokers, or with a rate of 0, it does nothing."""

    name = "admin"

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng(self.name)
        self._tasks: list[asyncio.Task[Any]] = []
        self._client: ControllerClient | None = None
        self._under_way = 0

    def begin(self) -> None:
        """Begin to work."""
        world = self._world
        if world.config.admin_per_s and world.members:
            self._client = ControllerClient(
                world.network.transport_for(self.name),
                world.fleet.endpoints,
                rng=world.rng(f"{self.name} router"),
            )
            self._tasks.append(world.spawn(self._live(), self.name, self.name))

    def stop(self) -> None:
        """No more of it."""
        for task in self._tasks:
            task.cancel()

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(self._world.config.admin_per_s))
            image = self._image()
            if image is None or not len(image.topics) or self._under_way >= UNDER_WAY_MAX:
                continue
            key, body = self._drawn(image)
            self._under_way += 1
            self._tasks.append(self._world.spawn(self._send(key, body), self.name, self.name))

    def _image(self) -> Any:
        running = [host.service for host in self._world.members if host.service is not None]
        return self._rng.choice(running).image if running else None

    def _drawn(self, image: Any) -> tuple[str, Any]:
        rng = self._rng
        name = rng.choice(sorted(image.topic_ids))
        topic_id = image.topic_ids[name]
        count = image.topics[topic_id].partition_count
        index = rng.randrange(count)
        moving = sorted(key for key in image.partitions if image.partitions[key].adding_replicas)
        draw = rng.random()
        if draw < 0.35:
            return f"reassign {name}-{index}", self._reassignment(name, index, self._replicas())
        if draw < 0.5:
            if moving and rng.random() < 0.8:
                topic_id, index = rng.choice(moving)
                name = image.topics[topic_id].name
            return f"cancel {name}-{index}", self._reassignment(name, index, None)
        if draw < 0.6:
            wanted = min(MAX_PARTITIONS, count + rng.randint(1, 2))
            topic = pb.CreatePartitionsTopic(name=name, count=wanted)
            return f"increase {name}", pb.CreatePartitionsRequest(topics=[topic])
        if draw < 0.7:
            return "list", pb.ListPartitionReassignmentsRequest()
        if self._world.config.unclean and draw < 0.8:
            value = rng.choice(("true", "false"))
            config = pb.AlterableConfig(name=UNCLEAN_ELECTION, value=value)
            resource = pb.AlterConfigsResource(
                resource_type=TOPIC, resource_name=name, configs=[config]
            )
            return f"allow {name} {value}", pb.IncrementalAlterConfigsRequest(resources=[resource])
        unclean = self._world.config.unclean and draw < 0.87
        named = [pb.ElectableTopic(name=name)] if rng.random() < 0.6 else []
        kind = pb.UNCLEAN if unclean else pb.PREFERRED
        return (
            f"elect {'unclean' if unclean else 'preferred'} {name if named else ''}",
            pb.ElectLeadersRequest(election_type=kind, topics=named),
        )

    def _replicas(self) -> list[int]:
        ids = [host.id for host in self._world.members]
        return self._rng.sample(ids, self._rng.randint(1, min(MAX_REPLICAS, len(ids))))

    @staticmethod
    def _reassignment(
        name: str, index: int, replicas: list[int] | None
    ) -> pb.AlterPartitionReassignmentsRequest:
        wanted = pb.ReassignablePartition(
            partition_index=index,
            replicas=None if replicas is None else records_pb2.IdList(ids=replicas),
        )
        topic = pb.ReassignableTopic(name=name, partitions=[wanted])
        return pb.AlterPartitionReassignmentsRequest(topics=[topic])

    async def _send(self, key: str, body: Any) -> None:
        assert self._client is not None
        operation = self._world.operation(
            client=self.name, kind="admin", key=key, acks=common_pb2.ACKS_COMMITTED
        )
        try:
            response = await self._client.call(
                body, timeout_s=self._world.config.timeout_s, raise_refused=False
            )
        except ApiError as error:
            operation.refused(error)
        else:
            operation.response, operation.outcome = response, "ok"
            if response.HasField("write"):
                operation.offset = response.write.token.offset
            else:
                operation.error = _refusal(response)
        finally:
            self._under_way -= 1
        self._world.answered(operation)


def _refusal(response: Any) -> str:
    """Return the first error in the results, for the transcript."""
    body = getattr(response, response.WhichOneof("body"))
    results = [
        *getattr(body, "results", ()),
        *(part for topic in getattr(body, "topics", ()) for part in topic.partitions),
    ]
    for result in results:
        if getattr(result, "error", None) is not None and result.error.error_code:
            return ErrorCode(result.error.error_code).name
    return ""

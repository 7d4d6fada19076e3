"""An administrator client: reassignments, cancellations, more partitions, leader elections. It
chooses requests by a broker's newest image, so most make sense, and some come too late.
"""

import asyncio
from typing import Any

from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.config_keys import CORDONED, UNCLEAN_ELECTION
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.records.v1 import records_pb2
from simulation.checks.api import CheckFailedError
from simulation.world import Actors, World

TOPIC, BROKER = 2, 4
MAX_PARTITIONS = 6
MAX_REPLICAS = 4
UNDER_WAY_MAX = 8


class Administrator(Actors):
    """The administrator of a world; without brokers, or with a rate of 0, it does nothing."""

    name = "admin"
    _client: ControllerClient

    def __init__(self, world: World) -> None:
        super().__init__(world, self.name)
        self._rng = world.rng(self.name)
        self._under_way = 0

    def begin(self) -> None:
        world = self._world
        if world.config.admin_per_s and world.members:
            self._client = world.controller_client(self.name)
            super().begin()
            if world.config.cordons_per_s:
                self._tasks.append(world.spawn(self._cordon(), "cordons", self.name))

    async def _cordon(self) -> None:
        world, rng = self._world, self._world.rng("cordons")
        while True:
            await asyncio.sleep(rng.expovariate(world.config.cordons_per_s))
            broker_id = rng.choice(world.members).id
            for value in ("true", "false"):
                self._under_way += 1
                await self._send(
                    f"cordon {broker_id} {value}",
                    set_config(BROKER, [str(broker_id)], CORDONED, value),
                )
                await asyncio.sleep(rng.uniform(0.5, 3.0))

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(self._world.config.admin_per_s))
            image = self._image()
            if image is None or not len(image.topics) or self._under_way >= UNDER_WAY_MAX:
                continue
            key, body = self._drawn(image)
            self._under_way += 1
            self.spawn(self._send(key, body), self.name)

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
            return f"allow {name} {value}", set_config(TOPIC, [name], UNCLEAN_ELECTION, value)
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
        operation = self._world.operation(
            client=self.name, kind="admin", key=key, acks=common_pb2.ACKS_COMMITTED
        )
        timeout_s = self._world.config.timeout_s
        call = self._client.call(body, timeout_s=timeout_s, raise_refused=False)
        try:
            response = await self._world.carry_out(operation, call)
        finally:
            self._under_way -= 1
        if response is not None and not response.HasField("write"):
            operation.error = _refusal(response)
        self._world.answered(operation)


def set_config(
    resource_type: int, names: list[str], key: str, value: str
) -> pb.IncrementalAlterConfigsRequest:
    configs, request = (
        [pb.AlterableConfig(name=key, value=value)],
        pb.IncrementalAlterConfigsRequest(),
    )
    for name in names:
        request.resources.add(resource_type=resource_type, resource_name=name, configs=configs)
    return request


def _refusal(response: Any) -> str:
    body = getattr(response, response.WhichOneof("body"))
    results = [
        *getattr(body, "results", ()),
        *(part for topic in getattr(body, "topics", ()) for part in topic.partitions),
    ]
    for result in results:
        if getattr(result, "error", None) is not None and result.error.error_code:
            return ErrorCode(result.error.error_code).name
    return ""


HOST = "exporter"
NAMES = ("nightly", "weekly")
TIMEOUT_S = 2.0
REMOVED, ANEW = 0.05, 0.05
"""Probabilities that a turn removes the cursor, or restarts the export at the log start."""


class Exporters(Actors):
    """The exporters of ``NAMES``, on one host; with a rate of 0 they do nothing."""

    def __init__(self, world: World) -> None:
        super().__init__(world, *[HOST] * bool(world.config.exports_per_s))

    async def _live(self) -> None:
        world = self._world
        rng, client = world.rng(HOST), world.controller_client(HOST)
        while True:
            await asyncio.sleep(rng.expovariate(world.config.exports_per_s))
            name, draw, share = rng.choice(NAMES), rng.random(), rng.random()
            try:
                listed = (
                    await client.call(pb.ListExportCursorsRequest(), timeout_s=TIMEOUT_S)
                ).list_export_cursors
                change = _change(name, listed, draw, share)
                if change is not None:
                    body = pb.AlterExportCursorsRequest(alterations=[change])
                    response = await client.call(body, timeout_s=TIMEOUT_S, raise_refused=False)
                    (result,) = response.alter_export_cursors.results
                    outcome = "failed" if result.HasField("error") else "ok"
                    world.count(f"export_cursor {outcome}")
            except ApiError as error:
                if error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise CheckFailedError(f"{HOST} was answered {error}") from error
                world.count("export_cursor failed")


def _change(name: str, listed: Any, draw: float, share: float) -> pb.ExportCursorAlteration | None:
    old = next((one for one in listed.cursors if one.name == name), None)
    begin, end = listed.log_start_offset, listed.high_watermark
    if old is None or draw < ANEW or old.end_offset < begin:
        return pb.ExportCursorAlteration(name=name, end_offset=begin)
    if draw < ANEW + REMOVED:
        return pb.ExportCursorAlteration(name=name)
    read = round(share * max(0, end - old.end_offset))
    return pb.ExportCursorAlteration(name=name, end_offset=old.end_offset + read) if read else None

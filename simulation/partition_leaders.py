"""Leaders of partitions without stored data: one beside each broker reads its newest image, and
proposes ISRs through the shipped client, in time and too late. Its broker epochs may be old when a
proposal leaves (KIP-903).
"""

import asyncio
from typing import Any

from raftlog.errors import ErrorCode
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from raftlog.wire.records.v1 import records_pb2
from simulation.hosts import BrokerHost
from simulation.world import Actors, World

LATE_P = 0.6
"""Probability that a proposal waits between its making and its sending."""
LATE_MAX_S = 5.0
OUTDATED_P = 0.2
"""Probability that a late proposal keeps the partition's epochs, too."""
UNKNOWN_P = 0.15
SAME_P = 0.15
UNDER_WAY_MAX = 8


class PartitionLeaders(Actors):
    """Partition leaders, one for each broker of a world."""

    def hosts(self) -> list[str]:
        return [f"leader{broker.id}" for broker in self._world.members]

    def begin(self) -> None:
        if self._world.config.isr_changes_per_s:
            for broker in self._world.members:
                leader = PartitionLeader(self._world, broker, self)
                self.spawn(leader.live(), leader.name)


class PartitionLeader:
    """The proposals of one broker."""

    def __init__(self, world: World, broker: BrokerHost, actors: Actors) -> None:
        self.name = f"leader{broker.id}"
        self._world, self._broker, self._actors = world, broker, actors
        self._rng = world.rng(self.name)
        self._client = world.controller_client(self.name)
        self._under_way = 0

    async def live(self) -> None:
        world = self._world
        rate = world.config.isr_changes_per_s / len(world.members)
        while True:
            await asyncio.sleep(self._rng.expovariate(rate))
            image = self._image()
            if image is not None and self._under_way < UNDER_WAY_MAX:
                led = sorted(
                    key
                    for key in image.partitions
                    if image.partitions[key].leader == self._broker.id
                )
                if led:
                    self._under_way += 1
                    self._actors.spawn(self._propose(image, self._rng.choice(led)), self.name)

    def _image(self) -> Any:
        return self._broker.service.image if self._broker.service is not None else None

    async def _propose(self, image: Any, key: tuple[bytes, int]) -> None:
        try:
            await self._send(*await self._made(image, key))
        finally:
            self._under_way -= 1

    async def _made(
        self, image: Any, key: tuple[bytes, int]
    ) -> tuple[tuple[bytes, int], pb.AlterPartitionRequest]:
        """Return an ISR proposal, in time or delayed; its epochs may be outdated by then."""
        rng, me = self._rng, self._broker.id
        partition = image.partitions[key]
        # A replica that has come up to the leader is taken in, another falls behind; a retry
        # changes nothing.
        isr = list(partition.isr)
        if rng.random() >= SAME_P:
            share = rng.choice((0.0, 0.7, 0.7))
            isr = [
                me,
                *(
                    replica
                    for replica in partition.replicas
                    if replica != me and rng.random() < share
                ),
            ]
            rng.shuffle(isr)
        then = {member: image.brokers[member].epoch for member in isr if member in image.brokers}
        proposer_epoch = then.get(me, -1)
        late = rng.random() < LATE_P
        if late:
            await asyncio.sleep(rng.uniform(0.0, LATE_MAX_S))
            image = self._image() or image
            if rng.random() >= OUTDATED_P and key in image.partitions:
                partition = image.partitions[key]
            if rng.random() < 0.5:
                # A process that lives on beside its successor sees that one's registration, and has
                # its own epoch.
                then = {
                    member: image.brokers[member].epoch for member in isr if member in image.brokers
                }
            elif rng.random() < 0.5:
                proposer_epoch = image.brokers[me].epoch if me in image.brokers else proposer_epoch
                if me in then:
                    then[me] = proposer_epoch
        members = [
            records_pb2.BrokerState(
                broker_id=member,
                broker_epoch=-1 if rng.random() < UNKNOWN_P else then.get(member, -1),
            )
            for member in isr
        ]
        data = pb.AlterPartitionData(
            partition_index=partition.index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=members,
        )
        topic = pb.AlterPartitionTopic(topic_id=partition.topic_id, partitions=[data])
        return key, pb.AlterPartitionRequest(
            broker_id=me, broker_epoch=proposer_epoch, topics=[topic]
        )

    async def _send(self, key: tuple[bytes, int], request: pb.AlterPartitionRequest) -> None:
        operation = self._world.operation(
            client=self.name,
            kind="alter_partition",
            key=f"{key[0].hex()}-{key[1]}",
            acks=common_pb2.ACKS_COMMITTED,
        )
        timeout_s = self._world.config.timeout_s
        call = self._client.call(request, timeout_s=timeout_s, raise_refused=False)
        if (response := await self._world.carry_out(operation, call)) is not None:
            result = response.alter_partition.topics[0].partitions[0]
            if result.error_code:
                operation.outcome, operation.error = "failed", ErrorCode(result.error_code).name
        self._world.answered(operation)

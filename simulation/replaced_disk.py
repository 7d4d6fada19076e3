"""The race of KIP-903: a replica catches up, loses its disk, and only then the ISR change that adds
it arrives.

1. Broker 2 is down and out of the ISR; broker 1 acknowledges records alone. 2. Broker 2 returns and
catches up; its leader's proposal of both is late. 3. Broker 2's disk is replaced; it registers and
is unfenced, cut off from its leader. 4. The late proposal arrives with broker 2's old epoch. 5.
Broker 1 dies, and broker 2 may lead if it is in the ISR. Then broker 1 returns, and the leader is
asked for every record.

With the epoch check the proposal is refused (INELIGIBLE_REPLICA) and nothing is lost; without it
broker 2 leads with an empty log, and broker 1 truncates what it had acknowledged.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from raftlog.client.consumer import EARLIEST, Consumer
from raftlog.errors import ApiError, ErrorCode
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import Checker, CheckFailedError, fail
from simulation.hosts import BrokerHost
from simulation.outcome import Outcome
from simulation.run import Swarm, run_world
from simulation.swarm.config import SwarmConfig
from simulation.twins.network_faults import LinkFaults

CONFIG = SwarmConfig(
    voters=3, brokers=2, clients=1, data_per_s=1.0, session_timeout_ms=1500, replica_lag_ms=1000
)
TOPIC = "race"
RECORDS = 20
LATE_S = 4.0
"""Longer than a session and a registration take, shorter than the leader waits for an answer."""
WITHIN_S = 20.0


@dataclass(slots=True)
class Race:
    """Outcome of the race."""

    acknowledged: dict[str, int] = field(default_factory=dict)
    read: dict[int, str] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)
    """Answers of the controller to ISR changes: error codes, or the ISR."""
    isr_after: tuple[int, ...] = ()
    leaders: list[int] = field(default_factory=list)
    failure: BaseException | None = None

    @property
    def lost(self) -> list[str]:
        return [
            value for value, offset in self.acknowledged.items() if self.read.get(offset) != value
        ]


class _Late(LinkFaults):
    """Fault that delays the first ISR change once it is armed, and nothing else."""

    armed = False

    def late_change_s(self, rng: Any, one: str, other: str, messages: list[Any]) -> float:
        if not self.armed or not any(
            type(message) is pb.ControllerRequest
            and message.WhichOneof("body") == "alter_partition"
            for message in messages
        ):
            return 0.0
        self.armed = False
        self.happened("isr_change_late")
        return LATE_S


class _Answers(Checker):
    """Recorder of the answers to leaders."""

    def __init__(self, race: Race) -> None:
        self._race = race

    def message_sent(self, host: Any, peer: str, message: Any) -> None:
        if type(message) is pb.ControllerResponse and message.HasField("alter_partition"):
            for topic in message.alter_partition.topics:
                for result in topic.partitions:
                    code = result.error_code
                    self._race.answers.append(
                        ErrorCode(code).name if code else f"ISR {sorted(result.isr)}"
                    )


class RaceWorld(Swarm):
    """Cluster of the race."""

    def __init__(self, outcome: Outcome, race: Race, checkers: Sequence[Checker]) -> None:
        super().__init__(outcome, [*checkers, _Answers(race)])
        self._race = race
        self._late = _Late(self.happened)

    async def _live(self) -> None:
        self.network.faults = self._late
        await self.come_up(WITHIN_S)
        one, two = self.members
        await self._create()
        await self._until_isr({one.id, two.id})
        two.kill()
        await self._until_isr({one.id})
        await self._produce(RECORDS)
        self._late.armed = True
        two.start()
        await self.until(lambda: not self._late.armed, WITHIN_S, "the leader proposes broker 2")
        await self._produce(RECORDS)
        await self._replaced(one, two)
        await asyncio.sleep(LATE_S)
        self._race.isr_after = self._partition().isr
        one.kill()
        await asyncio.sleep(CONFIG.session_timeout_ms / 1000 * 2)
        self._race.leaders.append(self._partition().leader)
        self.network.heal(one.name, two.name)
        one.start()
        await self._until_isr({one.id, two.id})
        self._race.leaders.append(self._partition().leader)
        await self._read()
        self.watch.tell("end")

    async def _create(self) -> None:
        one, two = self.members
        client = self.controller_client("data-admin")
        assignment = pb.CreatableReplicaAssignment(partition_index=0, broker_ids=[one.id, two.id])
        topic = pb.CreatableTopic(
            name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=[assignment]
        )
        operation = self.operation(client="data-admin", kind="create_topic", key=TOPIC, acks=0)
        response = await client.call(pb.CreateTopicsRequest(topics=[topic]))
        operation.outcome, operation.response = "unknown", None
        self.returned(operation)
        self.workload.data.topics[TOPIC] = response.create_topics.topics[0].topic_id
        client.close()

    def _partition(self) -> Any:
        return self.active_image().partitions[self.workload.data.topics[TOPIC], 0]

    async def _until_isr(self, members: set[int]) -> None:
        await self.until(
            lambda: self.active() is not None and set(self._partition().isr) == members,
            WITHIN_S,
            f"the ISR is {members}",
        )

    async def _produce(self, count: int) -> None:
        producer = self.workload.data.producer("producer0", acks=-1)
        for _ in range(count):
            done = await self.workload.data.send("producer0", producer, TOPIC, -1, again=False)
            if done.outcome != "ok":
                fail(f"it did not happen: a record is taken: {done.error}")
            self._race.acknowledged[done.value] = done.record_offset
        producer.close()

    async def _replaced(self, one: BrokerHost, two: BrokerHost) -> None:
        """Replace broker 2's disk; it registers, and is cut off from its leader."""
        two.kill()
        self.network.partition(one.name, two.name)
        epoch = self.active_image().brokers[two.id].epoch
        self.fleet.replace_broker_disk(two)
        two.start()

        def is_unfenced() -> bool:
            registered = self.active_image().brokers[two.id]
            return registered.epoch > epoch and not registered.fenced

        what = "broker 2 is registered anew and unfenced before the proposal arrives"
        await self.until(is_unfenced, LATE_S - 0.5, what)

    async def _read(self) -> None:
        consumer = Consumer(
            self.network.transport_for("consumer0"),
            [host.endpoint for host in self.members],
            rng=self.rng("reader"),
        )
        consumer.assign(TOPIC, offset=EARLIEST)
        try:
            while records := await consumer.poll(2.0):
                for record in records:
                    self._race.read[record.offset] = (record.value or b"").decode()
        except ApiError as error:
            raise CheckFailedError(f"it did not happen: all is read: {error}") from error
        consumer.close()


def race(seed: int = 1, checkers: Sequence[Checker] = ()) -> Race:
    result, outcome = Race(), Outcome(seed, CONFIG)
    run_world(outcome, lambda: RaceWorld(outcome, result, checkers))
    result.failure = outcome.failure
    return result

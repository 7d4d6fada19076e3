"""A whole cluster's life from one seed: controllers, brokers, clients, faults; checks all the way, and a transcript.

Everything above time, network and disk is the shipped code. The same seed gives the same transcript, byte for byte.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.settings import ControllerSettings
from raftlog.client.broker_client import BrokerClient
from raftlog.errors import ApiError
from raftlog.metadata import versions
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import Checker, CheckFailedError, Operation
from simulation.hosts import CLUSTER_ID, BrokerHost, ControllerHost, broker_settings
from simulation.loop import host_context, run
from simulation.network import SimNetwork
from simulation.watching import Watch

SAMPLE_S = 0.01
WRITE_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class LifeConfig:
    """How long, how large, and how rough."""

    controllers: int = 3
    brokers: int = 3
    clients: int = 2
    writes_per_s: float = 5.0
    faults_s: float = 12.0
    """How long faults are injected, after the cluster is up."""
    fault_every_s: float = 2.0
    settle_s: float = 30.0
    """Within this, healed, everything must have converged."""


@dataclass(slots=True)
class Outcome:
    """What a life was like."""

    transcript: list[str] = field(default_factory=list)
    possible: dict[str, list[str]] = field(default_factory=dict)
    """Resource name -> the values it may have: the last one acknowledged, and those whose outcome nobody knows."""
    acknowledged: int = 0
    writes: int = 0
    unknown: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    state_hash: str = ""
    virtual_s: float = 0.0


class Cluster:
    """The hosts and what is known about them. Make it on a running VirtualLoop."""

    def __init__(self, seed: int, config: LifeConfig, checkers: Sequence[Checker] = ()) -> None:
        self.config = config
        self.outcome = Outcome()
        # One generator a purpose: a change in one does not reshuffle the others.
        self.rng = {name: random.Random(f"{seed} {name}") for name in ("network", "hosts", "clients", "faults")}
        self.loop = asyncio.get_running_loop()
        self.network = SimNetwork(self.rng["network"])
        self.taps = Watch(checkers, lambda _: None)
        voters = tuple(Voter(i, f"c{i}:9093") for i in range(1, config.controllers + 1))
        endpoints = tuple(voter.endpoint for voter in voters)
        hosts = self.rng["hosts"]
        settings = ControllerSettings(broker_session_timeout_ms=3_000)
        self.controllers = [
            ControllerHost(
                self.network, QuorumConfig(
                    CLUSTER_ID, v.node_id, f"dir-{v.node_id}", voters, max_metadata_version=versions.LATEST_METADATA_VERSION
                ), settings,
                random.Random(hosts.getrandbits(64)), self.note, self.taps,
            )
            for v in voters
        ]  # fmt: skip
        self.brokers = [
            BrokerHost(self.network, broker_settings(i, endpoints), random.Random(hosts.getrandbits(64)), self.taps)
            for i in range(1, config.brokers + 1)
        ]
        self.hosts: list[ControllerHost | BrokerHost] = [*self.controllers, *self.brokers]
        self._told: dict[int, int] = {}
        self._seen: dict[str, str] = {}
        self.taps.begin(self)

    def now(self) -> float:
        """Virtual seconds."""
        return self.loop.time()

    def note(self, who: str, what: str) -> None:
        """A line of the transcript."""
        self.outcome.transcript.append(f"{self.loop.time():.6f} {who} {what}")

    def note_change(self, who: str, what: str) -> None:
        """A line, if it says something new about ``who``."""
        if self._seen.get(who) != what:
            self._seen[who] = what
            self.note(who, what)

    async def until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        """Wait for something that must happen. Raises CheckFailedError if it does not."""
        deadline = self.loop.time() + within_s
        while not condition():
            if self.loop.time() > deadline:
                raise CheckFailedError(f"within {within_s} s it did not happen: {what}")
            await asyncio.sleep(SAMPLE_S)

    # --- watching -----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Sample all nodes for ever: write changes down, and check what must always hold."""
        while True:
            self.sample()
            await asyncio.sleep(SAMPLE_S)

    def sample(self) -> None:
        """Look at every node once. Raises CheckFailedError."""
        if self.taps.failure is not None:
            raise self.taps.failure
        self.taps.tell("sample")
        if self.network.handler_failures:
            raise CheckFailedError(f"a handler raised: {self.network.handler_failures[0]!r}")
        hashes: dict[int, tuple[str, int]] = {}
        for host in self.controllers:
            service = host.service
            if service is None:
                self.note_change(host.name, "down")
                continue
            core = service.replica.core
            image = service.image
            self.note_change(
                host.name,
                f"{core.role} epoch={core.epoch} leader={core.leader_id} end={core.log_end_offset}"
                f" hw={core.high_watermark} image={image.offset} lao={service.lowest_acknowledged_offset}",
            )
            self._same_hash(hashes, host.name, image.offset, image.state_hash)
            self._check_lao(host)
        for broker in self.brokers:
            if broker.service is None:
                self.note_change(broker.name, "down")
                self._told.pop(broker.id, None)
                continue
            if broker.service.exit is not None:
                raise CheckFailedError(f"{broker.name} has given up: {broker.service.exit.reason}")
            about = broker.service.describe()
            tip = broker.service.image
            self.note_change(
                broker.name,
                f"state={about.state} epoch={about.broker_epoch} applied={about.applied_offset}"
                f" told={about.lowest_acknowledged_offset} fenced={about.self_fenced}",
            )
            self._same_hash(hashes, broker.name, tip.offset, tip.state_hash)
            if about.lowest_acknowledged_offset < self._told.get(broker.id, -1):
                raise CheckFailedError(
                    f"LAO went back on {broker.name}: {self._told[broker.id]} to {about.lowest_acknowledged_offset}"
                )
            self._told[broker.id] = about.lowest_acknowledged_offset

    def _same_hash(self, hashes: dict[int, tuple[str, int]], who: str, offset: int, state_hash: int) -> None:
        other, known = hashes.setdefault(offset, (who, state_hash))
        if known != state_hash:
            raise CheckFailedError(f"{who} and {other} have different states at offset {offset}")

    def _check_lao(self, host: ControllerHost) -> None:
        service = host.service
        assert service is not None
        lao = service.lowest_acknowledged_offset
        if lao < 0:
            return
        if lao >= service.committed_end:
            raise CheckFailedError(f"LAO {lao} of {host.name} is not below its high watermark {service.committed_end}")
        for broker in self.brokers:
            registered = service.image.brokers.get(broker.id)
            if broker.service is None or registered is None or registered.fenced:
                continue
            about = broker.service.describe()
            if about.broker_epoch == registered.epoch and about.applied_offset < lao:
                raise CheckFailedError(
                    f"LAO {lao} of {host.name} is above what {broker.name} has applied: {about.applied_offset}"
                )

    # --- clients ------------------------------------------------------------------------------------------------------

    async def client(self, number: int) -> None:
        """Write for ever through some broker; each client has keys of its own, so the last answer says what must be there."""
        rng = random.Random(self.rng["clients"].getrandbits(64))
        client = BrokerClient(
            self.network.transport_for(f"client{number}"), [broker.endpoint for broker in self.brokers], rng=rng
        )
        levels = (common_pb2.ACKS_COMMITTED, common_pb2.ACKS_ACKNOWLEDGED, common_pb2.ACKS_VISIBLE)
        count = 0
        acknowledged: dict[str, str] = {}
        while True:
            await asyncio.sleep(rng.expovariate(self.config.writes_per_s / self.config.clients))
            count += 1
            name, value = f"client{number}-{count % 7}", str(count)
            body = pb.IncrementalAlterConfigsRequest(
                resources=[
                    pb.AlterConfigsResource(
                        resource_type=16, resource_name=name, configs=[pb.AlterableConfig(name="match", value=value)]
                    )
                ]
            )
            outcome = self.outcome
            outcome.writes += 1
            possible = outcome.possible.setdefault(name, [""])
            possible.append(value)
            acks = rng.choice(levels)
            operation = Operation(
                outcome.writes, f"client{number}", "write_config", name, value, acks=acks, invoked_at=self.now()
            )
            self.taps.tell("client_invoked", operation)
            try:
                response = await client.write(body, acks=acks, timeout_s=WRITE_TIMEOUT_S)
            except ApiError as error:
                operation.outcome, operation.error = "unknown" if error.outcome_unknown else "failed", error.code.name
                operation.returned_at = self.now()
                self.taps.tell("client_returned", operation)
                self.note(f"client{number}", f"{name}={value} failed {error.code.name} unknown={error.outcome_unknown}")
                if error.outcome_unknown:
                    outcome.unknown += 1
                else:
                    possible.remove(value)
                continue
            operation.outcome, operation.returned_at = "ok", self.now()
            operation.offset, operation.reached = response.write.token.offset, response.write.reached
            self.taps.tell("client_returned", operation)
            # An older write of unknown outcome may still come after this one; an acknowledged one may not.
            outcome.acknowledged += 1
            possible.remove(acknowledged.get(name, ""))
            acknowledged[name] = value
            self.note(
                f"client{number}", f"{name}={value} at {response.write.token.offset} reached {response.write.reached}"
            )

    # --- faults -------------------------------------------------------------------------------------------------------

    async def faults(self) -> None:
        """Break something now and then, and mend it. A disk keeps what was flushed, whoever dies."""
        rng = self.rng["faults"]
        kinds = (self._kill_controller, self._kill_all_controllers, self._kill_broker, self._partition, self._pause)
        end = self.loop.time() + self.config.faults_s
        while self.loop.time() < end:
            await asyncio.sleep(rng.expovariate(1 / self.config.fault_every_s))
            kind = rng.choice(kinds)
            self.outcome.faults[kind.__name__] = self.outcome.faults.get(kind.__name__, 0) + 1
            await kind(rng)
        self.network.heal_all()
        self.taps.tell("healed")

    async def _kill_controller(self, rng: random.Random) -> None:
        host = rng.choice(self.controllers)
        self.note(host.name, "killed")
        host.kill()
        await asyncio.sleep(rng.uniform(0.05, 2.0))
        host.start()

    async def _kill_all_controllers(self, rng: random.Random) -> None:
        self.note("controllers", "all killed")
        for host in self.controllers:
            host.kill()
        await asyncio.sleep(rng.uniform(0.05, 1.0))
        for host in self.controllers:
            host.start()

    async def _kill_broker(self, rng: random.Random) -> None:
        host = rng.choice(self.brokers)
        self.note(host.name, "killed")
        host.kill()
        await asyncio.sleep(rng.uniform(0.05, 4.0))
        host.start()

    async def _partition(self, rng: random.Random) -> None:
        names = [host.name for host in self.hosts]
        one, other = rng.sample(names, 2)
        self.note(one, f"parted from {other}")
        self.network.partition(one, other)
        await asyncio.sleep(rng.uniform(0.1, 4.0))
        self.network.heal(one, other)

    async def _pause(self, rng: random.Random) -> None:
        name = rng.choice([host.name for host in self.hosts])
        self.note(name, "paused")
        self.network.pause(name)
        await asyncio.sleep(rng.uniform(0.05, 2.0))
        self.network.resume(name)

    # --- life ---------------------------------------------------------------------------------------------------------

    def converged(self) -> bool:
        """Whether everybody is there, unfenced, and equally far, and everybody knows it."""
        offsets = {host.service.image.offset if host.service else -2 for host in self.controllers}
        if len(offsets) != 1:
            return False
        offset = offsets.pop()
        active = [host.service for host in self.controllers if host.service and host.service.active is not None]
        if not active or active[-1].lowest_acknowledged_offset < offset:
            return False
        brokers = active[-1].image.brokers
        return all(
            host.service is not None
            and host.service.image.offset == offset
            and host.id in brokers
            and not brokers[host.id].fenced
            for host in self.brokers
        )

    async def live(self) -> Outcome:
        """From birth, through the faults, to rest. Raises CheckFailedError."""
        for host in self.hosts:
            host.start()
        watching = self._task(self.watch(), "watch")
        await self._unless_failed(watching, self.until(self.converged, self.config.settle_s, "the cluster comes up"))
        clients = [
            self._task(self.client(number), f"client{number}", host=f"client{number}")
            for number in range(self.config.clients)
        ]
        await self._unless_failed(watching, self.faults())
        for task in clients:
            task.cancel()
        await self._unless_failed(
            watching, self.until(self.converged, self.config.settle_s, "the healed cluster converges")
        )
        watching.cancel()
        self._check_acknowledged()
        self.taps.tell("end")
        outcome = self.outcome
        outcome.virtual_s = self.loop.time()
        return outcome

    def _check_acknowledged(self) -> None:
        for host in self.brokers:
            assert host.service is not None
            image = host.service.image
            for name, possible in sorted(self.outcome.possible.items()):
                found = image.configs.get((16, name), {}).get("match", "")
                if found not in possible:
                    raise CheckFailedError(f"{name} can only be one of {possible}, but {host.name} has {found!r}")
            self.outcome.state_hash = f"{image.state_hash:032x}"
        self.note(
            "end", f"{self.outcome.writes} writes, {self.outcome.unknown} unknown, state {self.outcome.state_hash}"
        )

    def _task(self, work: Coroutine[Any, Any, None], name: str, host: str = "") -> asyncio.Task[None]:
        return self.loop.create_task(work, name=name, context=host_context(host))

    @staticmethod
    async def _unless_failed(watching: asyncio.Task[None], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait({watching, task}, return_when=asyncio.FIRST_COMPLETED)
        if watching in done:
            task.cancel()
            watching.result()
        task.result()


def live(seed: int, config: LifeConfig | None = None, checkers: Sequence[Checker] = ()) -> Outcome:
    """Run one life. Raises CheckFailedError and DeadlockError; whatever any callback raises."""

    async def main() -> Outcome:
        return await Cluster(seed, config or LifeConfig(), checkers).live()

    return run(main())

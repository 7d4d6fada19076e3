"""Controllers and brokers as hosts of the simulated world: processes that start, die and come back, and the disks that stay."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable

from broker.service import BrokerService
from broker.settings import BrokerSettings
from controller.service import ControllerService
from controller.settings import ControllerSettings
from raftlog.errors import FatalError
from raftlog.metadata import versions
from raftlog.metadata.entities import Process
from raftlog.quorum.config import QuorumConfig, Voter
from raftlog.quorum.core import QuorumCore
from raftlog.storage.api import NodeIdentity
from simulation.disk import SimDisk
from simulation.loop import host_context
from simulation.network import SimNetwork
from simulation.watching import Watch

START_OF_TIME_MS = 1_700_000_000_000
"""Wall clock at virtual time 0."""
CLUSTER_ID = "simulated"

Note = Callable[[str, str], None]
"""(host, what happened), for the transcript."""


def wall_clock_ms() -> int:
    """The wall clock of every host: virtual."""
    return START_OF_TIME_MS + round(asyncio.get_running_loop().time() * 1000)


class ControllerHost:
    """One controller: shipped code above a simulated disk and network."""

    def __init__(
        self, network: SimNetwork, node_id: int, voters: tuple[Voter, ...], settings: ControllerSettings,
        rng: random.Random, note: Note, watch: Watch,
    ) -> None:  # fmt: skip
        self.network, self.id, self.name = network, node_id, f"c{node_id}"
        self._voters, self._settings, self._rng, self._note = voters, settings, rng, note
        self.disk = SimDisk(NodeIdentity(CLUSTER_ID, node_id, f"dir-{node_id}"), random.Random(rng.getrandbits(64)))
        self.service: ControllerService | None = None
        self.incarnation = 0
        self._watch = watch
        self._tap = watch.sender(self)

    @property
    def core(self) -> QuorumCore | None:
        """The running process's state machine; None while it is down or has not recovered."""
        return getattr(self.service.replica, "core", None) if self.service is not None else None

    def start(self) -> None:
        """Start the process on what its disk holds."""
        self.incarnation += 1
        self.network.tap(self.name, self._tap)
        transport = self.network.transport_for(self.name)
        service = self.service = ControllerService(
            self._settings,
            QuorumConfig(
                CLUSTER_ID,
                self.id,
                f"dir-{self.id}",
                self._voters,
                max_metadata_version=versions.LATEST_METADATA_VERSION,
            ),
            self.disk.open(),
            transport,
            rng=random.Random(self._rng.getrandbits(64)),
            wall_clock_ms=wall_clock_ms,
            on_failure=self._failed,
        )

        async def up() -> None:
            await transport.listen(f"{self.name}:9093", service.acceptors())
            service.recover()
            service.replica.core.validate_each_step = True
            self._watch.tap_controller(self)
            service.start()

        asyncio.get_running_loop().create_task(up(), name=f"{self.name} up", context=host_context(self.name))

    def _failed(self, error: FatalError) -> None:
        self._note(self.name, f"stopped: {error}")
        self.kill(f"stopped: {error}")

    def kill(self, reason: str = "killed") -> None:
        """As by kill -9 and a power cut: unflushed bytes are lost from some point on."""
        service, self.service = self.service, None
        if service is not None:
            service.close()
            self.network.crash(self.name)
            self.disk.crash(self._rng)
            self._watch.tell("controller_stopped", self, reason)


class BrokerHost:
    """One broker: shipped code above a simulated network. Its lock file is always the same, so a restart proves the death."""

    def __init__(
        self, network: SimNetwork, broker_id: int, controllers: tuple[str, ...], rng: random.Random, watch: Watch
    ) -> None:
        self.network, self.id, self.name = network, broker_id, f"b{broker_id}"
        self._controllers, self._rng, self._watch = controllers, rng, watch
        self.service: BrokerService | None = None
        self.incarnation = 0
        self._tap = watch.sender(self)

    @property
    def endpoint(self) -> str:
        """Where clients find it."""
        return f"{self.name}:9092"

    def start(self) -> None:
        """Start a new incarnation."""
        self.incarnation += 1
        self.network.tap(self.name, self._tap)
        service = self.service = BrokerService(
            BrokerSettings(
                broker_id=self.id,
                cluster_id=CLUSTER_ID,
                controllers=self._controllers,
                listen=self.endpoint,
                advertised_host=self.name,
                features=((versions.METADATA_VERSION, 1, versions.LATEST_METADATA_VERSION), ("lao.version", 0, 1)),
            ),
            self.network.transport_for(self.name),
            process=Process("boot", f"dir-{self.name}", 1, self.id),
            incarnation_id=str(uuid.UUID(int=self._rng.getrandbits(128))),
            rng=random.Random(self._rng.getrandbits(64)),
        )

        self._watch.tap_broker(self)

        async def up() -> None:
            # Not ``run``: a task that waits in a process that dies would never end.
            await service.start()

        asyncio.get_running_loop().create_task(up(), name=f"{self.name} up", context=host_context(self.name))

    def kill(self) -> None:
        """As by kill -9."""
        if self.service is not None:
            self.service = None
            self.network.crash(self.name)
            self._watch.tell("broker_stopped", self, "killed")

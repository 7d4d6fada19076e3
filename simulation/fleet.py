"""The hosts of a simulated cluster: made at its start, and added to it later."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from raftlog.quorum.config import Voter
from simulation import faults_disks
from simulation.checks.broker_ids import BROKER_IDS
from simulation.host_settings import quorum_of, settings_of_broker, settings_of_controllers
from simulation.hosts import BrokerHost, ControllerHost
from simulation.swarm.identities import (
    CALLERS,
    FORGER,
    OPERATOR,
    WARDEN,
    certificate_of_client,
    certificate_of_node,
    principal_of,
    security_of_brokers,
)
from simulation.twins.partition_disk import SimPartitionDisk

if TYPE_CHECKING:
    from simulation.restarts import Restarts
    from simulation.world import World

OBSERVER_IDS = 101
NEWCOMER_IDS = 900
OLD_SHARE = 0.5


class Fleet:
    """All hosts of a world, and the means to add more.

    ``restarts`` hears of each controller that ends by itself.
    """

    def __init__(self, world: World, restarts: Restarts) -> None:
        self._world, self._config = world, world.config
        self._newcomers = 0
        self._disks = 0
        self._names: dict[str, None] = {}
        voters = tuple(Voter(i, f"c{i}:9093") for i in range(1, self._config.voters + 1))
        self.voter_ids = [voter.node_id for voter in voters]
        self.endpoints = tuple(voter.endpoint for voter in voters)
        self.controllers = self._make_controllers(voters, restarts)
        self.members = [
            self.make_broker(BROKER_IDS + i, f"b{i}") for i in range(1, self._config.brokers + 1)
        ]
        self.brokers: list[BrokerHost] = list(self.members)
        """The members, and processes that pose as one."""
        self._give_certificates()
        for controller in self.controllers:
            self._let_work_take_time(controller.name)
        self._make_old_builds()
        self._let_clocks_drift()

    def _make_controllers(
        self, voters: tuple[Voter, ...], restarts: Restarts
    ) -> list[ControllerHost]:
        world, config = self._world, self._config
        settings = settings_of_controllers(config)
        observers = range(OBSERVER_IDS, OBSERVER_IDS + config.observers)
        made = [
            ControllerHost(
                world.network,
                quorum_of(config, node_id, voters),
                settings,
                world.rng(f"c{node_id}"),
                world.note,
                world.watch,
                failed=restarts.controller_stopped,
                disk_latency_s=(config.disk_min_ms / 1000, config.disk_max_ms / 1000),
            )
            for node_id in (*self.voter_ids, *observers)
        ]
        for host in made:
            host.on_death = restarts.died_writing
        return made

    def _give_certificates(self) -> None:
        if not self._config.authorizer:
            return
        network = self._world.network
        network.other_identity = certificate_of_client(OPERATOR)
        for name in (*CALLERS, WARDEN, FORGER):
            network.identities[name] = certificate_of_client(principal_of(name, self._config))
        network.addresses.update({name: site.address for name, site in CALLERS.items()})
        for controller in self.controllers:
            network.identities[controller.name] = certificate_of_node(controller.id)
        for member in self.members:
            # Who proposes ISRs beside a broker has its certificate.
            network.identities[f"leader{member.id}"] = certificate_of_node(member.id)

    def _let_work_take_time(self, host: str) -> None:
        if mean_us := self._config.work_us:
            rng = self._world.rng(f"work of {host}")
            self._world.network.loop.set_cost(host, partial(rng.expovariate, 1e6 / mean_us))

    def _make_old_builds(self) -> None:
        if self._config.old_build:
            rng = self._world.rng("builds")
            for each in self.hosts():
                if rng.random() < OLD_SHARE:
                    each.be_of_build(self._config.old_build)

    def _let_clocks_drift(self) -> None:
        if drift := self._config.drift:
            rng = self._world.rng("drift")
            for each in self.hosts():
                self._world.network.loop.set_clock_rate(each.name, 1 + rng.uniform(-drift, drift))
                self._world.happened("drift")

    # --- more of them ----------------------------------------------------------------------------

    def make_broker(self, broker_id: int, name: str = "") -> BrokerHost:
        """Return a broker's host; ``name``: another one than its id says."""
        world, config = self._world, self._config
        settings = settings_of_broker(config, broker_id, name, self.endpoints)
        rng, disk = world.rng(name or f"b{broker_id}"), None
        if config.data_per_s:
            disk = SimPartitionDisk(
                f"{name or f'b{broker_id}'}-disk-0",
                random.Random(rng.getrandbits(64)),
                latency_min_s=config.disk_min_ms / 1000,
                latency_max_s=config.disk_max_ms / 1000,
            )
        security = None
        if config.authorizer:
            security = security_of_brokers(config)
        host = BrokerHost(world.network, settings, rng, world.watch, disk=disk, security=security)
        if config.authorizer:
            world.network.identities[host.name] = certificate_of_node(broker_id)
        self._let_work_take_time(host.name)
        return host

    @property
    def next_newcomer(self) -> str:
        """The host of the next broker that comes without an id."""
        return f"n{self._newcomers + 1}"

    def make_newcomer(self) -> BrokerHost:
        """Make a broker without an id, on an unknown host."""
        name = self.next_newcomer
        self._newcomers += 1
        host = self.make_broker(NEWCOMER_IDS + self._newcomers, name)
        host.lose_disk()
        host.only_passing = True
        return host

    def new_name(self, name: str) -> str:
        """This name, or one made of it if a host had it before: what is drawn for a host is drawn
        by its name.
        """
        while name in self._names:
            name += "x"
        self._names[name] = None
        return name

    # --- their disks -----------------------------------------------------------------------------

    @property
    def replaced_disks(self) -> int:
        """Number of disks numbered by ``next_disk``."""
        return self._disks

    def next_disk(self) -> int:
        """Return the number of one more disk."""
        self._disks += 1
        return self._disks

    def replace_disk(self, host: ControllerHost, directory_id: str) -> None:
        """Give a host an empty disk; what has happened to the old one stays counted."""
        faults_disks.collect(host, self._world.outcome.faults)
        others = tuple(other.endpoint for other in self.controllers if other is not host)
        host.replace_disk(directory_id, others)

    # --- who they are ----------------------------------------------------------------------------

    def hosts(self) -> list[ControllerHost | BrokerHost]:
        """Return all hosts of the cluster."""
        return [*self.controllers, *self.members]

    def voters(self) -> list[ControllerHost]:
        """Hosts of the present voters."""
        return [host for host in self.controllers if host.id in self.voter_ids]

"""The part of the cluster that is healed at the beginning of the liveness phase."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raftlog.node.storage.api import NO_NODE_ID
from simulation import faults_data, faults_disks
from simulation.hosts import BrokerHost, ControllerHost

if TYPE_CHECKING:
    from simulation.world import World


class HealedPart:
    """The healed part: a majority of the voters, some brokers and the clients; empty before the
    healing.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._names: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        """Return whether the host of this name was healed."""
        return name in self._names

    def heal(self) -> None:
        """Choose the hosts to heal, and heal them; the others stay as they are."""
        world = self._world
        rng = world.rng("heal")
        world.lasting = True
        chosen = self._choose_controllers(rng)
        brokers = self._choose_brokers(rng)
        for twin in world.brokers[len(world.members) :]:
            twin.kill()
        self._names = dict.fromkeys(
            [host.name for host in chosen] + [host.name for host in brokers]
        )
        self._names.update(dict.fromkeys([*world.workload.hosts(), "operator"]))
        world.note("world", f"heals {' '.join(self._names)}; the rest stays as it is")
        world.network.unblock_all(among=self._names)
        healed: list[ControllerHost | BrokerHost] = [*chosen, *brokers]
        for host in healed:
            self._mend(host)
        for host in world.controllers:
            if host.name not in self:
                host.doom(-1)
        world.workload.stop()
        world.watch.tell("healed")

    def _choose_controllers(self, rng: random.Random) -> list[ControllerHost]:
        world = self._world
        if world.voters_change:
            # Who is a majority now only the log knows.
            return list(world.controllers)
        sound = [host for host in world.fleet.voters() if host.name not in world.damaged]
        majority = len(world.fleet.voter_ids) // 2 + 1
        return sorted(
            rng.sample(sound, rng.randint(majority, len(sound))), key=lambda host: host.id
        )

    def _choose_brokers(self, rng: random.Random) -> list[BrokerHost]:
        world = self._world
        sound = [
            host
            for host in world.members
            if not lost_its_id(host, world.members, world.controllers)
        ]
        count = rng.randint(1, len(sound)) if sound else 0
        return sorted(rng.sample(sound, count), key=lambda host: host.id)

    def _mend(self, host: ControllerHost | BrokerHost) -> None:
        self._world.network.resume(host.name)
        if isinstance(host, ControllerHost):
            host.doom(-1)
            faults_disks.mend_disk(self._world, host)
            host.disk.forget_failures()
        else:
            faults_data.mend(self._world, host)
        if host.service is None:
            host.start()

    # --- who of it can be asked ------------------------------------------------------------------

    def controllers(self) -> list[ControllerHost]:
        """Healed controllers that reach the active one."""
        return [
            host
            for host in self._world.controllers
            if host.name in self and self._reaches_leader(host.name)
        ]

    def brokers(self) -> list[BrokerHost]:
        """Healed brokers that reach the active controller."""
        return [
            host
            for host in self._world.members
            if host.name in self and self._reaches_leader(host.name)
        ]

    def _reaches_leader(self, name: str) -> bool:
        """A leader may live outside the healed part.

        As long as a majority follows it, who cannot reach it has to wait.
        """
        service, network = self._world.active(), self._world.network
        leader = f"c{service.quorum.node_id}" if service is not None else name
        return not (network.is_blocked(name, leader) or network.is_blocked(leader, name))


def lost_its_id(
    host: BrokerHost, members: Sequence[BrokerHost], controllers: Sequence[ControllerHost]
) -> bool:
    """Return whether another member has got the host's id, as this one was absent for long and the
    other had lost its disk.

    It is refused as long as the other runs: healing is not enough, an operator has to give it an
    empty disk.
    """
    rivals = [
        other.name for other in members if other is not host and other.broker_id == host.broker_id
    ]
    images = [one.service.image for one in controllers if one.service is not None]
    if not rivals or host.broker_id == NO_NODE_ID or not images:
        return False
    registration = max(images, key=lambda image: image.offset).brokers.get(host.broker_id)
    return registration is not None and registration.endpoint.rpartition(":")[0] in rivals

"""The scene of a fault: the nodes and links from which it may choose."""

import random
from dataclasses import dataclass

from simulation.chaos.nodes import ChaosCluster, ChaosNode


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster and its leader: the active controller's id, -1 if unknown."""

    cluster: ChaosCluster
    rng: random.Random
    leader: int

    @property
    def leading(self) -> ChaosNode:
        found = [node for node in self.cluster.controllers if node.id == self.leader]
        return found[0] if found else self.rng.choice(self.cluster.controllers)

    @property
    def following(self) -> ChaosNode:
        return self.rng.choice(
            [node for node in self.cluster.controllers if node.id != self.leading.id]
        )

    @property
    def broker(self) -> ChaosNode:
        return self.rng.choice(self.cluster.brokers)

    @property
    def node(self) -> ChaosNode:
        return self.rng.choice(self.cluster.nodes)

"""A whole cluster without faults on virtual time, for tests of clients."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import raftlog
from raftlog.transport.api import Conversation
from simulation.checks.suite import all_checkers
from simulation.outcome import Outcome
from simulation.swarm.config import SwarmConfig
from simulation.twins.loop import run
from simulation.world import World

CONFIG = SwarmConfig(brokers=2, clients=0, writes_per_s=0.0, reads_per_s=0.0)


class Cluster(World):
    """Three controllers and two idle brokers."""

    def client(
        self, name: str = "client", bootstrap: Sequence[str] = (), **options: Any
    ) -> raftlog.AsyncClient:
        """Return a client on its own host; ``bootstrap``: by default all brokers."""
        return raftlog.AsyncClient.over(
            lambda: self.network.transport_for(name),
            bootstrap or [member.endpoint for member in self.members],
            rng=self.rng(name),
            **options,
        )


def client_beside_a_lagging_broker(cluster: Cluster, lags_s: float) -> raftlog.AsyncClient:
    """A client that watches at one broker and reads at the other, which applies with this delay."""
    ahead, behind = cluster.members
    client = cluster.client("beside", [behind.endpoint])
    # As one whose watch has moved, or begun, elsewhere.
    client.watch = cluster.client("watches", [ahead.endpoint]).watch  # type: ignore[method-assign]
    for controller in cluster.controllers:
        cluster.network.stall(controller.name, behind.name, lags_s, Conversation.OBSERVER)
    return client


def on_cluster(work: Callable[[Cluster], Awaitable[None]]) -> None:

    async def main() -> None:
        cluster = Cluster(Outcome(1, CONFIG), all_checkers())
        for host in cluster.fleet.hosts():
            host.start()
        await cluster.until(cluster.is_up, 30, "the cluster comes up")
        await work(cluster)
        assert cluster.watch.failure is None, cluster.watch.failure

    run(main())

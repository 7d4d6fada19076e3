"""Random schedules: loss, delay, repetition, crashes that lose what was not flushed, partitions. Then all must heal."""

from __future__ import annotations

import random

import pytest
from quorum_harness import Cluster

from raftlog.quorum.events import PeerConnected, PeerLost, RequestFailed, ResignRequested, RoundRequested, Tick


class Chaos:
    """One seed, one schedule."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.cluster = Cluster(
            rng.choice([1, 2, 3, 3, 3, 5]),
            rng.choice([0, 0, 1]),
            seed=seed,
            connected=rng.random() < 0.5,
            known_directories=rng.random() < 0.5,
            # A move takes about a millisecond.
            election_timeout_ms=60,
            election_jitter_max_ms=30,
            fetch_timeout_ms=60,
            fetch_max_wait_ms=20,
            request_timeout_ms=rng.choice([25, 60]),
            high_watermark_linger_ms=seed % 2 * 5,
        )
        self.drop, self.repeat, self.crash = (
            rng.choice([0, 0.05, 0.3]),
            rng.choice([0, 0.1]),
            rng.choice([0, 0.003, 0.01]),
        )
        self.disk_speed = rng.choice([0.15, 0.5, 1])

        self.slow = (0, 0)
        """Messages of this link wait for long: what arrives may come from another epoch."""

    def move(self) -> None:
        rng, cluster = self.rng, self.cluster
        roll = rng.random()
        if roll < self.crash:
            self.crash_or_restart()
        elif roll < self.crash + 0.05:
            self.provoke()
        elif roll < self.crash + 0.06:
            cluster.now += rng.choice([0.005, 0.02, 0.1])
        elif roll < self.crash + 0.07:
            self.change_links()
        if rng.random() < self.disk_speed:
            self.disk_work()
        if cluster.network:
            self.network_work()
        cluster.now += rng.random() * 0.001
        cluster.tick_due()

    def crash_or_restart(self) -> None:
        nodes = list(self.cluster.nodes.values())
        node = self.rng.choice([node for node in nodes if not node.alive or self.rng.random() < 0.4] or nodes)
        if node.alive:
            self.cluster.crash(
                node.id, keep=self.rng.randint(0, len(node.disk.pending)), noticed=self.rng.random() < 0.5
            )
        else:
            self.cluster.restart(node.id)

    def provoke(self) -> None:
        rng, cluster = self.rng, self.cluster
        leaders = cluster.leaders()
        kind = rng.random()
        if not leaders:
            return
        leader = rng.choice(leaders)
        if kind < 0.5:
            leader.propose([cluster.new_value() for _ in range(rng.randint(1, 4))])
        elif kind < 0.95:
            leader.step(RoundRequested())
        else:
            leader.step(ResignRequested("chaos"))

    def change_links(self) -> None:
        rng, cluster = self.rng, self.cluster
        kind = rng.random()
        ids = list(cluster.nodes)
        if kind < 0.6:
            cluster.heal()
        elif kind < 0.75:
            cluster.isolate(*rng.sample(ids, rng.randint(0, len(ids) // 2)))
        elif kind < 0.85:
            one, two = rng.choice(ids), rng.choice(ids)
            cluster.blocked = lambda source, target: (source, target) == (one, two)
        elif kind < 0.95:
            self.slow = (rng.choice(ids), rng.choice(ids))
        elif cluster.alive:
            # False evidence of death must cost no more than an election.
            node, peer = rng.choice(cluster.alive), rng.choice(cluster.voters).node_id
            if peer != node.id:
                node.step(rng.choice([PeerLost, PeerConnected])(peer))

    def disk_work(self) -> None:
        for node in self.rng.sample(self.cluster.alive, len(self.cluster.alive)):
            if self.rng.choice([node.persist, node.flush])():
                return

    def network_work(self) -> None:
        rng, cluster = self.rng, self.cluster
        at = rng.randrange(min(len(cluster.network), 12))
        message = cluster.network[at]
        if (message.source, message.target) == self.slow and rng.random() < 0.98:
            return
        if rng.random() < self.repeat:
            cluster.network.append(message.copy())
            cluster.deliver(message)
            return
        cluster.network.pop(at)
        if rng.random() < self.drop:
            if message.is_request and rng.random() < 0.5:
                event = RequestFailed(message.target, message.correlation_id)
                cluster.step_all_of(message.source, message.asker_life, event)
            return
        cluster.deliver(message)

    def heal(self) -> None:
        """All come back: a leader must be found, everybody catch up, and writes be committed."""
        cluster = self.cluster
        cluster.heal()
        self.slow = (0, 0)
        cluster.network.clear()
        for node in cluster.nodes.values():
            if not node.alive:
                cluster.restart(node.id)
        cluster.connect_all()
        for node in cluster.alive:
            node.step(Tick())
        cluster.run_until(lambda: bool(cluster.leaders()) and cluster.calm(), 30, 0.05)
        committed = len(cluster.oracle.committed)
        cluster.propose(3)
        cluster.run_until(lambda: cluster.calm() and len(cluster.oracle.committed) >= committed + 3, 30, 0.05)
        cluster.oracle.check_logs()


def run_seed(seed: int, moves: int = 1000) -> Chaos:
    chaos = Chaos(seed)
    for i in range(moves):
        chaos.move()
        if i % 25 == 0:
            chaos.cluster.oracle.check_logs()
    chaos.heal()
    return chaos


@pytest.mark.parametrize("block", range(20))
def test_random_schedules(block: int) -> None:
    for seed in range(block * 15, block * 15 + 15):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_schedules_reach_what_they_should() -> None:
    """The faults bite: several leaders, truncations, commits in most schedules."""
    epochs = truncations = committed = 0
    for seed in range(40):
        cluster = run_seed(seed).cluster
        epochs += len(cluster.oracle.leader_of) > 2
        truncations += any(node.truncations for node in cluster.nodes.values())
        committed += len(cluster.oracle.committed) > 5
    assert epochs > 20
    assert truncations > 3
    assert committed > 30


def test_same_seed_same_history() -> None:
    one, two = (run_seed(7).cluster for _ in range(2))
    assert [node.effects for node in one.nodes.values()] == [node.effects for node in two.nodes.values()]

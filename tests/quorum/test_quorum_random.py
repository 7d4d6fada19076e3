"""Random schedules: loss, delay, repetition, crashes that lose what was not flushed, partitions;
voters that come and go, snapshots, a replaced disk. Then all must heal."""

import random
from itertools import pairwise

import pytest
from quorum_harness import Cluster, SimNode, effects_of, voters_in
from tiers import in_gate

from raftlog.quorum.events import (
    PeerConnected,
    PeerLost,
    ReadIndexRequested,
    RequestFailed,
    ResignRequested,
    SuccessorChosen,
    Tick,
    VotersChanged,
)


class Chaos:
    """One seed, one schedule.

    ``changing``: with changes of the voter set, snapshots, and a disk that is replaced.
    """

    def __init__(self, seed: int, *, changing: bool = False) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.changing = changing
        self.disk_replaced = not changing
        self.cluster = Cluster(
            rng.choice([1, 2, 3, 3, 3, 5]),
            rng.choice([1, 2] if changing else [0, 0, 1]),
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
        node = self.rng.choice(
            [node for node in nodes if not node.alive or self.rng.random() < 0.4] or nodes
        )
        if node.alive:
            self.cluster.crash(
                node.id,
                keep=self.rng.randint(0, len(node.disk.pending)),
                noticed=self.rng.random() < 0.5,
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
        if self.changing and rng.random() < 0.5:
            self.change(leader)
        elif kind < 0.5:
            leader.propose([cluster.new_value() for _ in range(rng.randint(1, 4))])
        elif kind < 0.95:
            leader.step(ReadIndexRequested())
        elif kind < 0.97:
            self.hand_over(leader)
        else:
            leader.step(ResignRequested("chaos"))

    def hand_over(self, leader: SimNode) -> None:
        """Transfer the leadership; anything in flight meanwhile may fail."""
        rng = self.rng
        chosen = rng.choice(list(self.cluster.nodes))
        leader.step(SuccessorChosen(chosen))
        for _ in range(rng.choice((0, 10, 60))):
            self.move()
        if leader.alive and rng.random() < 0.7:
            leader.step(ResignRequested("transfer", chosen))

    def change(self, leader: SimNode) -> None:
        rng, cluster = self.rng, self.cluster
        kind = rng.random()
        if kind < 0.35:
            node = rng.choice(cluster.alive)
            if node.high_watermark > node.start_offset:
                snapshot_id = node.snapshot(rng.randint(node.start_offset + 1, node.high_watermark))
                if rng.random() < 0.7:
                    node.advance_start(snapshot_id)
        elif kind < 0.45:
            self.replace_disk()
        elif kind < 0.5:
            leader.step(ResignRequested("transfer", rng.choice(list(cluster.nodes))))
        elif kind < 0.55:
            leader.step(SuccessorChosen(rng.choice([-1, *cluster.nodes])))
        elif not leader.up.membership_obstacle():
            self.change_voters(leader)

    def change_voters(self, leader: SimNode) -> None:
        cluster, nodes = self.cluster, self.cluster.nodes
        voters = leader.up.voters
        if leader.up.voters_offset == -1:
            leader.propose_voters(*(nodes[v.node_id].name for v in voters))
            return
        names = [v.directory_id[3:] for v in voters]
        present = [node.name for node in nodes.values()]
        gone = [name for name in names if name not in present]
        # Whoever lost its disk goes first: with another one removed there might be no majority any
        # more.
        name = gone[0] if gone else self.rng.choice(present)
        if name in names:
            names.remove(name)
        else:
            names.append(name)
        if names:
            leader.propose_voters(*names)
            cluster.changes += 1

    def replace_disk(self) -> None:
        """Once, and only where a majority stays whatever becomes of the changes on their way."""
        nodes = list(self.cluster.nodes.values())
        sets = {
            tuple(v.directory_id for v in s[-1].voters) if (s := voters_in(n.log, 0)) else ()
            for n in nodes
            if n.alive
        }
        if self.disk_replaced or len(sets) != 1 or not all(node.alive for node in nodes):
            return
        (voters,) = sets
        high_watermark = max(node.high_watermark for node in nodes)
        settled = all(
            at.offset < high_watermark
            for node in nodes
            for at in voters_in(node.disk.recovered_log(), 0)[-1:]
        )
        on_disk = all(
            (s := voters_in(n.disk.recovered_log(), 0))
            and tuple(v.directory_id for v in s[-1].voters) == voters
            for n in nodes
        )
        if len(voters) < 3 or not settled or not on_disk:
            return
        node = self.rng.choice(nodes)
        self.disk_replaced = True
        self.cluster.crash(node.id)
        node.replace_disk()

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
                node.step(PeerLost(peer) if rng.choice([True, False]) else PeerConnected(peer))

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
        cluster.run_until(
            lambda: cluster.calm() and len(cluster.oracle.committed) >= committed + 3, 30, 0.05
        )
        cluster.oracle.check_logs()


def run_seed(seed: int, moves: int = 1000, *, changing: bool = False) -> Chaos:
    chaos = Chaos(seed, changing=changing)
    for i in range(moves):
        chaos.move()
        if i % 25 == 0:
            chaos.cluster.oracle.check_logs()
    chaos.heal()
    return chaos


@pytest.mark.parametrize("block", in_gate(range(20), range(6)))
def test_quorum_keeps_its_promises_in_random_schedules(block: int) -> None:
    for seed in range(block * 15, block * 15 + 15):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("block", in_gate(range(20), range(6)))
def test_random_schedules_with_changing_voters_and_snapshots(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        try:
            run_seed(seed, changing=True)
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


@pytest.mark.nightly
def test_changing_schedules_reach_what_they_should() -> None:
    """Voters come and go, leaders are removed, records of it truncated, snapshots installed, disks
    replaced.
    """
    changes = removed = reverted = installed = replaced = 0
    for seed in range(60):
        chaos = run_seed(seed, changing=True)
        cluster = chaos.cluster
        changes += cluster.changes
        installed += cluster.installed
        replaced += chaos.disk_replaced
        removed += any(
            getattr(e, "reason", "") == "removed from the voter set" for _, e in cluster.history
        )
        for node in cluster.nodes.values():
            offsets = [e.offset for e in effects_of(node, VotersChanged)]
            reverted += any(a > b >= 0 for a, b in pairwise(offsets))
    assert changes > 60
    assert removed > 5
    assert reverted > 0
    assert installed > 10
    assert replaced > 1


def test_same_seed_same_history() -> None:
    one, two = (run_seed(7).cluster for _ in range(2))
    assert [node.effects for node in one.nodes.values()] == [
        node.effects for node in two.nodes.values()
    ]

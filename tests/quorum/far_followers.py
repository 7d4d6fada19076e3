"""A cluster whose links take time: each its own, in each direction.

The leader falls silent, and somebody must replace it in time.

Silent: its process hangs. What it has sent still arrives, what is sent to it gets no answer, and
nothing proves that it is gone.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quorum_harness import Cluster, Message, SimNode

from raftlog.node.storage.api import VoteState
from raftlog.quorum.events import BecameLeader, PeerConnected, Tick

FETCH_TIMEOUT_S = ELECTION_TIMEOUT_S = 1.0
MARGIN_S = 0.3
"""Allowance in seconds beside the fetch timeout and the round trips: jitter of timers, fsyncs, and
the back-off before a second attempt.
"""
WARM_UP_S = 1.2
"""Calm in seconds before the leader falls silent and after its replacement: no election may happen
in either.
"""


@dataclass
class Links:
    """The network of a Cluster: messages of one direction of a link arrive in the order in which
    they were sent.
    """

    cluster: FarCluster
    latency_s: dict[tuple[int, int], float]
    on_the_way: list[tuple[float, int, Message]] = field(default_factory=list)
    count: int = 0
    arrives: dict[tuple[int, int], float] = field(default_factory=dict)

    def append(self, message: Message) -> None:
        link = (message.source, message.target)
        if message.source in self.cluster.silent:
            return
        at = max(self.cluster.now + self.latency_s[link], self.arrives.get(link, 0.0))
        self.arrives[link] = at
        self.count += 1
        heapq.heappush(self.on_the_way, (at, self.count, message))


class FarCluster(Cluster):
    """Voters 1..n with ``latency_s`` between each two.

    All have their links at once, or each when ``connect_at_s`` says.
    """

    def __init__(
        self,
        voters: int,
        latency_s: dict[tuple[int, int], float],
        seed: int,
        connect_at_s: dict[tuple[int, int], float] | None = None,
        format_disk: Callable[[SimNode], None] = lambda node: None,
        **options: Any,
    ) -> None:
        self.silent: set[int] = set()
        self.elected: list[tuple[float, int, int]] = []
        self.connects: list[tuple[float, tuple[int, int]]] = []
        super().__init__(voters, seed=seed, start=False, high_watermark_linger_ms=20, **options)
        self.links = Links(self, latency_s)
        self.network = self.links  # type: ignore[assignment]
        for node in self.nodes.values():
            format_disk(node)
            node.start()
        if connect_at_s is None:
            self.connect_all()
        else:
            self.connects = sorted((self.now + at_s, link) for link, at_s in connect_at_s.items())

    def live(self) -> list[Any]:
        return [node for node in self.alive if node.id not in self.silent]

    def run(self, seconds: float, write_every_s: float = 0.0) -> None:
        """Let everything happen for so long."""
        end, write_at = self.now + seconds, self.now
        while True:
            due = min(node.up.next_deadline() for node in self.live())
            if self.links.on_the_way:
                due = min(due, self.links.on_the_way[0][0])
            if self.connects:
                due = min(due, self.connects[0][0])
            if write_every_s:
                due = min(due, write_at)
            if due > end:
                self.now = end
                return
            self.now = max(self.now, due)
            self._connect()
            self._arrive()
            if write_every_s and self.now >= write_at:
                write_at += write_every_s
                for node in self.live():
                    if node.up.role == "leader":
                        node.propose([self.new_value()])
            for node in self.live():
                if node.up.next_deadline() <= self.now:
                    node.step(Tick())
            self._work_disks()

    def _connect(self) -> None:
        while self.connects and self.connects[0][0] <= self.now:
            one, other = self.connects.pop(0)[1]
            if one not in self.silent:
                self.nodes[one].step(PeerConnected(other))

    def _arrive(self) -> None:
        waiting = self.links.on_the_way
        while waiting and waiting[0][0] <= self.now:
            message = heapq.heappop(waiting)[2]
            if message.target not in self.silent:
                self.deliver(message)
                self._work_disks()

    def _work_disks(self) -> None:
        busy = True
        while busy:
            busy = False
            for node in self.live():
                busy = node.persist() or node.flush() or busy
        for node_id, effect in self.history:
            if isinstance(effect, BecameLeader):
                self.elected.append((self.now, node_id, effect.epoch))
        self.history.clear()
        for node in self.nodes.values():
            node.effects.clear()


@dataclass(frozen=True)
class Silence:
    """The result of one silent leader, or of one cold start."""

    took_s: float
    bound_s: float
    needless: int
    """Elections in the calm before, and after the first one after."""


TOPOLOGIES = ("near", "one far", "two far", "all far", "any", "asymmetric")


def latencies(
    topology: str, voters: int, longest_s: float, rng: random.Random
) -> dict[tuple[int, int], float]:
    """One-way latencies of each direction of each link, a little uneven."""
    ids = range(1, voters + 1)
    far = set(rng.sample(list(ids), {"one far": 1, "two far": 2}.get(topology, 0)))
    latency_s: dict[tuple[int, int], float] = {}
    for one, other in ((a, b) for a in ids for b in ids if a != b):
        if topology == "all far" or one in far or other in far:
            found = longest_s
        elif topology == "any" and (other, one) in latency_s:
            found = latency_s[other, one]
        elif topology in ("any", "asymmetric"):
            found = rng.uniform(0.0003, longest_s)
        else:
            found = 0.0005
        latency_s[one, other] = found * rng.uniform(0.97, 1.0)
    return latency_s


def silence(
    topology: str, voters: int, silent: int, longest_s: float, write_every_s: float, seed: int
) -> Silence:
    """The leader falls silent, with ``silent`` - 1 others."""
    rng = random.Random(f"{topology} {voters} {silent} {longest_s} {write_every_s} {seed}")
    latency_s = latencies(topology, voters, longest_s, rng)
    cluster = FarCluster(voters, latency_s, seed)
    for _ in range(100):
        cluster.run(0.2)
        if cluster.leaders() and cluster.calm():
            break
    leader, before = cluster.leader(), len(cluster.elected)
    cluster.run(WARM_UP_S + rng.random() * 0.5, write_every_s)
    needless = len(cluster.elected) - before
    others = [node_id for node_id in cluster.nodes if node_id != leader.id]
    cluster.silent = {leader.id, *rng.sample(others, silent - 1)}
    begun, before = cluster.now, len(cluster.elected)
    while len(cluster.elected) == before and cluster.now < begun + 8.0:
        cluster.run(0.02)
    took_s = cluster.elected[before][0] - begun if len(cluster.elected) > before else 8.0
    cluster.run(WARM_UP_S)
    needless += max(0, len(cluster.elected) - before - 1)
    live = [node.id for node in cluster.live()]
    trip_s = max(latency_s[a, b] + latency_s[b, a] for a in live for b in live if a != b)
    return Silence(took_s, FETCH_TIMEOUT_S + 2 * trip_s + MARGIN_S, needless)


def cold_start(
    topology: str,
    voters: int,
    silent: int,
    longest_s: float,
    spread_s: float,
    seed: int,
    *,
    led: bool,
) -> Silence:
    """All voters start within ``spread_s`` of each other, ``silent`` of them hang from the start.

    From the last connection on.

    ``led``: they have led and followed before, and their logs may differ.
    """
    rng = random.Random(
        f"cold start {topology} {voters} {silent} {longest_s} {spread_s} {seed} {led}"
    )
    latency_s = latencies(topology, voters, longest_s, rng)
    ids = range(1, voters + 1)
    hang, leader, started_s = (
        set(rng.sample(ids, silent)),
        rng.choice(ids),
        {i: rng.uniform(0, spread_s) for i in ids},
    )
    connect_at_s: dict[tuple[int, int], float] = {}
    for one, other in latency_s:
        # A process that hangs may have accepted, or its machine is off.
        if not hang & {one, other} or rng.random() < 0.5:
            setup_s = 1.5 * (latency_s[one, other] + latency_s[other, one]) + rng.uniform(
                0, spread_s / 10
            )
            connect_at_s[one, other] = max(started_s[one], started_s[other]) + setup_s

    def format_disk(node: SimNode) -> None:
        if led:
            own = node.id == leader
            node.disk.vote = VoteState(
                4, leader if own else -1, f"dir{leader}" if own else "", leader
            )
            node.disk.log = [(4, value) for value in range(5 + rng.choice((0, 0, 1, 2)))]

    cluster = FarCluster(voters, latency_s, seed, connect_at_s, format_disk, checked=not led)
    cluster.silent = hang
    begun = cluster.now + max(at_s for link, at_s in connect_at_s.items() if not hang & set(link))
    while not cluster.elected and cluster.now < begun + 8.0:
        cluster.run(0.02)
    took_s = cluster.elected[0][0] - begun if cluster.elected else 8.0
    cluster.run(WARM_UP_S)
    live = [node.id for node in cluster.live()]
    trip_s = max(latency_s[a, b] + latency_s[b, a] for a in live for b in live if a != b)
    return Silence(
        took_s, ELECTION_TIMEOUT_S + 2 * trip_s + MARGIN_S, max(0, len(cluster.elected) - 1)
    )

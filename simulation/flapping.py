"""Flapping links and short pauses: no election while the leader and a majority have working
streams.

In each spell a majority with the leader is *held*, and all others are *cast out*: killed, paused,
cut off, for any time. Held nodes suffer faults shorter than the timeouts, in waves with calm
between: cuts and pauses below a third of the fetch timeout, or resets. Between spells all is
healed, and every node hears the leader. Each later election is *needless*; at startup two may race.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from raftlog.quorum import events as ev
from raftlog.quorum.events import Effect, Event
from simulation.checks.api import Checker, ControllerView, fail
from simulation.hosts import ControllerHost
from simulation.outcome import Outcome
from simulation.run import Swarm, run_world
from simulation.swarm.config import SwarmConfig, draw_freely

SETTLE_S = 20.0
"""Time within which every node hears the leader again after a spell, in seconds."""
WAVE_SHARE = 0.3
"""The longest wave, and the shortest calm after it, as a share of the fetch timeout."""
RESET_CALM_S = 1.2
"""Calm around resets, in seconds: a link that breaks within 0.5 s is redialed with back-off."""


class Needless(Checker):
    """A checker that raises at every election after ``settled`` is set."""

    def __init__(self) -> None:
        self.elections: list[str] = []
        self.campaigns = 0
        """Number of requests for pre-votes, all of which must fail."""
        self.seen: Counter[str] = Counter()
        self.settled = False
        self.held = ""
        self._asking: set[str] = set()

    def after_step(self, host: ControllerView, event: Event, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ev.BecameLeader):
                self.elections.append(
                    f"{host.name} in epoch {effect.epoch} at {self.world.now():.3f} s"
                )
                if self.settled:
                    fail(
                        f"needless election of {', before it '.join(self.elections[:-3:-1])};"
                        f" {self.held}"
                    )
        if host.core is not None and host.core.role == "prospective":
            self.campaigns += host.name not in self._asking
            self._asking.add(host.name)
        else:
            self._asking.discard(host.name)


class FlappingWorld(Swarm):
    """A cluster in which a majority always works."""

    def __init__(self, outcome: Outcome, needless: Needless) -> None:
        super().__init__(outcome, [needless])
        self._needless = needless
        self._timeout_s = self.config.fetch_timeout_ms / 1000
        self._reset_from = 0.0

    def begin_faults(self) -> None:
        self.spawn(self._spells(self.rng("spells")), "spells")

    async def _spells(self, rng: random.Random) -> None:
        while not self.lasting:
            await self.until(self._settled, SETTLE_S, "everyone hears the leader")
            leader = self.leading()
            followers = [host for host in self.fleet.voters() if host is not leader]
            rng.shuffle(followers)
            outside = followers[: rng.randint(0, (len(self.fleet.voter_ids) - 1) // 2)]
            held = [leader, *(host for host in followers if host not in outside)]
            self._needless.held = (
                f"{' '.join(host.name for host in held)} were held, led by {leader.name}"
            )
            self.note("spell", self._needless.held)
            self._needless.settled = True
            self._reset_from = self.now() + RESET_CALM_S
            over = self.now() + rng.uniform(1.0, 8.0) * self._timeout_s
            tormented = [asyncio.ensure_future(self._cast_out(host, over, rng)) for host in outside]
            while self.now() < over:
                await self._wave(held, rng)
            await asyncio.gather(*tormented)

    def _settled(self) -> bool:
        """Return whether every voter follows the leader and has heard from it since."""
        leader = self.leading()
        for host in self.fleet.voters():
            core = host.core
            if core is None or core.leader_id != leader.id:
                return False
            if host is not leader and not core.describe(self.now()).hears_leader:
                return False
        return True

    async def _wave(self, held: list[ControllerHost], rng: random.Random) -> None:
        if len(held) == 1:
            await asyncio.sleep(self._timeout_s)
            return
        if rng.random() < 0.3 and self.now() >= self._reset_from:
            for host in rng.sample(held, rng.randint(1, len(held))):
                self._needless.seen["reset"] += self.network.break_links(host.name)
            self._reset_from = self.now() + 2 * RESET_CALM_S
            await asyncio.sleep(RESET_CALM_S + rng.uniform(0.0, 1.0) * self._timeout_s)
            return
        names = [host.name for host in held]
        pairs = [
            (one, other) for one in names for other in names if one != other and rng.random() < 0.5
        ]
        paused = [name for name in names if rng.random() < 0.3]
        for pair in pairs:
            self.network.block(*pair)
        for name in paused:
            self.network.pause(name)
        self._needless.seen.update(cut=len(pairs), pause=len(paused))
        await asyncio.sleep(rng.uniform(0.01, WAVE_SHARE) * self._timeout_s)
        for pair in pairs:
            self.network.unblock(*pair)
        for name in paused:
            self.network.resume(name)
        await asyncio.sleep(rng.uniform(WAVE_SHARE, 1.0) * self._timeout_s)

    async def _cast_out(self, host: ControllerHost, over: float, rng: random.Random) -> None:
        """Let anything happen to a host, repeatedly; then heal it."""
        others = [each.name for each in self.controllers if each is not host]
        while self.now() < over:
            kind = rng.choice(
                ("kill", "long pause", "isolation", "one way", "flapping", "away from the leader")
            )
            self._needless.seen[kind] += 1
            self.note(host.name, kind)
            pairs: list[tuple[str, str]] = []
            if kind == "kill":
                host.kill()
            elif kind == "long pause":
                self.network.pause(host.name)
            elif kind == "isolation":
                pairs = [pair for name in others for pair in ((host.name, name), (name, host.name))]
            elif kind == "one way":
                pairs = [
                    (name, host.name) if rng.random() < 0.5 else (host.name, name)
                    for name in others
                ]
            elif kind == "away from the leader":
                leader = self.leading().name
                pairs = [(host.name, leader), (leader, host.name)][: rng.randint(1, 2)]
            else:
                self.network.break_links(host.name)
            for pair in pairs:
                self.network.block(*pair)
            longest_s = self._timeout_s * (0.5 if kind == "flapping" else 4.0)
            await asyncio.sleep(min(rng.uniform(0.05, longest_s), max(0.0, over - self.now())))
            for pair in pairs:
                self.network.unblock(*pair)
            self.network.resume(host.name)
            if host.service is None:
                host.start()
            await asyncio.sleep(rng.uniform(0.0, 0.3) * self._timeout_s)


def faultless(seed: int, timeout_ms: int, **changes: Any) -> SwarmConfig:
    """Return a seed's config with fast disks, and without faults."""
    return replace(
        draw_freely(seed), faults={}, disk_max_ms=2.0, queue_messages=65536,
        election_timeout_ms=timeout_ms, fetch_timeout_ms=timeout_ms, **changes,
    )  # fmt: skip


def flap(seed: int, config: SwarmConfig | None = None) -> tuple[Outcome, Needless]:
    """Run once. A needless election, or any exception, is the outcome's failure."""
    rng = random.Random(f"{seed} flapping")
    timeout_ms, voters = rng.choice((700, 1000)), rng.choice((3, 3, 3, 5))
    brokers = rng.choice((0, 1, 3))
    config = config or faultless(seed, timeout_ms, voters=voters, brokers=brokers, safety_s=30.0)
    outcome, needless = Outcome(seed, config), Needless()
    run_world(outcome, lambda: FlappingWorld(outcome, needless))
    return outcome, needless

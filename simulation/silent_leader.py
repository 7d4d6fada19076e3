"""Silent leaders and far followers: a hanging controller is replaced in time, without other
elections.

Delays between controllers are drawn up to 200 ms one way. Repeatedly the leader is stopped (half of
the time of five with another one), and a successor must be elected within the fetch timeout, two
round trips of the slowest link and 0.3 s. It wakes, and all settle. Every other election is
*needless*.
"""

import asyncio
import random
from dataclasses import dataclass, field

from simulation.checks.api import fail
from simulation.flapping import SETTLE_S, FlappingWorld, Needless, faultless
from simulation.hosts import ControllerHost
from simulation.outcome import Outcome
from simulation.run import run_world

TIMEOUT_MS = 1000
FAR_S = 0.2
MARGIN_S = 0.3
GIVE_UP_S = 8.0


@dataclass
class Replaced:
    """Durations of the replacements of leaders, and their bound."""

    took_s: list[float] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


class SilentLeaderWorld(FlappingWorld):
    """A cluster whose leaders hang."""

    def __init__(self, outcome: Outcome, needless: Needless, replaced: Replaced) -> None:
        super().__init__(outcome, needless)
        self._replaced = replaced
        rng = self.rng("distances")
        names = [host.name for host in self.fleet.voters()]
        far = rng.sample(names, rng.choice((0, 1, 1, 2)))
        for one, other in ((a, b) for a in names for b in names if a != b):
            is_far = one in far or other in far
            self.network.far_s[one, other] = (
                FAR_S if is_far else 0.0 if far else rng.uniform(0.0, FAR_S)
            )

    async def _spells(self, rng: random.Random) -> None:
        while not self.lasting:
            await self.until(self._settled, SETTLE_S, "everyone hears the leader")
            leader = self.leading()
            self._needless.held = f"all were, led by {leader.name}"
            self._needless.settled = True
            await asyncio.sleep(rng.uniform(0.5, 3.0))
            if not self.lasting and self.leading() is leader:
                await self._silence(leader, rng)

    async def _silence(self, leader: ControllerHost, rng: random.Random) -> None:
        others = [host for host in self.fleet.voters() if host is not leader]
        silent = [leader, *rng.sample(others, int(len(others) == 4 and rng.random() < 0.5))]
        live = [host.name for host in others if host not in silent]
        far_s = self.network.far_s
        trip_s = max(
            far_s[one, other] + far_s[other, one] for one in live for other in live if one != other
        )
        bound_s = TIMEOUT_MS / 1000 + 2 * trip_s + MARGIN_S
        self._needless.settled = False
        begun, before = self.now(), len(self._needless.elections)
        for host in silent:
            self.network.pause(host.name)
        while len(self._needless.elections) == before:
            if self.now() - begun > GIVE_UP_S:
                fail(f"nobody has replaced {leader.name} within {GIVE_UP_S:g} s")
            await asyncio.sleep(0.005)
        took_s = self.now() - begun
        self._replaced.took_s.append(took_s)
        if took_s > bound_s:
            self._replaced.late.append(
                f"{leader.name} after {took_s:.3f} s, {bound_s:.3f} s were allowed"
            )
        for host in silent:
            self.network.resume(host.name)
        await asyncio.sleep(1.0)


def hang(seed: int) -> tuple[Outcome, Replaced]:
    """Run once. A needless election is the outcome's failure; slow replacements are listed."""
    rng = random.Random(f"{seed} silent leader")
    voters, brokers = rng.choice((3, 3, 5)), rng.choice((0, 1))
    config = faultless(
        seed, TIMEOUT_MS, voters=voters, brokers=brokers, safety_s=20.0, drift=0.0, timeout_s=5.0
    )
    outcome, replaced = Outcome(seed, config), Replaced()
    run_world(outcome, lambda: SilentLeaderWorld(outcome, Needless(), replaced))
    return outcome, replaced

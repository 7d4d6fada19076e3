"""Dead voters and spares, as in published failures of other systems.

*Shrinking* (Consul #5922): five voters die one by one without a spare; the set stays five, so two
elect nobody, and the third that returns completes a quorum.

*Between* (Consul #3151): the leader dies after removing a dead voter, before the spare has its
seat; when the last voter's peer returns, the next leader gives the seat to the spare.

*Rolled* (Consul #8118): voters restart one by one, and none is replaced.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from controller.decisions.quorum.preference import STEADY_S
from simulation.checks.api import Checker
from simulation.faults.voters import committed_voters
from simulation.hosts import ControllerHost
from simulation.outcome import Outcome
from simulation.run import Swarm, run_world
from simulation.swarm.config import SwarmConfig

AFTER_MS = 3_000
CONFIG = SwarmConfig(
    voters=3, observers=1, brokers=0, clients=2, election_timeout_ms=200, fetch_timeout_ms=200,
    replace_after_ms=AFTER_MS,
)  # fmt: skip
LONG_S = 3 * AFTER_MS / 1000
WITHIN_S = 20.0


Told = Callable[["Story"], Coroutine[Any, Any, None]]


class Story(Swarm):
    """A cluster whose operator does nothing but start and stop nodes."""

    def __init__(self, outcome: Outcome, tell: Told, checkers: Sequence[Checker]) -> None:
        super().__init__(outcome, checkers)
        self._tell = tell

    async def _live(self) -> None:
        await self.come_up(WITHIN_S)
        self.workload.begin()
        await self.until(lambda: bool(self.voters), WITHIN_S, "the log names the voters")
        await asyncio.sleep(LONG_S)
        await self._tell(self)
        self.watch.tell("end")

    @property
    def voters(self) -> list[int]:
        return sorted(committed_voters(self))

    def host(self, node_id: int) -> ControllerHost:
        return next(one for one in self.controllers if one.id == node_id)

    async def until_voters(self, *node_ids: int) -> None:
        await self.until(
            lambda: self.voters == sorted(node_ids), WITHIN_S, f"the voters are {node_ids}"
        )


async def shrinking(story: Story) -> None:
    lost = [one for one in story.controllers if one is not story.leading()][:3]
    for host in lost:
        host.kill()
        await asyncio.sleep(LONG_S)
    if story.active() is not None:
        raise AssertionError("two of five voters lead")
    lost[0].start()
    await story.until_voters(1, 2, 3, 4, 5)


async def between(story: Story) -> None:
    leader = story.leading()
    dead = next(one for one in story.controllers if one is not leader and one.id <= 3)
    dead.kill()
    await story.until(lambda: len(story.voters) == 2, WITHIN_S, "the dead voter is removed")
    leader.kill()
    await asyncio.sleep(LONG_S)
    if story.active() is not None:
        raise AssertionError("one of two voters leads")
    leader.start()
    await story.until_voters(*[one.id for one in story.controllers if one is not dead])
    story.leading().kill()
    await story.until(lambda: bool(story.voters), WITHIN_S, "two of three elect a leader")


async def rolled(story: Story) -> None:
    """Restart each voter; it is away for less than the time after which it is replaced."""
    for node_id in (1, 2, 3):
        host = story.host(node_id)
        host.kill()
        await asyncio.sleep(AFTER_MS / 1000 / 2)
        host.start()
        await asyncio.sleep(AFTER_MS / 1000 / 3)
    await story.until_voters(1, 2, 3)


async def replaced(story: Story) -> None:
    """Let a voter die and be replaced; it returns as a spare for the next dead voter."""
    first, second, *_ = (one for one in story.controllers if one is not story.leading())
    first.kill()
    rest = {one.id for one in story.controllers} - {first.id}
    await story.until_voters(*rest)
    first.start()
    await asyncio.sleep(LONG_S)
    await story.until_voters(*rest)
    second.kill()
    await story.until_voters(*({one.id for one in story.controllers} - {second.id}))


async def preferred(story: Story) -> None:
    for _ in range(2):
        await story.until(
            lambda: story.voters != [] and story.leading().id == story.config.preferred,
            4 * STEADY_S,
            "the preferred controller leads",
        )
        story.leading().kill()
        await asyncio.sleep(1.0)
        story.host(story.config.preferred).start()


def run_story(
    tell: Told, config: SwarmConfig = CONFIG, seed: int = 1, checkers: Sequence[Checker] = ()
) -> Outcome:
    """Run a scenario. The outcome's failure is what a checker or the scenario found."""
    outcome = Outcome(seed, config)
    run_world(outcome, lambda: Story(outcome, tell, checkers))
    return outcome

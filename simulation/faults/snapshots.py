"""Faults between two parts of a fetched snapshot: death of either side, a cut, a newer snapshot. A
fetch takes milliseconds, so the fault waits for a part that is not the last.
"""

import asyncio
import random
from collections.abc import Callable

from raftlog.transport.api import Conversation
from simulation.faults import fault
from simulation.faults.links import both, cut_for
from simulation.faults.nodes import ask_to_resign, killed, one_in_service, soon_s, start_again
from simulation.twins.network_faults import LinkFaults
from simulation.world import World

PARTS_MAX = 12
SLOW_WITHIN_S = 2.0
WAIT_S = 5.0
"""Seconds after which the fault gives up if no node fetches."""


@fault
async def snapshot_cut(world: World, rng: random.Random) -> None:
    """Interrupt the transfer of a snapshot between two parts: by a crash of either side, a cut, a
    resignation, a delay, or a pause in which a newer snapshot may replace it.
    """
    faults = world.network.faults
    if faults is None or faults.part_sent is not None:
        return
    left = rng.choice((1, rng.randint(1, PARTS_MAX)))

    def strikes(giver: str, taker: str) -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    ends = await _part(faults, WAIT_S, strikes)
    if ends is not None and not world.lasting:
        await rng.choice((_kill, _kill, _cut, _late, _asleep, _asleep, _resign))(world, rng, *ends)


async def _part(
    faults: LinkFaults, within_s: float, strikes: Callable[[str, str], bool]
) -> tuple[str, str] | None:
    """Wait for a part of a snapshot that ``strikes`` accepts. Return its sender and receiver, or
    None.
    """
    struck: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

    def part_sent(giver: str, taker: str) -> None:
        if not struck.done() and strikes(giver, taker):
            struck.set_result((giver, taker))

    faults.part_sent = part_sent
    try:
        async with asyncio.timeout(within_s):
            return await struck
    except TimeoutError:
        return None
    finally:
        faults.part_sent = None


async def slow_fetch(world: World, lasts_s: float) -> None:
    """Delay the parts of a snapshot that a broker starts with, while writes bring a newer one."""
    faults = world.network.faults
    host = await one_in_service(world, world.rng("slow_fetch"))
    if faults is None or faults.part_sent is not None or host is None:
        return

    def strikes(giver: str, taker: str) -> bool:
        if taker == host.name:
            world.network.stall(taker, giver, lasts_s, Conversation.SNAPSHOT)
        return taker == host.name

    world.note(host.name, "killed, to begin with a snapshot")
    host.kill()
    start_again(world, host)
    ends = await _part(faults, SLOW_WITHIN_S, strikes)
    if ends is None:
        return
    world.note("network", f"{host.name} asks {ends[0]} for the next part {lasts_s:.3f} s late")
    world.happened("slow_fetch")
    world.burst(world.rng("slow_fetch, burst"))
    await asyncio.sleep(lasts_s + 0.1)


async def _kill(world: World, rng: random.Random, giver: str, taker: str) -> None:
    name = rng.choice((giver, taker))
    host = next((host for host in world.fleet.hosts() if host.name == name), None)
    if host is None or host.service is None:
        return
    world.happened("snapshot_cut:giver_died" if name == giver else "snapshot_cut:taker_died")
    how = f"killed between parts of a snapshot that {giver} gives {taker}"
    await killed(world, host, "snapshot_cut", soon_s(rng, 4.0), how)


async def _cut(world: World, rng: random.Random, giver: str, taker: str) -> None:
    world.happened("snapshot_cut")
    await cut_for(world, "snapshot_cut:cut", both(giver, taker), rng.uniform(0.05, 3.0))


async def _late(world: World, rng: random.Random, giver: str, taker: str) -> None:
    seconds = rng.uniform(0.1, 0.9) * world.config.fetch_timeout_ms / 1000
    if world.network.stall(taker, giver, seconds, Conversation.SNAPSHOT):
        world.note("network", f"{taker} asks {giver} for the next part {seconds:.3f} s late")
        world.happened("snapshot_cut")
        world.happened("snapshot_cut:late")


async def _asleep(world: World, rng: random.Random, giver: str, taker: str) -> None:
    if world.network.is_paused(taker):
        return
    seconds = rng.uniform(0.2, 4.0)
    world.note(
        taker, f"paused for {seconds:.3f} s between parts of a snapshot that {giver} gives it"
    )
    world.happened("snapshot_cut")
    world.happened("snapshot_cut:asleep")
    world.network.pause(taker)
    await asyncio.sleep(seconds)
    if world.may_mend(taker):
        world.network.resume(taker)


async def _resign(world: World, rng: random.Random, giver: str, taker: str) -> None:
    """Let the sender resign its leadership, if it leads."""
    leader = world.leader()
    if leader is not None and leader.name == giver:
        world.note(giver, f"resigns between parts of a snapshot that it gives {taker}")
        world.happened("snapshot_cut")
        world.happened("snapshot_cut:resigned")
        ask_to_resign(world, leader)

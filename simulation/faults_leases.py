"""Faults against read leases: controllers deposed together with a broker, and answers that come
late.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from raftlog.transport.api import Conversation
from simulation.faults_links import both, cut_for, mend

if TYPE_CHECKING:
    from simulation.world import World

Fault = Callable[["World", random.Random], Awaitable[None]]


async def stranded(world: World, rng: random.Random) -> None:
    """The active controller and a broker reach each other, and no other node: dropped, or refused.

    Clients reach both.
    """
    service = world.active()
    if service is None or not world.members:
        return
    inside = (f"c{service.quorum.node_id}", rng.choice(world.members).name)
    outside = [host.name for host in world.fleet.hosts() if host.name not in inside]
    seconds = (world.config.fetch_timeout_ms * 2 + world.config.session_timeout_ms * 2) / 1000
    pairs = [pair for one in inside for other in outside for pair in both(one, other)]
    if rng.random() < 0.7:
        # Refused connects look like the death of a process: the others elect at once.
        world.note("network", f"refused: {inside} and all others")
        for pair in pairs:
            world.network.reject(*pair)
        world.happened("stranded")
        # To each side those of the other look dead.
        world.watch.tell("connects_refused", (*inside, *outside))
        await asyncio.sleep(seconds)
        mend(world, pairs)
    else:
        await cut_for(world, "stranded", pairs, seconds)


async def broker_refused(world: World, rng: random.Random) -> None:
    """A firewall between a broker and the controllers refuses, both ways: to them the broker looks
    dead. Clients reach it.
    """
    name = rng.choice(world.members).name
    pairs = [pair for controller in world.controllers for pair in both(name, controller.name)]
    world.note("network", f"refused: {name} and the controllers")
    for pair in pairs:
        world.network.reject(*pair)
    world.happened("broker_refused")
    world.watch.tell("connects_refused", (name,))
    await asyncio.sleep(
        rng.choice(
            (rng.uniform(0.05, 1.0), world.config.session_timeout_ms / 1000 * rng.uniform(1.0, 2.0))
        )
    )
    mend(world, pairs)


async def answers_late(world: World, rng: random.Random) -> None:
    """A broker's heartbeats are answered late, the log comes later still, and then it reaches no
    controller any more.
    """
    name = rng.choice(world.members).name
    controllers = [host.name for host in world.controllers]
    session_s = world.config.session_timeout_ms / 1000
    late_s = session_s * rng.uniform(0.25, 0.5)
    stalled = sum(
        world.network.stall(one, name, late_s, Conversation.CONTROLLER) for one in controllers
    )
    for one in controllers:
        world.network.stall(one, name, session_s * 2, Conversation.OBSERVER)
    if stalled:
        world.note("network", f"heartbeats of {name} are answered {late_s:.3f} s late")
        world.happened("answers_late")
    await asyncio.sleep(session_s * rng.uniform(0.0, 0.4))
    await cut_for(world, "answers_late", [(name, one) for one in controllers], session_s * 2)


RUN: dict[str, Fault] = {
    fault.__name__: fault for fault in (stranded, answers_late, broker_refused)
}

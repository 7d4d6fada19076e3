"""Two processes under one broker id, on two machines: one started by mistake, or because the other
was thought dead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from raftlog.transport.api import Conversation
from simulation.faults_nodes import one_in_service
from simulation.hosts import BrokerHost

if TYPE_CHECKING:
    from simulation.world import World

Fault = Callable[["World", random.Random], Awaitable[None]]

TAKES_OVER_WITHIN_S = 4.0


def _start(world: World, model: BrokerHost) -> BrokerHost:
    twin = world.fleet.make_broker(
        model.id, world.fleet.new_name(f"{model.name}twin{len(world.brokers)}")
    )
    world.brokers.append(twin)
    world.note(twin.name, "started")
    twin.start()
    return twin


def _end(world: World, twin: BrokerHost) -> None:
    if twin.service is not None:
        world.note(twin.name, "killed")
        twin.kill()


async def twin_broker(world: World, rng: random.Random) -> None:
    """A second process under the id of a broker, on another machine, for a while."""
    twin = _start(world, rng.choice(world.members))
    world.happened("twin_broker")
    await asyncio.sleep(rng.uniform(1.0, 12.0))
    _end(world, twin)


def _epoch(world: World, broker_id: int) -> int:
    service = world.active()
    registered = service.image.brokers.get(broker_id) if service is not None else None
    return registered.epoch if registered is not None else -1


async def thought_dead(world: World, lasts_s: float) -> None:
    """A broker sleeps until its session is over, a second process takes its id on another machine,
    and the first one wakes up.

    The log, which would tell it, comes later than its next heartbeat leaves.
    """
    rng = world.rng("thought_dead")
    host = await one_in_service(world, rng)
    if host is None:
        return
    world.note(host.name, "sleeps, and is thought dead")
    session_s = world.config.session_timeout_ms / 1000
    for controller in world.controllers:
        world.network.hush(controller.name, host.name, Conversation.OBSERVER)
    world.network.pause(host.name)
    await asyncio.sleep(session_s * rng.uniform(1.1, 1.5))
    before = _epoch(world, host.id)
    if not world.lasting:
        twin = _start(world, host)
        for _ in range(round(TAKES_OVER_WITHIN_S / 0.05)):
            if world.lasting or _epoch(world, host.id) > before:
                break
            await asyncio.sleep(0.05)
        if host.service is not None and _epoch(world, host.id) > before:
            world.happened("thought_dead")
    if world.may_mend(host.name):
        world.network.resume(host.name)
    if not world.lasting:
        await asyncio.sleep(lasts_s)
        _end(world, twin)
    for controller in world.controllers:
        world.network.unhush(controller.name, host.name, Conversation.OBSERVER)


RUN: dict[str, Fault] = {fault.__name__: fault for fault in (twin_broker,)}

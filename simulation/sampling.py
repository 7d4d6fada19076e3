"""Repeated samples of all hosts: for the transcript, the checkers, and to find ended processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from simulation.checks.api import CheckFailedError

if TYPE_CHECKING:
    from simulation.hosts import BrokerHost, ControllerHost
    from simulation.restarts import Restarts
    from simulation.world import World

SAMPLE_S = 0.05


async def keep_sampling(world: World, restarts: Restarts) -> None:
    """Look at all hosts for as long as the run lasts.

    Raises CheckFailedError, or what a checker raised.
    """
    while True:
        if world.network.handler_failures:
            raise CheckFailedError(f"a handler raised: {world.network.handler_failures[0]!r}")
        for controller in world.controllers:
            _sample_controller(world, controller)
        for broker in world.brokers:
            _sample_broker(world, restarts, broker)
        world.watch.tell("sample")
        await asyncio.sleep(SAMPLE_S)


def _sample_controller(world: World, host: ControllerHost) -> None:
    service, core = host.service, host.core
    if service is None or core is None:
        world.note_change(host.name, "down")
        return
    world.note_change(
        host.name,
        f"{core.role} epoch={core.epoch} leader={core.leader_id} end={core.log_end_offset}"
        f" hw={core.high_watermark} image={service.image.offset}"
        f" lao={service.node.lowest_acknowledged_offset}",
    )


def _sample_broker(world: World, restarts: Restarts, broker: BrokerHost) -> None:
    if broker.service is None:
        world.note_change(broker.name, "down")
        return
    if broker.fatal is not None:
        restarts.broker_stopped(broker, broker.fatal)
        return
    if (ended := broker.exit) is not None:
        restarts.broker_ended(broker, ended)
        return
    view = broker.service.view
    registered = view.registration
    fenced = registered.fenced if registered is not None else None
    world.note_change(
        broker.name,
        f"epoch={view.controller_epoch} applied={view.applied} known_lao={view.known_lao}"
        f" fenced={fenced}",
    )

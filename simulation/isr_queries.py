"""Clients that ask brokers for the ISRs of the partitions they lead (KIP-24).

The answers are checked when they are sent: checks/served_partitions.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

from raftlog.client.leaders import ask_leader
from raftlog.errors import ApiError, ErrorCode
from simulation.checks.api import CheckFailedError
from simulation.world import World

HOST = "isr-asker"
EVERY_S = 0.5
"""Mean interval between two queries, in seconds."""
TIMEOUT_S = 1.0


class IsrQueries:
    """The query client. Without brokers that keep partitions it does nothing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._on = bool(world.config.data_per_s and world.members)
        self._tasks: list[asyncio.Task[Any]] = []

    def hosts(self) -> list[str]:
        """Return its host's name."""
        return [HOST] if self._on else []

    def begin(self) -> None:
        """Let it begin."""
        if self._on:
            self._tasks.append(self._world.spawn(self._ask(), HOST, HOST))

    def stop(self) -> None:
        """No more questions."""
        for task in self._tasks:
            task.cancel()

    async def _ask(self) -> None:
        world = self._world
        rng = world.rng(HOST)
        transport = world.network.transport_for(HOST)
        counts = world.outcome.operations
        while True:
            await asyncio.sleep(rng.expovariate(1 / EVERY_S))
            host = rng.choice(world.members)
            try:
                pages = await ask_leader(transport, host.endpoint, timeout_s=TIMEOUT_S)
            except ApiError as error:
                if error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise CheckFailedError(
                        f"{host.name} answered {error} to BrokerMetadata"
                    ) from error
                counts["broker_metadata failed"] = counts.get("broker_metadata failed", 0) + 1
                continue
            counts["broker_metadata ok"] = counts.get("broker_metadata ok", 0) + 1
            proposals = sum(bool(one.proposed_isr) for page in pages for one in page.partitions)
            if proposals:
                counts["broker_metadata proposed"] = (
                    counts.get("broker_metadata proposed", 0) + proposals
                )

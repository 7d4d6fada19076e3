"""Final reads: each healed broker, asked alone, must answer reads of every mode after the faults.

Counter-example: a broker that has applied and told everything, and never gets a lease again,
refuses strict reads for ever. That a write is served, and all have caught up with it, does not
notice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from simulation.checks.api import CheckFailedError, Operation

if TYPE_CHECKING:
    from simulation.workload import Client
    from simulation.world import World

MODES = {
    "repeatable": broker_pb2.REPEATABLE,
    "latest": broker_pb2.LATEST,
    "at least": broker_pb2.LATEST,
    "strict": broker_pb2.STRICT,
}
PAUSE_S = 0.2


async def read_everywhere(world: World, written: Operation, within_s: float) -> None:
    """Read until each healed broker has shown an image with ``written`` in it in each mode.

    Raises CheckFailedError.
    """
    names = [host.name for host in world.healed.brokers()]
    await asyncio.gather(
        *(_read(world, written, name, mode, within_s) for name in names for mode in MODES)
    )


async def _read(world: World, written: Operation, broker: str, name: str, within_s: float) -> None:
    client = world.workload.reader(f"last.{broker}.{name}", broker)
    if name == "at least":
        client.see(common_pb2.MetadataToken(offset=written.offset, generation=written.generation))
    deadline, why = world.now() + within_s, ""
    try:
        while broker in (host.name for host in world.healed.brokers()):
            served, why = await _once(world, client, written, name)
            if served:
                counts = world.outcome.operations
                counts[f"last read {name}"] = counts.get(f"last read {name}", 0) + bool(not why)
                return
            if world.now() > deadline:
                raise CheckFailedError(
                    f"within {within_s:g} s it did not happen: {broker} serves a read, {name}:"
                    f" {why}"
                )
            await asyncio.sleep(PAUSE_S)
    finally:
        client.close()


async def _once(world: World, client: Client, written: Operation, name: str) -> tuple[bool, str]:
    """Return whether it was served, or need not be; and what was amiss."""
    operation = await client.read_config(written.key, MODES[name])
    if operation.outcome != "ok":
        return False, operation.error
    if operation.offset < written.offset:
        return False, f"its image is {operation.offset}, written was {written.offset}"
    return True, ""

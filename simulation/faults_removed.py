"""Removed voters that go on campaigning.

The others know that the removal is committed, so nothing comes of it (see ``checks/membership``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.faults_links import mend
from simulation.faults_voters import add_request, committed_voters, is_settled
from simulation.hosts import ControllerHost

if TYPE_CHECKING:
    from simulation.world import World

Fault = Callable[["World", random.Random], Awaitable[None]]

CAMPAIGNS_S = (0.5, 2.0)
LEFT_AHEAD_S = 10.0
"""Time after which a removed voter counts as left ahead, in seconds. Longer than an election takes:
a node that is ahead for a moment comes back by itself.
"""
_LOOK_S = 0.5


async def removed_campaigns(world: World, rng: random.Random) -> None:
    """Remove a voter that hears no node; it then campaigns on for a while, without pre-votes: all
    receive its epochs, and it knows nothing.

    It stays ahead of the others' epochs. So an operator gives it an empty disk, and adds it again.
    """
    operator, voters, service = world.operator, committed_voters(world), world.active()
    hosts = [
        host
        for host in world.controllers
        if voters.get(host.id) == host.quorum.directory_id
        and host.core is not None
        and host.service is not service
    ]
    if operator.busy or operator.unknown or world.damaged or len(voters) < 3 or not hosts:
        return
    if not is_settled(world, voters):
        return
    operator.busy = True
    host = rng.choice(hosts)
    old, core = host.quorum.directory_id, host.core
    deaf = [(other.name, host.name) for other in world.controllers if other is not host]
    try:
        world.note(host.name, "hears nobody, and is removed")
        for source, target in deaf:
            world.network.block(source, target)
        gone = pb.RemoveRaftVoterRequest(voter_id=host.id, voter_directory_id=old)
        if not await operator.until_done(gone) or core is None or host.core is not core:
            return
        _ask_no_pre_votes(core)
        await asyncio.sleep(2 * world.config.fetch_timeout_ms / 1000)
        mend(world, deaf)
        await asyncio.sleep(rng.uniform(*CAMPAIGNS_S))
        leader = world.active()
        if leader is not None and host.core is core and core.epoch > leader.node.controller_epoch:
            world.happened("removed_campaigns")
        world.note(host.name, "is given an empty disk")
        host.kill()
        world.fleet.replace_disk(host, f"{old}x")
        host.start()
        if await operator.until_done(add_request(host)):
            operator.unknown = False
    finally:
        mend(world, deaf)
        operator.busy = False


def _ask_no_pre_votes(core: Any) -> None:
    """Campaign without pre-votes, as a node of an older build or a manipulated one does."""
    node = core._node
    ask = node.become_prospective

    def campaign() -> None:
        ask()
        if node.role.name == "prospective" and node.installing is None:
            node.become_candidate()

    node.become_prospective = campaign


def is_left_ahead(world: World, host: ControllerHost) -> bool:
    """Return whether a host was removed for certain, and is in a higher epoch than the leader: each
    leader refuses it, as the protocol says, and it gives up no epoch in which it may have voted.
    """
    service, voters = world.active(), committed_voters(world)
    return (
        service is not None
        and host.core is not None
        and bool(voters)
        and voters.get(host.id) != host.quorum.directory_id
        and host.core.epoch > service.node.controller_epoch
    )


async def replace_left_ahead(world: World) -> None:
    """Replace the disk of healed nodes that are left ahead for a while, as an operator does, in the
    liveness phase. A node must then catch up with an empty disk.

    Not of a voter: its epoch has to reach the others.
    """
    since: dict[ControllerHost, float] = {}
    while True:
        for host in world.controllers:
            if host.name not in world.healed or not is_left_ahead(world, host):
                since.pop(host, None)
            elif world.now() - since.setdefault(host, world.now()) >= LEFT_AHEAD_S:
                since.pop(host)
                world.note(host.name, "is left ahead, and is given an empty disk")
                world.happened("left_ahead")
                host.kill()
                world.fleet.replace_disk(host, f"{host.quorum.directory_id}x")
                host.start()
        await asyncio.sleep(_LOOK_S)


RUN: dict[str, Fault] = {removed_campaigns.__name__: removed_campaigns}

"""Operations on the quorum during faults: voters are added and removed, disks replaced, the
leadership transferred.

One change at a time, as KIP-853 wants it. A disk is lost only when the set is known, large enough,
and no change of unknown outcome may still come; until the node is a voter again under its new
directory id, no other copy may be lost (see ``faults_disks``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from controller.service.transfer import CONNECT_S
from raftlog.client.controller_client import ControllerClient
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata import versions
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.faults_nodes import start_again
from simulation.hosts import ControllerHost

if TYPE_CHECKING:
    from simulation.world import World

Fault = Callable[["World", random.Random], Awaitable[None]]
VOTER_FAULTS = frozenset(("change_voters", "lose_disk", "removed_campaigns"))

KILLED_IN_TRANSFER = 0.3
"""The share of transfers in which one or two die."""

_TIMEOUT_S = 5.0
_AGAIN_S = 0.3
_DONE = frozenset((ErrorCode.DUPLICATE_VOTER, ErrorCode.VOTER_NOT_FOUND))


class Operator:
    """An operator that sends one request after the other to the leader."""

    def __init__(self, world: World) -> None:
        self._world = world
        transport = world.network.transport_for("operator")
        endpoints = [host.endpoint for host in world.controllers]
        self._client = ControllerClient(transport, endpoints, rng=world.rng("operator"))
        self.busy = False
        self.unknown = False
        """A change of the voters may still be executed, or not."""

    async def ask(self, body: Any) -> ApiError | None:
        """Send one request; the error, if there was one."""
        try:
            await self._client.call(body, timeout_s=_TIMEOUT_S)
        except ApiError as error:
            self._world.note(
                "operator",
                f"{type(body).__name__} {error.code.name} unknown={error.outcome_unknown}",
            )
            self.unknown |= error.outcome_unknown
            return error
        self._world.note("operator", f"{type(body).__name__} done")
        return None

    async def until_done(self, body: Any) -> bool:
        """Send until it is so; False if the time of faults is over before."""
        while not self._world.lasting:
            error = await self.ask(body)
            if error is None or error.code in _DONE:
                return True
            await asyncio.sleep(_AGAIN_S)
        return False


def committed_voters(world: World) -> dict[int, str]:
    """Return the voters as the active controller has them committed: id and directory; empty if
    they are not in the log.
    """
    service = world.active()
    named = service.image.voters if service is not None else None
    return {voter.id: voter.directory_id for voter in named.voters} if named is not None else {}


def is_settled(world: World, voters: dict[int, str]) -> bool:
    """Return whether everyone that is up goes by this set."""
    return all(
        {voter.node_id: voter.directory_id for voter in host.core.voters} == voters
        for host in world.controllers
        if host.core is not None
    )


def add_request(host: ControllerHost) -> pb.AddRaftVoterRequest:
    """Return the request that adds a node as it is now to the voters."""
    return pb.AddRaftVoterRequest(
        voter_id=host.id, voter_directory_id=host.quorum.directory_id, endpoint=host.endpoint
    )


async def change_voters(world: World, rng: random.Random) -> None:
    """A voter is removed, the leader perhaps, or a node that is none is added."""
    operator, voters = world.operator, committed_voters(world)
    if operator.busy or world.damaged or not voters:
        return
    operator.busy = True
    try:
        outside = [host for host in world.controllers if host.id not in voters]
        if outside and (len(voters) < 3 or rng.random() < 0.6):
            if await operator.ask(add_request(rng.choice(outside))) is None:
                world.happened("change_voters")
        elif len(voters) > 1:
            node_id = rng.choice(sorted(voters))
            body = pb.RemoveRaftVoterRequest(voter_id=node_id, voter_directory_id=voters[node_id])
            if await operator.ask(body) is None:
                world.happened("change_voters")
    finally:
        operator.busy = False


async def lose_disk(world: World, rng: random.Random) -> None:
    """A voter's disk is gone; the node comes back with an empty one, its old self is removed, its
    new one added.
    """
    operator, voters = world.operator, committed_voters(world)
    hosts = [host for host in world.controllers if voters.get(host.id) == host.quorum.directory_id]
    if operator.busy or operator.unknown or world.damaged or len(voters) < 3 or not hosts:
        return
    if not is_settled(world, voters):
        return
    operator.busy = True
    try:
        host = rng.choice(hosts)
        old = host.quorum.directory_id
        world.note(host.name, "loses its disk")
        world.happened("lose_disk")
        world.damaged[host.name] = None
        host.kill()
        world.fleet.replace_disk(host, f"{old}x")
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        if host.service is None:
            host.start()
        gone = pb.RemoveRaftVoterRequest(voter_id=host.id, voter_directory_id=old)
        if await operator.until_done(gone) and await operator.until_done(add_request(host)):
            world.damaged.pop(host.name, None)
            operator.unknown = False
    finally:
        operator.busy = False


async def transfer(world: World, rng: random.Random) -> None:
    """Transfer the leadership to a named voter or to the most complete one; kill some voters
    meanwhile.
    """
    target_id = rng.choice([-1, *(host.id for host in world.fleet.voters())])
    asked = world.operator.ask(pb.TransferLeadershipRequest(target_id=target_id))
    killed: list[Awaitable[None]] = []
    if rng.random() < KILLED_IN_TRANSFER:
        hosts = list(world.fleet.voters())
        killed = [
            _killed_in_transfer(world, host, rng.uniform(0.0, 2 * CONNECT_S), rng.uniform(0.0, 0.3))
            for host in rng.sample(hosts, min(len(hosts), rng.choice((1, 1, 2))))
        ]
    error, *_ = await asyncio.gather(asked, *killed)
    if error is None:
        world.happened("transfer")


async def _killed_in_transfer(
    world: World, host: ControllerHost, after_s: float, away_s: float
) -> None:
    """Kill -9 of one, and a start soon after."""
    await asyncio.sleep(after_s)
    if host.service is None:
        return
    world.note(host.name, "killed in a transfer")
    world.happened("kill_in_transfer")
    host.kill()
    await asyncio.sleep(away_s)
    start_again(world, host)


async def raise_features(world: World, rng: random.Random) -> None:
    """A cluster that began at an old metadata.version is raised to the newest."""
    service = world.active()
    newest = versions.LATEST_METADATA_VERSION
    if service is None or versions.metadata_version(service.image.features) >= newest:
        return
    if service.quorum.max_metadata_version < newest:
        return  # A leader of the build before would refuse what it does not know.
    update = pb.FeatureUpdate(
        name=versions.METADATA_VERSION, max_version_level=newest, upgrade_type=1
    )
    if await world.operator.ask(pb.UpdateFeaturesRequest(updates=[update])) is None:
        world.happened("raise_features")


def _levels(level: int, upgrade_type: int) -> pb.UpdateFeaturesRequest:
    names = (versions.BROKER_HEARTBEAT_VERSION, versions.LAO_VERSION)
    updates = [
        pb.FeatureUpdate(name=name, max_version_level=level, upgrade_type=upgrade_type)
        for name in names
    ]
    return pb.UpdateFeaturesRequest(updates=updates)


async def roll_heartbeats(world: World, rng: random.Random) -> None:
    """The double roll: brokers count as active without heartbeats for a while, then heartbeats are
    in force again.
    """
    service = world.active()
    if service is None:
        return
    if versions.heartbeats_in_force(service.image.features):
        if await world.operator.ask(_levels(0, 2)) is None:
            world.happened("roll_heartbeats")
    else:
        await world.operator.ask(_levels(1, 1))


async def end_roll(world: World) -> None:
    """Heartbeats are to be in force at the end of every run, though a request to lower the level
    may still be on its way.
    """
    while True:
        service = world.active()
        if service is not None and not versions.heartbeats_in_force(service.image.features):
            await world.operator.ask(_levels(1, 1))
        await asyncio.sleep(_AGAIN_S)


RUN: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (change_voters, lose_disk, transfer, raise_features, roll_heartbeats)
}

"""Operations on the quorum during faults: voters added, removed, with replaced disks; transfers.

One change at a time (KIP-853). A disk is lost only when the set is known, large enough, and no
change is pending; no other copy may be lost until the node is a voter with its new directory.
"""

import asyncio
import random
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from controller.service.transfer import CONNECT_S
from raftlog.metadata import versions
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.faults import fault
from simulation.faults.links import Pairs, between, mend
from simulation.faults.nodes import killed, start_again
from simulation.hosts import ControllerHost
from simulation.world import World

KILLED_IN_TRANSFER = 0.3

_AGAIN_S = 0.3


def committed_voters(world: World) -> dict[int, str]:
    """Return the committed voters (id -> directory); empty if the log has no voter set."""
    service = world.active()
    named = service.image.voters if service is not None else None
    return {voter.id: voter.directory_id for voter in named.voters} if named is not None else {}


def is_settled(world: World, voters: dict[int, str]) -> bool:
    return all(
        {voter.node_id: voter.directory_id for voter in host.core.voters} == voters
        for host in world.controllers
        if host.core is not None
    )


def _may_lose_one(world: World, voters: dict[int, str]) -> bool:
    """Return whether a voter may be lost: no change is pending, and enough voters remain."""
    operator = world.operator
    idle = not (operator.busy or operator.unknown or world.damaged)
    return idle and len(voters) >= 3 and is_settled(world, voters)


def holders(world: World, voters: dict[int, str]) -> list[ControllerHost]:
    hosts = world.controllers
    return [host for host in hosts if voters.get(host.id) == host.quorum.directory_id]


def give_empty_disk(world: World, host: ControllerHost) -> None:
    host.kill()
    world.fleet.replace_disk(host, f"{host.quorum.directory_id}x")
    host.start()


def add_request(host: ControllerHost) -> pb.AddRaftVoterRequest:
    return pb.AddRaftVoterRequest(
        voter_id=host.id, voter_directory_id=host.quorum.directory_id, endpoint=host.endpoint
    )


@fault
async def change_voters(world: World, rng: random.Random) -> None:
    """Remove a voter, perhaps the leader, or add a controller that is not a voter."""
    operator, voters = world.operator, committed_voters(world)
    if operator.busy or world.damaged or not voters:
        return
    outside = [host for host in world.controllers if host.id not in voters]
    body: Any
    if outside and (len(voters) < 3 or rng.random() < 0.6):
        body = add_request(rng.choice(outside))
    elif len(voters) > 1:
        node_id = rng.choice(sorted(voters))
        body = pb.RemoveRaftVoterRequest(voter_id=node_id, voter_directory_id=voters[node_id])
    else:
        return
    with operator.at_work():
        if await operator.ask(body) is None:
            world.happened("change_voters")


@fault
async def lose_disk(world: World, rng: random.Random) -> None:
    """Replace a voter's disk by an empty one; remove the old voter, and add the new one."""
    operator, voters = world.operator, committed_voters(world)
    hosts = holders(world, voters)
    if not hosts or not _may_lose_one(world, voters):
        return
    with operator.at_work():
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


@fault
async def transfer(world: World, rng: random.Random) -> None:
    """Transfer the leadership to a named or the best voter; some voters may die meanwhile."""
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
    await asyncio.sleep(after_s)
    if host.service is not None:
        await killed(world, host, "kill_in_transfer", away_s, "killed in a transfer")


@fault
async def raise_features(world: World, rng: random.Random) -> None:
    """Raise metadata.version to the latest level."""
    service, newest = world.active(), versions.LATEST_METADATA_VERSION
    # A leader of the older build would refuse a level that it does not support.
    if service is None or is_latest(world) or service.quorum.max_metadata_version < newest:
        return
    if await world.operator.ask(set_levels(newest, 1, versions.METADATA_VERSION)) is None:
        world.happened("raise_features")


def is_latest(world: World) -> bool:
    """Return whether a controller is active, and its metadata.version is the latest."""
    service, latest = world.active(), versions.LATEST_METADATA_VERSION
    return service is not None and versions.metadata_version(service.image.features) >= latest


def set_levels(level: int, upgrade_type: int, *names: str) -> pb.UpdateFeaturesRequest:
    updates = [
        pb.FeatureUpdate(name=name, max_version_level=level, upgrade_type=upgrade_type)
        for name in names
    ]
    return pb.UpdateFeaturesRequest(updates=updates)


HEARTBEATS = (versions.BROKER_HEARTBEAT_VERSION, versions.LAO_VERSION)


@fault
async def roll_heartbeats(world: World, rng: random.Random) -> None:
    service = world.active()
    if service is None:
        return
    if not versions.heartbeats_enabled(service.image.features):
        await world.operator.ask(set_levels(1, 1, *HEARTBEATS))
    elif await world.operator.ask(set_levels(0, 2, *HEARTBEATS)) is None:
        world.happened("roll_heartbeats")


async def end_roll(world: World) -> None:
    """Enable heartbeats repeatedly: a request to disable them may still be on its way."""
    while True:
        service = world.active()
        if service is not None and not versions.heartbeats_enabled(service.image.features):
            await world.operator.ask(set_levels(1, 1, *HEARTBEATS))
        await asyncio.sleep(_AGAIN_S)


CAMPAIGNS_S = (0.5, 2.0)
LEFT_AHEAD_S = 10.0
"""Time after which a removed voter counts as left ahead, in seconds; longer than an election."""
_LOOK_S = 0.5


@fault
async def removed_campaigns(world: World, rng: random.Random) -> None:
    """Remove a voter that receives nothing. It campaigns without pre-votes and stays ahead of the
    others' epochs, until an operator gives it an empty disk and adds it again.
    """
    operator, voters, service = world.operator, committed_voters(world), world.active()
    hosts = [
        host
        for host in holders(world, voters)
        if host.core is not None and host.service is not service
    ]
    if not hosts or not _may_lose_one(world, voters):
        return
    host = rng.choice(hosts)
    old, core = host.quorum.directory_id, host.core
    deaf = [(other.name, host.name) for other in world.controllers if other is not host]
    with operator.at_work(), _mended(world, deaf):
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
        give_empty_disk(world, host)
        if await operator.until_done(add_request(host)):
            operator.unknown = False


@contextmanager
def _mended(world: World, pairs: Pairs) -> Iterator[None]:
    try:
        yield
    finally:
        mend(world, pairs)


def _know_starts(world: World, host: ControllerHost, voters: dict[int, str]) -> bool:
    """Return whether all other voters have durably recorded the latest start of a directory."""
    count = host.disk.starts.count
    others = [one for one in world.controllers if one.id in voters and one is not host]
    start = voters[host.id], count
    knowns = [
        [(one.directory_id, one.count) for one in other.disk.starts.known] for other in others
    ]
    return all(start in known for known in knowns)


TOLD_WITHIN_S = 10.0
REFUSED_WITHIN_S = 1000.0
"""Longer than any run: there may be no leader for a long time."""


@fault
async def set_back_directory(world: World, rng: random.Random) -> None:
    """Replace a voter's directory by an older copy, once all others know of a later start. Half of
    the time another voter lacks commits and the leader is killed. The node joins again.
    """
    operator, voters = world.operator, committed_voters(world)
    hosts = [
        host
        for host in holders(world, voters)
        if host.service is not None and host.service is not world.active()
    ]
    if not hosts or not _may_lose_one(world, voters):
        return
    with operator.at_work():
        host = rng.choice(hosts)
        older = host.disk.copied()
        for _ in range(rng.choice((1, 1, 2))):
            if not await _restarted(world, rng, host, voters):
                return
        leader = await _left_behind(world, rng, host, voters)
        try:
            if not _know_starts(world, host, voters):
                return
            host.kill()
            world.note(host.name, "its directory is set back")
            world.damaged[host.name] = None
            host.disk.put_back(older)
            host.start()
            await asyncio.sleep(rng.uniform(1.0, 4.0))
        finally:
            if leader is not None:
                start_again(world, leader)
        await _join_anew(world, host, voters[host.id])


async def _restarted(
    world: World, rng: random.Random, host: ControllerHost, voters: dict[int, str]
) -> bool:
    """Restart a host; return whether all other voters soon know of the new start."""
    count, until = host.disk.starts.count, world.now() + TOLD_WITHIN_S
    host.kill()
    await asyncio.sleep(rng.uniform(0.01, 0.1))
    start_again(world, host)
    while host.disk.starts.count == count or not _know_starts(world, host, voters):
        if world.now() > until:
            return False
        await asyncio.sleep(_LOOK_S / 10)
    return True


async def _left_behind(
    world: World, rng: random.Random, host: ControllerHost, voters: dict[int, str]
) -> ControllerHost | None:
    """Let another voter miss commits, then kill the leader. Return the leader; None if not done."""
    leader = world.leader()
    behind = [one for one in world.controllers if one.id in voters and one not in (host, leader)]
    if leader is None or not behind or rng.random() < 0.5:
        return None
    cut = between((host.name, leader.name), [behind[0].name])
    for source, target in cut:
        world.network.block(source, target)
    with _mended(world, cut):
        await asyncio.sleep(rng.uniform(0.3, 1.0))
        if host.service is None or leader.service is None:
            return None
        leader.kill()
        return leader


async def _join_anew(world: World, host: ControllerHost, old: str) -> None:
    """Remove a node whose directory is refused, as it would itself, and add it again."""
    await world.until(lambda: host.disk.starts.refused, REFUSED_WITHIN_S, f"{host.name} is refused")
    world.happened("set_back_directory")
    gone = pb.RemoveRaftVoterRequest(voter_id=host.id, voter_directory_id=old, joins_anew=True)
    if not await world.operator.until_done(gone):
        return
    if host.disk.was_set_back:
        give_empty_disk(world, host)
    if await world.operator.until_done(add_request(host)):
        world.damaged.pop(host.name, None)
        world.operator.unknown = False


def _ask_no_pre_votes(core: Any) -> None:
    """Let a node campaign without pre-votes, like a manipulated build."""
    node = core._node
    ask = node.become_prospective

    def campaign() -> None:
        ask()
        if node.role.name == "prospective" and node.installing is None:
            node.become_candidate()

    node.become_prospective = campaign


def is_left_ahead(world: World, host: ControllerHost) -> bool:
    """Return whether a host was removed, and is in a higher epoch than the leader: every leader
    refuses it, and it never goes back to a lower epoch.
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
    """In the liveness phase, give empty disks to healed nodes that stay ahead of the leader's
    epoch, and to those whose directory is refused.
    """
    since: dict[ControllerHost, float] = {}
    while True:
        for host in world.controllers:
            if host.name in world.healed and host.disk.was_set_back and host.disk.starts.refused:
                give_empty_disk(world, host)
            elif host.name not in world.healed or not is_left_ahead(world, host):
                since.pop(host, None)
            elif world.now() - since.setdefault(host, world.now()) >= LEFT_AHEAD_S:
                since.pop(host)
                world.note(host.name, "is left ahead, and is given an empty disk")
                world.happened("left_ahead")
                give_empty_disk(world, host)
        await asyncio.sleep(_LOOK_S)

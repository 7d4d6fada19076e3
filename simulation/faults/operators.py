"""Operations during faults: unregistering, moving voters, mapping hosts, lowering levels."""

import asyncio
import random

from raftlog.metadata import versions
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.faults import fault
from simulation.faults.nodes import led, soon_s, start_again
from simulation.faults.voters import (
    committed_voters,
    holders,
    is_latest,
    raise_features,
    set_levels,
)
from simulation.hosts import ControllerHost
from simulation.world import World

OTHER_PORT = 9094
HOME_PORT = 9093
UNUSED_IDS = 700
"""Ids that hosts are mapped to and no broker has."""
SAFE_DOWNGRADE = 2
RAISED_WITHIN_S = 4.0
RAISE_EVERY_S = 0.3
UPGRADED_SHARE = 0.75
"""Share of upgrades among build changes while an older build runs, so that a roll completes."""


@fault
async def unregister_broker(world: World, rng: random.Random) -> None:
    host = rng.choice(world.members)
    if (
        host.broker_id >= 0
        and await world.operator.ask(pb.UnregisterBrokerRequest(broker_id=host.broker_id)) is None
    ):
        world.happened("unregister_broker")


@fault
async def lower_features(world: World, rng: random.Random) -> None:
    """Lower metadata.version, as before a build is rolled back, and raise it again later."""
    if not is_latest(world):
        return
    lowered = set_levels(1, SAFE_DOWNGRADE, versions.METADATA_VERSION)
    if await world.operator.ask(lowered) is not None:
        return
    world.happened("lower_features")
    raised = False
    while not world.lasting and not raised:
        await asyncio.sleep(rng.uniform(0.5, 4.0))
        await raise_features(world, rng)
        raised = is_latest(world)


@fault
async def change_build(world: World, rng: random.Random) -> None:
    """Restart a node as the other build; the older one only for brokers, at a low level."""
    service, old = world.active(), world.config.old_build
    if service is None or not old:
        return
    behind = [host for host in world.fleet.hosts() if host.highest_level == old]
    host = rng.choice(behind if behind and rng.random() < UPGRADED_SHARE else world.fleet.hosts())
    if host.service is None:
        return
    newer = host.highest_level == old
    if not newer and (
        isinstance(host, ControllerHost) or versions.metadata_version(service.image.features) > old
    ):
        return
    level = versions.LATEST_METADATA_VERSION if newer else old
    world.note(host.name, f"is restarted as a build that knows metadata.version up to {level}")
    world.happened("change_build")
    host.kill()
    host.be_of_build(level)
    await asyncio.sleep(soon_s(rng, 4.0))
    start_again(world, host)


async def whole_roll(world: World, lasts_s: float) -> None:
    """Restart all nodes of the older build with the newer one, then raise metadata.version."""
    latest = versions.LATEST_METADATA_VERSION
    for host in [host for host in world.fleet.hosts() if host.highest_level < latest]:
        world.note(host.name, "is restarted as the newer build")
        host.kill()
        host.be_of_build(latest)
        await asyncio.sleep(lasts_s)
        start_again(world, host)
        await led(world, RAISED_WITHIN_S)
    world.happened("whole_roll")
    rng = world.rng("whole_roll")
    for _ in range(round(RAISED_WITHIN_S / RAISE_EVERY_S)):
        await raise_features(world, rng)
        if is_latest(world):
            break
        await asyncio.sleep(RAISE_EVERY_S)


@fault
async def alter_hostnames(world: World, rng: random.Random) -> None:
    """Map the next newcomer's host to a member's id or a free one, or delete such a mapping."""
    service = world.active()
    if service is None:
        return
    mapped = service.image.hostnames
    host = rng.choice((world.fleet.next_newcomer, world.fleet.next_newcomer, "nowhere"))
    change = pb.HostnameAlteration(hostname=host)
    if host not in mapped or rng.random() < 0.7:
        change.broker_id = rng.choice(
            [UNUSED_IDS + rng.randrange(3), *(member.id for member in world.members)]
        )
    if rng.random() < 0.5:
        change.expected_offset = rng.choice((-1, mapped[host].offset)) if host in mapped else -1
    if await world.operator.ask(pb.AlterHostnamesRequest(alterations=[change])) is None:
        world.happened("alter_hostnames")


@fault
async def move_voter(world: World, rng: random.Random) -> None:
    """Restart a voter at another endpoint and update the log; next time move it back. It listens at
    both until the log has the new one. Only one voter moves at a time.
    """
    operator, voters = world.operator, committed_voters(world)
    hosts = holders(world, voters)
    idle = not (operator.busy or operator.unknown or world.damaged)
    if not idle or min(len(voters), world.config.voters) < 2 or not hosts:
        return
    away = [one for one in world.controllers if one.ports != [HOME_PORT]]
    host = away[0] if away else rng.choice(hosts)
    if host not in hosts:
        return
    with operator.at_work():
        old = host.ports[-1]
        host.ports = [old, OTHER_PORT if old == HOME_PORT else HOME_PORT]
        world.note(host.name, f"moves to {host.endpoint}")
        host.kill()
        await asyncio.sleep(rng.uniform(0.1, 1.0))
        if host.service is None and world.may_mend(host.name):
            host.start()
        told = pb.UpdateRaftVoterRequest(
            voter_id=host.id, voter_directory_id=host.quorum.directory_id, endpoint=host.endpoint
        )
        if await operator.until_done(told) and not operator.unknown:
            # From its next start on.
            host.ports = host.ports[-1:]
            world.happened("move_voter")

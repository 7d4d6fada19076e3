"""Faults of nodes: crashes, pauses, clocks, errors of brokers and clients; counted by effect."""

import asyncio
import random
from collections.abc import Sequence

from raftlog.transport.api import Conversation
from simulation.checks.api import present
from simulation.faults import fault
from simulation.hosts import AnyHost, BrokerHost, ControllerHost
from simulation.twins.loop import host_context
from simulation.world import World

HOUR_MS = 3_600_000
LOOP_BLOCKED_S = 0.5
LONG_PAUSE_S = (5.0, 30.0)
IN_SERVICE_WITHIN_S = 3.0


def start_again(world: World, host: AnyHost) -> None:
    if host.service is None and world.may_mend(host.name):
        world.note(host.name, "started")
        host.start()


def soon_s(rng: random.Random, longest_s: float) -> float:
    return rng.choice((rng.uniform(0.0, 0.3), rng.uniform(0.3, longest_s)))


async def killed(
    world: World, host: AnyHost, fault: str, away_s: float, how: str = "killed"
) -> None:
    """Crash a host's process, and start it again after a while."""
    world.note(host.name, how)
    world.happened(fault)
    host.kill()
    await asyncio.sleep(away_s)
    start_again(world, host)


async def all_killed(
    world: World, rng: random.Random, hosts: Sequence[AnyHost], fault: str
) -> None:
    world.note("controllers" if hosts is world.controllers else "brokers", "all killed")
    for host in hosts:
        if host.service is not None:
            world.happened(fault)
        host.kill()
    for host in rng.sample(hosts, len(hosts)):
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        start_again(world, host)


def any_controller(world: World, rng: random.Random) -> ControllerHost:
    """Return a controller, half of the time the leader if there is one."""
    host, leader = rng.choice(world.controllers), world.leader()
    return leader if leader is not None and rng.random() < 0.5 else host


def _in_service(world: World, host: BrokerHost) -> bool:
    """Return whether this process of a broker is registered, unfenced and not shutting down."""
    service = world.active()
    registered = service.image.brokers.get(host.id) if service is not None else None
    return (
        host.service is not None
        and registered is not None
        and registered.epoch == host.service.lifecycle.epoch
        and not registered.fenced
        and not registered.in_controlled_shutdown
        and not world.network.is_paused(host.name)
    )


async def one_in_service(world: World, rng: random.Random) -> BrokerHost | None:
    """Return a broker in service; wait a while for one if there is none, else return None."""
    for _ in range(round(IN_SERVICE_WITHIN_S / 0.05)):
        found = [host for host in world.members if _in_service(world, host)]
        if found:
            return rng.choice(found)
        await asyncio.sleep(0.05)
    return None


async def led(world: World, within_s: float) -> None:
    for _ in range(round(within_s / 0.05)):
        if world.active() is not None:
            return
        await asyncio.sleep(0.05)


@fault
async def kill_controller(world: World, rng: random.Random) -> None:
    host = rng.choice(world.controllers)
    if host.service is not None:
        await killed(world, host, "kill_controller", soon_s(rng, 4.0))


@fault
async def kill_all_controllers(world: World, rng: random.Random) -> None:
    await all_killed(world, rng, world.controllers, "kill_all_controllers")


@fault
async def kill_mid_write(world: World, rng: random.Random) -> None:
    """Schedule a crash of a controller in one of its next disk writes."""
    any_controller(world, rng).doom(rng.choice((0, 1, rng.randint(2, 30))))


@fault
async def kill_between_steps(world: World, rng: random.Random) -> None:
    """Schedule a crash of a controller between the steps of a snapshot's or log start's change."""
    rng.choice(world.controllers).doom_between_steps(rng.randint(1, 4))


async def paused(world: World, seconds: float, name: str, fault: str, what: str = "") -> None:
    """Pause a process for a while. The fault counts if callbacks were held up by it."""
    if world.network.is_paused(name):
        return
    world.note(name, f"{what or fault} for {seconds:.3f} s")
    world.network.pause(name)
    first_s = min(seconds, LOOP_BLOCKED_S)
    await asyncio.sleep(first_s)
    if world.network.loop.is_held(name):
        world.happened(fault)
    await asyncio.sleep(seconds - first_s)
    if world.may_mend(name):
        world.network.resume(name)


@fault
async def pause(world: World, rng: random.Random) -> None:
    await paused(world, rng.uniform(0.05, 3.0), rng.choice(world.fleet.hosts()).name, "pause")


@fault
async def long_pause(world: World, rng: random.Random) -> None:
    """Pause a node for longer than all timeouts of the others."""
    seconds = rng.uniform(*LONG_PAUSE_S)
    await paused(world, seconds, rng.choice(world.fleet.hosts()).name, "long_pause")


@fault
async def loop_blocked(world: World, rng: random.Random) -> None:
    await paused(world, LOOP_BLOCKED_S, rng.choice(world.fleet.hosts()).name, "loop_blocked")


@fault
async def clock_jump(world: World, rng: random.Random) -> None:
    host = rng.choice(world.controllers)
    _set_clock(world, host, rng.choice((0, rng.randint(-5 * HOUR_MS, 5 * HOUR_MS))))
    if host.service is not None and host.wall_offset_ms:
        world.happened("clock_jump")


@fault
async def clocks_ahead(world: World, rng: random.Random) -> None:
    """Set the wall clocks of a majority hours ahead for a while; then correct all clocks."""
    hosts, ahead_ms = list(world.controllers), rng.randint(1, 5) * HOUR_MS
    for host in rng.sample(hosts, len(hosts) // 2 + 1):
        _set_clock(world, host, ahead_ms)
    world.happened("clocks_ahead")
    await asyncio.sleep(rng.uniform(0.5, 2.0))
    for host in hosts:
        _set_clock(world, host, 0)


def _set_clock(world: World, host: ControllerHost, off_ms: int) -> None:
    host.wall_offset_ms = off_ms
    world.watch.tell("clock_set", host)
    world.note(host.name, f"wall clock off by {off_ms} ms")


@fault
async def resign(world: World, rng: random.Random) -> None:
    if (leader := world.leader()) is not None:
        world.note(leader.name, "resigns")
        world.happened("resign")
        ask_to_resign(world, leader)


def ask_to_resign(world: World, leader: ControllerHost) -> None:
    """Let a leader resign, in its host's context, whose clock it uses."""
    resign = present(leader.service).replica.resign
    world.network.loop.call_soon(resign, "asked to", context=host_context(leader.name))


@fault
async def kill_broker(world: World, rng: random.Random) -> None:
    host = rng.choice(world.members)
    if host.service is not None:
        await killed(world, host, "kill_broker", soon_s(rng, 6.0))


@fault
async def broker_away(world: World, rng: random.Random) -> None:
    """Kill one or two brokers for longer than a session, or until their ids count as missing."""
    hosts = [
        host
        for host in rng.sample(world.members, min(len(world.members), rng.choice((1, 1, 2))))
        if host.service
    ]
    for host in hosts:
        world.note(host.name, "killed, and stays away")
        world.happened("broker_away")
        host.kill()
    away_s = world.config.session_timeout_ms / 1000 * rng.uniform(1.0, 3.0)
    await asyncio.sleep(away_s + world.config.adopt_after_ms / 1000 * rng.choice((0.0, 1.0, 2.0)))
    for host in hosts:
        start_again(world, host)


@fault
async def stop_broker(world: World, rng: random.Random) -> None:
    host = rng.choice(world.members)
    service = host.service
    if service is None:
        return
    world.note(host.name, "is told to stop")
    world.network.loop.call_soon(service.stop, context=host_context(host.name))
    leaving = True
    while leaving:
        await asyncio.sleep(0.02)
        leaving = host.service is service and service.exit is None and not world.lasting
    if service.exit is not None and service.exit.clean:
        world.happened("stop_broker")


@fault
async def lose_broker_disk(world: World, rng: random.Random) -> None:
    """Kill a broker and start it with an empty disk: it gets its id by its host's name (KIP-426).
    Not in runs with twins, which register ids from other hosts.
    """
    if "twin_broker" in world.config.faults:
        return
    host = rng.choice(world.members)
    active = world.active()
    known = active is not None and host.name in active.node.image.hostnames
    if host.service is None or not known:
        return
    world.note(host.name, "killed, and its disk lost")
    world.happened("lose_broker_disk")
    host.kill()
    host.lose_disk()
    if host.disk is not None:
        world.fleet.replace_broker_disk(host)
    await asyncio.sleep(soon_s(rng, 12.0))
    start_again(world, host)


@fault
async def newcomer(world: World, rng: random.Random) -> None:
    """Start a broker without an id on an unknown host, until it gets one. Not in runs that disable
    heartbeats: it would stay unfenced.
    """
    if "roll_heartbeats" in world.config.faults:
        return
    host = world.fleet.make_newcomer()
    world.brokers.append(host)
    world.note(host.name, "started without an id")
    host.start()
    patience_s = 5.0 + (
        world.config.adopt_after_ms / 1000 + world.config.session_timeout_ms / 500
    ) * rng.choice((0.0, 1.0))
    for _ in range(round(patience_s / 0.05)):
        await asyncio.sleep(0.05)
        if host.broker_id >= 0:
            world.happened("newcomer")
            world.note(host.name, f"is broker {host.broker_id}")
            break
    host.kill()
    world.brokers.remove(host)


@fault
async def heartbeats_lost(world: World, rng: random.Random) -> None:
    """Delay a broker's heartbeats for longer than its session, while it still receives the log."""
    host = rng.choice(world.members)
    seconds = world.config.session_timeout_ms / 1000 * rng.uniform(0.5, 2.0)
    stalled = sum(
        world.network.stall(host.name, controller.name, seconds, Conversation.CONTROLLER)
        for controller in world.controllers
    )
    if stalled:
        world.note(host.name, f"heartbeats held up for {seconds:.3f} s")
        world.happened("heartbeats_lost")
        await asyncio.sleep(seconds)


@fault
async def burst(world: World, rng: random.Random) -> None:
    world.burst(rng)


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


@fault
async def twin_broker(world: World, rng: random.Random) -> None:
    """Run a second process with a broker's id on another host for a while."""
    twin = _start(world, rng.choice(world.members))
    world.happened("twin_broker")
    await asyncio.sleep(rng.uniform(1.0, 12.0))
    _end(world, twin)


def _epoch(world: World, broker_id: int) -> int:
    service = world.active()
    registered = service.image.brokers.get(broker_id) if service is not None else None
    return registered.epoch if registered is not None else -1


async def thought_dead(world: World, lasts_s: float) -> None:
    """Pause a broker until its session is over, start a process with its id on another host, and
    resume it: its heartbeat leaves before it learns of its successor.
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

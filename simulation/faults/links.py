"""Faults of links: cuts, delays and resets. A cut counts when it has held something up."""

import asyncio
import random
from collections.abc import Collection, Iterable, Sequence

from raftlog.transport.api import Conversation
from simulation.faults import fault
from simulation.faults.nodes import any_controller
from simulation.world import World

Pairs = Sequence[tuple[str, str]]


def both(one: str, other: str) -> list[tuple[str, str]]:
    return [(one, other), (other, one)]


def between(ones: Iterable[str], others: Collection[str]) -> list[tuple[str, str]]:
    """Return both directions between each of ``ones`` and each of ``others``."""
    return [pair for one in ones for other in others for pair in both(one, other)]


def _cut(world: World, pairs: Pairs) -> int:
    """Cut these directions. Return how many messages have been held up on them before."""
    for source, target in pairs:
        world.network.block(source, target)
    return sum(world.network.held[pair] for pair in pairs)


def mend(world: World, pairs: Pairs) -> None:
    for source, target in pairs:
        if world.may_mend(source, target):
            world.network.unblock(source, target)


async def cut_for(world: World, name: str, pairs: Pairs, seconds: float) -> None:
    """Cut these directions for a while; the fault counts if it has delayed a message."""
    if not pairs:
        return
    shown = " ".join(f"{source}>{target}" for source, target in pairs)
    world.note("network", f"{name} for {seconds:.3f} s: {shown}")
    before = _cut(world, pairs)
    await asyncio.sleep(seconds)
    if sum(world.network.held[pair] for pair in pairs) > before:
        world.happened(name)
    mend(world, pairs)


def _names(world: World) -> list[str]:
    return [host.name for host in world.fleet.hosts()]


def _two(world: World, rng: random.Random) -> tuple[str, str] | None:
    one = rng.choice(world.controllers).name
    others = [name for name in _names(world) if name != one]
    if not others:
        return None
    pair = [one, rng.choice(others)]
    rng.shuffle(pair)
    return pair[0], pair[1]


def duration_s(rng: random.Random) -> float:
    return rng.choice((rng.uniform(0.05, 0.5), rng.uniform(0.5, 5.0), rng.uniform(3.0, 15.0)))


@fault
async def partition(world: World, rng: random.Random) -> None:
    if (two := _two(world, rng)) is not None:
        await cut_for(world, "partition", both(*two), duration_s(rng))


@fault
async def one_way(world: World, rng: random.Random) -> None:
    if (two := _two(world, rng)) is None:
        return
    one, others = two[0], [name for name in _names(world) if name != two[0]]
    ways = ([two], [(one, name) for name in others], [(name, one) for name in others])
    await cut_for(world, "one_way", rng.choice(ways), duration_s(rng))


@fault
async def isolate(world: World, rng: random.Random) -> None:
    """Cut a controller, half of the time the leader, off from all other nodes; clients reach it."""
    one = any_controller(world, rng).name
    pairs = between([one], [name for name in _names(world) if name != one])
    await cut_for(world, "isolate", pairs, duration_s(rng))


@fault
async def split(world: World, rng: random.Random) -> None:
    names = _names(world)
    inside = {name for name in names if rng.random() < 0.5}
    outside = [name for name in names if name not in inside]
    pairs = between([name for name in names if name in inside], outside)
    await cut_for(world, "split", pairs, duration_s(rng))


@fault
async def ring(world: World, rng: random.Random) -> None:
    """Cut voters off from each other except from two neighbours; of three, one pair is cut."""
    names = [host.name for host in world.fleet.voters()]
    rng.shuffle(names)
    count = len(names)
    far = 2 if count > 3 else count - 1
    pairs = [
        pair
        for i in range(count)
        for j in range(i + 1, count)
        if min(j - i, count - (j - i) if count > 3 else j - i) >= far
        for pair in both(names[i], names[j])
        if count > 2
    ]
    await cut_for(world, "ring", pairs, duration_s(rng))


@fault
async def bridge(world: World, rng: random.Random) -> None:
    names = [host.name for host in world.fleet.voters()]
    if len(names) < 3:
        return
    rng.shuffle(names)
    _, *rest = names
    middle = len(rest) // 2
    await cut_for(world, "bridge", between(rest[:middle], rest[middle:]), duration_s(rng))


@fault
async def flapping(world: World, rng: random.Random) -> None:
    if (two := _two(world, rng)) is None:
        return
    for _ in range(rng.randint(3, 15)):
        await cut_for(world, "flapping", both(*two), rng.uniform(0.02, 0.5))
        if world.lasting:
            return
        await asyncio.sleep(rng.uniform(0.02, 0.5))


@fault
async def clog(world: World, rng: random.Random) -> None:
    """Delay everything that is in transit between two hosts by up to ten fetch timeouts."""
    if (two := _two(world, rng)) is None:
        return
    seconds = rng.uniform(0.05, 10.0) * world.config.fetch_timeout_ms / 1000
    if world.network.stall(*two, seconds):
        world.note("network", f"clog {two[0]}>{two[1]} for {seconds:.3f} s")
        world.happened("clog")


@fault
async def overtaken(world: World, rng: random.Random) -> None:
    """Delay messages to the leader until another one is elected; old Fetches arrive first."""
    host = world.leader()
    if host is None:
        return
    leader = host.name
    # From the time others need for an election to the end of check-quorum.
    seconds = rng.uniform(1.0, 1.6) * world.config.fetch_timeout_ms / 1000
    others = [host.name for host in world.controllers if host.name != leader]
    stalled = 0
    for kind, times in ((Conversation.REPLICATION, 1), (Conversation.QUORUM, 2)):
        for other in others:
            stalled += world.network.stall(other, leader, seconds * times, kind)
    if stalled:
        world.note("network", f"{leader} hears from others {seconds:.3f} s late")
        world.happened("overtaken")
        await asyncio.sleep(seconds * 2)


@fault
async def broker_behind(world: World, rng: random.Random) -> None:
    """Isolate a broker until it is fenced; afterwards its heartbeats pass before the log does."""
    if not world.members:
        return
    name = rng.choice(world.members).name
    controllers = [host.name for host in world.controllers]
    session_s = world.config.session_timeout_ms / 1000
    pairs = between([name], controllers)
    await cut_for(world, "broker_behind", pairs, session_s * rng.uniform(0.8, 3.0))
    if not world.lasting:
        seconds = session_s * rng.uniform(0.0, 3.0)
        for controller in controllers:
            world.network.stall(controller, name, seconds, Conversation.OBSERVER)
        world.note("network", f"the log comes to {name} after {seconds:.3f} s")


QUORUM_LINKS = (
    Conversation.QUORUM,
    Conversation.REPLICATION,
    Conversation.REPLICATION,
    Conversation.SNAPSHOT,
)
Spoken = tuple[str, str, Conversation]


def _conversations(world: World, rng: random.Random) -> list[Spoken]:
    brokers = [_of_broker(world, rng)] if world.members else []
    # By a generator of its own: the faults of brokers stay the same.
    apart = world.rng(f"quorum link {world.now():.6f}")
    if brokers and apart.random() >= 0.3:
        return brokers
    return [*brokers, *_of_controllers(world, apart)]


def _of_broker(world: World, rng: random.Random) -> Spoken:
    brokers = [host.name for host in world.members]
    leader = _mostly_leader(world, rng)
    asking = rng.choice(brokers)
    others = [name for name in brokers if name != asking]
    kind = rng.choice((Conversation.CONTROLLER, Conversation.OBSERVER, Conversation.REPLICA_FETCH))
    if kind is not Conversation.REPLICA_FETCH:
        return asking, leader, kind
    if others and world.config.data_per_s:
        return asking, rng.choice(others), kind
    return asking, leader, Conversation.CONTROLLER


def _of_controllers(world: World, rng: random.Random) -> list[Spoken]:
    controllers = [host.name for host in world.controllers]
    if len(controllers) < 2:
        return []
    asked = _mostly_leader(world, rng)
    asking = rng.choice([name for name in controllers if name != asked])
    return [(asking, asked, rng.choice(QUORUM_LINKS))]


def _mostly_leader(world: World, rng: random.Random) -> str:
    leader = world.leader()
    if leader is not None and rng.random() < 0.7:
        return leader.name
    return rng.choice([host.name for host in world.controllers])


def _ways(rng: random.Random, one: str, other: str) -> Pairs:
    return rng.choice((both(one, other), [(one, other)], [(other, one)]))


@fault
async def connection_dead(world: World, rng: random.Random) -> None:
    """Drop all messages of one conversation's connection, in one direction or both, silently."""
    for one, other, kind in _conversations(world, rng):
        ways = _ways(rng, one, other)
        if sum(world.network.mute(*way, kind) for way in ways):
            shown = " ".join(f"{source}>{target}" for source, target in ways)
            world.note("network", f"{kind.name} is dead: {shown}")
            world.happened("connection_dead")


@fault
async def conversation_cut(world: World, rng: random.Random) -> None:
    """Cut one conversation between two hosts and refuse new ones; their others continue."""
    spoken = _conversations(world, rng)
    # Long enough for the broker to fence itself, and for the controller to be late.
    long_s = world.config.session_timeout_ms / 1000 * rng.uniform(2.0, 5.0) + rng.uniform(0.0, 6.0)
    seconds = rng.choice((duration_s(rng), long_s))
    cut = [(way, kind) for one, other, kind in spoken for way in _ways(rng, one, other)]
    for way, kind in cut:
        if world.network.hush(*way, kind):
            world.note("network", f"{kind.name} is cut for {seconds:.3f} s: {way[0]}>{way[1]}")
            world.happened("conversation_cut")
    await asyncio.sleep(seconds)
    for way, kind in cut:
        world.network.unhush(*way, kind)


@fault
async def reset_links(world: World, rng: random.Random) -> None:
    name = rng.choice(_names(world))
    if world.network.break_links(name):
        world.note("network", f"connections of {name} reset")
        world.happened("reset_links")


@fault
async def stranded(world: World, rng: random.Random) -> None:
    """Isolate the leader together with a broker, by dropped or refused messages; clients reach
    both.
    """
    leader = world.leader()
    if leader is None or not world.members:
        return
    inside = (leader.name, rng.choice(world.members).name)
    outside = [host.name for host in world.fleet.hosts() if host.name not in inside]
    seconds = (world.config.fetch_timeout_ms * 2 + world.config.session_timeout_ms * 2) / 1000
    pairs = between(inside, outside)
    if rng.random() < 0.7:
        # Hosts that refuse connects look dead to others, which elect at once.
        world.note("network", f"refused: {inside} and all others")
        await _refuse(world, "stranded", pairs, (*inside, *outside), seconds)
    else:
        await cut_for(world, "stranded", pairs, seconds)


@fault
async def broker_refused(world: World, rng: random.Random) -> None:
    """Refuse connections between a broker and the controllers, as if it were dead; clients reach
    it.
    """
    name = rng.choice(world.members).name
    pairs = between([name], [host.name for host in world.controllers])
    world.note("network", f"refused: {name} and the controllers")
    long_s = world.config.session_timeout_ms / 1000
    seconds = rng.choice((rng.uniform(0.05, 1.0), long_s * rng.uniform(1.0, 2.0)))
    await _refuse(world, "broker_refused", pairs, (name,), seconds)


async def _refuse(
    world: World, fault: str, pairs: Pairs, hosts: Sequence[str], seconds: float
) -> None:
    """Reset and refuse connections for a while. ``hosts``: the hosts that look dead to others."""
    for pair in pairs:
        world.network.reject(*pair)
    world.happened(fault)
    world.watch.tell("connects_refused", hosts)
    await asyncio.sleep(seconds)
    mend(world, pairs)


@fault
async def answers_late(world: World, rng: random.Random) -> None:
    """Delay responses to a broker's heartbeats, and the log longer; then isolate the broker."""
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

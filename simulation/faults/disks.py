"""Faults of disks, which count them; ``collect`` gathers the counts.

A permanently damaged copy (a flipped bit, a lost disk) is one of at most a minority of the voters
until the node has a new copy, so a sound copy remains of everything a majority ever had.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import get_args

from controller.mending import Records, WholeRecords, answer_missing, answered, request_of
from raftlog.errors import ApiError, ErrorCode
from raftlog.node.recovery.mending import Answered, Mending, Request, Span
from raftlog.node.recovery.salvage import Salvage
from raftlog.node.storage.chunks import walk
from simulation.checks.api import CheckFailedError, fail
from simulation.faults import fault
from simulation.faults.nodes import any_controller, start_again
from simulation.hosts import AnyHost, ControllerHost
from simulation.twins.disk import Place, SimDisk
from simulation.twins.disk_hardware import Chunks, Operation
from simulation.twins.loop import host_context
from simulation.twins.partition_disk import SimPartitionDisk
from simulation.world import World

Mend = Callable[[World, AnyHost], None]


def mend_disk(world: World, host: AnyHost) -> None:
    if host.disk is not None:
        host.disk.capacity_bytes, host.disk.latency_factor = None, 1.0
        resume_disk(world, host)


def resume_disk(world: World, host: AnyHost) -> None:
    """Let a hanging disk continue, in its host's context, to which the completed calls belong."""
    if host.disk is not None and host.disk.hung:
        world.network.loop.call_soon(host.disk.resume, context=host_context(host.name))


async def full(world: World, rng: random.Random, host: AnyHost, longest_s: float) -> None:
    """Leave space for only a few more writes, for a while."""
    if (disk := host.disk) is None:
        return
    disk.capacity_bytes = disk.used_bytes() + rng.choice((0, rng.randint(0, 3000)))
    world.note(host.name, "its disk is nearly full")
    await asyncio.sleep(rng.uniform(0.5, longest_s))
    if host.disk is not None and world.may_mend(host.name):
        host.disk.capacity_bytes = None


async def low(
    world: World, rng: random.Random, hosts: Sequence[AnyHost], reserve_bytes: int, fault: str
) -> None:
    """Fill disks beyond their free-space reserve, but not completely, for a while."""
    disks = fill(world, hosts, reserve_bytes, lambda: rng.uniform(0.3, 0.9))
    if disks:
        world.happened(fault)
        await asyncio.sleep(rng.uniform(2.0, 15.0))
        make_room(world, disks)


async def hanging(world: World, rng: random.Random, host: AnyHost, mend: Mend) -> None:
    disk = host.disk
    if disk is None or disk.hung:
        return
    seconds = rng.choice((rng.uniform(0.05, 1.0), rng.uniform(1.0, 15.0)))
    world.note(host.name, f"its disk hangs for {seconds:.3f} s")
    disk.hang()
    await asyncio.sleep(seconds)
    if world.may_mend(host.name) and disk is host.disk:
        mend(world, host)


async def slow(world: World, rng: random.Random, host: AnyHost, fault: str) -> None:
    if host.disk is None:
        return
    world.note(host.name, "its disk is slow")
    world.happened(fault)
    host.disk.latency_factor = rng.uniform(10.0, 100.0)
    await asyncio.sleep(rng.uniform(0.5, 8.0))
    if world.may_mend(host.name):
        host.disk.latency_factor = 1.0


@fault
async def disk_error(world: World, rng: random.Random) -> None:
    """Let a controller's next write, sync, vote or snapshot fail once (EIO): the process stops."""
    rng.choice(world.controllers).disk.fail_next(rng.choice(get_args(Operation)))


@fault
async def disk_full(world: World, rng: random.Random) -> None:
    await full(world, rng, rng.choice(world.controllers), 8.0)


@fault
async def disk_low(world: World, rng: random.Random) -> None:
    if not world.config.reserve_bytes:
        return
    hosts = rng.choice(
        (world.controllers, rng.sample(world.controllers, rng.randint(1, len(world.controllers))))
    )
    if (leader := world.leader()) is not None and rng.random() < 0.3:
        hosts = [leader]
    await low(world, rng, hosts, world.config.reserve_bytes, "disk_low")


Filled = dict[AnyHost, SimDisk | SimPartitionDisk]


def fill(
    world: World, hosts: Sequence[AnyHost], reserve_bytes: int, share: Callable[[], float]
) -> Filled:
    """Fill disks until only ``share()`` of the reserve is free; skip those that are already
    limited.
    """
    disks: Filled = {
        host: host.disk
        for host in hosts
        if host.disk is not None and host.disk.capacity_bytes is None
    }
    for disk in disks.values():
        disk.capacity_bytes = disk.used_bytes() + round(reserve_bytes * share())
    if disks:
        world.note("disks", f"low on {' '.join(host.name for host in disks)}")
    return disks


def make_room(world: World, disks: Filled) -> None:
    for host, disk in disks.items():
        if host.disk is disk and world.may_mend(host.name):
            disk.capacity_bytes = None


@fault
async def disk_hang(world: World, rng: random.Random) -> None:
    await hanging(world, rng, any_controller(world, rng), mend_disk)


@fault
async def disk_slow(world: World, rng: random.Random) -> None:
    await slow(world, rng, rng.choice(world.controllers), "disk_slow")


@fault
async def bit_flip(world: World, rng: random.Random) -> None:
    """Flip a bit on a voter's disk: the voter must detect it and stop, or never read it."""
    hosts = [host for host in world.fleet.voters() if host.name not in world.damaged]
    if not world.may_damage() or not hosts or world.voters_change:
        return
    host = rng.choice(hosts)
    place: Place = rng.choice(get_args(Place))
    if host.disk.flip_bit(rng, place):
        world.note(host.name, f"a bit of its {place} flips")
        world.damaged[host.name] = None
        if rng.random() < 0.7:
            # A log is read whole at the start only.
            host.kill()
            await asyncio.sleep(rng.uniform(0.05, 1.0))
            if host.service is None and world.may_mend(host.name):
                host.start()


MENDED_WITHIN_S = 20.0
SILENT_SHARE = 0.1
"""Share of the requests for missing records that are not answered."""


@fault
async def damaged_logs(world: World, rng: random.Random) -> None:
    """Kill all controllers and damage the logs of several, in such a way that another controller
    has each lost batch. They repair their logs before they start.
    """
    if world.damaged or world.mending or world.voters_change or world.lasting:
        return
    hosts = [host for host in world.controllers if not host.held_down]
    for host in hosts:
        host.held_down = True
        host.kill()
    damaged = _damaged(hosts, rng)
    if len(damaged) < 2:
        damaged = {}
    world.note("controllers", f"the logs of {sorted(host.name for host in damaged)} are damaged")
    before = {host: host.disk.durable.copy() for host in damaged}
    for host in damaged:
        world.mending[host.name] = None
        world.happened("damaged_logs")
    for host in hosts:
        host.held_down = host in damaged
        if host not in damaged:
            start_again(world, host)
    left, waiting = rng.sample(list(damaged), len(damaged)), 0
    while left:
        host = left.pop(0)
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        if lacks := await _mended(world, rng, host, damaged):
            # A controller says where its log starts once it is mended itself.
            left.append(host)
            waiting += 1
            if waiting == len(left):
                fail(f"the log of {host.name} is not mended: {lacks}")
            continue
        waiting = 0
        _require_same(host, before[host])
        del damaged[host]
        world.mending.pop(host.name)
        host.held_down = False
        start_again(world, host)


def _damaged(hosts: Sequence[ControllerHost], rng: random.Random) -> dict[ControllerHost, Salvage]:
    """Damage a write on several hosts, so that others have it. Return what each host has left."""
    found: dict[ControllerHost, Salvage] = {}
    for host in rng.sample(list(hosts), rng.randint(2, max(2, len(hosts)))):
        for _ in range(10):
            writes = len(host.disk.written)
            if writes < 2:
                break
            # Half the time near the end, where logs differ.
            number = rng.randrange(rng.choice((0, max(0, writes - 8))), writes)
            left = host.disk.without_write(number, snapshots=rng.random() < 0.7)
            tried = {**found, host: left}
            if left.damaged_log().missing() and all(
                _may_be_mended(one, tried, hosts) for one in tried
            ):
                found = tried
                break
    return found


def _may_be_mended(
    host: ControllerHost, damaged: dict[ControllerHost, Salvage], hosts: Sequence[ControllerHost]
) -> bool:
    """Return whether other hosts have what a host lost, in a section with batches that it still
    has: without those nothing identifies the lost batches.
    """
    found, start = damaged[host], host.disk.state.start_offset
    before = set().union(*_batches(_undamaged(host)))
    sections = _batches(found)
    lost = {one for one in before if one.base >= start}.difference(*sections)
    lacks_snapshot = found.damaged_log().lacks_snapshot
    # The mark says what the log ended with.
    certain = sections[-1] or {max(before)}
    for other in hosts:
        if other is not host:
            left = damaged.get(other) or _undamaged(other)
            lost.difference_update(*(one for one in _batches(left) if not one.isdisjoint(certain)))
            lacks_snapshot &= not any(
                one.end_offset >= start
                and any((one.end_offset, one.epoch) == (known.end, known.epoch) for known in before)
                for one in left.snapshots
            )
    return not lost and not lacks_snapshot


def _undamaged(host: ControllerHost) -> Salvage:
    return host.disk.without_write(len(host.disk.written))


def _batches(found: Salvage) -> list[set[Span]]:
    return [
        {
            Span(base, end, stretch.span.epoch)
            for stretch in content
            for base, end in zip(stretch.bases, [*stretch.bases[1:], stretch.span.end], strict=True)
        }
        for content in found.contents
    ]


async def _mended(
    world: World, rng: random.Random, host: ControllerHost, damaged: dict[ControllerHost, Salvage]
) -> str:
    """Repair a log by requests to the other controllers, damaged or not. Return what is missing."""
    by_name = {one.name: one for one in world.controllers if one is not host}
    found = damaged[host]
    host.disk.snapshots = {
        one: content for one, content in host.disk.snapshots.items() if one in found.snapshots
    }

    async def ask(source: str, request: Request) -> Answered:
        await asyncio.sleep(rng.expovariate(1000))
        other = by_name[source]
        records: Records | None = damaged.get(other)
        if records is None and other.core is not None and other.service is not None:
            records = WholeRecords(other.service.replica, lambda: other.disk.identity)
        elif records is None and not world.may_mend(source):
            # It stays down: somebody reads its disk for the others.
            records = _undamaged(other)
        if records is None or rng.random() < SILENT_SHARE:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no answer")
        message = request_of(found.identity, request)
        message.max_bytes = rng.choice((1 if request.snapshot is None else 100, 1000, 1 << 20))
        return answered(answer_missing(message, records))

    deadline = world.now() + MENDED_WITHIN_S

    async def go_on(lacks: str) -> bool:
        if world.now() > deadline:
            fail(f"the log of {host.name} is not mended: {lacks}")
        await asyncio.sleep(0.1)
        return bool(mending.failures)

    mending = Mending(found.damaged_log(), list(by_name), ask, host.disk)
    if not await mending.run(go_on):
        return mending.state.lacks
    if found.damaged_log().lacks_snapshot:
        world.happened("damaged_snapshots")
    try:
        host.disk.replace_log(mending.log, found.assemble(mending.log, mending.got))
    except (ApiError, ValueError) as error:
        raise CheckFailedError(f"the log of {host.name} is not mended: {error}") from error
    return ""


def _require_same(host: ControllerHost, before: Chunks) -> None:
    start = host.disk.state.start_offset
    logs = [
        {
            base: chunk[position:behind]
            for key, chunk in zip(one.bases, one.chunks, strict=True)
            for base, _, _, position, behind in walk(chunk, key)
            if base >= start
        }
        for one in (before, host.disk.durable)
    ]
    if logs[0] != logs[1]:
        either = sorted(logs[0].keys() | logs[1].keys())
        differing = [base for base in either if logs[0].get(base) != logs[1].get(base)]
        fail(f"the mended log of {host.name} is another one from offset {differing[0]} on")

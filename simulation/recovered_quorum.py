"""Recovery after the disks of a majority of the voters are lost: operators go on from the remaining
directories.

As docs/operations.md says it ("A quorum lost for good"): all controllers are stopped; the remaining
directory with the longest log is recovered, by the shipped code; it leads alone, all others join
anew with empty disks, and brokers find out by themselves. A power cut may interrupt an operator,
who then repeats the recovery.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

from controller.service.service import ControllerService
from raftlog.errors import ApiError, ErrorCode, FatalError
from raftlog.metadata.control_records import NO_GENERATION
from raftlog.node.recovery.unsafe_recovery import Recovery, Survivor, begin_anew, survivor_of
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.controller.v1 import controller_pb2 as pb
from simulation.checks.api import Checker, CheckFailedError
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged
from simulation.faults.disks import mend_disk
from simulation.faults.nodes import start_again
from simulation.faults.voters import end_roll
from simulation.hosts import BrokerHost, ControllerHost
from simulation.recovered_check import checkers_after, generation_of
from simulation.twins.loop import START_OF_TIME_MS, host_context
from simulation.workload import Workload
from simulation.world import World

INTERRUPTED_P = 0.3
OBSERVER_LOST_P = 0.7
BEHIND_P = 0.9
"""Probability that the remaining disks lack the last committed records."""
SUCCESSOR_P = 0.7
BROKER_LOST_P = 0.9
AGAIN_S = 0.3
WRITES = 8
HELD_ON_S = 20.0
"""Time for which clients take turns in the recovered log, in seconds."""


class Lost(NamedTuple):
    """Result of the recovery: the host that leads on, and the hosts that are to be voters again."""

    generation: int
    """The generation that is over."""
    host: ControllerHost
    voters: list[ControllerHost]


async def lose_majority(world: World, workload: Workload) -> Lost | None:
    """Returns when a directory is recovered; nothing runs yet.

    None: the voters are too few, or nothing is left that starts.
    """
    rng = world.rng("recovery")
    service = world.active()
    named = service.image.voters if service is not None else None
    ids = [voter.id for voter in named.voters] if named is not None else list(world.fleet.voter_ids)
    voters = [host for host in world.controllers if host.id in ids]
    if len(voters) < 2:
        return None
    # As many as it takes that no majority is left; one voter's disk stays at least.
    least = (len(voters) + 1) // 2
    lost = rng.sample(voters, rng.randint(least, len(voters) - 1))
    lost += [
        host for host in world.controllers if host not in voters and rng.random() < OBSERVER_LOST_P
    ]
    if rng.random() < BEHIND_P:
        # What is written meanwhile is committed, and only on the disks that will be lost.
        for host in (host for host in world.controllers if host not in lost):
            for other in lost:
                world.network.partition(host.name, other.name)
        brokers = world.rng("recovery, brokers")
        gone = _in_most_isrs(world) if brokers.random() < BROKER_LOST_P else None
        if gone is not None:
            # Its partitions go on without it, and only the disks that will be lost say so.
            world.note(gone.name, "killed")
            gone.kill()
        await asyncio.sleep(rng.uniform(1.5, 5.0))
        if gone is not None:
            start_again(world, gone)
    world.lasting = True
    world.operator.busy = True
    workload.stop()
    for host in world.controllers:
        host.held_down = True
        world.network.resume(host.name)
        host.doom(-1)
        host.kill("stopped")
    # Who holds a lock that only the lost disks knew relies on it for a while: as the document says,
    # that is waited for.
    await asyncio.sleep(workload.keepers.believe_s)
    world.note(
        "world", f"the disks of {' '.join(sorted(host.name for host in lost))} are lost for good"
    )
    left = [
        (found, host)
        for host in world.controllers
        if host not in lost
        for found in _examined(world, host)
    ]
    if not left:
        raise CheckFailedError("no directory is left that can be recovered")
    before, host = max(left, key=lambda one: (one[0].last_epoch, one[0].end_offset, one[1].id))
    done = await _recovered(world, rng, host, before)
    world.happened("quorum_lost")
    world.note(
        host.name,
        f"is recovered: epoch {done.epoch}, end {done.end_offset}",
    )
    # What a recovery finds that was interrupted before has no generation any more.
    over = before.lineage.current
    _renew_checkers(world, host, done, over)
    for other in world.controllers:
        other.held_down = False
        if other is not host:
            world.fleet.replace_disk(other, f"dir-{other.id}-r{world.fleet.next_disk()}")
    world.damaged.clear()
    return Lost(over, host, [other for other in voters if other is not host])


def _in_most_isrs(world: World) -> BrokerHost | None:
    """Return the broker that runs and is in the most ISRs with others; None: no such ISR."""
    service = world.active()
    isrs = (
        [one.isr for one in service.image.partitions.values() if len(one.isr) > 1]
        if service is not None
        else []
    )
    running = [host for host in world.members if host.service is not None]
    most = max(running, key=lambda host: sum(host.id in isr for isr in isrs), default=None)
    return most if most is not None and any(most.id in isr for isr in isrs) else None


def _examined(world: World, host: ControllerHost) -> list[Survivor]:
    """Return the usable state of a directory; none if it does not start."""
    mend_disk(world, host)
    host.disk.forget_failures()
    store = host.disk.open()
    try:
        found = store.recover()
    except FatalError as error:
        world.note(host.name, f"cannot be recovered: {error}")
        return []
    finally:
        store.close()
    return [survivor_of(host.disk.identity, found, host.quorum.voters)]


async def _recovered(
    world: World, rng: random.Random, host: ControllerHost, before: Survivor
) -> Recovery:
    """Recover a directory by the shipped code; now and then the power fails during the recovery,
    which is then repeated.
    """
    while True:
        store = host.disk.open()
        found = store.recover()
        before = survivor_of(host.disk.identity, found, host.quorum.voters)
        now_ms = max(START_OF_TIME_MS + round(world.now() * 1000), found.last_timestamp_ms)
        work = asyncio.ensure_future(
            begin_anew(
                store,
                before,
                endpoint=host.endpoint,
                reason="its quorum is lost",
                now_ms=now_ms,
            )
        )
        interrupted = rng.random() < INTERRUPTED_P
        await asyncio.wait(
            [work],
            timeout=rng.uniform(0.0, world.config.disk_max_ms / 500) if interrupted else None,
        )
        if interrupted:
            work.cancel()
            host.disk.crash(rng)
            world.happened("quorum_lost:interrupted")
            continue
        store.close()
        return work.result()


def _renew_checkers(world: World, host: ControllerHost, done: Recovery, over: int) -> None:
    """Feed new checkers with the committed log up to its start, then with the recovered log.

    ``over``: the generation that has ended.
    """
    watch = world.watch
    ledger = next((checker for checker in watch.checkers if isinstance(checker, Ledger)), None)
    if ledger is None:
        return
    start = host.disk.state.start_offset
    log: list[Logged] = [one for one in ledger.golden.batches if one.end_offset <= start]
    for _, chunk in host.disk.live.scan(start):
        for header in ledger.matching.headers(chunk):
            if header.base_offset >= start:
                log.append(
                    ledger.matching.logged(host.name, log[-1].chain if log else 0, chunk, header)
                )
    fresh = checkers_after(world, watch.checkers, log, over, done.epoch)
    others: list[Checker] = [
        one for one in watch.checkers if not type(one).__module__.startswith("simulation.checks.")
    ]
    last = world.operations
    watch.renew(
        [*fresh, *others],
        lambda host: (
            isinstance(host, ControllerHost) or generation_of(host) not in (NO_GENERATION, over)
        ),
        lambda operation: (
            operation.number > last and (operation.outcome != "ok" or operation.generation != over)
        ),
    )


async def go_on(world: World, workload: Workload, lost: Lost, within_s: float) -> None:
    """The others join, brokers come to the new generation, and clients write.

    Raises CheckFailedError.
    """
    await world.until(
        lambda: world.active() is not None, within_s, "the recovered controller leads"
    )
    if "roll_heartbeats" in world.config.faults:
        world.spawn(end_roll(world), "end of the roll")
    adding = world.spawn(_add_voters(world, lost.voters), "operator", "operator")
    await world.until(adding.done, within_s, "the others are voters again")
    await world.until(
        lambda: all(
            generation_of(host) not in (NO_GENERATION, lost.generation)
            for host in world.healed_brokers()
        ),
        within_s,
        "brokers have come to another generation",
    )
    for number in range(WRITES):
        written = await workload.last_write(within_s, f"again-{number}")
        if written.generation == lost.generation:
            raise CheckFailedError(
                f"a write was answered with generation {written.generation}, which is over"
            )
    await _show_old_tokens(world, workload, lost)
    service = world.active()
    if service is not None and world.rng("successor").random() < SUCCESSOR_P:
        # One that has joined since leads: it was formatted before, and must know of the generation.
        await another_leads(world, service, within_s)
        world.happened("quorum_lost:successor")
    if world.config.lockers:
        await asyncio.sleep(HELD_ON_S)
    workload.keepers.let_go()
    world.operator.busy = False


async def another_leads(world: World, service: ControllerService, within_s: float) -> None:
    """Let this controller, the active one, resign until another one leads.

    It may be elected again. A resignation does not wait for followers, so the others may lack the
    end of its log; then none of them can lead. Only a transfer promises a successor.

    Raises CheckFailedError.
    """
    deadline = world.now() + within_s
    leads: ControllerService | None = service
    while leads is service:
        epoch = service.node.controller_epoch
        world.network.loop.call_soon(
            service.replica.resign, "asked to", context=host_context(f"c{service.quorum.node_id}")
        )

        def is_succeeded(epoch: int = epoch) -> bool:
            found = world.active()
            return found is not None and found.node.controller_epoch > epoch

        await world.until(is_succeeded, deadline - world.now(), "another one leads")
        leads = world.active()


async def _show_old_tokens(world: World, workload: Workload, lost: Lost) -> None:
    """Require that a client with a token of the history before is told of its end, and not shown an
    older state.

    Raises CheckFailedError.
    """
    for host in world.healed_brokers():
        reader = workload.reader(f"last, old token at {host.name}", host.name)
        reader.see(common_pb2.MetadataToken(generation=lost.generation, epoch=1, offset=0))
        read = await reader.read_config("again-0", broker_pb2.LATEST)
        reader.close()
        if read.outcome == "ok":
            raise CheckFailedError(
                f"{host.name} shows generation {read.generation} to who has seen the one before"
            )
        if read.error == ErrorCode.INCONSISTENT_GENERATION.name:
            world.happened("quorum_lost:old_token")


async def _add_voters(world: World, hosts: list[ControllerHost]) -> None:
    for host in hosts:
        while True:
            body = pb.AddRaftVoterRequest(
                voter_id=host.id,
                voter_directory_id=host.quorum.directory_id,
                endpoint=host.endpoint,
            )
            error: ApiError | None = await world.operator.ask(body)
            if error is None or error.code is ErrorCode.DUPLICATE_VOTER:
                break
            await asyncio.sleep(AGAIN_S)

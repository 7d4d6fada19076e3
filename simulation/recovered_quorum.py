"""Recovery after the disks of a majority are lost (docs/operations.md, "A quorum lost for good").

All controllers are stopped. The shipped code recovers the remaining directory with the longest log,
which then leads alone, and the others join with empty disks. A power cut may interrupt the
recovery, which is repeated. A new log generation begins, with new checkers (``checkers_after``):

* the recovered log is a prefix of the new committed log;
* all healed nodes reach the new generation;
* no broker leads in a leader epoch below the range of the new generation, and no two generations
  share a leader epoch (I23);
* a partition's committed records survive if every ISR member in the recovered metadata has them on
  its disk, until a later loss of disks or an unclean leader.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from controller.service.service import ControllerService
from raftlog.errors import ErrorCode, FatalError
from raftlog.metadata.control_records import NO_GENERATION, first_leader_epoch
from raftlog.metadata.entities import Partition
from raftlog.metadata.records import Record, RecordType
from raftlog.node.recovery.unsafe_recovery import Recovery, Survivor, begin_anew, survivor_of
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.broker.v1 import broker_pb2
from raftlog.wire.common.v1 import common_pb2
from simulation.checks.acl_history import AclHistory
from simulation.checks.api import BrokerView, Checker, Operation, fail
from simulation.checks.commitment import Commitment, Durability
from simulation.checks.committed_data import Committed, CommittedData, epoch_on
from simulation.checks.data_clients import DataClients
from simulation.checks.elections import Elections
from simulation.checks.held import Held
from simulation.checks.leadership import Contradictions
from simulation.checks.ledger import Ledger
from simulation.checks.limits import Queues, Turns
from simulation.checks.linearizability import Linearizability
from simulation.checks.node_log import Logged
from simulation.checks.replica_logs import ReplicaLogs, name_of
from simulation.checks.snapshot_parts import SnapshotParts
from simulation.checks.states import States
from simulation.checks.visibility import Visibility
from simulation.checks.watches import Watches
from simulation.faults.disks import mend_disk
from simulation.faults.nodes import start_again
from simulation.faults.voters import add_request, end_roll
from simulation.hosts import BrokerHost, ControllerHost
from simulation.twins.loop import START_OF_TIME_MS, host_context
from simulation.workload import Workload
from simulation.world import World

T = TypeVar("T")


class _Kept(NamedTuple):
    """Committed records up to ``end``, to be kept as long as the partition's ``era`` lasts."""

    end: int
    chain: int
    era: int


class _Present:
    """The world without brokers at the previous generation, whose images differ."""

    def __init__(self, world: World, generation: int) -> None:
        self._world, self._over = world, (NO_GENERATION, generation)

    @property
    def brokers(self) -> list[BrokerView]:
        return [host for host in self._world.brokers if generation_of(host) not in self._over]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


def generation_of(host: BrokerView) -> int:
    return host.service.view.generation if host.service is not None else NO_GENERATION


class Recovered(Checker):
    """Checker of the life after a recovery."""

    def __init__(
        self, ledger: Ledger, logs: ReplicaLogs, data: CommittedData, floor_epoch: int
    ) -> None:
        """``floor_epoch``: the lowest leader epoch that may be led."""
        self._golden, self._logs, self._data = ledger.golden, logs, data
        self._floor_epoch = floor_epoch
        self._kept: dict[PartitionKey, _Kept] = {}
        self._found: Any = {}
        self.elected = 0
        self.kept = self.forgotten = 0
        """Numbers of batches of the former log that the recovered one has, and lacks."""
        self.partitions = self.excused = self.verified = 0
        """Numbers of partitions whose records must survive, may be lost, and were verified at
        the end.
        """

    def listen(self) -> None:
        self._golden.listeners.append(self._committed)
        self._found = self._golden.image().partitions

    def _committed(self, logged: Logged, records: list[Record]) -> None:
        for record in records:
            if record.type not in (RecordType.PARTITION, RecordType.PARTITION_CHANGE):
                continue
            key = record.message.topic_id, record.message.partition_id
            found, was = self._golden.partition(key), self._found.get(key)
            # Before its epoch is raised a partition may be changed, in the epoch that it was found
            # in, by who led it then.
            if found is not None and (was is None or found.leader_epoch != was.leader_epoch):
                self.elected += found.leader >= 0
                self._in_range(key, found)

    def _in_range(self, key: PartitionKey, found: Partition) -> None:
        first = self._floor_epoch
        if found.leader_epoch < first:
            fail(f"{name_of(key)} is led in {found.leader_epoch}, below {first}")

    def keep(self, before: CommittedData) -> None:
        """Decide which committed records must survive the recovery."""
        for key, old in before.partitions.items():
            partition, now = self._golden.partition(key), self._data.partitions.get(key)
            if partition is None or now is None or old.gone or not old.log.epochs:
                continue  # Of some there was nothing, or their topic no longer keeps any of it.
            end, epoch = old.log.end, old.log.epochs[-1]
            disks = [self._data.soundness(member) for member in partition.isr]
            if all(disk is not None and epoch_on(disk, key, end) == epoch for disk in disks):
                self._kept[key] = _Kept(end, old.log.chains[-1], now.era)
                self.partitions += 1
            else:
                self.excused += 1

    def end(self) -> None:
        for host in self.world.controllers:
            if host.service is None:
                continue
            found, generation = host.service.node.generation, self._golden.generation
            if found != generation or host.disk.identity.generation != generation:
                fail(f"{host.name} has log generation {found}, not {generation}")
        partitions = self._golden.image().partitions
        for key in sorted(partitions):
            self._in_range(key, partitions[key])
        hosts = {host.id: host for host in self.world.brokers if host.service is not None}
        for key, kept in self._kept.items():
            partition, now = self._golden.partition(key), self._data.partitions[key]
            if partition is None or now.gone or now.era != kept.era:
                continue
            leader = hosts.get(partition.leader)
            if leader is None or generation_of(leader) != self._golden.generation:
                continue
            log = self._logs.log(leader, key)
            if log.begin >= kept.end:
                continue  # Its topic keeps none of it.
            self.verified += 1
            if log.chain_at(kept.end) != kept.chain:
                fail(f"{leader.name} lost {name_of(key)} below {kept.end} in the recovery")


def checkers_after(
    world: World, before: Sequence[Checker], log: Sequence[Logged], generation: int, epoch: int
) -> list[Checker]:
    """Return checkers for the recovered ``log``, which ends in ``epoch``. ``generation``: the
    former one. What is known of replica logs, lost disks and sent records is kept; results of the
    former log promise nothing.
    """

    def old(kind: type[T]) -> T:
        return next(one for one in before if isinstance(one, kind))

    old_ledger, logs, old_data = old(Ledger), old(ReplicaLogs), old(CommittedData)
    old(Linearizability).end()
    ledger = Ledger()
    ledger.matching = old_ledger.matching
    data = CommittedData(ledger, logs)
    floor_epoch = first_leader_epoch(len(old_ledger.golden.generations))
    recovered = Recovered(ledger, logs, data, floor_epoch)
    clients = DataClients(data)
    held, watches = Held(ledger), Watches(ledger, AclHistory())
    held.begin_after(old(Held))
    watches.begin_after(old(Watches))
    of_ledger = Elections(ledger), Commitment(ledger), Durability(ledger), States(ledger)
    others = SnapshotParts(), Visibility(ledger), Queues(), Turns(), Contradictions()
    of_data = data, clients, recovered, Linearizability(ledger), held, watches
    fresh: list[Checker] = [ledger, *of_ledger, *others, *of_data]
    for checker in fresh:
        checker.begin(_Present(world, generation) if isinstance(checker, States) else world)
    data.lost_disks.update(old_data.lost_disks)
    for logged in log:
        ledger.golden.append(logged)
    ledger.credit(epoch)
    recovered.kept = sum(
        ledger.golden.at(one.end_offset) == old_ledger.golden.at(one.end_offset) for one in log
    )
    recovered.forgotten = len(old_ledger.golden.batches) - recovered.kept
    _carry_over(old_data, data, floor_epoch)
    clients.sent, clients.due = old(DataClients).sent, old(DataClients).due
    recovered.keep(old_data)
    recovered.listen()
    held.listen()
    return [*fresh[:10], logs, *fresh[10:]]


def _carry_over(old: CommittedData, new: CommittedData, floor_epoch: int) -> None:
    """Copy what remains valid; results of earlier leaders no longer count."""
    new.asked = old.asked
    new.voided = old.voided + 1
    for key, was in old.partitions.items():
        now = new.partitions.setdefault(key, Committed(gone=True))
        now.leaders = {**was.leaders, **now.leaders}
        now.era = was.era + 1
        now.dropped = was.dropped
    for now in new.partitions.values():
        now.floor_epoch = floor_epoch


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
    host: ControllerHost
    voters: list[ControllerHost]


async def lose_majority(world: World, workload: Workload) -> Lost | None:
    """Stop all controllers, lose a majority's disks, and recover one of the others. Return None if
    there are too few voters.
    """
    rng = world.rng("recovery")
    service = world.active()
    named = service.image.voters if service is not None else None
    ids = [voter.id for voter in named.voters] if named is not None else list(world.fleet.voter_ids)
    voters = [host for host in world.controllers if host.id in ids]
    if len(voters) < 2:
        return None
    # As many as it takes that no majority is left; one voter's disk stays at least.
    lost = rng.sample(voters, rng.randint((len(voters) + 1) // 2, len(voters) - 1))
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
    rest = [host for host in world.controllers if host not in lost]
    left = [(found, host) for host in rest for found in _examined(world, host)]
    if not left:
        fail("no directory is left that can be recovered")
    before, host = max(left, key=lambda one: (one[0].last_epoch, one[0].end_offset, one[1].id))
    done = await _recovered(world, rng, host, before)
    world.happened("quorum_lost")
    world.note(host.name, f"is recovered: epoch {done.epoch}, end {done.end_offset}")
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
    """Return the running broker that is in the most ISRs with several members, or None."""
    service = world.active()
    partitions = service.image.partitions.values() if service is not None else ()
    isrs = [one.isr for one in partitions if len(one.isr) > 1]
    running = [host for host in world.members if host.service is not None]
    most = max(running, key=lambda host: sum(host.id in isr for isr in isrs), default=None)
    return most if most is not None and any(most.id in isr for isr in isrs) else None


def _examined(world: World, host: ControllerHost) -> list[Survivor]:
    """Return the state of a directory that can be recovered, in a list; empty if it cannot."""
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
    """Recover a directory by the shipped code; a power cut may interrupt and repeat it."""
    while True:
        store = host.disk.open()
        found = store.recover()
        before = survivor_of(host.disk.identity, found, host.quorum.voters)
        now_ms = max(START_OF_TIME_MS + round(world.now() * 1000), found.last_timestamp_ms)
        reason = "its quorum is lost"
        recovery = begin_anew(store, before, endpoint=host.endpoint, reason=reason, now_ms=now_ms)
        work = asyncio.ensure_future(recovery)
        interrupted = rng.random() < INTERRUPTED_P
        timeout_s = rng.uniform(0.0, world.config.disk_max_ms / 500) if interrupted else None
        await asyncio.wait([work], timeout=timeout_s)
        if interrupted:
            work.cancel()
            host.disk.crash(rng)
            world.happened("quorum_lost:interrupted")
            continue
        store.close()
        return work.result()


def _renew_checkers(world: World, host: ControllerHost, done: Recovery, over: int) -> None:
    """Feed new checkers with the recovered log. ``over``: the old generation."""
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

    def is_current(host: ControllerHost | BrokerView) -> bool:
        return isinstance(host, ControllerHost) or generation_of(host) not in (NO_GENERATION, over)

    def is_new(one: Operation) -> bool:
        return one.number > last and (one.outcome != "ok" or one.generation != over)

    watch.renew([*fresh, *others], is_current, is_new)


async def go_on(world: World, workload: Workload, lost: Lost, within_s: float) -> None:
    """Let the controllers join the recovered one, brokers follow, and clients write. Raises
    CheckFailedError.
    """
    await world.until(
        lambda: world.active() is not None, within_s, "the recovered controller leads"
    )
    if "roll_heartbeats" in world.config.faults:
        world.spawn(end_roll(world), "end of the roll")
    adding = world.spawn(_add_voters(world, lost.voters), "operator", "operator")
    await world.until(adding.done, within_s, "the others are voters again")

    def have_followed() -> bool:
        generations = map(generation_of, world.healed_brokers())
        return {NO_GENERATION, lost.generation}.isdisjoint(generations)

    await world.until(have_followed, within_s, "brokers have come to another generation")
    for number in range(WRITES):
        written = await workload.last_write(within_s, f"again-{number}")
        if written.generation == lost.generation:
            fail(f"a write was answered with generation {written.generation}, which is over")
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
    """Let the active controller resign until another one leads: it may be re-elected. Raises
    CheckFailedError.
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
    """Require that an old token is refused and no older state shown. Raises CheckFailedError."""
    for host in world.healed_brokers():
        reader = workload.reader(f"last, old token at {host.name}", host.name)
        reader.see(common_pb2.MetadataToken(generation=lost.generation, epoch=1, offset=0))
        read = await reader.read_config("again-0", broker_pb2.LATEST)
        reader.close()
        if read.outcome == "ok":
            fail(f"{host.name} shows generation {read.generation} to who has seen the one before")
        if read.error == ErrorCode.INCONSISTENT_GENERATION.name:
            world.happened("quorum_lost:old_token")


async def _add_voters(world: World, hosts: list[ControllerHost]) -> None:
    for host in hosts:
        error = await world.operator.ask(add_request(host))
        while error is not None and error.code is not ErrorCode.DUPLICATE_VOTER:
            await asyncio.sleep(AGAIN_S)
            error = await world.operator.ask(add_request(host))

"""Unsafe recovery: what it may lose, and what not.

The committed history ends where the recovered directory ends; records that only the lost
directories had are gone. From there on another history is committed, of the next generation, under
fresh checkers. ``checkers_after`` tells what they take over. It must hold that

* the recovered log is a prefix of the committed log from now on: all of it, byte for byte;
* all healed nodes reach the new generation, those too that join with disks that were formatted
  without it;
* no broker leads a partition in a leader epoch below the generation's range, and no two histories
  meet in one leader epoch (I23);
* a partition's committed records are there in the end, if every member of the ISR that the
  recovered metadata knows has it on its disk, and no later loss of disks and no unclean leader has
  made it void.

Would catch: a recovery that keeps the generation, that rewrites what it found, leader epochs that
are not raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from typing_extensions import override

from raftlog.metadata.control_records import NO_GENERATION, first_leader_epoch
from raftlog.metadata.entities import Partition
from raftlog.metadata.records import Record, RecordType
from raftlog.node.storage.partition_api import PartitionKey
from simulation.checks.acl_history import AclHistory
from simulation.checks.api import BrokerView, Checker, CheckFailedError
from simulation.checks.commitment import Commitment
from simulation.checks.committed_data import Committed, CommittedData, epoch_on
from simulation.checks.contradictions import Contradictions
from simulation.checks.data_clients import DataClients
from simulation.checks.durability import Durability
from simulation.checks.elections import Elections
from simulation.checks.held import Held
from simulation.checks.history import Linearizability
from simulation.checks.ledger import Ledger
from simulation.checks.node_log import Logged
from simulation.checks.queues import Queues
from simulation.checks.replica_logs import ReplicaLogs, name_of
from simulation.checks.snapshot_parts import SnapshotParts
from simulation.checks.states import States
from simulation.checks.turns import Turns
from simulation.checks.visibility import Visibility
from simulation.checks.watches import Watches
from simulation.world import World


class _Kept(NamedTuple):
    """Committed records of a partition up to ``end``, which must stay as long as the partition's
    ``era`` does.
    """

    end: int
    chain: int
    era: int


class _Present:
    """The world without brokers that are still at the generation before: their images are of
    another history.
    """

    def __init__(self, world: World, generation: int) -> None:
        self._world, self._over = world, (NO_GENERATION, generation)

    @property
    def brokers(self) -> list[BrokerView]:
        """Brokers of the generation after the recovery."""
        return [host for host in self._world.brokers if generation_of(host) not in self._over]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)


def generation_of(host: BrokerView) -> int:
    """Which log a broker's image is of; NO_GENERATION: of none, or it is down."""
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
        """The partitions as they were recovered."""
        self.elected = 0
        """Leaders of partitions, since."""
        self.kept = self.forgotten = 0
        """Batches of the history before that the new one has, and has not."""
        self.partitions = self.excused = self.verified = 0
        """Whose records must stay, and need not; and those that were looked at in the end."""

    def listen(self) -> None:
        """Treat records that become committed from here on as new."""
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
            raise CheckFailedError(
                f"{name_of(key)} is led by broker {found.leader} in leader epoch"
                f" {found.leader_epoch}; those since the recovery begin at {first}"
            )

    def keep(self, before: CommittedData) -> None:
        """Find out what of the partitions' records must stay."""
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

    @override
    def end(self) -> None:
        for host in self.world.controllers:
            if host.service is None:
                continue
            found, generation = host.service.node.generation, self._golden.generation
            if found != generation or host.disk.identity.generation != generation:
                raise CheckFailedError(
                    f"{host.name} says that the log has generation {found}, and its disk"
                    f" {host.disk.identity.generation}; it is {generation} since the recovery"
                )
        partitions = self._golden.image().partitions
        for key in sorted(partitions):
            self._in_range(key, partitions[key])
        hosts = {host.id: host for host in self.world.brokers if host.service is not None}
        for key, kept in self._kept.items():
            partition, now = self._golden.partition(key), self._data.partitions[key]
            if (
                partition is None
                or now.gone
                or now.era != kept.era
                or partition.leader not in hosts
            ):
                continue
            leader = hosts[partition.leader]
            if generation_of(leader) != self._golden.generation:
                continue
            log = self._logs.log(leader, key)
            if log.begin > kept.end:
                continue  # Its topic does not keep it.
            self.verified += 1
            if log.chain_at(kept.end) != kept.chain:
                raise CheckFailedError(
                    f"{name_of(key)} was committed up to {kept.end} before the recovery, and on the"
                    f" disks of its whole ISR; its leader {leader.name} has something else"
                )


def checkers_after(
    world: World, before: Sequence[Checker], log: Sequence[Logged], generation: int, epoch: int
) -> list[Checker]:
    """Return the checkers of the life after a recovery from ``log``, whose last batches the
    recovery has written, in ``epoch``. ``generation``: the former one.

    The books of replicas' logs go on: two histories must not meet in one leader epoch. So do the
    lost disks and the sent records. Answers of the former history to brokers and clients promise
    nothing any more.
    """
    found = {type(checker): checker for checker in before}
    old_ledger, logs, old_data = found[Ledger], found[ReplicaLogs], found[CommittedData]
    old_clients, linearizable = found[DataClients], found[Linearizability]
    assert isinstance(old_ledger, Ledger)
    assert isinstance(logs, ReplicaLogs)
    assert isinstance(old_data, CommittedData)
    assert isinstance(old_clients, DataClients)
    linearizable.end()
    ledger = Ledger()
    ledger.matching = old_ledger.matching
    data = CommittedData(ledger, logs)
    floor_epoch = first_leader_epoch(len(old_ledger.golden.generations))
    recovered = Recovered(ledger, logs, data, floor_epoch)
    clients = DataClients(data)
    held, old_held = Held(ledger), found[Held]
    assert isinstance(old_held, Held)
    held.begin_after(old_held)
    watches, old_watches = Watches(ledger, AclHistory()), found[Watches]
    assert isinstance(old_watches, Watches)
    watches.begin_after(old_watches)
    fresh: list[Checker] = [
        ledger,
        Elections(ledger),
        Commitment(ledger),
        Durability(ledger),
        States(ledger),
        SnapshotParts(),
        Visibility(ledger),
        Queues(),
        Turns(),
        Contradictions(),
        data,
        clients,
        recovered,
        Linearizability(ledger),
        held,
        watches,
    ]
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
    clients.sent, clients.due = old_clients.sent, old_clients.due
    recovered.keep(old_data)
    recovered.listen()
    held.listen()
    return [*fresh[:10], logs, *fresh[10:]]


def _carry_over(old: CommittedData, new: CommittedData, floor_epoch: int) -> None:
    """Carry the checkers' state over; answers of earlier leaders count no more."""
    new.asked = old.asked
    new.voided = old.voided + 1
    for key, was in old.partitions.items():
        now = new.partitions.setdefault(key, Committed(gone=True))
        now.leaders = {**was.leaders, **now.leaders}
        now.era = was.era + 1
        now.dropped = was.dropped
    for now in new.partitions.values():
        now.floor_epoch = floor_epoch

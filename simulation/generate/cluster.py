"""The generated cluster's brokers and partitions: their events, as the controller decides them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from controller.decisions.brokers.hostnames import mapping_of
from controller.decisions.partitions.leader_elections import elect, wants_preferred
from controller.rules.fencing import begin_shutdown, complete_shutdown, fence, unfence
from controller.rules.partition_change import (
    MAX_REMOVALS,
    Assignment,
    Brokers,
    Election,
    next_state,
    partitions_of,
    removals,
)
from raftlog.metadata.entities import NO_LEADER, RECOVERED, Broker, Cause, Partition
from raftlog.metadata.image import PartitionKey
from raftlog.metadata.records import Record, record
from raftlog.metadata.versions import (
    BROKER_HEARTBEAT_VERSION,
    LAO_VERSION,
    LATEST_METADATA_VERSION,
    METADATA_VERSION,
)
from raftlog.wire.records.v1 import records_pb2 as pb
from simulation.generate.log import GeneratedLog, Observation
from simulation.generate.schedule import Profile

FEATURES = {METADATA_VERSION: LATEST_METADATA_VERSION, LAO_VERSION: 1, BROKER_HEARTBEAT_VERSION: 1}
_BATCH_MS = 3
"""Between two batches of what takes several."""
_PROPOSED = 500
"""Partitions that a leader proposes at a time."""


class Cluster:
    """The generated cluster, which acts on the log. Methods take their start time in ms."""

    def __init__(self, log: GeneratedLog, profile: Profile) -> None:
        self.log, self.profile = log, profile
        self.broker_ids = range(1, profile.brokers + 1)
        self.observed = Observation(log, self.broker_ids)
        self.leader_id = 0

    def elect(self, at_ms: int, *, absent_ms: int = 0) -> None:
        """Another controller begins an epoch, ``absent_ms`` after the one before was last heard."""
        log, voters = self.log, list(range(1, self.profile.controllers + 1))
        others = [voter for voter in voters if voter != self.leader_id] or voters
        self.leader_id = log.rng.choice(others)
        log.epoch += 1
        granting = sorted({self.leader_id, log.rng.choice(voters)})
        self.observed.new_epoch(at_ms + log.rng.randrange(5, 60))
        change = pb.LeaderChangeRecord(
            leader_id=self.leader_id, voters=voters, granting_voters=granting
        )
        if log.epoch > 1:
            change.last_heard_epoch, change.last_heard_by_all = log.epoch - 1, True
            change.last_heard_age_ms = absent_ms
        log.append([record(change)], at_ms, control=True)

    def set_features(self, at_ms: int) -> None:
        levels = [
            record(pb.FeatureLevelRecord(name=name, feature_level=level))
            for name, level in FEATURES.items()
        ]
        self.log.append(levels, at_ms)

    def broker(self, broker_id: int) -> Broker | None:
        found: Broker | None = self.log.draft.brokers.get(broker_id)
        return found

    def active(self) -> list[int]:
        found = map(self.broker, self.broker_ids)
        return [broker.id for broker in found if broker is not None and broker.active]

    def rack_of(self, broker_id: int) -> int:
        """Racks have the brokers by turns."""
        return broker_id % self.profile.racks

    def register(self, broker_id: int, at_ms: int) -> None:
        """Register a new process of the broker, fenced."""
        log = self.log
        host = f"broker-{broker_id}.kafka.internal"
        registration = pb.RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=f"{log.rng.getrandbits(128):032x}",
            broker_epoch=log.end_offset,
            end_points=[pb.Listener(name="PLAINTEXT", host=host, port=9092)],
            features=[
                pb.FeatureRange(
                    name=name,
                    min_supported_version=0 if level == 1 else 1,
                    max_supported_version=level,
                )
                for name, level in FEATURES.items()
            ],
            rack=f"rack-{self.rack_of(broker_id)}",
            fenced=True,
            registration_version=1,
            process=pb.ProcessProof(
                boot_id=f"{broker_id:08x}-0000-4000-8000-000000000000",
                directory_id=f"{broker_id:032x}",
                lock_device=66305,
                lock_inode=131072 + broker_id,
            ),
        )
        self.observed.resume(broker_id)
        records = [record(registration)]
        if self.broker(broker_id) is not None:
            records += removals(log.draft, broker_id, on_purpose=True)
        log.append([*records, *mapping_of(log.draft, host, broker_id)], at_ms)

    def unfence(self, broker_id: int, at_ms: int) -> None:
        broker = self.broker(broker_id)
        if broker is not None and broker.fenced:
            self.observed.resume(broker_id)
            self.log.append(unfence(self.log.draft, broker), at_ms)

    def fence(self, broker_id: int, cause: Cause, at_ms: int) -> None:
        """The controller fences it, and takes it out of all ISRs."""
        broker = self.broker(broker_id)
        if broker is None or broker.fenced:
            return
        self.log.append(fence(self.log.draft, broker, cause), at_ms)
        self._in_batches(
            lambda: removals(self.log.draft, broker_id, on_purpose=True, limit=MAX_REMOVALS),
            at_ms + _BATCH_MS,
        )

    def begin_shutdown(self, broker_id: int, at_ms: int) -> None:
        def moved() -> list[Record]:
            broker = self.broker(broker_id)
            return [] if broker is None or broker.fenced else begin_shutdown(self.log.draft, broker)

        self._in_batches(moved, at_ms)

    def leave(self, broker_id: int, at_ms: int) -> None:
        broker = self.broker(broker_id)
        if broker is not None and broker.in_controlled_shutdown and not broker.fenced:
            self.log.append(complete_shutdown(self.log.draft, broker), at_ms)

    def _in_batches(self, decide: Callable[[], list[Record]], at_ms: int) -> None:
        while records := decide():
            self.log.append(records, at_ms)
            at_ms += _BATCH_MS

    def held(self, broker_id: int) -> Iterable[Partition]:
        return partitions_of(self.log.draft, broker_id)

    def partition(self, key: PartitionKey) -> Partition | None:
        found: Partition | None = self.log.draft.partitions.get(key)
        return found

    def shrink(self, broker_id: int, keys: Sequence[PartitionKey], at_ms: int) -> None:
        """Let leaders remove a follower that has fallen behind from their ISRs."""
        named = filter(None, map(self.partition, keys))
        followed = [each for each in named if broker_id in each.isr and each.leader != broker_id]
        wanted = [
            (each, [member for member in each.isr if member != broker_id]) for each in followed
        ]
        self._propose(wanted, at_ms)

    def expand(
        self, broker_id: int, at_ms: int, *, keys: Iterable[PartitionKey] | None = None
    ) -> None:
        """Let leaders add a caught-up broker to their ISRs: of ``keys`` that it holds, or all."""
        broker = self.broker(broker_id)
        if broker is None or not broker.active:
            return
        held = self.held(broker_id) if keys is None else filter(None, map(self.partition, keys))
        # What was moved away meanwhile is not its own any more: [a disk was slow, and its
        # partitions were reassigned before it caught up].
        wanted = [
            (each, [*each.isr, broker_id])
            for each in held
            if broker_id in each.replicas and broker_id not in each.isr
        ]
        self._propose(wanted, at_ms)

    def _propose(self, wanted: list[tuple[Partition, list[int]]], at_ms: int) -> None:
        """Let each leader propose its partitions' ISRs, in requests of its own."""
        brokers = Brokers(self.log.draft)
        by_leader: dict[int, list[tuple[Partition, list[int]]]] = defaultdict(list)
        for partition, isr in wanted:
            if partition.leader != NO_LEADER and all(map(brokers.active, isr)):
                by_leader[partition.leader].append((partition, isr))
        for leader in sorted(by_leader):
            named = by_leader[leader]
            for start in range(0, len(named), _PROPOSED):
                records = [
                    self._proposal(brokers, *each) for each in named[start : start + _PROPOSED]
                ]
                self.log.append(records, at_ms)
                at_ms += self.log.rng.randrange(1, 40)

    def _proposal(self, brokers: Brokers, partition: Partition, isr: list[int]) -> Record:
        """Return the record of an accepted ISR proposal, with proposer and all epochs."""
        change = next_state(brokers, partition, isr=isr, recovery_state=RECOVERED)
        assert change is not None
        registered = self.log.draft.brokers
        change.proposer_id = partition.leader
        change.proposer_epoch = registered[partition.leader].epoch
        change.isr_with_epochs.extend(
            pb.BrokerState(broker_id=member, broker_epoch=registered[member].epoch)
            for member in isr
        )
        if not change.HasField("isr"):
            change.isr.ids.extend(partition.isr)
        return record(change)

    def prefer(self, broker_id: int, at_ms: int) -> None:
        brokers = Brokers(self.log.draft)
        wanted = [each for each in self.held(broker_id) if each.replicas[0] == broker_id]
        records = [
            record(elect(brokers, each, Election.PREFERRED))
            for each in wanted
            if wants_preferred(brokers, each)
        ]
        for start in range(0, len(records), 1000):
            self.log.append(records[start : start + 1000], at_ms)
            at_ms += 50

    def reassign(self, keys: Sequence[PartitionKey], to: int, at_ms: int) -> None:
        """Begin to move some partitions' last replica; ``expand`` adds the new one later."""
        brokers = Brokers(self.log.draft)
        records = []
        for partition in filter(None, map(self.partition, keys)):
            if (
                to in partition.replicas
                or partition.adding_replicas
                or len(partition.replicas) == 1
            ):
                continue
            *kept, last = partition.replicas
            moved = Assignment((*kept, to, last), (last,), (to,))
            change = next_state(brokers, partition, assignment=moved)
            if change is not None:
                records.append(record(change))
        self.log.append(records, at_ms, principal="User:platform")

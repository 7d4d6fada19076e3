"""Valid random logs from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from raftlog import batch
from raftlog.metadata.acls import (
    ANY_HOST,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from raftlog.metadata.entities import Partition, format_hash
from raftlog.metadata.fold import ImageBuilder
from raftlog.metadata.image import Image
from raftlog.metadata.log_hash import EMPTY, LogHash, extended
from raftlog.metadata.records import record
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.segments.manifest import StateHash
from raftlog.wire.records.v1 import records_pb2 as pb

CLUSTER_ID = "test-cluster-0000000000"
PRINCIPALS = ("User:alice", "User:bob", "User:carol")


class LogHistory:
    """Builds a log batch by batch; ``hashes`` has the state hash after each batch, and
    ``log_hashes`` the log hash, by its last offset.
    """

    def __init__(
        self,
        seed: int = 1,
        *,
        brokers: int = 3,
        generation: int = 0,
        metadata_version: int = LATEST_METADATA_VERSION,
        topic_names: int = 0,
        with_entries: bool = True,
    ) -> None:
        """``topic_names``: number of topics that take turns on their names; 0: each has a new name.
        ``with_entries``: access control entries are added and removed.
        """
        self.with_entries = with_entries
        self.topic_names = topic_names
        self.cluster_id, self.generation, self.start_offset = CLUSTER_ID, generation, 0
        self.connections = 0
        self.rng = Random(seed)
        self.draft = ImageBuilder(Image())
        self.batches: list[bytes] = []
        self.positions: dict[int, int] = {}
        self.hashes: dict[int, int] = {}
        self.log_hash = EMPTY
        self.log_hashes: dict[int, LogHash] = {}
        self.epoch, self.timestamp_ms, self.brokers = 0, 1_700_000_000_000, brokers
        self.topics: dict[str, bytes] = {}
        self.entries: list[bytes] = []
        """Ids of the access control entries that are there."""
        self.sequence = self.topic_number = 0
        self.reached = -1
        """The highest LAO that a progress record has said."""
        self.applied: dict[tuple[int, int], int] = {}
        """Offsets that brokers have reported, by id and epoch."""
        self.client_id = 7
        """Never opened: such a header changes nothing."""
        self.elect(1)
        self.append(pb.FeatureLevelRecord(name="metadata.version", feature_level=metadata_version))
        for broker_id in range(1, brokers + 1):
            self.register(broker_id)
            self.set_fenced(broker_id, fenced=False)

    @property
    def end_offset(self) -> int:
        return self.draft.offset + 1

    high_watermark = end_offset

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Return whole batches, as a source."""
        index, out = self.positions[offset], b""
        while index < len(self.batches) and (
            not out or len(out) + len(self.batches[index]) <= max_bytes
        ):
            out += self.batches[index]
            index += 1
        return out

    def append(
        self, *messages: Any, control: bool = False, principal: str = "", client_id: int = 0
    ) -> int:
        """Add one batch; return its base offset. ``client_id``: numbers it, open or unknown."""
        base = self.end_offset
        self.timestamp_ms += self.rng.randrange(1, 50)
        records = [record(message) for message in messages]
        sequence = done = 0
        if client_id:
            self.sequence += 1
            sequence = self.sequence
            done = (
                max(0, sequence - self.rng.randrange(100)) if client_id in self.draft.clients else 0
            )
        data = batch.encode(
            [each.data for each in records],
            base_offset=base,
            epoch=self.epoch,
            timestamp_ms=self.timestamp_ms,
            control=control,
            principal=principal,
            client_id=client_id,
            sequence=sequence,
            all_below_done=done,
        )
        self.draft.apply_batch(
            records,
            base_offset=base,
            epoch=self.epoch,
            timestamp_ms=self.timestamp_ms,
            client_id=client_id,
            sequence=sequence,
            all_below_done=done,
        )
        self.positions[base] = len(self.batches)
        self.batches.append(data)
        self.hashes[self.draft.offset] = self.draft.state_hash % 2**128
        self.log_hash = self.log_hashes[self.draft.offset] = extended(self.log_hash, data)
        return base

    def elect(self, leader_id: int, heard_ms: int | None = None) -> None:
        """``heard_ms``: how long before the previous leader was last heard; None if not stated."""
        self.epoch += 1
        change = pb.LeaderChangeRecord(leader_id=leader_id, voters=[1, 2, 3])
        if heard_ms is not None:
            change.last_heard_epoch, change.last_heard_age_ms = self.epoch - 1, heard_ms
            change.last_heard_by_all = True
        self.append(change, control=True)

    def epoch_of(self, broker_id: int) -> int:
        """Return the registered epoch of a broker; some number for an unregistered one."""
        broker = self.draft.brokers.get(broker_id)
        return broker.epoch if broker is not None else 777_777

    def unregistered(self, broker_id: int) -> pb.UnregisterBrokerRecord:
        return pb.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=self.epoch_of(broker_id))

    def register(self, broker_id: int) -> int:
        """Register a new incarnation, which leaves the old one's ISRs; return the broker epoch."""
        epoch = self.end_offset
        first = pb.RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=f"{self.rng.getrandbits(64):016x}",
            broker_epoch=epoch,
            end_points=[pb.Listener(name="PLAINTEXT", host=f"host-{broker_id}", port=9092)],
            fenced=True,
            rack=f"rack-{broker_id % 2}",
        )
        return self.append(first, *self.removals(broker_id), *self._mapping(broker_id))

    def _mapping(self, broker_id: int) -> list[Any]:
        """Write a mapping of a host that two brokers use in turn, or its deletion."""
        name = f"host-{broker_id // 2}"
        if name in self.draft.hostnames and self.rng.random() < 0.2:
            return [pb.HostnameRecord(hostname=name, reason="stale", cause=pb.STALE)]
        return [
            pb.HostnameRecord(
                hostname=name, broker_id=broker_id, reason="registered", cause=pb.BY_REGISTRATION
            )
        ]

    def _held(self) -> Iterator[Partition]:
        for name in sorted(self.topics):
            topic = self.draft.topics[self.topics[name]]
            yield from (
                self.draft.partitions[topic.id, index] for index in range(topic.partition_count)
            )

    def removals(self, broker_id: int) -> list[Any]:
        """Remove from every ISR; its last member stays in it, and leads no more."""
        changes = []
        for old in self._held():
            if broker_id not in old.isr:
                continue
            change = self.changed(old.topic_id, old.index)
            isr = [member for member in old.isr if member != broker_id]
            if isr:
                change.isr.ids.extend(isr)
            if old.leader == broker_id:
                change.leader = isr[0] if isr else -1
            if isr or change.HasField("leader"):
                changes.append(change)
        return changes

    def _elections(self, broker_id: int) -> list[Any]:
        """Append elections that waited for a broker; every other leader epoch jumps."""
        changes = [
            self.changed(old.topic_id, old.index, leader=broker_id)
            for old in self._held()
            if old.leader < 0 and broker_id in old.isr
        ]
        for change in changes:
            before = self.draft.partitions[change.topic_id, change.partition_id].leader_epoch
            if before % 2:
                change.leader_epoch = before + 1000
        return changes

    def standing(self, broker_id: int, **fields: Any) -> pb.BrokerRegistrationChangeRecord:
        return pb.BrokerRegistrationChangeRecord(
            broker_id=broker_id, broker_epoch=self.epoch_of(broker_id), **fields
        )

    def leaving(self, broker_id: int, **fields: Any) -> pb.BrokerRegistrationChangeRecord:
        """Return the record of a broker in a controlled shutdown."""
        why = {"reason": "controlled shutdown", "cause": pb.CONTROLLED_SHUTDOWN}
        return self.standing(broker_id, in_controlled_shutdown=True, **why, **fields)

    def set_fenced(self, broker_id: int, *, fenced: bool) -> None:
        change = self.standing(
            broker_id,
            fenced=fenced,
            reason="session timed out" if fenced else "caught up",
            cause=pb.SESSION_TIMED_OUT if fenced else pb.CAUGHT_UP,
        )
        self.append(change, *(self.removals(broker_id) if fenced else self._elections(broker_id)))

    def active(self) -> list[int]:
        brokers = map(self.draft.brokers.get, range(1, self.brokers + 1))
        return [broker.id for broker in brokers if broker is not None and not broker.fenced]

    def create_topic(
        self, name: str, partitions: int = 2, assignments: Sequence[list[int]] = ()
    ) -> bytes:
        """``assignments``: the replicas of each partition, led by the first."""
        topic_id = self.rng.getrandbits(128).to_bytes(16, "big")
        replicas = self.active()[:3]
        placed = [(each, each[0]) for each in assignments] or [
            (replicas, replicas[index % len(replicas)]) for index in range(partitions)
        ]
        created = [
            pb.PartitionRecord(
                topic_id=topic_id, partition_id=index, replicas=each, isr=each, leader=leader
            )
            for index, (each, leader) in enumerate(placed)
        ]
        topic = pb.TopicRecord(name=name, topic_id=topic_id)
        self.append(
            topic, *created, principal=self.rng.choice(PRINCIPALS), client_id=self.client_id
        )
        self.topics[name] = topic_id
        return topic_id

    def delete_topic(self, name: str) -> None:
        configs = sorted(self.draft.configs.get((2, name)) or {})
        gone = [pb.ConfigRecord(resource_type=2, resource_name=name, name=key) for key in configs]
        self.append(
            *gone,
            pb.RemoveTopicRecord(topic_id=self.topics.pop(name)),
            principal=self.rng.choice(PRINCIPALS),
            client_id=self.client_id,
        )

    def alter_config(
        self, name: str, key: str, value: str | None, principal: str = "User:alice"
    ) -> int:
        message = pb.ConfigRecord(resource_type=2, resource_name=name, name=key)
        if value is not None:
            message.value = value
        return self.append(message, principal=principal, client_id=self.client_id)

    def changed(self, topic_id: bytes, index: int = 0, **fields: Any) -> pb.PartitionChangeRecord:
        """Return a change of a partition; lists of ids may be given as such."""
        values: dict[str, Any] = {
            name: pb.IdList(ids=value)
            if isinstance(value, list) and name != "isr_with_epochs"
            else value
            for name, value in fields.items()
        }
        return pb.PartitionChangeRecord(topic_id=topic_id, partition_id=index, **values)

    def alter_isr(
        self, name: str, index: int, isr: list[int], epochs: dict[int, int] | None = None
    ) -> int:
        """AlterPartition by the leader; ``epochs`` overrides the epoch proposed for a member."""
        old = self.draft.partitions[self.topics[name], index]
        known = {broker_id: self.epoch_of(broker_id) for broker_id in isr} | (epochs or {})
        change = self.changed(
            old.topic_id,
            index,
            isr=isr,
            proposer_id=old.leader,
            proposer_epoch=self.epoch_of(old.leader),
            isr_with_epochs=[
                pb.BrokerState(broker_id=member, broker_epoch=known[member]) for member in isr
            ],
        )
        return self.append(change, principal=f"User:broker-{old.leader}")

    def open_client(self) -> int:
        """Open a client for later writes; its predecessor is kept or removed with its results."""
        if self.client_id in self.draft.clients and self.rng.random() < 0.5:
            # By its own numbered write: the client goes first, and leaves no result.
            self.append(
                pb.CloseClientRecord(client_id=self.client_id, reason="closed"),
                client_id=self.client_id,
            )
        self.sequence = 0
        owner = self.rng.choice(PRINCIPALS)
        self.client_id = self.append(
            pb.OpenClientRecord(name=f"client-{self.end_offset}", principal=owner), principal=owner
        )
        return self.client_id

    def move_cursor(self, name: str) -> int:
        """Move a cursor to the end, or remove it."""
        cursor = pb.ExportCursorRecord(name=name, target=f"{name}'s")
        if name not in self.draft.export_cursors or self.rng.random() < 0.8:
            cursor.end_offset = self.end_offset
        return self.append(cursor, principal="User:exporter")

    def unfoldable(self) -> bytes:
        """Append an unfoldable batch at the end: it changes a missing partition."""
        change = pb.PartitionChangeRecord(topic_id=bytes(16), partition_id=9, leader=1)
        return batch.encode(
            [record(change).data],
            base_offset=self.end_offset,
            epoch=self.epoch,
            timestamp_ms=self.timestamp_ms,
        )

    def change_key(self, key: str) -> int:
        """Put or delete a key, or end its lease."""
        leases = sorted(id_ for id_, _ in self.draft.snapshot().leases.items())
        dice = self.rng.random()
        if dice < 0.2:
            self.append(pb.LeaseRecord(name="worker", ttl_ms=5000), principal="User:worker")
            leases = [self.draft.offset, *leases]
        elif dice < 0.3 and leases:
            held = list(self.draft.keys_of_lease.get(leases[0]) or ())
            gone = [pb.KeyValueRecord(key=one) for one in sorted(held)]
            return self.append(*gone, pb.RemoveLeaseRecord(lease_id=leases[0], reason="expired"))
        change = pb.KeyValueRecord(key=key)
        if key not in self.draft.key_values or self.rng.random() < 0.8:
            change.value = bytes(self.rng.randrange(256) for _ in range(self.rng.randrange(9)))
            change.lease_id = leases[0] if leases and self.rng.random() < 0.5 else 0
        return self.append(change, principal="User:worker")

    def add_entry(
        self,
        principal: str,
        operation: AclOperation,
        type_: AclResourceType,
        name: str,
        *,
        pattern: PatternType = PatternType.LITERAL,
        host: str = ANY_HOST,
        permission: AclPermission = AclPermission.ALLOW,
        by: str = "",
    ) -> bytes:
        """Return the entry's id."""
        entry = pb.AccessControlEntryRecord(
            id=self.rng.getrandbits(128).to_bytes(16, "big"),
            resource_type=type_,
            resource_name=name,
            pattern_type=pattern,
            principal=principal,
            host=host,
            operation=operation,
            permission_type=permission,
        )
        self.append(entry, principal=by)
        self.entries.append(entry.id)
        return entry.id

    def remove_entry(self, id_: bytes, *, by: str = "") -> int:
        self.entries.remove(id_)
        return self.append(pb.RemoveAccessControlEntryRecord(id=id_), principal=by)

    def _change_entries(self) -> None:
        """Add or remove one."""
        rng = self.rng
        if self.entries and rng.random() < 0.4:
            self.remove_entry(rng.choice(self.entries), by="User:admin")
            return
        self.add_entry(
            rng.choice((*PRINCIPALS, "User:*")),
            rng.choice((AclOperation.ALL, AclOperation.CREATE, AclOperation.ALTER_CONFIGS)),
            AclResourceType.TOPIC,
            rng.choice(("*", "topic-1")),
            host=rng.choice((ANY_HOST, "10.0.0.1")),
            permission=rng.choice((AclPermission.ALLOW, AclPermission.DENY)),
            by="User:admin",
        )

    def least_applied(self, broker_id: int, epoch: int) -> int:
        return max(epoch, self.reached, self.applied.get((broker_id, epoch), -1))

    def progress(self) -> None:
        high_watermark = self.end_offset
        applied = {
            broker_id: max(
                high_watermark - 1 - self.rng.randrange(4),
                self.least_applied(broker_id, self.draft.brokers[broker_id].epoch),
            )
            for broker_id in self.active()
        }
        self.applied |= {
            (broker_id, self.draft.brokers[broker_id].epoch): offset
            for broker_id, offset in applied.items()
        }
        self.reached = min(applied.values(), default=self.reached)
        known = self.log_hash
        self.report(
            self.reached,
            applied,
            high_watermark=high_watermark,
            log_hash_begin_offset=known.begin_offset,
            log_hash_end_offset=known.end_offset,
            log_hash=known.digest,
        )

    def report(self, lao: int, applied: dict[int, int], **fields: Any) -> int:
        """Append a progress record, with the applied offsets of some brokers."""
        named = [
            pb.AppliedOffset(broker_id=one, broker_epoch=self.epoch_of(one), applied_offset=offset)
            for one, offset in applied.items()
        ]
        values: dict[str, Any] = {"high_watermark": self.end_offset} | fields
        return self.append(
            pb.ProgressRecord(lowest_acknowledged_offset=lao, applied=named, **values)
        )

    def said(self, offset: int, node_id: int = 1) -> StateHash:
        """Return a node's report of its state and log hash at the end of a batch."""
        known = self.log_hashes[offset]
        return StateHash(
            offset=offset,
            epoch=self.epoch,
            state_hash=format_hash(self.hashes[offset]),
            node_id=node_id,
            source="image",
            log_hash=known.digest.hex(),
            log_hash_begin_offset=known.begin_offset,
        )

    def run(self, records: int) -> LogHistory:
        """Append until the log has at least ``records`` records."""
        while self.end_offset < records:
            self._step(self.rng.random())
        return self

    def _step(self, dice: float) -> None:
        rng = self.rng
        if dice < 0.05 or not self.topics:
            self.topic_number += 1
            number = self.topic_number % self.topic_names if self.topic_names else self.topic_number
            if f"topic-{number}" in self.topics:
                self.delete_topic(f"topic-{number}")
            self.create_topic(f"topic-{number}", rng.randrange(1, 5))
            return
        name = rng.choice(list(self.topics))
        if (dice < 0.07 and len(self.topics) > 3) or len(self.topics) > 300:
            self.delete_topic(name)
        elif dice < 0.085:
            broker_id = rng.randrange(1, self.brokers + 1)
            if len(self.active()) > 1:
                self.set_fenced(broker_id, fenced=True)
                self.register(broker_id)
                self.set_fenced(broker_id, fenced=False)
        elif dice < 0.09:
            self.elect(rng.randrange(1, 4))
        elif dice < 0.11:
            self.open_client()
        elif dice < 0.14:
            self.move_cursor(f"cursor-{rng.randrange(3)}")
        elif 0.14 <= dice < 0.17 and self.with_entries:
            self._change_entries()
        elif 0.285 <= dice < 0.3:
            self.change_key(f"locks/{rng.randrange(4)}")
        elif dice < 0.2:
            self.progress()
        elif dice < 0.3:
            self.append(pb.NoOpRecord())
        elif dice < 0.7:
            self.alter_config(
                name, f"key.{rng.randrange(5)}", rng.choice(["1", "2", "three" * 20, None])
            )
        else:
            index = rng.randrange(self.draft.topics[self.topics[name]].partition_count)
            old = self.draft.partitions[self.topics[name], index]
            others = [member for member in old.replicas if member != old.leader]
            isr = [old.leader, *(member for member in others if rng.random() < 0.7)]
            if old.leader >= 0:
                self.alter_isr(name, index, isr)

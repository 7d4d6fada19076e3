"""A log to break by hand: records that a controller would write, and others."""

from typing import Any

from log_history import LogHistory

from raftlog import batch
from raftlog.metadata.entities import Partition
from raftlog.metadata.records import record
from raftlog.metadata.versions import LATEST_METADATA_VERSION
from raftlog.wire.records.v1 import records_pb2 as pb


class AuditedLog(LogHistory):
    """Five brokers. Topics have one partition, with the given replicas."""

    def __init__(self, *, metadata_version: int = LATEST_METADATA_VERSION) -> None:
        super().__init__(71, brokers=5, metadata_version=metadata_version)
        self.cuts: list[int] = []
        """Offsets between the record that breaks a rule and the one that it is compared with."""

    def cut(self) -> None:
        self.cuts.append(self.end_offset)

    def forge(self, *messages: Any, epoch: int | None = None) -> int:
        """Append a batch that the fold would refuse, or one of another epoch: to the log only."""
        base = self.end_offset
        self.positions[base] = len(self.batches)
        self.batches.append(
            batch.encode(
                [record(message).data for message in messages],
                base_offset=base,
                epoch=self.epoch if epoch is None else epoch,
                timestamp_ms=self.timestamp_ms,
            )
        )
        self.draft.offset += len(messages)
        return base

    def topic(self, name: str, replicas: list[int], isr: list[int] | None = None) -> int:
        self.topics[name] = self.rng.getrandbits(128).to_bytes(16, "big")
        members = replicas if isr is None else isr
        created = pb.PartitionRecord(
            topic_id=self.topics[name], replicas=replicas, isr=members, leader=members[0]
        )
        return self.append(pb.TopicRecord(name=name, topic_id=self.topics[name]), created) + 1

    def alter_config(
        self, name: str, key: str, value: str | None, principal: str = "User:alice"
    ) -> int:
        """Alter a config of a topic, which is created if it does not exist."""
        if name not in self.topics:
            self.topic(name, [1, 2])
        return super().alter_config(name, key, value, principal)

    def partition(self, name: str) -> Partition:
        return self.draft.partitions[self.topics[name], 0]

    def of(self, name: str, **named: Any) -> pb.PartitionChangeRecord:
        return self.changed(self.topics[name], **named)

    def change(self, name: str, **named: Any) -> int:
        """Append a change by the controller, unless a ``principal`` is named."""
        principal = named.pop("principal", "")
        return self.append(self.of(name, **named), principal=principal)

    def propose(
        self, name: str, isr: list[int], epochs: dict[int, int] | None = None, **named: Any
    ) -> int:
        """Propose an ISR by the leader; ``epochs`` and ``named`` override registered epochs."""
        members = self.members(named.pop("proposed", isr), epochs)
        proposer = named.pop("proposer_id", self.partition(name).leader)
        by = {"proposer_id": proposer, "proposer_epoch": self.epoch_of(proposer)} | named
        return self.change(name, isr=isr, isr_with_epochs=members, **by)

    def members(
        self, brokers: list[int], epochs: dict[int, int] | None = None
    ) -> list[pb.BrokerState]:
        """Return brokers as a leader proposes them."""
        return [
            pb.BrokerState(broker_id=one, broker_epoch=(epochs or {}).get(one, self.epoch_of(one)))
            for one in brokers
        ]

    def registration(self, broker_id: int, **named: Any) -> pb.RegisterBrokerRecord:
        facts: dict[str, Any] = {"broker_epoch": self.end_offset, "incarnation_id": "another"}
        facts["fenced"] = True
        return pb.RegisterBrokerRecord(broker_id=broker_id, **facts | named)

    def say(
        self,
        reached: int,
        *,
        high_watermark: int | None = None,
        applied: dict[int, int] | None = None,
    ) -> int:
        """Append a progress record. ``applied``: changed brokers; default: all ``reached``."""
        named = applied if applied is not None else dict.fromkeys(self.active(), reached)
        self.reached = max(self.reached, reached)
        known = self.end_offset if high_watermark is None else high_watermark
        return self.report(reached, named, high_watermark=known)

"""The interface of a broker's partition replicas; its events and effects are in ``events.py``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from broker.partition.describe import ReplicaDescription
from broker.partition.events import Effect, Event
from broker.partition.unserved import Unserved
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.wire.data.v1 import data_pb2 as pb


class PartitionReplicas(Protocol):
    """All replicas of one broker: ``manager.Partitions(settings, recovered, now)``.

    Deterministic, no I/O.
    """

    def step(self, event: Event, now: float) -> list[Effect]:
        """React to one event; the effects are to be carried out in order, before the next step."""

    def next_deadline(self) -> float:
        """Return when to step Tick, at the latest; math.inf if never.

        May be early: then the Tick does little.
        """

    def list_offsets(self, request: pb.ListOffsetsRequest, now: float) -> pb.ListOffsetsResponse:
        """Return at once, for each partition, a result or a typed error."""

    def describe_led(
        self, request: pb.BrokerMetadataRequest, now: float
    ) -> pb.BrokerMetadataResponse:
        """Return the ISRs of partitions led here, and the epochs that they hold under (KIP-24).

        Without keys: of all.
        """

    def describe(self, key: PartitionKey) -> ReplicaDescription | None:
        """Return the description of a replica here; None: there is none."""

    def counters(self) -> dict[str, int]:
        """Return gauges and counts by Kafka's metric names (UnderReplicatedPartitions, IsrShrinks,
        and so on). O(1).
        """

    def unserved(self, now: float, *, low_space: bool) -> Unserved:
        """Return the partitions that this broker leads and cannot serve, by reason. O(1)."""

    def end_offset(self, key: PartitionKey) -> int:
        """Return the log end of a replica here, unflushed records included; -1: no replica here."""

    def keys(self) -> Iterable[PartitionKey]:
        """Return the keys of the replicas here, in order."""

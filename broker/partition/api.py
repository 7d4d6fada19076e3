"""The face of a broker's partition replicas, for the shell; what goes in and out is in
``events.py``.
"""

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
        """When to step Tick, at the latest; math.inf if never.

        May be early: then the Tick does little.
        """

    def list_offsets(self, request: pb.ListOffsetsRequest, now: float) -> pb.ListOffsetsResponse:
        """Answered at once; each partition with a result or a typed error."""

    def describe_led(
        self, request: pb.BrokerMetadataRequest, now: float
    ) -> pb.BrokerMetadataResponse:
        """The ISRs of partitions led here, and under which epochs they hold (KIP-24).

        Without keys: of all.
        """

    def describe(self, key: PartitionKey) -> ReplicaDescription | None:
        """A replica here; None: there is none."""

    def counters(self) -> dict[str, int]:
        """Gauges and counts by Kafka's metric names (UnderReplicatedPartitions, IsrShrinks, and so
        on). O(1).
        """

    def unserved(self, now: float, *, low_space: bool) -> Unserved:
        """What the metadata says is led here and cannot be used, by reason. O(1)."""

    def end_offset(self, key: PartitionKey) -> int:
        """Of a replica here, what is not flushed included; -1: none here."""

    def keys(self) -> Iterable[PartitionKey]:
        """The replicas here, in order."""

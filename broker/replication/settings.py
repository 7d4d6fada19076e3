"""What the shell of the data plane goes by, beside what the replicas do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Names are Kafka's where Kafka has them. Times in milliseconds."""

    replica_socket_timeout_ms: int = 30_000
    """How much later than it may be parked a leader may answer a fetch, before its link counts as dead."""
    alter_partition_timeout_ms: int = 5_000
    """How long the controller may take for an AlterPartition, before its outcome counts as unknown."""
    free_space_reserve_bytes: int = 0
    """log.free.space.reserve.bytes, as it is effective on this disk; 0: never looked at."""

"""What the shell of the data plane goes by, beside what the replicas do."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.node.config.settings import Settings


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Keys under their own names, and what is no key. Times in milliseconds."""

    replica_socket_timeout_ms: int = Settings.replica_socket_timeout_ms
    alter_partition_timeout_ms: int = 5_000
    """How long the controller may take for an AlterPartition, before its outcome counts as
    unknown.
    """
    log_retention_check_interval_ms: int = Settings.log_retention_check_interval_ms
    free_space_reserve_bytes: int = 0
    """log.free.space.reserve.bytes, as it is effective on this disk; 0: never looked at."""

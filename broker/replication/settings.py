"""Settings of the data plane's shell, beside those of the replicas."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.node.config.settings import Settings


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Keys under their own names, and a few that are no keys. Times in milliseconds."""

    replica_socket_timeout_ms: int = Settings.replica_socket_timeout_ms
    alter_partition_timeout_ms: int = 5_000
    """Longest wait for an answer to AlterPartition, before its outcome counts as unknown."""
    log_retention_check_interval_ms: int = Settings.log_retention_check_interval_ms
    free_space_reserve_bytes: int = 0
    """log.free.space.reserve.bytes, as effective on this disk; 0: never checked."""

"""Settings of a broker's partition replicas."""

from __future__ import annotations

from dataclasses import dataclass

from raftlog.node.config.settings import Settings


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Settings of the replicas of one broker: keys under their own names, and a few that are no
    keys.

    Times in milliseconds, sizes in bytes.
    """

    broker_id: int
    cluster_id: str
    inter_broker_listener: str = ""
    """Name of the listeners on which brokers fetch from each other; empty: the first of each."""
    replica_lag_time_max_ms: int = Settings.replica_lag_time_max_ms
    replica_fetch_wait_max_ms: int = Settings.replica_fetch_wait_max_ms
    replica_fetch_max_bytes: int = Settings.replica_fetch_max_bytes
    replica_fetch_response_max_bytes: int = Settings.replica_fetch_response_max_bytes
    replica_fetch_backoff_ms: int = Settings.replica_fetch_backoff_ms
    log_segment_delete_delay_ms: int = Settings.log_segment_delete_delay_ms
    high_watermark_linger_ms: int = 20
    """Time for which a high watermark or a log start alone waits for data to ride with."""
    isr_retry_ms: int = 50
    """Pause before an AlterPartition request that failed as a whole is sent again."""
    ineligible_backoff_ms: int = 500
    """Pause before an ISR change that the controller called ineligible is proposed again."""
    max_pending_produces: int = 10_000
    """Largest number of produce requests that wait for replicas or the disk; more are refused."""
    max_parked_fetches: int = 10_000
    """Largest number of consumer fetches that wait for records; more are answered at once."""
    request_timeout_max_ms: int = Settings.request_timeout_max_ms
    max_partitions_per_message: int = 5_000
    """Largest number of partitions in a replica fetch, its answer, or an AlterPartition request;
    the rest goes into the next one.
    """

"""Settings of a broker's partition replicas; names, where Kafka has them, and defaults are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """What the replicas of one broker go by. Times in milliseconds, sizes in bytes."""

    broker_id: int
    cluster_id: str
    replica_lag_time_max_ms: int = 30_000
    """replica.lag.time.max.ms: a follower that was not caught up for so long leaves the ISR."""
    replica_fetch_wait_max_ms: int = 500
    """replica.fetch.wait.max.ms: how long a follower's fetch waits at the leader for news."""
    replica_fetch_max_bytes: int = 1 << 20
    """replica.fetch.max.bytes: of one partition in an answer to a follower; one batch may be larger."""
    replica_fetch_response_max_bytes: int = 10 << 20
    """replica.fetch.response.max.bytes: of a whole answer to a follower."""
    replica_fetch_backoff_ms: int = 200
    """replica.fetch.backoff.ms: how long a follower leaves a partition alone whose fetch was refused."""
    high_watermark_linger_ms: int = 20
    """How long a high watermark alone waits for data to ride with."""
    isr_retry_ms: int = 50
    """Before an AlterPartition request that failed as a whole is sent again."""
    ineligible_backoff_ms: int = 500
    """Before an ISR change is proposed again that the controller called ineligible."""
    max_pending_produces: int = 10_000
    """Produce requests that wait for replicas or the disk; more are refused."""
    max_parked_fetches: int = 10_000
    """Consumer fetches that wait for records; more are answered at once."""
    request_timeout_max_ms: int = 300_000
    """request.timeout.max.ms: what waits with a longer timeout has this one."""
    max_partitions_per_message: int = 5_000
    """Of a replica fetch, its answer, or an AlterPartition request; the rest goes into the next one."""

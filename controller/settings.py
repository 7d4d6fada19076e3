"""What the active controller can be told. Each field is the Kafka key of that name with dots for underscores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Limits and timings of decisions."""

    broker_session_timeout_ms: int = 9_000
    """A broker that is silent for this long is fenced."""
    broker_metadata_lag_max_ms: int = 30_000
    """A broker that has not applied what was committed this long ago is fenced: else it would hold LAO for ever."""
    broker_metadata_lag_probation_ms: int = 10_000
    """How long a broker fenced for its lag stays fenced, at the least; doubled each time it happens again."""
    broker_metadata_lag_probation_max_ms: int = 600_000
    """The longest probation. A broker that lives this long without lagging again starts over."""
    progress_interval_ms: int = 1_000
    """At most one progress record in this time."""
    broker_id_adopt_after_ms: int = 600_000
    """A broker id that holds replicas and has been silent for so long is missing: a broker without an id may get it."""
    reserved_broker_max_id: int = 1_000
    """Ids that are generated begin above it."""
    num_partitions: int = 1
    """Partitions of a topic created with -1."""
    default_replication_factor: int = 3
    """Replication factor of a topic created with -1; lowered to the live brokers where there are fewer."""
    auto_leader_rebalance_enable: bool = True
    """Preferred leaders get their partitions back by themselves."""
    leader_imbalance_check_interval_seconds: int = 300
    """How often that is looked at."""
    unclean_leader_election_interval_ms: int = 300_000
    """How often topics that allow unclean leaders are looked through for partitions that need one."""
    max_records_per_request: int = 10_000
    """A request that would write more records is refused: a batch is committed whole, and holds up all behind it."""
    config_value_max_bytes: int = 32_768
    """The largest config value, UTF-8."""
    producer_id_expiration_ms: int = 86_400_000
    """An exactly-once client that has written nothing for so long in the log's time is closed."""
    max_clients: int = 1_000
    """Exactly-once clients open at a time; above it the longest idle is closed. Each may keep a window of results."""
    bootstrap_metadata_version: int = 0
    """The level of metadata.version that a new cluster starts with (``storage format --release-version``); 0: the latest. No key."""
    request_timeout_ms: int = 30_000
    """Of a request that names no timeout of its own."""
    request_timeout_max_ms: int = 300_000
    """A request that names a longer timeout has this one."""
    metadata_log_max_record_bytes_between_snapshots: int = 20 << 20
    """A snapshot is taken when so much of the log was applied since the last one."""
    metadata_log_max_snapshot_interval_ms: int = 3_600_000
    """And when the last one is this old and something was applied. 0: never for its age."""
    metadata_max_retention_bytes: int = 100 << 20
    """When log and snapshots take more, the oldest snapshot goes, and the log up to the end of the next one."""
    metadata_max_retention_ms: int = 7 * 24 * 3_600_000
    """When the oldest snapshot is older, it goes likewise."""
    metadata_export_cursor_max_bytes: int = 1 << 30
    """What export cursors still need stays, until log and snapshots take more than this."""
    controller_quorum_auto_join_enable: bool = False
    """An observer that is caught up asks to become a voter."""
    metadata_log_free_space_reserve_bytes: int = 0
    """Below so many free bytes of the log's file system a node does not lead, if another can. 0: not watched."""

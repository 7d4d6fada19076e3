"""Settings of the hosts, by a run's config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from broker.partition.host import PartitionSettings
from broker.settings import SUPPORTED_FEATURES, BrokerSettings, WatchSettings
from controller.settings import ControllerSettings
from raftlog.metadata import versions
from raftlog.quorum.config import QuorumConfig, Voter
from simulation.hosts import CLUSTER_ID, broker_settings
from simulation.swarm.config import SwarmConfig
from simulation.swarm.identities import ROOT, security_settings

_DEFAULT_PART_BYTES = QuorumConfig("", 0, "", ()).fetch_snapshot_max_bytes


def settings_of_controllers(config: SwarmConfig) -> ControllerSettings:
    """Return the settings of all controllers; a setting that the config does not name has its
    default.
    """
    settings = ControllerSettings(broker_session_timeout_ms=config.session_timeout_ms)
    if config.snapshot_bytes:
        settings = replace(
            settings,
            metadata_log_max_record_bytes_between_snapshots=config.snapshot_bytes,
            metadata_max_retention_bytes=config.retention_bytes,
        )
    if config.held_bytes:
        settings = replace(settings, metadata_export_cursor_max_bytes=config.held_bytes)
    if config.reserve_bytes:
        settings = replace(settings, free_space_reserve_bytes=config.reserve_bytes)
    if config.lag_max_ms:
        settings = replace(settings, broker_metadata_lag_max_ms=config.lag_max_ms)
    if config.adopt_after_ms:
        settings = replace(settings, broker_id_adopt_after_ms=config.adopt_after_ms)
    if config.keepers or config.lockers:
        # So short that a leader that is deposed and does not know it outlives some.
        settings = replace(settings, lease_ttl_min_ms=100)
    if config.auto_join:
        settings = replace(settings, controller_quorum_auto_join_enable=True)
    if config.max_clients:
        settings = replace(settings, max_clients=config.max_clients)
    if config.balance_interval_s:
        settings = replace(
            settings,
            leader_imbalance_check_interval_seconds=config.balance_interval_s,
            unclean_leader_election_interval_ms=config.balance_interval_s * 1000,
        )
    if config.authorizer:
        settings = replace(
            settings,
            bootstrap_super_users=(ROOT,),
            **security_settings(config),  # type: ignore[arg-type]
        )
    if config.release_version:
        settings = replace(settings, bootstrap_metadata_version=config.release_version)
    return settings


def quorum_of(config: SwarmConfig, node_id: int, voters: tuple[Voter, ...]) -> QuorumConfig:
    """Return the quorum's configuration for one controller; ``voters``: those with which it is
    formatted.
    """
    return QuorumConfig(
        CLUSTER_ID,
        node_id,
        f"dir-{node_id}",
        voters,
        election_timeout_ms=config.election_timeout_ms,
        election_jitter_max_ms=config.election_timeout_ms // 5,
        fetch_timeout_ms=config.fetch_timeout_ms,
        fetch_max_wait_ms=config.fetch_timeout_ms * 2 // 5,
        request_timeout_ms=config.fetch_timeout_ms,
        fetch_snapshot_max_bytes=config.snapshot_part_bytes or _DEFAULT_PART_BYTES,
        endpoint=f"c{node_id}:9093",
        max_metadata_version=versions.LATEST_METADATA_VERSION,
    )


def settings_of_broker(
    config: SwarmConfig, broker_id: int, name: str, controllers: Sequence[str]
) -> BrokerSettings:
    """Return the settings of one broker. ``name``: its host, if not as its id says.

    ``controllers``: their endpoints.
    """
    settings = broker_settings(
        broker_id, tuple(controllers), name=name, session_timeout_ms=config.session_timeout_ms
    )
    if config.all_features:
        settings = replace(settings, features=SUPPORTED_FEATURES)
    if config.snapshot_part_bytes:
        follower = replace(settings.follower, fetch_snapshot_max_bytes=config.snapshot_part_bytes)
        settings = replace(settings, follower=follower)
    if config.watchers:
        # So little that it does not always suffice.
        watch = WatchSettings(watch_history_max_bytes=40_000, watch_max_unsent_bytes=2_000)
        settings = replace(settings, watch=watch)
    if config.data_per_s:
        partitions = PartitionSettings(
            broker_id,
            CLUSTER_ID,
            replica_lag_time_max_ms=config.replica_lag_ms,
            log_segment_delete_delay_ms=500,
        )
        settings = replace(settings, partitions=partitions)
    if config.data_kept_bytes:
        replication = replace(settings.replication, log_retention_check_interval_ms=300)
        settings = replace(settings, replication=replication)
    return settings

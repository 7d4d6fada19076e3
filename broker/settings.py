"""Settings of a broker. Defaults of configuration keys are documented with the keys."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.partition.host import PartitionSettings
from raftlog.bounds import BROKER_IMAGES_MAX_BYTES
from raftlog.client.log_reader import PIECE_BYTES
from raftlog.errors import ConfigError
from raftlog.metadata import versions
from raftlog.node.config.fields import fencing_fits, heartbeats_fit
from raftlog.node.config.settings import Settings


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """Configuration keys under their own names, and a few other settings. Times are in
    milliseconds.
    """

    replica_socket_timeout_ms: int = Settings.replica_socket_timeout_ms
    alter_partition_timeout_ms: int = 5_000
    """Maximum wait for an answer to AlterPartition, after which its outcome counts as unknown."""
    log_retention_check_interval_ms: int = Settings.log_retention_check_interval_ms
    broker_disk_hang_timeout_ms: int = Settings.broker_disk_hang_timeout_ms
    free_space_reserve_bytes: int = 0
    """Effective value of log.free.space.reserve.bytes on this disk; 0 if space is never checked."""


SUPPORTED_FEATURES = (
    (versions.METADATA_VERSION, versions.MIN_METADATA_VERSION, versions.LATEST_METADATA_VERSION),
    (versions.LAO_VERSION, 0, 1),
    (versions.BROKER_HEARTBEAT_VERSION, 0, 1),
)
"""(name, lowest, highest level) of the features of this build."""


@dataclass(frozen=True, slots=True)
class LifecycleSettings:
    """Times of a broker's lifecycle, in milliseconds. Raises ConfigError if they contradict each
    other.

    ``fencing_timeout_ms`` is longer than the controller's session timeout (KIP-343): the controller
    fences a silent broker, and moves its leaderships, before the broker stops serving. Elections
    are an exception, as they restart every session.
    """

    heartbeat_interval_ms: int = Settings.broker_heartbeat_interval_ms
    session_timeout_ms: int = Settings.broker_session_timeout_ms
    fencing_timeout_ms: int = Settings.broker_fencing_timeout_ms
    registration_timeout_ms: int = Settings.initial_broker_registration_timeout_ms
    shutdown_timeout_ms: int = Settings.controlled_shutdown_timeout_ms
    retry_backoff_min_ms: int = 100
    shutdown_interval_ms: int = 100
    """Interval between heartbeats while the broker waits for its controlled shutdown to complete.
    """

    def __post_init__(self) -> None:
        wrong: list[str] = []
        if self.heartbeat_interval_ms <= 0 or not heartbeats_fit(
            self.heartbeat_interval_ms, self.session_timeout_ms
        ):
            wrong.append(
                f"broker.heartbeat.interval.ms ({self.heartbeat_interval_ms}) must be positive and"
                f" below half of broker.session.timeout.ms ({self.session_timeout_ms})"
            )
        if not fencing_fits(self.fencing_timeout_ms, self.session_timeout_ms):
            wrong.append(
                f"broker.fencing.timeout.ms ({self.fencing_timeout_ms}) must be above "
                f"broker.session.timeout.ms ({self.session_timeout_ms})"
            )
        if wrong:
            raise ConfigError("; ".join(wrong))

    @property
    def answer_within_ms(self) -> int:
        """Maximum wait for the answer to a heartbeat, after which the link is closed in time to try
        another one within the session.
        """
        return min(
            self.heartbeat_interval_ms,
            max(1, (self.session_timeout_ms - self.heartbeat_interval_ms) // 3),
        )

    def misfit(self, controllers_session_timeout_ms: int) -> str:
        """Return why these times do not fit the controllers' session timeout (0 if unknown), or ""
        if they fit.
        """
        session_ms = controllers_session_timeout_ms
        if not session_ms:
            return ""
        wrong: list[str] = []
        if not fencing_fits(self.fencing_timeout_ms, session_ms):
            wrong.append(
                f"broker.fencing.timeout.ms ({self.fencing_timeout_ms}) is not above the"
                f" controllers' broker.session.timeout.ms ({session_ms}): this broker fences itself"
                " before it is declared inactive"
            )
        if not heartbeats_fit(self.heartbeat_interval_ms, session_ms):
            wrong.append(
                f"broker.heartbeat.interval.ms ({self.heartbeat_interval_ms}) is not below half of"
                f" the controllers' broker.session.timeout.ms ({session_ms}): one lost heartbeat"
                " may fence this broker"
            )
        return "; ".join(wrong)


@dataclass(frozen=True, slots=True)
class FollowerSettings:
    """Settings of the metadata follower.

    ``answer_margin_ms``: time beyond ``fetch_max_wait_ms`` after which the link of an unanswered
    fetch counts as dead.
    """

    fetch_max_bytes: int = 128 << 10
    """A broker folds an answer in one turn, in which it sends no heartbeat. (A megabyte of new
    partitions, 24,000 records, took 0.7 to 2.2 s on a busy host, and brokers that lagged were
    fenced.)
    """
    fetch_snapshot_max_bytes: int = PIECE_BYTES
    fetch_max_wait_ms: int = 1000
    answer_margin_ms: int = 1000


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Bounds of the resources for watchers."""

    watch_max_watchers: int = Settings.watch_max_watchers
    watch_history_max_bytes: int = Settings.watch_history_max_bytes
    watch_max_unsent_bytes: int = Settings.watch_max_unsent_bytes
    watch_progress_interval_ms: int = Settings.watch_progress_interval_ms


@dataclass(frozen=True, slots=True)
class ClientListener:
    """A listener for clients only.

    An advertised address that is not set ("", 0) is the address that it listens on, with the port
    actually bound.
    """

    name: str
    listen: str
    advertised_host: str = ""
    advertised_port: int = 0


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of one broker.

    ``controllers``: host:port of the controllers that the broker contacts first. An advertised
    address that is not set ("", 0) is the address that it listens on, with the port actually bound.
    """

    broker_id: int
    cluster_id: str
    controllers: tuple[str, ...]
    listen: str
    advertised_host: str = ""
    advertised_port: int = 0
    listener_name: str = ""
    """Name of the listener at ``listen``, on which brokers fetch from each other; "" if it is the
    only one, and its name does not matter.
    """
    client_listeners: tuple[ClientListener, ...] = ()
    rack: str = Settings.broker_rack
    id_generation_force: bool = Settings.broker_id_generation_force
    log_dirs: tuple[str, ...] = ()
    features: tuple[tuple[str, int, int], ...] = SUPPORTED_FEATURES
    request_timeout_ms: int = Settings.request_timeout_ms
    request_timeout_max_ms: int = Settings.request_timeout_max_ms
    max_parked_reads: int = 10_000
    """Maximum number of parked reads; others are refused."""
    image_max_bytes: int = BROKER_IMAGES_MAX_BYTES
    """Maximum number of bytes of log and images kept above the image at LAO; beyond that the broker
    stops reading the log until LAO moves.
    """
    lifecycle: LifecycleSettings = field(default_factory=LifecycleSettings)
    follower: FollowerSettings = field(default_factory=FollowerSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)
    replication: ReplicationSettings = field(default_factory=ReplicationSettings)
    partitions: PartitionSettings | None = None
    """Settings of the partition replicas, or None for the defaults. The ids in it are ignored in
    favour of this broker's.
    """

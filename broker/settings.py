"""What a broker is told about itself. Where a default is a key's, the key says what it means."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.partition.settings import PartitionSettings
from broker.replication.settings import ReplicationSettings
from raftlog.bounds import BROKER_IMAGES_MAX_BYTES
from raftlog.client.log_reader import PIECE_BYTES
from raftlog.errors import ConfigError
from raftlog.limits.rules import fencing_fits, heartbeats_fit
from raftlog.metadata import versions
from raftlog.node.config.settings import Settings

SUPPORTED_FEATURES = (
    (versions.METADATA_VERSION, versions.MIN_METADATA_VERSION, versions.LATEST_METADATA_VERSION),
    (versions.LAO_VERSION, 0, 1),
    (versions.BROKER_HEARTBEAT_VERSION, 0, 1),
)
"""(name, lowest, highest level) of what this build can do."""


@dataclass(frozen=True, slots=True)
class LifecycleSettings:
    """Times of a broker's life. Raises ConfigError if they do not fit each other.

    ``fencing_timeout_ms`` is longer than the controller's session timeout (KIP-343): the controller
    has fenced a silent broker, and moved its leaderships, before the broker stops serving. Not so
    after an election, which begins every session anew.
    """

    heartbeat_interval_ms: int = Settings.broker_heartbeat_interval_ms
    session_timeout_ms: int = Settings.broker_session_timeout_ms
    fencing_timeout_ms: int = Settings.broker_fencing_timeout_ms
    registration_timeout_ms: int = Settings.initial_broker_registration_timeout_ms
    shutdown_timeout_ms: int = Settings.controlled_shutdown_timeout_ms
    retry_backoff_min_ms: int = 100
    shutdown_interval_ms: int = 100
    """Between heartbeats while waiting for the controller to let it go."""

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
        """How long a heartbeat is waited for: a link that says nothing is given up in time to try
        another one within the session.
        """
        return min(
            self.heartbeat_interval_ms,
            max(1, (self.session_timeout_ms - self.heartbeat_interval_ms) // 3),
        )

    def misfit(self, controllers_session_timeout_ms: int) -> str:
        """What is wrong with these times under the session timeout that the controllers really go
        by (0: not known); empty: nothing.
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
    """``answer_margin_ms``: how much later than ``fetch_max_wait_ms`` a parked fetch may be
    answered before the link counts as dead.
    """

    fetch_max_bytes: int = 4 << 20
    fetch_snapshot_max_bytes: int = PIECE_BYTES
    fetch_max_wait_ms: int = 2000
    answer_margin_ms: int = 2000


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """What watchers may cost."""

    watch_max_watchers: int = Settings.watch_max_watchers
    watch_history_max_bytes: int = Settings.watch_history_max_bytes
    watch_max_unsent_bytes: int = Settings.watch_max_unsent_bytes
    watch_progress_interval_ms: int = Settings.watch_progress_interval_ms


@dataclass(frozen=True, slots=True)
class ClientListener:
    """A listener for clients alone. What it advertises, if it is not given (empty, 0), is where it
    listens, with the port really bound.
    """

    name: str
    listen: str
    advertised_host: str = ""
    advertised_port: int = 0


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """One broker. ``controllers``: host:port of the controllers it begins with.

    What it advertises, if it is not given (empty, 0), is where it listens, with the port really
    bound.
    """

    broker_id: int
    cluster_id: str
    controllers: tuple[str, ...]
    listen: str
    advertised_host: str = ""
    advertised_port: int = 0
    listener_name: str = ""
    """Of the listener at ``listen``, on which brokers fetch from each other. Empty: the only one,
    and its name does not matter.
    """
    client_listeners: tuple[ClientListener, ...] = ()
    rack: str = Settings.broker_rack
    id_generation_force: bool = Settings.broker_id_generation_force
    log_dirs: tuple[str, ...] = ()
    features: tuple[tuple[str, int, int], ...] = SUPPORTED_FEATURES
    request_timeout_ms: int = Settings.request_timeout_ms
    request_timeout_max_ms: int = Settings.request_timeout_max_ms
    max_parked_reads: int = 10_000
    """Reads that may wait for an image at a time; more are refused."""
    image_max_bytes: int = BROKER_IMAGES_MAX_BYTES
    """Of log and images kept above the image at LAO; beyond it the broker stops reading the log
    until LAO moves.
    """
    lifecycle: LifecycleSettings = field(default_factory=LifecycleSettings)
    follower: FollowerSettings = field(default_factory=FollowerSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)
    replication: ReplicationSettings = field(default_factory=ReplicationSettings)
    partitions: PartitionSettings | None = None
    """None: the defaults. Its ids are this broker's, whatever it says."""

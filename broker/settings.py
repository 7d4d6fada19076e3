"""What a broker is told about itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.follower import FollowerSettings
from broker.lifecycle import LifecycleSettings

SUPPORTED_FEATURES = (("metadata.version", 1, 1), ("lao.version", 1, 1))
"""(name, lowest, highest level) of what this build can do."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """One broker. ``controllers``: host:port of the controllers it begins with.

    What it advertises, if it is not given (empty, 0), is where it listens, with the port really bound.
    """

    broker_id: int
    cluster_id: str
    controllers: tuple[str, ...]
    listen: str
    advertised_host: str = ""
    advertised_port: int = 0
    rack: str = ""
    log_dirs: tuple[str, ...] = ()
    features: tuple[tuple[str, int, int], ...] = SUPPORTED_FEATURES
    request_timeout_ms: int = 30_000
    """request.timeout.ms: of a request that names none."""
    max_parked_reads: int = 10_000
    """Reads that may wait for an image at a time; more are refused."""
    image_max_bytes: int = 256 << 20
    """Of log and images kept above the image at LAO; beyond it the broker stops reading the log until LAO moves."""
    lifecycle: LifecycleSettings = field(default_factory=LifecycleSettings)
    follower: FollowerSettings = field(default_factory=FollowerSettings)

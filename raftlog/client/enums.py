"""The words of the library: Kafka's names where Kafka has the concept."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Literal

from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, PatternType
from raftlog.metadata.config_keys import ResourceType
from raftlog.outcome import Acks

__all__ = [
    "Acks",
    "AcksLike",
    "AclOperation",
    "AclPermission",
    "AclResourceType",
    "BrokerState",
    "ConfigSource",
    "PatternType",
    "ReadMode",
    "ReadModeLike",
    "ResourceLike",
    "ResourceType",
    "resource_of",
]


class ReadMode(StrEnum):
    """What a read shows: never less than what this client has read or written before."""

    REPEATABLE = "repeatable"
    """The state that every unfenced broker can show."""
    LATEST = "latest"
    """The newest state that the broker which answers has applied."""
    STRICT = "strict"
    """Every write that was acknowledged before the read began: linearizable."""


class ConfigSource(IntEnum):
    """Where the value of a config comes from (Kafka's ``ConfigSource``)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        """A newer server may know more."""
        return cls.UNKNOWN


class BrokerState(IntEnum):
    """What the controller has decided a broker is (KIP-343)."""

    INITIAL = 0
    INACTIVE = 1
    ACTIVE = 2
    STOPPING = 3


AcksLike = Acks | Literal["committed", "acknowledged", "visible"]
"""A level, or its name."""
ReadModeLike = ReadMode | Literal["repeatable", "latest", "strict"]
"""A mode, or its name."""
ResourceLike = ResourceType | Literal["topic", "broker", "cluster", "client-metrics", "group"]
"""A kind of resource, or its name; ``cluster``: the defaults of all brokers."""


def resource_of(kind: ResourceLike) -> ResourceType:
    """The kind that a name stands for. Raises ValueError, which names the argument."""
    if isinstance(kind, ResourceType):
        return kind
    if kind == "cluster":
        return ResourceType.BROKER
    name = str(kind).upper().replace("-", "_")
    if name not in ResourceType.__members__:
        known = "topic, broker, cluster, client-metrics, group"
        raise ValueError(f"kind={kind!r:.80}: it is one of {known}")
    return ResourceType[name]

"""The configuration keys of each kind of resource: type, default, meaning, and valid values; and
the layers of a topic's config.

Names, defaults and bounds are Kafka's. One table validates writes, fills in defaults on reads, and
explains the keys. Values are sent as text, as in Kafka.

A topic's own value takes precedence over the cluster-wide value of the corresponding broker key,
which takes precedence over the default. The configs of a single broker are not a layer of a topic's
config, as answers would differ from broker to broker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1


class ResourceType(IntEnum):
    """The kind of resource that a config belongs to (Kafka's ``ConfigResource.Type``)."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16
    GROUP = 32


Check = Callable[[str], str | None]
"""Function that returns what is wrong with a value, or None."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A configuration key. ``type``: the type's name in Kafka. ``check``: None if any text is
    valid.
    """

    name: str
    type: str
    default: str
    doc: str
    check: Check | None


def config_keys(resource_type: int) -> Mapping[str, ConfigKey] | None:
    """Return the keys of a kind of resource by name, in alphabetical order, or None for a kind
    without configs.
    """
    return _KEYS.get(resource_type)


_ACTED_ON: Mapping[int, frozenset[str]] = MappingProxyType(
    {
        ResourceType.TOPIC: frozenset(
            {
                "cleanup.policy",
                "max.message.bytes",
                "min.insync.replicas",
                "retention.bytes",
                "retention.ms",
                "unclean.leader.election.enable",
                "unclean.recovery.strategy",
            }
        ),
        ResourceType.BROKER: frozenset(
            {
                "cordoned",
                "follower.replication.throttled.rate",
                "leader.replication.throttled.rate",
                "log.cleanup.policy",
                "log.retention.bytes",
                "log.retention.ms",
                "message.max.bytes",
                "min.insync.replicas",
                "unclean.leader.election.enable",
                "unclean.recovery.strategy",
            }
        ),
    }
)


def is_acted_on(resource_type: int, name: str) -> bool:
    """Return whether this build acts on the key, apart from storing and showing it. Configs of
    clients and groups are stored for the clients that read them.
    """
    acted_on = _ACTED_ON.get(resource_type)
    return acted_on is None or name in acted_on


_POLICIES = frozenset({"cleanup.policy", "log.cleanup.policy"})


_OF_ONE_BROKER = frozenset(
    {"cordoned", "follower.replication.throttled.rate", "leader.replication.throttled.rate"}
)
"""Keys that take effect on a single broker. The others are defaults for topics, and the same for
all brokers, as brokers must not disagree about which partitions have too few in-sync replicas.
"""


def without_effect(
    resource_type: int, name: str, value: str, *, of_one_broker: bool = False
) -> str:
    """Return why this value has no effect in this build; "" if it has one, or if the key does
    not exist.

    ``of_one_broker``: whether the value is set on a single broker.
    """
    if name not in _KEYS.get(resource_type, _NO_KEYS):
        return ""
    if not is_acted_on(resource_type, name):
        return "no effect in this build"
    if of_one_broker and name not in _OF_ONE_BROKER:
        return "effective only if set for all brokers"
    if name in _POLICIES and "compact" in value:
        return "this build does not compact"
    return ""


def find(resource_type: int, name: str) -> ConfigKey | None:
    """Return the key with a name, or None."""
    return _KEYS.get(resource_type, _NO_KEYS).get(name)


def _number(low: int, high: int) -> Check:
    def check(value: str) -> str | None:
        # str.isdigit accepts digits of every script, and int() accepts underscores and spaces;
        # Kafka accepts neither.
        digits = value[1:] if value[:1] in ("-", "+") else value
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
            return "must be a whole number"
        if not low <= int(value) <= high:
            return f"must be {low} to {high}"
        return None

    return check


def _ratio(value: str) -> str | None:
    try:
        number = float(value)
    except ValueError:
        return "must be a number"
    return None if math.isfinite(number) and 0 <= number <= 1 else "must be 0 to 1"


def _one_of(*allowed: str) -> Check:
    def check(value: str) -> str | None:
        return None if value in allowed else f"must be one of {', '.join(allowed)}"

    return check


def _list_of(*allowed: str) -> Check:
    def check(value: str) -> str | None:
        for item in value.split(","):
            if item.strip() not in allowed:
                return f"may only contain {', '.join(allowed)}"
        return None

    return check


def _offset_reset(value: str) -> str | None:
    if value in ("earliest", "latest") or value.startswith("by_duration:P"):
        return None
    return "must be earliest, latest or by_duration:<ISO 8601 duration>"


def _int(name: str, default: int, doc: str, low: int = 0, high: int = INT_MAX) -> ConfigKey:
    return ConfigKey(name, "INT", str(default), doc, _number(low, high))


def _long(name: str, default: int, doc: str, low: int = 0) -> ConfigKey:
    return ConfigKey(name, "LONG", str(default), doc, _number(low, LONG_MAX))


def _boolean(name: str, default: str, doc: str) -> ConfigKey:
    return ConfigKey(name, "BOOLEAN", default, doc, _one_of("true", "false"))


def _text(name: str, type_: str, default: str, doc: str, check: Check | None = None) -> ConfigKey:
    return ConfigKey(name, type_, default, doc, check)


_COMPRESSION = _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_CLEANUP = _list_of("delete", "compact")
_RECOVERY = _one_of("none", "balanced", "aggressive")
_TIMESTAMP_TYPE = _one_of("CreateTime", "LogAppendTime")
_WEEK_MS = 604_800_000
_DAY_MS = 86_400_000

_TOPIC = (
    _text(
        "cleanup.policy",
        "LIST",
        "delete",
        "What happens to old records: delete, compact or both. This build does not compact.",
        _CLEANUP,
    ),
    _text("compression.type", "STRING", "producer", "How records are compressed.", _COMPRESSION),
    _long("delete.retention.ms", _DAY_MS, "How long delete markers in a compacted topic are kept."),
    _long("file.delete.delay.ms", 60_000, "How long the file of a removed segment is kept."),
    _long(
        "flush.messages", LONG_MAX, "The number of records after which a partition is flushed.", 1
    ),
    _long("flush.ms", LONG_MAX, "The time after which a partition is flushed."),
    _int("index.interval.bytes", 4096, "The number of bytes between entries of the offset index."),
    _long(
        "max.compaction.lag.ms",
        LONG_MAX,
        "The longest time for which a record may stay uncompacted.",
        1,
    ),
    _int(
        "max.message.bytes",
        1_048_588,
        "The largest record batch; at most 24 MiB.",
    ),
    _long(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far a record's timestamp may be ahead of the broker's clock.",
    ),
    _long(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a record's timestamp may be behind the broker's clock.",
    ),
    _text(
        "message.timestamp.type",
        "STRING",
        "CreateTime",
        "Whose clock stamps a record: CreateTime or LogAppendTime.",
        _TIMESTAMP_TYPE,
    ),
    _text(
        "min.cleanable.dirty.ratio",
        "DOUBLE",
        "0.5",
        "The share of a log that must be dirty before it is compacted.",
        _ratio,
    ),
    _long("min.compaction.lag.ms", 0, "The shortest time for which a record stays uncompacted."),
    _int(
        "min.insync.replicas",
        1,
        "The number of replicas that must be in sync for a write with acks=all.",
        1,
    ),
    _boolean("preallocate", "false", "Whether to preallocate a segment's file."),
    _long(
        "retention.bytes",
        -1,
        "The size of a partition above which its oldest records are deleted; -1: no bound.",
        -1,
    ),
    _long("retention.ms", _WEEK_MS, "How long records are kept; -1: forever.", -1),
    _int("segment.bytes", 1 << 30, "The size of a segment.", 1 << 20),
    _int("segment.index.bytes", 10 << 20, "The size of a segment's index.", 4),
    _long(
        "segment.jitter.ms",
        0,
        "The maximum random time subtracted from segment.ms, to spread the rolling of segments.",
    ),
    _long("segment.ms", _WEEK_MS, "The time after which a segment is rolled.", 1),
    _boolean(
        "unclean.leader.election.enable",
        "false",
        "Whether a replica outside the ISR may become leader as a last resort, at once and "
        "automatically.",
    ),
    _text(
        "unclean.recovery.strategy",
        "STRING",
        "balanced",
        "How a partition gets a leader when its ISR and its eligible leader replicas are lost: "
        "balanced queries every replica, aggressive waits only a limited time, none leaves it to "
        "an operator.",
        _RECOVERY,
    ),
)
_BROKER = (
    _int("background.threads", 10, "Threads for background work.", 1),
    _text(
        "compression.type",
        "STRING",
        "producer",
        "The default compression.type of topics.",
        _COMPRESSION,
    ),
    _boolean(
        "cordoned",
        "false",
        "Whether a broker receives no new replicas (KIP-1066); it keeps those it has.",
    ),
    _long(
        "follower.replication.throttled.rate",
        LONG_MAX,
        "Bytes per second that a broker fetches for replicas that are being added to it.",
        1,
    ),
    _long(
        "leader.replication.throttled.rate",
        LONG_MAX,
        "Bytes per second that a broker sends to replicas that are being added.",
        1,
    ),
    _int("log.cleaner.threads", 1, "Threads that compact logs."),
    _text(
        "log.cleanup.policy", "LIST", "delete", "The default cleanup.policy of topics.", _CLEANUP
    ),
    _long("log.retention.bytes", -1, "The default retention.bytes of topics.", -1),
    _long("log.retention.ms", _WEEK_MS, "The default retention.ms of topics.", -1),
    _int("log.segment.bytes", 1 << 30, "The default segment.bytes of topics.", 1 << 20),
    _int("max.connection.creation.rate", INT_MAX, "Maximum number of new connections per second."),
    _int("max.connections", INT_MAX, "Maximum number of open connections."),
    _int("max.connections.per.ip", INT_MAX, "Maximum number of open connections from one address."),
    _int("message.max.bytes", 1_048_588, "The default max.message.bytes of topics."),
    _int("min.insync.replicas", 1, "The default min.insync.replicas of topics.", 1),
    _int("num.io.threads", 8, "Threads that handle requests.", 1),
    _int("num.network.threads", 3, "Threads for the network.", 1),
    _int(
        "num.recovery.threads.per.data.dir",
        2,
        "Threads for each data directory, at start and stop.",
        1,
    ),
    _int("num.replica.fetchers", 1, "Fetchers for each source broker.", 1),
    _boolean(
        "unclean.leader.election.enable",
        "false",
        "The default unclean.leader.election.enable of topics.",
    ),
    _text(
        "unclean.recovery.strategy",
        "STRING",
        "balanced",
        "The default unclean.recovery.strategy of topics.",
        _RECOVERY,
    ),
)
_CLIENT_METRICS = (
    _int(
        "interval.ms",
        300_000,
        "How often a matching client pushes its metrics.",
        100,
        3_600_000,
    ),
    _text("match", "LIST", "", "The clients, as name=pattern pairs; empty for all clients."),
    _text("metrics", "LIST", "", "Prefixes of the names of the metrics to push; empty for none."),
)
_GROUP = (
    _int(
        "consumer.heartbeat.interval.ms",
        5_000,
        "How often members of a consumer group send heartbeats.",
        1,
    ),
    _int(
        "consumer.session.timeout.ms",
        45_000,
        "The silence after which a member of a consumer group is removed.",
        1,
    ),
    _text(
        "share.auto.offset.reset",
        "STRING",
        "latest",
        "The position at which a share group starts.",
        _offset_reset,
    ),
    _int(
        "share.heartbeat.interval.ms",
        5_000,
        "How often members of a share group send heartbeats.",
        1,
    ),
    _int(
        "share.record.lock.duration.ms",
        30_000,
        "How long a share group's record stays acquired.",
        1_000,
        3_600_000,
    ),
    _int(
        "share.session.timeout.ms",
        45_000,
        "The silence after which a member of a share group is removed.",
        1,
    ),
    _int(
        "streams.heartbeat.interval.ms",
        5_000,
        "How often members of a streams group send heartbeats.",
        1,
    ),
    _int("streams.num.standby.replicas", 0, "Standby replicas for each task."),
    _int(
        "streams.session.timeout.ms",
        45_000,
        "The silence after which a member of a streams group is removed.",
        1,
    ),
)


def _table(keys: tuple[ConfigKey, ...]) -> Mapping[str, ConfigKey]:
    return MappingProxyType({key.name: key for key in sorted(keys, key=lambda key: key.name)})


_NO_KEYS: Mapping[str, ConfigKey] = MappingProxyType({})
_KEYS: Mapping[int, Mapping[str, ConfigKey]] = MappingProxyType(
    {
        ResourceType.TOPIC: _table(_TOPIC),
        ResourceType.BROKER: _table(_BROKER),
        ResourceType.CLIENT_METRICS: _table(_CLIENT_METRICS),
        ResourceType.GROUP: _table(_GROUP),
    }
)


ALL_BROKERS = ""
"""The resource name of the cluster-wide broker configs."""
BROKER_NAME: Mapping[str, str] = MappingProxyType(
    {
        "cleanup.policy": "log.cleanup.policy",
        "compression.type": "compression.type",
        "max.message.bytes": "message.max.bytes",
        "min.insync.replicas": "min.insync.replicas",
        "retention.bytes": "log.retention.bytes",
        "retention.ms": "log.retention.ms",
        "segment.bytes": "log.segment.bytes",
        "unclean.leader.election.enable": "unclean.leader.election.enable",
        "unclean.recovery.strategy": "unclean.recovery.strategy",
    }
)
"""Topic key -> the broker key that provides its default, as in Kafka."""
UNCLEAN_ELECTION = "unclean.leader.election.enable"
UNCLEAN_RECOVERY = "unclean.recovery.strategy"
MIN_INSYNC_REPLICAS = "min.insync.replicas"
CORDONED = "cordoned"
LEADER_THROTTLE, FOLLOWER_THROTTLE = THROTTLES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
)

_TOPIC_TYPE, _BROKER_TYPE = int(ResourceType.TOPIC), int(ResourceType.BROKER)
_TOPIC_KEYS = config_keys(_TOPIC_TYPE) or {}
_NOTHING: Mapping[str, str] = MappingProxyType({})


def inherited(view: Any) -> dict[str, str]:
    """Return the values that topics inherit from the cluster-wide broker configs, by topic key.
    ``view``: an image or a draft.
    """
    shared: Mapping[str, str] = view.configs.get((_BROKER_TYPE, ALL_BROKERS)) or _NOTHING
    return {key: shared[name] for key, name in BROKER_NAME.items() if name in shared}


def topic_config(view: Any, topic: str, key: str) -> str:
    """Return the effective value of a topic's key, as text in the log's form. Raises KeyError for a
    key that topics do not have.
    """
    own: Mapping[str, str] = view.configs.get((_TOPIC_TYPE, topic)) or _NOTHING
    if key in own:
        return own[key]
    shared: Mapping[str, str] = view.configs.get((_BROKER_TYPE, ALL_BROKERS)) or _NOTHING
    name = BROKER_NAME.get(key)
    if name is not None and name in shared:
        return shared[name]
    return _TOPIC_KEYS[key].default


def is_cordoned(view: Any, broker_id: int) -> bool:
    """Return whether a broker must not receive new replicas, according to its own config or else
    the cluster-wide one.
    """
    return broker_value(view, broker_id, CORDONED) == "true"


def broker_value(view: Any, broker_id: int, key: str) -> str | None:
    """Return a broker's own value of a key, else the cluster-wide one, or None without either."""
    own: Mapping[str, str] = view.configs.get((_BROKER_TYPE, str(broker_id))) or _NOTHING
    shared: Mapping[str, str] = view.configs.get((_BROKER_TYPE, ALL_BROKERS)) or _NOTHING
    return own.get(key, shared.get(key))


def topic_value(view: Any, topic_id: bytes, key: str) -> str:
    """Return the effective value of a topic's key, by the topic's id; for an unknown topic, the
    value that a new topic would have.
    """
    topic = view.topics.get(topic_id)
    return topic_config(view, "" if topic is None else topic.name, key)


def needed_in_sync(wanted: int, replicas: int) -> int:
    """Return how many replicas must be in sync for a write with acks=all.

    ``wanted``: ``min.insync.replicas``. ``replicas``: the partition's number of replicas; one that
    is only being added does not count, as it would make writes harder before it makes them safer.
    """
    return min(wanted, max(1, replicas))


def unclean_election_enabled(view: Any, topic_id: bytes) -> bool:
    """Return whether a replica outside the ISR may lead a partition of this topic if no
    other can.
    """
    return topic_id in view.topics and topic_value(view, topic_id, UNCLEAN_ELECTION) == "true"

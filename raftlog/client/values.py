"""Values of calls: arguments, results, conditions and their names, plain and immutable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, StrEnum
from typing import Any, Final, Literal, TypedDict, TypeVar

from raftlog.endpoint import address_of
from raftlog.errors import ApiError
from raftlog.metadata.acls import AclOperation, AclPermission, AclResourceType, PatternType
from raftlog.metadata.config_keys import ResourceType
from raftlog.outcome import Acks, WriteResult

T = TypeVar("T")
OFFSET_MAX = (1 << 63) - 1


class Absent(int):
    """The type of ABSENT: the only negative number that is accepted as an expected offset."""

    def __reduce__(self) -> str:
        return "ABSENT"

    def __repr__(self) -> str:
        return "raftlog.ABSENT"


ABSENT: Final[int] = Absent(-1)
"""Expected offset of an entity that must not exist."""


class Unconditional(Enum):
    """The type of UNCONDITIONAL."""

    UNCONDITIONAL = "unconditional"


UNCONDITIONAL: Final = Unconditional.UNCONDITIONAL
"""Default of every ``expected`` argument: the write is unconditional. A separate type, because None
is often the result of a read or write without an offset, and a write conditional on None must be
refused.
"""
Expected = int | Unconditional
"""An offset, ABSENT or UNCONDITIONAL."""


def expected_offset(expected: Expected, argument: str) -> int | None:
    """Return the condition in its wire form, or None for UNCONDITIONAL.

    Raises TypeError for anything but an integer, and ValueError for a negative one; both name the
    argument.
    """
    if expected is UNCONDITIONAL:
        return None
    if not isinstance(expected, int) or isinstance(expected, bool):
        raise TypeError(
            f"{argument} must be an offset, raftlog.ABSENT or raftlog.UNCONDITIONAL, not "
            f"{type(expected).__name__}: {expected!r:.80}"
        )
    if not isinstance(expected, Absent) and not 0 <= expected <= OFFSET_MAX:
        raise ValueError(
            f"{argument}={expected}: must be at least 0, or raftlog.ABSENT if it must not exist"
        )
    return expected


def expected_values(expected: Mapping[str, T] | Unconditional) -> Mapping[str, T]:
    """Return the expected values by key; empty for UNCONDITIONAL. Raises TypeError for None."""
    if expected is UNCONDITIONAL:
        return {}
    if not isinstance(expected, Mapping):
        raise TypeError(
            "expected must be a mapping of keys to values or raftlog.UNCONDITIONAL, not "
            f"{type(expected).__name__}: {expected!r:.80}"
        )
    return expected


class ReadMode(StrEnum):
    """The freshness of a read. A read never shows less than this client has read or written
    before.
    """

    REPEATABLE = "repeatable"
    """The state that every unfenced broker can show."""
    LATEST = "latest"
    """The newest state that the answering broker has applied."""
    STRICT = "strict"
    """A state that includes every write acknowledged before the read began: linearizable."""


class ConfigSource(IntEnum):
    """The source of a config's value (Kafka's ``ConfigSource``)."""

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
        """Return a member for a value from a newer server."""
        return cls.UNKNOWN


class BrokerState(IntEnum):
    """The state of a broker, as decided by the controller (KIP-343)."""

    INITIAL = 0
    INACTIVE = 1
    ACTIVE = 2
    STOPPING = 3


AcksLike = Acks | Literal["committed", "acknowledged", "visible"]
"""An acknowledgement level, or its name."""


class WaitOptions(TypedDict, total=False):
    """Options for when a write returns."""

    acks: AcksLike | None
    """Level of visibility to wait for, or None for the client's option."""
    timeout_s: float | None
    """Timeout of the call in seconds, including all attempts, or None for the client's option."""


class WriteOptions(WaitOptions, total=False):
    """Options of a write that can be validated."""

    validate_only: bool
    """Whether to check the write and return its results without writing."""


ReadModeLike = ReadMode | Literal["repeatable", "latest", "strict"]
"""A read mode, or its name."""


class ReadOptions(TypedDict, total=False):
    """Options of a read."""

    read: ReadModeLike | None
    """Freshness of the read, or None for the client's option."""
    timeout_s: float | None
    """Timeout of the call in seconds, including all attempts, or None for the client's option."""


ResourceLike = ResourceType | Literal["topic", "broker", "cluster", "client-metrics", "group"]
"""A kind of resource, or its name; ``cluster`` stands for the defaults of all brokers."""


def resource_of(kind: ResourceLike) -> ResourceType:
    """Return the kind with this name. Raises ValueError, which names the argument."""
    if isinstance(kind, ResourceType):
        return kind
    if kind == "cluster":
        return ResourceType.BROKER
    name = str(kind).upper().replace("-", "_")
    if name not in ResourceType.__members__:
        known = "topic, broker, cluster, client-metrics, group"
        raise ValueError(f"kind={kind!r:.80}: must be one of {known}")
    return ResourceType[name]


ConfigValue = str | int | float | bool | Sequence[str]
"""A config's value. Configs are text on the wire: numbers, booleans and lists are written as Kafka
does.
"""


class Listing(list[T]):
    """A list with the offset of the metadata that it shows."""

    offset: int
    """Offset of the metadata in the log."""

    def __init__(self, items: Iterable[T], offset: int, **more: Any) -> None:
        """``more``: attributes that a subclass declares."""
        super().__init__(items)
        self.offset = offset
        vars(self).update(more)


@dataclass(frozen=True, slots=True)
class ItemResult:
    """The result of one item of a write."""

    name: str
    error: ApiError | None = None
    """Why the item was refused, or None if it was not."""


@dataclass(frozen=True, slots=True)
class TopicResult(ItemResult):
    """The result of creating or deleting a topic."""

    id: str = ""
    """Id of the topic, in hexadecimal, or "" if the answer has none."""


@dataclass(frozen=True, slots=True)
class OffsetResult(ItemResult):
    """The result of writing a key, an export cursor or a hostname mapping."""

    offset: int | None = None
    """Offset of the entity's record, with which ``expected`` arguments are compared; None if the
    entity was deleted, or nothing was written.
    """


@dataclass(frozen=True, slots=True)
class PlaceResult(OffsetResult):
    """The result of writing a key in the write that granted its lease."""

    siblings: int | None = None
    """Number of other keys in the key's directory before the write, or None if a later controller,
    which does not know it, has answered.
    """


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create.

    ``assignments``: the replicas of each partition, preferred leader first, instead of the two
    numbers.
    """

    name: str
    partitions: int = -1
    """Number of partitions, or -1 for the cluster's default."""
    replication_factor: int = -1
    """Number of replicas per partition, or -1 for the cluster's default."""
    configs: Mapping[str, ConfigValue] = field(default_factory=dict)
    assignments: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition. Its in-sync replicas are known only to its leader (KIP-24)."""

    index: int
    leader: int | None
    """Id of the leader, or None if there is no leader that this client could reach."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """Broker ids, preferred leader first."""
    offline_replicas: tuple[int, ...]
    elr: tuple[int, ...] = ()
    """Eligible leader replicas: not in the ISR, but with all records up to the high watermark."""
    last_known_elr: tuple[int, ...] = ()
    """The last leader, while there is neither an ISR nor an eligible leader replica."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. ``id`` is unique, even among topics with the same name."""

    name: str
    id: str
    partitions: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class TopicsPage:
    """Some of the topics, sorted by name."""

    topics: tuple[Topic, ...]
    next: str
    """The cursor of the next page, or "" on the last one."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The value of one key, and its source."""

    name: str
    value: str
    source: ConfigSource
    is_default: bool
    without_effect: str = ""
    """Why the value has no effect in this library's build, or "" if it has."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A registered broker, and the address at which this client reaches it."""

    id: int
    host: str
    """Host name or address; an IPv6 address without brackets."""
    port: int
    rack: str | None
    epoch: int
    fenced: bool

    @property
    def address(self) -> str:
        """Host and port, as host:port."""
        return address_of(self.host, self.port)


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker as the active controller sees it."""

    id: int
    epoch: int
    state: BrokerState
    address: str
    rack: str | None
    applied_offset: int | None
    """Last applied offset, inclusive, or None if the broker has not reported one to this controller
    yet.
    """
    last_contact_age_ms: int | None
    leader_count: int
    replica_count: int
    reason: str
    """Why the broker is in its state, as text."""
    cause: str | None
    """Why the broker is in its state, as a code; or None."""
    state_age_ms: int
    """Time in ms since the broker entered its state."""
    state_age_is_at_least: bool
    """Whether ``state_age_ms`` is a lower bound: the broker was already in its state when this
    controller became active.
    """
    told_lowest_acknowledged_offset: int | None
    """Lowest acknowledged offset that the broker has received, inclusive, or None."""
    lag: int | None
    """Number of committed records that the broker has not applied, or None if unknown."""
    registration_version: int
    holds_lao_back: bool
    cordoned: bool
    """Whether the broker is excluded from receiving new replicas."""
    low_on_space: bool
    """Whether the broker's disk is below its free-space reserve."""


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """Numbers of partitions, in total and by the kind of attention they need."""

    total: int
    offline: int
    not_led_by_preferred: int
    reassigning: int
    recovering: int
    """Number of partitions recovering under an unclean leader."""
    with_elr: int = 0
    """Number of partitions with eligible leader replicas."""
    awaiting_recovery: int = 0
    """Number of partitions that only an unclean recovery can give a leader."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """The visibility of writes, and the brokers that hold it back."""

    high_watermark: int
    """High watermark, exclusive: every record below it is committed."""
    lowest_acknowledged_offset: int | None
    """Highest offset that every unfenced broker has applied, inclusive, or None if it is unknown
    now.
    """
    unknown_reason: str
    held_back_by: tuple[int, ...]
    held_back_ms: int
    partitions: PartitionCounts
    brokers: tuple[BrokerStatus, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A broker's view of the cluster."""

    id: str
    controller_id: int | None
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature's level in the cluster, and the levels that the answering broker supports."""

    name: str
    finalized_level: int
    """Finalized level, or 0 if none."""
    min_supported: int
    max_supported: int


@dataclass(frozen=True, slots=True)
class Api:
    """The offered versions of one request."""

    key: int
    name: str
    min_version: int
    max_version: int


@dataclass(frozen=True, slots=True)
class ApiVersions:
    """The requests and features that the answering broker offers."""

    apis: tuple[Api, ...]
    features: tuple[Feature, ...]
    finalized_features_epoch: int | None


@dataclass(frozen=True, slots=True)
class FeatureUpdate(WriteResult[ItemResult]):
    """An accepted change of feature levels."""

    warnings: tuple[str, ...] = ()
    """Sentences that describe what the change gives up."""


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter of the quorum. Only the leader knows its progress."""

    id: int
    directory_id: str
    address: str
    log_end_offset: int | None
    last_caught_up_age_ms: int | None


@dataclass(frozen=True, slots=True)
class QuorumNode:
    """A controller's report. ``failure``: why there is no report, or ""."""

    address: str
    id: int | None
    role: str
    leader_epoch: int | None
    log_end_offset: int | None
    high_watermark: int | None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """The quorum, queried node by node; needs no leader."""

    leader_id: int | None
    leader_epoch: int | None
    high_watermark: int | None
    voters: tuple[Voter, ...]
    observers: tuple[Voter, ...]
    nodes: tuple[QuorumNode, ...]


@dataclass(frozen=True, slots=True)
class Acl:
    """An access control entry, which allows or denies a principal an operation."""

    principal: str
    """``User:alice``, or ``User:*`` for every principal."""
    operation: AclOperation
    resource_type: AclResourceType
    resource_name: str
    pattern_type: PatternType = PatternType.LITERAL
    permission: AclPermission = AclPermission.ALLOW
    host: str = "*"

    def __str__(self) -> str:
        where = "any host" if self.host == "*" else self.host
        names = "names beginning with " if self.pattern_type is PatternType.PREFIXED else ""
        operation, kind = (
            one.name.lower().replace("_", separator)
            for one, separator in ((self.operation, "-"), (self.resource_type, " "))
        )
        return (
            f"{self.permission.name.lower()} {self.principal} from {where}:"
            f" {operation} on {kind} {names}{self.resource_name}"
        )


@dataclass(frozen=True, slots=True)
class AclFilter:
    """A filter of access control entries: it matches those that agree with all its fields."""

    principal: str | None = None
    operation: AclOperation = AclOperation.ANY
    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    permission: AclPermission = AclPermission.ANY
    host: str | None = None

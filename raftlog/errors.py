"""Error codes and exceptions: Kafka's numbers and names, each error naming the field it is about.

Two kinds reach a caller. An :class:`ApiError` says what is wrong with a request; with ``outcome_unknown`` false the
request changed nothing, with it true it may or may not have been executed. A :class:`FatalError` stops the node: it
must not acknowledge anything more.
"""

from __future__ import annotations

from enum import IntEnum

from raftlog.aliases import with_old_name


class ErrorCode(IntEnum):
    """Kafka's error codes (``org.apache.kafka.common.protocol.Errors``), and ours from 10000 on."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    STALE_BROKER_EPOCH = 77
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    OFFSET_NOT_AVAILABLE = 78
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    RESOURCE_NOT_FOUND = 91
    INVALID_UPDATE_VERSION = 95
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_CLUSTER_ID = 104
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    INVALID_REGISTRATION = 119
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    # Ours.
    INCONSISTENT_GENERATION = 10001
    BROKER_FENCED = 10002
    LAO_UNKNOWN = 10003
    NO_READ_LEASE = 10004


def code_name(code: ErrorCode) -> str:
    """A code for people: its name, and the one that a proposal had for it."""
    return with_old_name(code.name)


class RaftlogError(Exception):
    """The root of everything raftlog raises on purpose."""


class ApiError(RaftlogError):
    """A request was refused, or its outcome is not known.

    ``field`` is the offending field, dotted from the request's top ("topics[0].name"), or empty. ``leader_id`` goes with
    NOT_CONTROLLER: who the active controller is, -1 if unknown. ``throttle_time_ms`` goes with THROTTLING_QUOTA_EXCEEDED: when to
    try again at the earliest.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        field: str = "",
        outcome_unknown: bool = False,
        leader_id: int = -1,
        throttle_time_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.outcome_unknown = outcome_unknown
        self.leader_id = leader_id
        self.throttle_time_ms = throttle_time_ms

    def __str__(self) -> str:
        where = f" (field {self.field})" if self.field else ""
        unknown = "; the outcome is unknown" if self.outcome_unknown else ""
        return f"{code_name(self.code)}: {self.message}{where}{unknown}"


class FatalError(RaftlogError):
    """The node must stop, and acknowledge nothing more."""


class StorageError(FatalError):
    """The disk failed, or refused. Never retried: after a failed fsync the kernel may have dropped the bytes."""


class CorruptLogError(FatalError):
    """Stored bytes are not what was written. ``offset`` is the first log offset that can't be trusted (-1: not in the log)."""

    def __init__(self, message: str, *, offset: int = -1) -> None:
        super().__init__(message)
        self.offset = offset


class ConfigError(RaftlogError):
    """The configuration or the data directory does not fit: the message is for the operator, all mistakes at once."""

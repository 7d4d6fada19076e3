"""Error codes and exceptions, with Kafka's numbers and names; each error names the field at fault.

Two kinds reach a caller. An :class:`ApiError` states what is wrong with a request; if
``outcome_unknown`` is false the request changed nothing, otherwise it may or may not have been
executed. A :class:`FatalError` stops the node: it must not acknowledge anything more.
"""

from __future__ import annotations

import errno
import os
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, cast

from raftlog.aliases import with_old_name

if TYPE_CHECKING:
    from raftlog.outcome import WriteResult


class ErrorCode(IntEnum):
    """Kafka's error codes (``org.apache.kafka.common.protocol.Errors``), and raftlog's own from
    10000.

    Each member's docstring is its meaning; the documentation's table of error codes is generated
    from them.
    """

    UNKNOWN_SERVER_ERROR = -1
    """A defect of the server. For a unary call the outcome is unknown."""
    NONE = 0
    """No error."""
    OFFSET_OUT_OF_RANGE = 1
    """A replica fetches below the log start; a consumer reads outside the partition's log; or an
    export cursor is set outside the log.
    """
    CORRUPT_MESSAGE = 2
    """Client library: the fetched records do not match their checksum or layout."""
    UNKNOWN_TOPIC_OR_PARTITION = 3
    """No such topic or partition."""
    LEADER_NOT_AVAILABLE = 5
    """The partition has no leader."""
    NOT_LEADER_OR_FOLLOWER = 6
    """Quorum: this node does not lead. Partitions: another broker leads; `current_leader`
    names it.
    """
    REQUEST_TIMED_OUT = 7
    """The deadline passed; see `outcome_unknown`."""
    BROKER_NOT_AVAILABLE = 8
    """The broker is starting or shutting down. RegisterBroker without an id: wait for the broker in
    `awaited_id`.
    """
    MESSAGE_TOO_LARGE = 10
    """The request, or the data it would write, is too large; `field` names the body."""
    NETWORK_EXCEPTION = 13
    """Client library: the connection broke; see `outcome_unknown`."""
    INVALID_TOPIC_EXCEPTION = 17
    """The topic name is invalid."""
    NOT_ENOUGH_REPLICAS = 19
    """Produce: the ISR is smaller than `min.insync.replicas`. Nothing was written."""
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    """Produce: the ISR became too small after the leader appended. The outcome is unknown."""
    INVALID_REQUIRED_ACKS = 21
    """Produce: `acks` is not -1, 0 or 1."""
    TOPIC_AUTHORIZATION_FAILED = 29
    """No access control entry allows this on the topic, or one denies it; the topic need not exist.

    Nothing was done.
    """
    GROUP_AUTHORIZATION_FAILED = 30
    """No access control entry allows this on the configs of the group, or one denies it. Nothing
    was done.
    """
    CLUSTER_AUTHORIZATION_FAILED = 31
    """The sender's certificate does not belong to the node it claims to be; or no access control
    entry allows the request, or one denies it. Nothing was done.
    """
    UNSUPPORTED_VERSION = 35
    """A feature level that the request needs, or that the broker must support, is missing."""
    TOPIC_ALREADY_EXISTS = 36
    """A topic with this name exists."""
    INVALID_PARTITIONS = 37
    """The number of partitions is invalid."""
    INVALID_REPLICATION_FACTOR = 38
    """The replication factor is invalid, changes without permission, or exceeds the number of
    unfenced brokers.
    """
    INVALID_REPLICA_ASSIGNMENT = 39
    """The assignment of replicas is invalid."""
    INVALID_CONFIG = 40
    """An unknown config key, or an invalid value."""
    NOT_CONTROLLER = 41
    """This node is not the active controller; `leader_id` and `leader_endpoint` name it if
    known.
    """
    INVALID_REQUEST = 42
    """A field of the request is invalid, or exceeds its limit in `raftlog/limits.py`; `field` names
    it.
    """
    POLICY_VIOLATION = 44
    """The request needs more records or items than one batch may contain."""
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    """The sequence number is 256 or more above the lowest one that the client has not finished."""
    DUPLICATE_SEQUENCE_NUMBER = 46
    """The client has declared this sequence number finished. Nothing is executed."""
    OPERATION_NOT_ATTEMPTED = 55
    """Inside a broker: the AlterPartition response has no result for this partition."""
    KAFKA_STORAGE_ERROR = 56
    """Free space is below the reserve, or the replica is damaged and offline.

    Nothing was written. TransferLeadership: the target's disk is below its reserve.
    """
    SASL_AUTHENTICATION_FAILED = 58
    """The call needs a token, but has none or an invalid one. Nothing was done."""
    UNKNOWN_PRODUCER_ID = 59
    """The client id was never opened, or is closed."""
    LISTENER_NOT_FOUND = 72
    """Metadata: the partition's leader has no listener with the name of the listener that the
    client uses.
    """
    FENCED_LEADER_EPOCH = 74
    """The sender's epoch is over: a newer one is known."""
    UNKNOWN_LEADER_EPOCH = 75
    """The sender's epoch is newer than any that this node knows, or is not proven."""
    STALE_BROKER_EPOCH = 77
    """The broker epoch differs from the registered one. Nothing changed."""
    OFFSET_NOT_AVAILABLE = 78
    """The partition's new leader does not know its high watermark yet."""
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    """ElectLeaders: the preferred replica cannot lead."""
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    """ElectLeaders: no replica can lead."""
    ELECTION_NOT_NEEDED = 84
    """ElectLeaders: the partition already has the right leader."""
    NO_REASSIGNMENT_IN_PROGRESS = 85
    """There is no reassignment to cancel."""
    INVALID_RECORD = 87
    """Produce: a record is missing or is not a `DataRecord`."""
    THROTTLING_QUOTA_EXCEEDED = 89
    """No room: a queue is full, or the response has no space for this partition.

    Nothing was done.
    """
    RESOURCE_NOT_FOUND = 91
    """The hostname mapping or export cursor to delete does not exist."""
    INVALID_UPDATE_VERSION = 95
    """A compare-and-set failed: partition epoch, hostname mapping, export cursor. UpdateFeatures:
    the message states what prevents the level.
    """
    SNAPSHOT_NOT_FOUND = 98
    """FetchSnapshot: this node does not have the snapshot."""
    POSITION_OUT_OF_RANGE = 99
    """FetchSnapshot: the position is not inside the snapshot."""
    UNKNOWN_TOPIC_ID = 100
    """No topic has this id."""
    DUPLICATE_BROKER_REGISTRATION = 101
    """The broker id has a live session."""
    BROKER_ID_NOT_REGISTERED = 102
    """No broker is registered under this id."""
    INCONSISTENT_CLUSTER_ID = 104
    """The request is for another cluster."""
    INELIGIBLE_REPLICA = 107
    """AlterPartition: a proposed ISR member has a stale broker epoch, is fenced, or is shutting
    down (KIP-903).
    """
    NEW_LEADER_ELECTED = 108
    """AlterPartition: **accepted and written**. It completes a reassignment, and another broker is
    the leader now.
    """
    INVALID_REGISTRATION = 119
    """RegisterBroker: the registration will not become valid by itself; an operator has to
    decide.
    """
    INVALID_VOTER_KEY = 125
    """Quorum: the message is for another voter (node id, directory id)."""
    DUPLICATE_VOTER = 126
    """AddRaftVoter: the voter set already contains this voter."""
    VOTER_NOT_FOUND = 127
    """RemoveRaftVoter, UpdateRaftVoter, TransferLeadership: the voter set does not contain this
    voter.
    """
    # Ours.
    INCONSISTENT_GENERATION = 10001
    """The token, client id or fetch belongs to another generation of the log."""
    BROKER_FENCED = 10002
    """The broker is fenced and serves no new requests; ask another one."""
    LAO_UNKNOWN = 10003
    """A repeatable read whose deadline passed before the broker knew LAO."""
    NO_READ_LEASE = 10004
    """A strict read whose deadline passed before the broker had a lease, with the controller's
    reason; returned at once if the broker is shutting down.
    """
    DIRECTORY_SET_BACK = 10005
    """Quorum: the sender's data directory is an older copy of one that was started, or has lost
    data that it had acknowledged.
    """
    DIRECTORY_IN_USE = 10006
    """Quorum: another connected process runs with the same data directory or a copy of it."""


def code_name(code: ErrorCode) -> str:
    """Return the name of a code, with its KIP-343 name if it has one."""
    return with_old_name(code.name)


class RaftlogError(Exception):
    """The root of all errors that raftlog raises deliberately. Every subclass has these attributes;
    an :class:`ApiError` sets them.
    """

    code: ErrorCode | None = None
    """The code of a refused request, or None if no request was refused."""
    field: str = ""
    """The request's field, or the call's argument, at fault; "" if none."""
    outcome_unknown: bool = False
    """Whether the request may have been executed."""

    @cached_property
    def message(self) -> str:
        """The error without its code and field."""
        return str(self)

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, unchanged. It has changed nothing so far."""
        return False


class PlaceLostError(RaftlogError):
    """The lease of a lock, a leadership or a place in a barrier has ended or may have: another
    client may hold the place by now.
    """


class ApiError(RaftlogError):
    """A request was refused, or its outcome is unknown.

    ``field``: the field at fault, as a path from the top of the request ("topics[0].name"), or "".
    ``leader_id`` and ``leader_endpoint``: with NOT_CONTROLLER, the active controller's id, or -1 if
    unknown, and its endpoint. ``throttle_time_ms``: with THROTTLING_QUOTA_EXCEEDED, the time to
    wait before another attempt.

    An error with a code is an instance of the code's class; with ``outcome_unknown`` it is an
    UnknownOutcomeError whatever the code, so an error of a code's class always means that nothing
    was changed.
    """

    code: ErrorCode
    write: WriteResult | None = None
    """The results of all items of a write of which one was refused; its ``token`` is None if no
    item was written.
    """

    def __init_subclass__(cls, *, code: ErrorCode | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            _CLASSES[code] = cls

    def __new__(cls, *args: Any, outcome_unknown: bool = False, **named: Any) -> Self:
        """Create an error of the class that belongs to the code; subclasses take their own
        arguments.
        """
        kind: type[ApiError] = cls
        if cls is ApiError:
            code = args[0] if args else named.get("code")
            kind = UnknownOutcomeError if outcome_unknown else _CLASSES.get(code, ApiError)
        # A subclass, so that Python calls __init__.
        return cast("Self", super().__new__(kind))

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        field: str = "",
        outcome_unknown: bool = False,
        leader_id: int = -1,
        leader_endpoint: str = "",
        throttle_time_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.outcome_unknown = outcome_unknown
        self.leader_id = leader_id
        self.leader_endpoint = leader_endpoint
        self.throttle_time_ms = throttle_time_ms

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, unchanged. It has changed nothing so far."""
        return not self.outcome_unknown and self.code in RETRIABLE

    def saying(self, message: str) -> Self:
        """Return the same error with another message."""
        said = _again(type(self), (message,))
        said.__dict__.update(self.__dict__, message=message)
        return cast("Self", said)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.args), self.__dict__

    def __str__(self) -> str:
        where = f" (field {self.field})" if self.field else ""
        unknown = "; the outcome is unknown" if self.outcome_unknown else ""
        return f"{code_name(self.code)}: {self.message}{where}{unknown}"


def _again(kind: type[ApiError], args: tuple[Any, ...]) -> ApiError:
    """Create an error that was pickled, without the content of its ``__dict__``."""
    error = RaftlogError.__new__(kind)
    error.args = args
    return error


_CLASSES: dict[Any, type[ApiError]] = {}


class UnknownOutcomeError(ApiError):
    """The request may or may not have been executed; ``code`` states why that is unknown. Not a
    refusal: read the current state before writing again.
    """


class ClientClosedError(ApiError):
    """The client is closed, or was closed during the call. The call changed nothing."""

    def __init__(self, message: str = "the client was closed") -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)

    @property
    def retriable(self) -> bool:
        """Always false: a closed client stays closed."""
        return False

    def __str__(self) -> str:
        return self.message


_NAMED_MAX = 10
"""Maximum number of refused items in a message."""


class ItemsRefusedError(ApiError):
    """Several items of one write were refused; ``errors`` has each item's error, in the order of
    the request.

    The other items were written. ``code`` and ``field`` are those of the first error.
    """

    def __init__(self, errors: list[ApiError], *, leader_id: int = -1) -> None:
        first, message = errors[0], errors[0].message
        if len(errors) > 1:
            named = "; ".join(map(str, errors[:_NAMED_MAX]))
            more = f"; and {len(errors) - _NAMED_MAX} more" if len(errors) > _NAMED_MAX else ""
            message = f"{len(errors)} items were refused: {named}{more}"
        super().__init__(first.code, message, field=first.field, leader_id=leader_id)
        self.errors = errors

    def __str__(self) -> str:
        # Each error in the message has its own code and field.
        return self.message if len(self.errors) > 1 else super().__str__()


class AcksNotReachedError(RaftlogError):
    """The write is committed, but had not reached the requested level at its deadline.

    Do not write it again: ``result`` has its position, and the brokers that have not applied it
    yet.
    """

    code = ErrorCode.REQUEST_TIMED_OUT

    def __init__(self, asked: str, result: WriteResult) -> None:
        super().__init__(asked, result)
        self.asked = asked
        self.result = result

    def __str__(self) -> str:
        brokers = ", ".join(map(str, self.result.waiting_for_brokers))
        whom = f"; waiting for brokers {brokers}" if brokers else ""
        return (
            f"the write is {self.result.reached} at offset {self.result.offset}, but was not"
            f" {self.asked} in time{whom}"
        )


class AuthorizationError(ApiError):
    """No access control entry allows the request, or one denies it. Nothing was done."""


class UnknownServerError(ApiError, code=ErrorCode.UNKNOWN_SERVER_ERROR):
    """A defect of the server, or an error code that this library does not know."""


class OffsetOutOfRangeError(ApiError, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """A consumer reads outside the partition's log."""


class CorruptMessageError(ApiError, code=ErrorCode.CORRUPT_MESSAGE):
    """The fetched records do not match their checksum or layout."""


class UnknownTopicOrPartitionError(ApiError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
    """No such topic or partition."""


class LeaderNotAvailableError(ApiError, code=ErrorCode.LEADER_NOT_AVAILABLE):
    """The partition has no leader."""


class NotLeaderOrFollowerError(ApiError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER):
    """Another broker leads the partition."""


class RequestTimedOutError(ApiError, code=ErrorCode.REQUEST_TIMED_OUT):
    """The deadline passed, and the request changed nothing."""


class BrokerNotAvailableError(ApiError, code=ErrorCode.BROKER_NOT_AVAILABLE):
    """The broker is starting or shutting down."""


class MessageTooLargeError(ApiError, code=ErrorCode.MESSAGE_TOO_LARGE):
    """The request, or the data it would write, is too large."""


class NetworkError(ApiError, code=ErrorCode.NETWORK_EXCEPTION):
    """No connection could be made, or it broke before the request was sent."""


class TlsError(NetworkError):
    """A TLS connection failed. Nothing was sent.

    ``trouble`` is the reason, as a code: "plaintext", "not h2", "expired", "not yet valid", "other
    authority", "other name" (about the server's certificate), "own expired", "own refused" (about
    the client's).
    """

    def __init__(self, trouble: str, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)
        self.trouble = trouble


class OtherServerError(NetworkError):
    """The node has the other role: a controller instead of a broker, or vice versa. Nothing was
    sent. Not retriable: a node's role never changes.
    """

    @property
    def retriable(self) -> bool:
        """Always false: the same address will give the same answer."""
        return False


class InvalidTopicError(ApiError, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """The topic name is invalid."""


class NotEnoughReplicasError(ApiError, code=ErrorCode.NOT_ENOUGH_REPLICAS):
    """Produce: the ISR is smaller than `min.insync.replicas`."""


class NotEnoughReplicasAfterAppendError(ApiError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
    """Produce: the ISR became too small after the leader appended."""


class InvalidRequiredAcksError(ApiError, code=ErrorCode.INVALID_REQUIRED_ACKS):
    """Produce: `acks` is not -1, 0 or 1."""


class TopicAuthorizationFailedError(AuthorizationError, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
    """No access control entry allows this on the topic, or one denies it."""


class GroupAuthorizationFailedError(AuthorizationError, code=ErrorCode.GROUP_AUTHORIZATION_FAILED):
    """No access control entry allows this on the configs of the group, or one denies it."""


class ClusterAuthorizationFailedError(
    AuthorizationError, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
):
    """No access control entry allows the request, or one denies it."""


class UnsupportedVersionError(ApiError, code=ErrorCode.UNSUPPORTED_VERSION):
    """A feature level that the request needs, or that the broker must support, is missing."""


class TopicAlreadyExistsError(ApiError, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """A topic with this name exists."""


class InvalidPartitionsError(ApiError, code=ErrorCode.INVALID_PARTITIONS):
    """The number of partitions is invalid."""


class InvalidReplicationFactorError(ApiError, code=ErrorCode.INVALID_REPLICATION_FACTOR):
    """The replication factor is invalid, or exceeds the number of unfenced brokers."""


class InvalidReplicaAssignmentError(ApiError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT):
    """The assignment of replicas is invalid."""


class InvalidConfigError(ApiError, code=ErrorCode.INVALID_CONFIG):
    """An unknown config key, or an invalid value."""


class NotControllerError(ApiError, code=ErrorCode.NOT_CONTROLLER):
    """The node is not the active controller."""


class InvalidRequestError(ApiError, code=ErrorCode.INVALID_REQUEST):
    """A field of the request is invalid, or exceeds its limit."""


class PolicyViolationError(ApiError, code=ErrorCode.POLICY_VIOLATION):
    """The request needs more records or items than one batch may contain."""


class OutOfOrderSequenceNumberError(ApiError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """The sequence number is too far above the lowest one that is not finished."""


class DuplicateSequenceNumberError(ApiError, code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
    """The client has declared this sequence number finished."""


class KafkaStorageError(ApiError, code=ErrorCode.KAFKA_STORAGE_ERROR):
    """Free space is below the reserve, or the replica is damaged and offline."""


class SaslAuthenticationFailedError(ApiError, code=ErrorCode.SASL_AUTHENTICATION_FAILED):
    """The call needs a token, but has none or an invalid one."""


class UnknownProducerIdError(ApiError, code=ErrorCode.UNKNOWN_PRODUCER_ID):
    """The client id was never opened, or is closed."""


class ListenerNotFoundError(ApiError, code=ErrorCode.LISTENER_NOT_FOUND):
    """The partition's leader has no listener with the name of the listener that the client uses."""


class FencedLeaderEpochError(ApiError, code=ErrorCode.FENCED_LEADER_EPOCH):
    """The sender's epoch is over: a newer one is known."""


class UnknownLeaderEpochError(ApiError, code=ErrorCode.UNKNOWN_LEADER_EPOCH):
    """The sender's epoch is newer than any that the node knows, or is not proven."""


class OffsetNotAvailableError(ApiError, code=ErrorCode.OFFSET_NOT_AVAILABLE):
    """The partition's new leader does not know its high watermark yet."""


class PreferredLeaderNotAvailableError(ApiError, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
    """ElectLeaders: the preferred replica cannot lead."""


class EligibleLeadersNotAvailableError(ApiError, code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE):
    """ElectLeaders: no replica can lead."""


class ElectionNotNeededError(ApiError, code=ErrorCode.ELECTION_NOT_NEEDED):
    """ElectLeaders: the partition already has the right leader."""


class NoReassignmentInProgressError(ApiError, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
    """There is no reassignment to cancel."""


class InvalidRecordError(ApiError, code=ErrorCode.INVALID_RECORD):
    """Produce: a record is missing or malformed."""


class ThrottlingQuotaExceededError(ApiError, code=ErrorCode.THROTTLING_QUOTA_EXCEEDED):
    """There is no room: a queue is full."""


class ResourceNotFoundError(ApiError, code=ErrorCode.RESOURCE_NOT_FOUND):
    """The object to delete does not exist."""


class InvalidUpdateVersionError(ApiError, code=ErrorCode.INVALID_UPDATE_VERSION):
    """A compare-and-set failed, or something prevents the feature level."""


class UnknownTopicIdError(ApiError, code=ErrorCode.UNKNOWN_TOPIC_ID):
    """No topic has this id."""


class BrokerIdNotRegisteredError(ApiError, code=ErrorCode.BROKER_ID_NOT_REGISTERED):
    """No broker is registered under this id."""


class InconsistentClusterIdError(ApiError, code=ErrorCode.INCONSISTENT_CLUSTER_ID):
    """The request is for another cluster."""


class DuplicateVoterError(ApiError, code=ErrorCode.DUPLICATE_VOTER):
    """The voter set already contains this voter."""


class VoterNotFoundError(ApiError, code=ErrorCode.VOTER_NOT_FOUND):
    """The voter set does not contain this voter."""


class InconsistentGenerationError(ApiError, code=ErrorCode.INCONSISTENT_GENERATION):
    """The token, client id or fetch belongs to another generation of the log."""


class BrokerFencedError(ApiError, code=ErrorCode.BROKER_FENCED):
    """The broker is fenced and serves no new requests; ask another one."""


class LaoUnknownError(ApiError, code=ErrorCode.LAO_UNKNOWN):
    """A repeatable read: the deadline passed before the broker knew LAO."""


class NoReadLeaseError(ApiError, code=ErrorCode.NO_READ_LEASE):
    """The deadline of a strict read passed before the broker had a lease."""


RETRIABLE = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.BROKER_FENCED,
        ErrorCode.LAO_UNKNOWN,
        ErrorCode.NO_READ_LEASE,
    }
)
"""Codes of errors that depend on the moment, not on the request."""


class FatalError(RaftlogError):
    """The node must stop, and acknowledge nothing more."""


class InvariantError(FatalError, AssertionError):
    """A defect: the program contradicts itself. The node stops before it sends or writes anything
    more.
    """


class StorageError(FatalError):
    """A disk operation failed or was refused. It is never retried: after a failed fsync the kernel
    may have dropped the bytes.
    """


class CorruptLogError(FatalError):
    """Stored bytes differ from those written.

    ``offset``: the first log offset that cannot be trusted, or -1 if the damage is not in the log.
    """

    def __init__(self, message: str, *, offset: int = -1) -> None:
        super().__init__(message)
        self.offset = offset


class DirectorySetBackError(CorruptLogError):
    """The data directory is an older copy: it lacks data that its node has acknowledged."""


class DirectoryInUseElsewhereError(FatalError):
    """Another process runs with a copy of this data directory."""


_DISK_ERRORS = frozenset(
    {
        errno.EIO,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EFBIG,
        errno.ENXIO,
        errno.ENODEV,
        errno.ESTALE,
    }
)


def is_disk_error(error: BaseException | None) -> bool:
    """Return whether an error is the operating system's report of a failed or full disk, in any
    call.
    """
    return isinstance(error, OSError) and error.errno in _DISK_ERRORS


def is_out_of_descriptors(error: BaseException) -> bool:
    """Return whether an error means that this process or machine can open no more files. Decided by
    the text of the error, as RocksDB and gRPC report nothing else.
    """
    return os.strerror(errno.EMFILE) in str(error)


class WrongDataError(RaftlogError):
    """A check detected wrong data: damaged, missing, or from another log."""


class ConfigError(RaftlogError):
    """The configuration or the data directory is wrong. The message is for the operator, and lists
    all mistakes.
    """


class DamagedIdentityError(ConfigError):
    """A data directory has data but no valid identity: its owner cannot be determined."""


class DirectoryInUseError(ConfigError):
    """Another process uses the data directory: a running node, or a reader."""


def fatal(error: Exception) -> FatalError:
    """Return the error that stops a node. An unexpected exception is a defect, and the state after
    it is unknown.
    """
    if isinstance(error, FatalError):
        return error
    return FatalError(f"defect in raftlog: {type(error).__name__}: {error}")

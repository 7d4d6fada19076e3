"""The six possible outcomes of a decision and their effects on soft state, as plain values.

Deciding appends nothing to the log, but facts that a request reports may change soft state.

An effect is applied once the records of its decision are in the pending image, or at once if the
decision has no records. If a decision cannot be proposed, its effects are dropped with it, so that
soft state is never ahead of the log. ``apply`` in ``controller/state/state.py`` defines each
effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

from raftlog.bounds import CONTROLLER_BATCH_MAX_BYTES as BATCH_MAX_BYTES
from raftlog.config_writes.writes import ConfigWrites
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import Cause, ClientResult
from raftlog.metadata.image import PartitionKey
from raftlog.metadata.records import Record
from raftlog.wire.common.v1 import common_pb2
from raftlog.wire.records.v1 import records_pb2 as pb


class Registered(NamedTuple):
    """A process has registered under a new broker epoch, which invalidates soft state from earlier
    broker epochs.
    """

    broker_id: int
    broker_epoch: int


class RegisteredAgain(NamedTuple):
    """The registered process has repeated its registration."""

    broker_id: int
    broker_epoch: int
    fenced: bool


class Unregistered(NamedTuple):
    """A registration was removed."""

    broker_id: int


class Fenced(NamedTuple):
    """A broker was fenced.

    ``record_count``: number of records in the batch that fences it.
    """

    broker_id: int
    cause: Cause
    record_count: int = 1


class Unfenced(NamedTuple):
    """A broker was unfenced in a batch of ``record_count`` records."""

    broker_id: int
    record_count: int = 1


class ShutdownBegun(NamedTuple):
    """A broker in controlled shutdown has lost leaderships.

    ``last_offset``: offset of the record that moved the last of them, or None if some remain.
    """

    broker_id: int
    last_offset: int | None


class Left(NamedTuple):
    """A broker has completed its controlled shutdown.

    Its session is over, so its next process can register at once.
    """

    broker_id: int


class LeaseGranted(NamedTuple):
    """A broker's read lease begins now."""

    broker_id: int


class LeaseStopped(NamedTuple):
    """A broker's read lease is no longer renewed."""

    broker_id: int


class FeatureLevelsUpdated(NamedTuple):
    """Feature levels were changed while heartbeats were disabled.

    Heartbeats may be enabled now.
    """


class IsrsLeft(NamedTuple):
    """A fenced broker was removed from the ISRs of its partitions before ``begin``."""

    broker_id: int
    begin: PartitionKey


class LeadersElected(NamedTuple):
    """Leaders were elected for an unfenced broker's partitions before ``begin``."""

    broker_id: int
    begin: PartitionKey


class LeavingBegun(NamedTuple):
    """The removal of a fenced broker from more partitions than fit into one batch has begun.

    When it is complete, the broker's successor registers, or the broker is unregistered. ``loss``:
    a Loss.
    """

    broker_id: int
    loss: int
    same_disk: bool


class LeaderEpochsRaised(NamedTuple):
    """Leader epochs of ``partition_count`` more partitions were raised into the range of this log
    generation.
    """

    partition_count: int


class ProgressRecorded(NamedTuple):
    """LAO's progress was recorded in the log (PROGRESS)."""

    message: pb.ProgressRecord


class LeaseBegun(NamedTuple):
    """A key-value lease was granted; its TTL begins now."""

    lease_id: int
    ttl_ms: int


class LeaseKeptAlive(NamedTuple):
    """A key-value lease was kept alive; its TTL begins again now."""

    lease_id: int
    ttl_ms: int


class LeaseEnded(NamedTuple):
    """A key-value lease was revoked or has expired."""

    lease_id: int


Effect = (
    Registered
    | RegisteredAgain
    | Unregistered
    | Fenced
    | Unfenced
    | ShutdownBegun
    | Left
    | LeaseGranted
    | LeaseStopped
    | FeatureLevelsUpdated
    | IsrsLeft
    | LeadersElected
    | LeavingBegun
    | LeaderEpochsRaised
    | ProgressRecorded
    | LeaseBegun
    | LeaseKeptAlive
    | LeaseEnded
)


_FEW_RECORDS = 512


@final
class Write(NamedTuple):
    """Records to propose, and the answer to send once they are committed.

    A tuple because every write makes one, and tuples are fast.
    """

    records: list[Record]
    """One atomic batch, in order. Empty only if there is a ``group``."""
    body: Any = None
    """Response message for this kind of request, or None if no request caused the records."""
    effects: tuple[Effect, ...] = ()
    answer_when_appended: bool = False
    """Answer as soon as the records are in the leader's log.

    Such an answer does not imply that they are committed.
    """
    group: ConfigWrites | None = None
    """Accepted config writes of a group, each atomic by itself."""


@final
class Reply(NamedTuple):
    """An answer without records, sent once a read-index round proves that this node still leads."""

    body: Any
    effects: tuple[Effect, ...] = ()


@final
class Refusal(NamedTuple):
    """An error: the request has definitely failed, and changed nothing."""

    error: ApiError


@final
class Duplicate(NamedTuple):
    """The result of a numbered write that an earlier attempt executed."""

    result: ClientResult


@final
class Defer(NamedTuple):
    """No decision yet: the request will be decided again at time ``at`` (seconds of the event
    loop's clock).
    """

    at: float
    effects: tuple[Effect, ...] = ()


@final
class TransferLeadership(NamedTuple):
    """Transfer of the leadership to voter ``target_id``; answered when the transfer is complete."""

    target_id: int
    body: Any


Decision = Write | Reply | Refusal | Duplicate | Defer | TransferLeadership
"""The outcome of one request.

A decision that a deadline triggers, such as a session timeout, is always a Write.
"""


def write_or_reply(records: list[Record], body: Any, *effects: Effect) -> Write | Reply:
    """Return a Write if there are records to propose, else a Reply."""
    return Write(records, body, effects) if records else Reply(body, effects)


def refuse(code: ErrorCode, message: str, field: str = "") -> ApiError:
    """Return the error for a request that changed nothing.

    ``field``: the field at fault, or "".
    """
    return ApiError(code, message, field=field)


def wire_error(error: ApiError) -> common_pb2.Error:
    """Return the error as a protobuf message for one result of a response."""
    return common_pb2.Error(
        error_code=error.code,
        error_message=error.message,
        field=error.field,
        outcome_unknown=error.outcome_unknown,
    )


class own_error:  # noqa: N801 (used as a function)
    """Context manager for one item of a request that succeeds or fails by itself: it stores an
    ApiError in the item's result.

    ``whole``: code of errors that fail the whole request instead; they are raised.
    """

    def __init__(self, result: Any, *, whole: ErrorCode | None = None) -> None:
        self._result, self._whole = result, whole

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: object, _traceback: object) -> bool:
        if not isinstance(error, ApiError) or error.code == self._whole:
            return False
        self._result.error.CopyFrom(wire_error(error))
        return True


def check_item(refused: Mapping[int, ApiError], index: int) -> None:
    """Raise the error if the client's permissions refuse this item."""
    if (error := refused.get(index)) is not None:
        raise error


def check_record_count(count: int, limit: int, field: str = "") -> None:
    """Raise POLICY_VIOLATION for a request that would write more than ``limit`` records: they all
    go into one atomic batch.
    """
    if count > limit:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"the request needs {count} records, but one batch holds at most {limit}",
            field,
        )


def check_item_count(count: int, limit: int, field: str) -> None:
    """Raise POLICY_VIOLATION for a request that names more than ``limit`` items, before any item is
    decided.

    A refused item writes no record, but still takes time.
    """
    if count > limit:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"{count} items given, but one request may have at most {limit}",
            field,
        )


def check_record_bytes(records: list[Record], field: str) -> None:
    """Raise MESSAGE_TOO_LARGE for a request that would write more than BATCH_MAX_BYTES, as it would
    delay all later requests.
    """
    if len(records) <= _FEW_RECORDS:
        return  # Not larger than the request, whose size is limited.
    size = sum(len(each.body) for each in records)
    if size > BATCH_MAX_BYTES:
        raise refuse(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the request would write {size} bytes, but one batch holds at most {BATCH_MAX_BYTES}",
            field,
        )

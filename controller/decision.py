"""The six possible outcomes of a decision and their effects on soft state, each a plain value.

Deciding writes nothing; the facts that a request reports may change soft state, which is not in the
log.

An effect is applied once the records of its decision are in the pending image, or at once if the
decision has no records. If a decision cannot be proposed, its effects are dropped with it, so that
soft state never runs ahead of the log. ``apply`` of ``controller/state/state.py`` defines each
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
    """Registration of a broker id by a process, under a new broker epoch: soft state of an earlier
    epoch is void.
    """

    broker_id: int
    broker_epoch: int


class RegisteredAgain(NamedTuple):
    """A repeated registration request of the registered process."""

    broker_id: int
    broker_epoch: int
    fenced: bool


class Unregistered(NamedTuple):
    """Removal of a registration."""

    broker_id: int


class Fenced(NamedTuple):
    """Fencing of a broker, for this cause.

    ``record_count``: how many records the batch that fences it has.
    """

    broker_id: int
    cause: Cause
    record_count: int = 1


class Unfenced(NamedTuple):
    """Unfencing of a broker, in a batch of ``record_count`` records."""

    broker_id: int
    record_count: int = 1


class ShutdownBegun(NamedTuple):
    """Loss of leaderships by a broker in controlled shutdown.

    ``last_offset``: the offset of the record that moved the last of them; None if it still has
    some.
    """

    broker_id: int
    last_offset: int | None


class Left(NamedTuple):
    """Completion of a broker's controlled shutdown.

    The broker's session is over, so its next process can register at once.
    """

    broker_id: int


class LeaseGranted(NamedTuple):
    """A read lease of a broker, which begins now."""

    broker_id: int


class LeaseStopped(NamedTuple):
    """The end of renewals of a broker's read lease."""

    broker_id: int


class FeatureLevelsUpdated(NamedTuple):
    """A change of feature levels while heartbeats were not in force.

    Heartbeats may be in force now.
    """


class IsrsLeft(NamedTuple):
    """Removal of a fenced broker from the ISRs of its partitions before ``begin``."""

    broker_id: int
    begin: PartitionKey


class LeadersElected(NamedTuple):
    """Elections of leaders for the partitions of an unfenced broker before ``begin``."""

    broker_id: int
    begin: PartitionKey


class LeavingBegun(NamedTuple):
    """Begin of the removal of a fenced broker from more partitions than one batch should change.

    Its successor registers, or it is unregistered, when it is complete. ``loss``: a Loss.
    """

    broker_id: int
    loss: int
    same_disk: bool


class LeaderEpochsRaised(NamedTuple):
    """Raising of ``partition_count`` more partitions' leader epochs into the range of this log
    generation.
    """

    partition_count: int


class ProgressRecorded(NamedTuple):
    """A record of the progress of LAO in the log (PROGRESS)."""

    message: pb.ProgressRecord


class LeaseBegun(NamedTuple):
    """Grant of a lease of the key-value store, whose TTL begins now."""

    lease_id: int
    ttl_ms: int


class LeaseKeptAlive(NamedTuple):
    """Keep-alive of a lease, whose TTL begins anew now."""

    lease_id: int
    ttl_ms: int


class LeaseEnded(NamedTuple):
    """Revocation or expiry of a lease."""

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

    A tuple for speed: every write makes one.
    """

    records: list[Record]
    """One atomic batch, in order; never empty, unless there is a ``group``."""
    body: Any = None
    """The response message for this kind of request; None if no request caused the records."""
    effects: tuple[Effect, ...] = ()
    answer_when_appended: bool = False
    """Answer as soon as the records are in the leader's log.

    Such an answer does not say that they are committed.
    """
    group: ConfigWrites | None = None
    """Config writes of a group that are accepted as they are, each atomic by itself."""


@final
class Reply(NamedTuple):
    """An answer without records.

    It is sent once a confirmed read-index round proves that this node still leads.
    """

    body: Any
    effects: tuple[Effect, ...] = ()


@final
class Refusal(NamedTuple):
    """The request definitely failed, and changed nothing."""

    error: ApiError


@final
class Duplicate(NamedTuple):
    """A retry of a numbered write that was executed before, with the result of that time."""

    result: ClientResult


@final
class Defer(NamedTuple):
    """No decision yet: the request waits, and is decided again at time ``at`` (seconds of the event
    loop's clock).
    """

    at: float
    effects: tuple[Effect, ...] = ()


@final
class TransferLeadership(NamedTuple):
    """Transfer the leadership to voter ``target_id``; the answer is sent when the transfer is
    complete.
    """

    target_id: int
    body: Any


Decision = Write | Reply | Refusal | Duplicate | Defer | TransferLeadership
"""The outcome of one request.

A decision that a deadline triggers, as a session timeout, is always a Write.
"""


def write_or_reply(records: list[Record], body: Any, *effects: Effect) -> Write | Reply:
    """Return a Write if there are records to propose, else a Reply."""
    return Write(records, body, effects) if records else Reply(body, effects)


def refuse(code: ErrorCode, message: str, field: str = "") -> ApiError:
    """Return the error of a request that changed nothing.

    ``field`` is the field at fault, if there is one.
    """
    return ApiError(code, message, field=field)


def wire_error(error: ApiError) -> common_pb2.Error:
    """Return the error as a message, for one of the results in a response."""
    return common_pb2.Error(
        error_code=error.code,
        error_message=error.message,
        field=error.field,
        outcome_unknown=error.outcome_unknown,
    )


class own_error:  # noqa: N801 (used as a function)
    """Context of one item of a request, which succeeds or fails by itself: an ApiError raised in it
    is put into the item's result.

    ``whole``: code of the errors that fail the whole request instead.
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
    """Raise the refusal of an item by the permissions, if any."""
    if (error := refused.get(index)) is not None:
        raise error


def check_record_count(count: int, limit: int, field: str = "") -> None:
    """Raise POLICY_VIOLATION for a request that would write more than ``limit`` records: they all
    go into one atomic batch.
    """
    if count > limit:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"the request needs {count} records, more than the {limit} of one batch",
            field,
        )


def check_item_count(count: int, limit: int, field: str) -> None:
    """Raise POLICY_VIOLATION for a request that names more than ``limit`` items, before any item is
    decided.

    An item that is refused writes no record, but it takes time all the same.
    """
    if count > limit:
        raise refuse(
            ErrorCode.POLICY_VIOLATION,
            f"{count} items are more than the {limit} of one request",
            field,
        )


def cluster_error(cluster_id: str, asked: str) -> ApiError | None:
    """Return why a request for a cluster is not for this one; None if it is, or names none."""
    if asked in ("", cluster_id):
        return None
    message = f"this is cluster {cluster_id!r}, the request is for {asked[:80]!r}"
    return ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, message, field="cluster_id")


def check_record_bytes(records: list[Record], field: str) -> None:
    """Raise MESSAGE_TOO_LARGE for a request that would write more than BATCH_MAX_BYTES: it would
    delay all requests after it.
    """
    if len(records) <= _FEW_RECORDS:
        return  # No larger than the request itself, which has its own limit.
    size = sum(len(each.body) for each in records)
    if size > BATCH_MAX_BYTES:
        raise refuse(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the request would write {size} bytes, more than the {BATCH_MAX_BYTES} of one batch",
            field,
        )

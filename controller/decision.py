"""What a decision is: one of six outcomes, each a value. Deciding changes nothing yet."""

from __future__ import annotations

from typing import Any, NamedTuple

from controller.effects import Effect
from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import ClientResult
from raftlog.metadata.records import Record
from raftlog.wire.common.v1 import common_pb2

MAX_BATCH_BYTES = 8 << 20
"""The most that one request may write. What fencing or replacing a broker writes is bounded by what it holds instead."""
_FEW_RECORDS = 512


class Write(NamedTuple):
    """Records to propose, and the answer when they are committed. A tuple, as there is one for each write."""

    records: list[Record]
    """One atomic batch, in order; never empty."""
    body: Any = None
    """The response message of the request's kind; None when nobody asked."""
    effects: tuple[Effect, ...] = ()
    answer_when_appended: bool = False
    """The answer goes out when the records are in the leader's log, without saying that they are committed."""


class Reply(NamedTuple):
    """An answer that writes nothing: it goes out when a round has confirmed the leadership."""

    body: Any
    effects: tuple[Effect, ...] = ()


class Refusal(NamedTuple):
    """The request failed for certain, and changed nothing."""

    error: ApiError


class Duplicate(NamedTuple):
    """A retry: what the write became when it was executed."""

    result: ClientResult


class Defer(NamedTuple):
    """Nothing is decided yet: the request waits, and is decided anew ``at`` this time (seconds of the loop's clock)."""

    at: float
    effects: tuple[Effect, ...] = ()


class TransferLeadership(NamedTuple):
    """Hand the leadership over to this voter; the answer goes out when that is done."""

    target_id: int
    body: Any


Decision = Write | Reply | Refusal | Duplicate | Defer | TransferLeadership
"""The outcome of one request. What time brings is always a Write."""


def write_or_reply(records: list[Record], body: Any, *effects: Effect) -> Write | Reply:
    """An answer, with whatever it writes."""
    return Write(records, body, effects) if records else Reply(body, effects)


def refuse(code: ErrorCode, message: str, field: str = "") -> ApiError:
    """An error that is about one field of the request and changed nothing."""
    return ApiError(code, message, field=field)


def wire_error(error: ApiError) -> common_pb2.Error:
    """An error as the message that goes into one result of many."""
    return common_pb2.Error(
        error_code=error.code,
        error_message=error.message,
        field=error.field,
        outcome_unknown=error.outcome_unknown,
    )


def check_record_count(count: int, limit: int) -> None:
    """Raise POLICY_VIOLATION for a request that would write more than ``limit`` records: a batch is one atom of the log."""
    if count > limit:
        raise refuse(
            ErrorCode.POLICY_VIOLATION, f"the request needs {count} records, more than the {limit} of one batch"
        )


def check_item_count(count: int, limit: int, field: str) -> None:
    """Raise POLICY_VIOLATION for a request that names more than ``limit`` things, before anything is made of them.

    A thing that is refused by itself writes no record, but it takes its time all the same.
    """
    if count > limit:
        raise refuse(ErrorCode.POLICY_VIOLATION, f"{count} items are more than the {limit} of one request", field)


def check_record_bytes(records: list[Record], field: str) -> None:
    """Raise MESSAGE_TOO_LARGE for a request that would write more than MAX_BATCH_BYTES: it would hold up all behind it."""
    if len(records) <= _FEW_RECORDS:
        return  # No more than the request itself, which has a bound of its own.
    size = sum(len(each.body) for each in records)
    if size > MAX_BATCH_BYTES:
        raise refuse(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the request would write {size} bytes, more than the {MAX_BATCH_BYTES} of one batch",
            field,
        )

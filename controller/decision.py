"""What a decision is: records to write, the answer to give, and what to remember once the records are proposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from raftlog.errors import ApiError, ErrorCode
from raftlog.metadata.entities import ClientResult
from raftlog.metadata.records import Record
from raftlog.wire.common.v1 import common_pb2

MAX_BATCH_BYTES = 8 << 20
"""The most that one request may write. What fencing or replacing a broker writes is bounded by what it holds instead."""
_FEW_RECORDS = 512


class Decision(NamedTuple):
    """The outcome of one request or timer; deciding it has changed nothing yet. A tuple, as there is one for each write.

    ``records`` is one atomic batch, in order. ``body`` is the response message of the request's kind, None with an ``error`` or
    when nobody asked. ``on_proposed`` changes soft state: called once the records are in the pending image, or at once if there
    are none; dropped if they can't be proposed, so that soft state never runs ahead of the log.
    """

    records: list[Record]
    body: Any = None
    error: ApiError | None = None
    on_proposed: Callable[[], None] | None = None
    answer_when_appended: bool = False
    """The answer goes out when the records are in the leader's log, without saying that they are committed."""
    duplicate: ClientResult | None = None
    """A retry: what the write became when it was executed. Nothing else is set."""
    decide_again_at: float | None = None
    """Nothing is decided yet: the request waits, and is decided anew at this time (seconds of the loop's clock). No answer is set."""
    transfer_to: int | None = None
    """Hand the leadership over to this voter; the answer goes out when that is done."""


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

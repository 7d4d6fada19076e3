"""What an answer says of its case, in the matrix of permissions: let in, refused, or not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matrix_callers import MINE, THEIRS
from matrix_cases import (
    ABSENT,
    ALLOWED,
    NO_CONNECTION,
    NONE,
    UNAUTHENTICATED,
    Case,
    Kind,
    Verdict,
    of_items,
    of_names,
    of_whole,
)
from matrix_rpcs import BY_NAME

from raftlog.errors import ErrorCode
from raftlog.node.security.permissions import BROKER, CONTROLLER, Each, EachPartition, Listed
from raftlog.transport.statuses import ERROR_METADATA_KEY
from raftlog.wire.common.v1 import common_pb2

import grpc  # isort: skip

REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}  # fmt: skip
UNDECIDED = {
    ErrorCode.NOT_CONTROLLER, ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.UNSUPPORTED_VERSION,
}  # fmt: skip
"""What a node says before it asks whether somebody may, or instead."""
_STATUSES = {
    grpc.StatusCode.UNIMPLEMENTED: ABSENT,
    grpc.StatusCode.UNAUTHENTICATED: UNAUTHENTICATED,
}


def of_status(code: Any, trailing: Any, case: Case, why: str | None) -> Verdict:
    data = dict(trailing or ()).get(ERROR_METADATA_KEY)
    if code is grpc.StatusCode.UNAVAILABLE and data is None:
        return NO_CONNECTION
    error = common_pb2.Error.FromString(data or b"")
    if code in _STATUSES and error.error_code in (
        ErrorCode.NONE, ErrorCode.SASL_AUTHENTICATION_FAILED,
    ):  # fmt: skip
        return _STATUSES[code]
    if data is None:
        raise AssertionError(f"{case}: {code} {why}")
    return _of_code(ErrorCode(error.error_code), case)


def _of_code(code: ErrorCode, case: Case) -> Verdict:
    """Of a request that failed as a whole: for want of a right, or for something else."""
    if code in REFUSALS:
        return of_whole(code)
    if code in UNDECIDED:
        return Verdict(Kind.UNDECIDED, (code,))
    # Whatever its items are: it was let in.
    return case.verdict if case.verdict.kind is Kind.ALLOWED else ALLOWED


def of_response(response: Any, case: Case) -> Verdict:
    code, body = _unwrapped(response)
    row = None if case.rpc.of_grpc else {**CONTROLLER, **BROKER}.get(case.rpc.kind)
    if code is not NONE:
        if code in REFUSALS:
            _names_no_offset(response, case)
        return _of_code(code, case)
    if isinstance(row, Each | EachPartition) or case.rpc.variant == BY_NAME:
        results = _items(body, lambda one: _code(one) is not None)
        codes = [ErrorCode(_code(one) or 0) for one in results]
        for one, code in zip(results, codes, strict=True):
            if code in REFUSALS:
                _names_no_offset(one, case)
        return of_items([code if code in REFUSALS else NONE for code in codes])
    if isinstance(row, Listed):
        found = _items(body, _is_named)
        names = {next(getattr(one, name) for name in _NAMES if hasattr(one, name)) for one in found}
        shown = {one for one in names if one.startswith((MINE, THEIRS))}
        return of_names(shown, 2)
    return ALLOWED


def _unwrapped(message: Any) -> tuple[ErrorCode, Any]:
    """The error of the innermost message that has one, and what is in all the envelopes."""
    while True:
        code = _code(message)
        if code:
            return ErrorCode(code), message
        if "body" not in message.DESCRIPTOR.oneofs_by_name or not message.WhichOneof("body"):
            return NONE, message
        message = getattr(message, message.WhichOneof("body"))


def _code(message: Any) -> int | None:
    """None: it has no place for an error."""
    fields = message.DESCRIPTOR.fields_by_name
    if "error" in fields:
        return int(message.error.error_code)
    return int(message.error_code) if "error_code" in fields else None


_NAMES = ("hostname", "name", "key")


def _is_named(item: Any) -> bool:
    return any(name in item.DESCRIPTOR.fields_by_name for name in _NAMES)


def _items(body: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    return [
        one
        for field in body.DESCRIPTOR.fields
        if field.is_repeated and field.message_type is not None
        for one in getattr(body, field.name)
        if wanted(one)
    ]


def _names_no_offset(message: Any, case: Case) -> None:
    """A refusal tells nothing of the log."""
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in value if field.is_repeated else [value]:
                _names_no_offset(one, case)
        elif "offset" in field.name or "watermark" in field.name:
            assert value == -1, (str(case), field.name, value)

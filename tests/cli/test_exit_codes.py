"""Which error ends a command with which code."""

from __future__ import annotations

import pytest

from raftlog.cli.exits import Exit, FailedError, exit_code
from raftlog.errors import ApiError, ConfigError, CorruptLogError, ErrorCode, StorageError
from raftlog.segments.errors import CorruptExportError, ExportError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, "x"), Exit.REFUSED),
        (ApiError(ErrorCode.REQUEST_TIMED_OUT, "x"), Exit.UNREACHABLE),
        (ApiError(ErrorCode.NOT_CONTROLLER, "x"), Exit.UNREACHABLE),
        (ApiError(ErrorCode.REQUEST_TIMED_OUT, "x", outcome_unknown=True), Exit.UNKNOWN),
        (ApiError(ErrorCode.NETWORK_EXCEPTION, "x", outcome_unknown=True), Exit.UNKNOWN),
        (ConfigError("x"), Exit.USAGE),
        (CorruptLogError("x", offset=3), Exit.FOUND),
        (CorruptExportError("x", file="f"), Exit.FOUND),
        (ExportError("x"), Exit.REFUSED),
        (StorageError("x"), Exit.REFUSED),
        (TimeoutError(), Exit.UNREACHABLE),
        (FailedError("x", Exit.FOUND), Exit.FOUND),
    ],
    ids=lambda value: str(value) if isinstance(value, Exit) else type(value).__name__,
)
def test_exit_code(error, code):
    assert exit_code(error) is code

"""Exit codes, and how errors become them."""

from __future__ import annotations

from enum import IntEnum

from raftlog.errors import (
    AcksNotReachedError,
    ApiError,
    ConfigError,
    CorruptLogError,
    ErrorCode,
    RaftlogError,
    StorageError,
    WrongDataError,
    is_disk_error,
    is_out_of_descriptors,
)


class Exit(IntEnum):
    """What the exit code of every command says."""

    OK = 0
    REFUSED = 1
    """The cluster refused the request, or the command failed; nothing was changed."""
    USAGE = 2
    """Wrong arguments, configuration or directory; nothing was tried."""
    FOUND = 3
    """The check found something: corrupt data, no leader, a failed verification."""
    UNREACHABLE = 4
    """Nobody answered in time, or what was waited for did not come in time.

    Nothing was executed that is not said to be.
    """
    UNKNOWN = 5
    """The request may or may not have been executed."""
    DISK = 6
    """A disk failed or refused: an I/O error, no space, no permission.

    A node has acknowledged nothing since.
    """


EPILOG = (
    "Exit codes: 0 done; 1 refused or failed; 2 wrong usage or configuration; 3 a check found"
    " something; 4 unreachable or too late; 5 outcome unknown; 6 a disk failed."
)

DISK_REMEDY = (
    "free space or replace the disk, then start again (see Disk error in docs/operations.md)"
)
"""What a person can do about exit code DISK."""
DESCRIPTORS_REMEDY = (
    "raise the limit of open files (ulimit -n, LimitNOFILE of a unit), then start again"
)
"""What a person can do about too few file descriptors."""
DAMAGE_REMEDY = {
    "controller": (
        "keep the directory, and replace it if a majority is intact (see Corrupted log in"
        " docs/operations.md)"
    ),
    "broker": "keep the directory (see Damaged partition replicas in docs/operations.md)",
}
"""What a person can do about a node whose data is damaged."""
_UNREACHABLE = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.NOT_CONTROLLER,
    }
)


class FailedError(RaftlogError):
    """A command ends with this message and code."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.exit = code


def remedy_of(error: BaseException) -> str:
    """What a person can do about an error that ends a command; empty if its message says it."""
    if isinstance(error, ApiError):
        return ""
    if isinstance(error, AcksNotReachedError):
        # With no broker to name, LAO stands still for another reason than a broker that lags.
        return "" if error.result.waiting_for_brokers else "`raftlog brokers list` says why"
    if is_out_of_descriptors(error):
        return DESCRIPTORS_REMEDY
    return DISK_REMEDY if exit_code(error) is Exit.DISK else ""


def exit_code(error: BaseException) -> Exit:
    """The exit code that an error stands for."""
    if isinstance(error, FailedError):
        return error.exit
    if isinstance(error, ApiError):
        if error.outcome_unknown:
            return Exit.UNKNOWN
        return Exit.UNREACHABLE if error.code in _UNREACHABLE else Exit.REFUSED
    if isinstance(error, AcksNotReachedError):
        return Exit.UNREACHABLE
    if is_out_of_descriptors(error):
        return Exit.REFUSED
    if isinstance(error, StorageError) or is_disk_error(error) or is_disk_error(error.__cause__):
        return Exit.DISK
    if isinstance(error, ConfigError):
        return Exit.USAGE
    if isinstance(error, CorruptLogError | WrongDataError):
        return Exit.FOUND
    return Exit.UNREACHABLE if isinstance(error, TimeoutError) else Exit.REFUSED

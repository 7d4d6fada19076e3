"""Exit codes, and the conversion of errors to a message and an exit code, never a stack trace."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import TextIO

from raftlog.cli.streams import INTERRUPTED, NAME, cannot_be_written
from raftlog.errors import (
    AcksNotReachedError,
    ApiError,
    ConfigError,
    CorruptLogError,
    DirectoryInUseElsewhereError,
    ErrorCode,
    RaftlogError,
    StorageError,
    WrongDataError,
    is_disk_error,
    is_out_of_descriptors,
)


class Exit(IntEnum):
    """An exit code, with the same meaning for all commands."""

    OK = 0
    REFUSED = 1
    """The cluster refused the request, or the command failed; nothing was changed."""
    USAGE = 2
    """Wrong arguments, configuration or directory; nothing was tried."""
    FOUND = 3
    """A check detected a problem: corrupt data, no leader, a failed verification."""
    UNREACHABLE = 4
    """No answer arrived in time, or the awaited state was not reached in time. Nothing was executed
    beyond what the output reports.
    """
    UNKNOWN = 5
    """The request may or may not have been executed."""
    DISK = 6
    """A disk failed or refused an operation: I/O error, no space, no permission. A node has
    acknowledged nothing since.
    """


EPILOG = (
    "Exit codes: 0 done; 1 refused or failed; 2 wrong usage or configuration; 3 a check detected"
    " a problem; 4 unreachable or timed out; 5 outcome unknown; 6 a disk failed."
)

DISK_REMEDY = (
    "free space or replace the disk, then start again (see Disk error in docs/operations.md)"
)
DESCRIPTORS_REMEDY = (
    "raise the limit of open files (ulimit -n, LimitNOFILE of a unit), then start again"
)
DAMAGE_REMEDY = {
    "controller": (
        "keep the directory; if a majority is intact, give the node a new one, which it does by"
        " itself with controller.quorum.auto.join.enable or autopilot (see Corrupted log in"
        " docs/operations.md)"
    ),
    "broker": "keep the directory (see Damaged partition replicas in docs/operations.md)",
}
"""Remedy for a node's damaged data, by role."""
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
    """The failure of a command, with its message and exit code."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.exit = code


def remedy_of(error: BaseException) -> str:
    """Return the remedy for an error that ends a command, or "" if its message names it."""
    if isinstance(error, ApiError):
        return ""
    if isinstance(error, AcksNotReachedError):
        # If no broker is named, the cause of the stalled LAO is not a lagging broker.
        return "" if error.result.waiting_for_brokers else "`raftlog brokers list` says why"
    if is_out_of_descriptors(error):
        return DESCRIPTORS_REMEDY
    return DISK_REMEDY if exit_code(error) is Exit.DISK else ""


def exit_code(error: BaseException) -> Exit:
    """Return the exit code of an error."""
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
    if isinstance(error, ConfigError | DirectoryInUseElsewhereError):
        return Exit.USAGE
    if isinstance(error, CorruptLogError | WrongDataError):
        return Exit.FOUND
    return Exit.UNREACHABLE if isinstance(error, TimeoutError) else Exit.REFUSED


_HALVES = re.compile("[\ud800-\udfff]")


@contextmanager
def reported() -> Iterator[None]:
    """Convert an error that an operator can act on to a message and SystemExit."""
    try:
        yield
    except RaftlogError as error:
        sys.exit(report(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except UnicodeEncodeError as error:
        # Python decodes an argument's byte that is not UTF-8 as half of a surrogate pair.
        if not _HALVES.search(error.object):
            raise
        sys.exit(report(FailedError(f"{error.object!r} is not UTF-8", Exit.USAGE)))
    except OSError as error:
        if is_out_of_descriptors(error):
            message = f"can't open {error.filename}: {error.strerror}"
            sys.exit(report(FailedError(message, Exit.REFUSED)))
        if not is_disk_error(error):
            raise
        sys.exit(report_disk(error))


def report(error: RaftlogError) -> Exit:
    """Print an error on stderr; return the exit code."""
    from raftlog.cli.output import print_error  # Imported only here: it is slow to import.

    code, remedy = exit_code(error), remedy_of(error)
    remedy = f"; {remedy}" if remedy else ""
    # A message from another node stays on one line; our own may have several.
    print_error(f"raftlog: {error}{remedy}", keep="" if isinstance(error, ApiError) else "\n")
    return code


def report_disk(error: OSError) -> Exit:
    """Report a failed or full disk, even if it is the one that standard output writes to."""
    where = error.filename or (NAME if cannot_be_written() else "it")
    return report(StorageError(f"the disk failed: cannot use {where}: {error.strerror}"))


@contextmanager
def standard_input() -> Iterator[TextIO]:
    """Yield standard input. Raises FailedError if it cannot be read: if a closed input passed for
    an empty one, a key would get an empty value.
    """
    if sys.stdin is None:
        raise FailedError("standard input is closed: there is nothing to read", Exit.USAGE)
    try:
        yield sys.stdin
    except OSError as error:
        if is_disk_error(error):
            raise
        raise FailedError(f"can't read standard input: {error.strerror}", Exit.USAGE) from error

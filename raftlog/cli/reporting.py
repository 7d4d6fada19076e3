"""What becomes of an error that ends a command: a message and an exit code, never a stack trace."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from raftlog.cli.endings import INTERRUPTED
from raftlog.cli.exits import Exit, FailedError, exit_code, remedy_of
from raftlog.cli.standard_output import NAME, cannot_be_written
from raftlog.errors import (
    ApiError,
    RaftlogError,
    StorageError,
    is_disk_error,
    is_out_of_descriptors,
)

_HALVES = re.compile("[\ud800-\udfff]")


@contextmanager
def reported() -> Iterator[None]:
    """Raises SystemExit for an error that an operator can act on."""
    try:
        yield
    except RaftlogError as error:
        sys.exit(report(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except UnicodeEncodeError as error:
        # A byte of an argument that is no UTF-8 has become half of a surrogate pair.
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
    """Say what went wrong on stderr; returns the exit code."""
    from raftlog.cli.output import print_error  # Which takes its time to import.

    code, remedy = exit_code(error), remedy_of(error)
    remedy = f"; {remedy}" if remedy else ""
    # Another node's words stay in one line; ours may have several.
    print_error(f"raftlog: {error}{remedy}", keep="" if isinstance(error, ApiError) else "\n")
    return code


def report_disk(error: OSError) -> Exit:
    """The same of a disk that failed or refused, be it what standard output goes to."""
    where = error.filename or (NAME if cannot_be_written() else "it")
    return report(StorageError(f"the disk failed: can't use {where}: {error.strerror}"))

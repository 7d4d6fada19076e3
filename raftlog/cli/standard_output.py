"""What a command prints: it goes out line by line, and may find no reader or no space."""

from __future__ import annotations

import io
import os
import select
import sys

TYPE_CHECKING = False  # As typing has it, whose import takes longer than all of these.
if TYPE_CHECKING:
    from typing import TextIO


def write_lines_at_once() -> None:
    """By default Python keeps what it prints into a pipe or a file until 8 KiB are full or the
    program ends: a reader of ``--follow`` sees nothing for hours, and a full disk shows only when
    no command is there any more to report it.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # None if the descriptor is closed.
        sys.stdout.reconfigure(line_buffering=True)


def has_no_reader() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def written(code: object) -> object:
    """What a program ends with that would end with the exit code ``code`` (None: 0): the disk's if
    it did not take all that was printed.

    What could not be written is dropped. Else the interpreter tries once more after all exit
    handlers, and ends with 120 and words of its own.
    """
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return code
    try:
        sys.stdout.flush()
    except ValueError:  # It is closed.
        return code
    except BrokenPipeError:
        _drop(sys.stdout)
    except OSError as error:
        _drop(sys.stdout)
        if not code:
            from raftlog.cli.reporting import report_disk

            return report_disk(error)
    return code


def _drop(stream: TextIO) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

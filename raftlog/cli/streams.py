"""The standard streams of a command: each may be closed, its reader may go away, or its disk may be
full. Also the exit codes for these cases, and for signals.

Imported before anything else, so it imports as little as possible.
"""

from __future__ import annotations

import io
import os
import select
import sys

TYPE_CHECKING = (
    False  # Replaces the constant in typing, whose import takes longer than all of these.
)
if TYPE_CHECKING:
    from typing import Any, TextIO

# Exit codes as a shell reports a signal: 128 and its number. Others: raftlog.cli.exits.
INTERRUPTED = 130
"""SIGINT ended the command, after it cleaned up."""
TERMINATED = 143
"""SIGTERM ended the command before it was done, after it cleaned up."""
UNREAD = 141
"""The reader of the output has gone, e.g. ``head`` after enough lines. Most programs then die of
SIGPIPE.
"""
NAME = "standard output"
_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


def prepare_streams() -> None:
    """Prepare the standard streams, before anything opens a file."""
    _open_closed()
    _forgive_errors()
    _write_lines_at_once()


def _open_closed() -> None:
    """Open closed standard descriptors, so that output to them is dropped.

    A closed descriptor's number would be reused by the next file or socket that is opened, which
    would then receive what is printed by raftlog or by a library. ``sys.stdin`` stays None, as a
    missing input is not an empty one. Dropped output raises no error, so a successful change might
    go unreported; the exit code shows that at the end (``lost``).
    """
    for number in (_INPUT, _OUTPUT, _ERRORS):
        try:
            os.fstat(number)
        except OSError:
            # open() returns the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDONLY if number == _INPUT else os.O_WRONLY)
    if sys.stdout is None:
        sys.stdout = _text(_Closed(_OUTPUT, "w", closefd=False))
    if sys.stderr is None:
        sys.stderr = _text(io.FileIO(_ERRORS, "w", closefd=False))


def _forgive_errors() -> None:
    """Drop output that stderr does not accept: it cannot be reported anywhere, and the exit code
    must remain the error's.

    By default Python replaces every exit code with 120 when the disk behind stderr is full.
    """
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr.fileno() == _ERRORS:
        sys.stderr.flush()
        sys.stderr = _text(_Forgiving(_ERRORS, "w", closefd=False), sys.stderr.encoding)


class _Closed(io.FileIO):
    lost = False

    def write(self, data: Any, /) -> int:
        """Drop the data, and record that output was lost."""
        _Closed.lost = True
        return memoryview(data).nbytes


class _Forgiving(io.FileIO):
    def write(self, data: Any, /) -> int:
        """Write the data, or drop it."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _text(raw: io.FileIO, encoding: str = "utf-8") -> TextIO:
    """Return a line-buffered text stream, like ``sys.stderr``."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=True
    )


def _write_lines_at_once() -> None:
    """Make standard output write each line at once.

    By default Python buffers output to a pipe or a file until 8 KiB are full or the program ends:
    with ``--follow`` a reader would see nothing for hours, and a full disk would be noticed only
    when the command can no longer report it.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(sys.stdout.buffer, io.FileIO):
            # With PYTHONUNBUFFERED, Python ignores how much a full disk accepted of a line.
            buffered = io.BufferedWriter(sys.stdout.buffer)
            sys.stdout = io.TextIOWrapper(buffered, sys.stdout.encoding, sys.stdout.errors)
        sys.stdout.reconfigure(line_buffering=True)


def lost() -> bool:
    """Return whether output was dropped because standard output was closed from the start."""
    return _Closed.lost


def has_no_reader() -> bool:
    """Return whether standard output is a pipe without a reader."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def drop_unread() -> None:
    """Drop further output to a pipe that is full, even if a write is blocked on it. For a signal
    handler: it only touches descriptors.
    """
    for number in (_OUTPUT, _ERRORS):
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        if not poll.poll(0):
            _drop(number)


def cannot_be_written() -> bool:
    """Return whether standard output accepts no output."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    except (AttributeError, ValueError):  # Not one of our streams, or closed.
        return False
    return False


def unwritten() -> OSError | None:
    """Return the error of the disk behind standard output, or None if there is none or it is a pipe
    without a reader.

    Drops unwritten output. Otherwise the interpreter would retry after all exit handlers, and exit
    with 120 and its own message.
    """
    if not isinstance(sys.stdout, io.TextIOWrapper):
        return None
    try:
        sys.stdout.flush()
    except ValueError:  # It is closed.
        return None
    except OSError as error:
        _drop(sys.stdout.fileno())
        error.filename = NAME
        return None if isinstance(error, BrokenPipeError) else error
    return None


def _drop(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)

"""The standard streams of a command: each may be closed, and what is printed may find no reader or
no space. Also the exit codes of a command that something else has ended.

It is imported before anything else: with as little as it needs at once.
"""

from __future__ import annotations

import io
import os
import select
import sys

TYPE_CHECKING = False  # As typing has it, whose import takes longer than all of these.
if TYPE_CHECKING:
    from typing import Any, TextIO

# Exit codes as a shell reports a signal: 128 and its number. Others: raftlog.cli.exits.
INTERRUPTED = 130
"""SIGINT ended the command, after its cleaning up."""
TERMINATED = 143
"""SIGTERM ended the command before it was done, after its cleaning up."""
UNREAD = 141
"""The output has lost its reader, as ``head`` that has seen enough. Most programs die of SIGPIPE
then.
"""
NAME = "standard output"
_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


def prepare_streams() -> None:
    """Prepare the standard streams, before anything opens a file."""
    _open_closed()
    _forgive_errors()
    _write_lines_at_once()


def _open_closed() -> None:
    """Open closed descriptors, so that the output is dropped.

    Left closed it would be given to what is opened next: a database's file or a socket would get
    what is printed, by us or by a library. ``sys.stdin`` stays None, since no input is not an empty
    one. What is printed is dropped without an error, after which a change would stay untold; the
    exit code says it in the end (``lost``).
    """
    for number in (_INPUT, _OUTPUT, _ERRORS):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.open(os.devnull, os.O_RDONLY if number == _INPUT else os.O_WRONLY)
    if sys.stdout is None:
        sys.stdout = _text(_Closed(_OUTPUT, "w", closefd=False))
    if sys.stderr is None:
        sys.stderr = _text(io.FileIO(_ERRORS, "w", closefd=False))


def _forgive_errors() -> None:
    """Drop what stderr does not take: there is nobody to tell, and the exit code stays that of the
    error. By default a full disk behind stderr makes 120 of every code.
    """
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr.fileno() == _ERRORS:
        sys.stderr.flush()
        sys.stderr = _text(_Forgiving(_ERRORS, "w", closefd=False), sys.stderr.encoding)


class _Closed(io.FileIO):
    lost = False

    def write(self, data: Any, /) -> int:
        """Drop the data, and note that."""
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
    """Return a stream of lines, as ``sys.stderr`` is."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=True
    )


def _write_lines_at_once() -> None:
    """Write each line at once. By default Python keeps what it prints into a pipe or a file until 8
    KiB are full or the program ends: a reader of ``--follow`` sees nothing for hours, and a full
    disk shows only when no command is there any more to report it.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)


def lost() -> bool:
    """Return whether output was dropped because standard output was closed from the beginning."""
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
    """Drop from now on what is printed into a pipe that is full, even if a write waits for it. For
    a signal handler: it touches descriptors alone.
    """
    for number in (_OUTPUT, _ERRORS):
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        if not poll.poll(0):
            _drop(number)


def cannot_be_written() -> bool:
    """Return whether standard output does not accept the output."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    except (AttributeError, ValueError):  # It is none of ours, or closed.
        return False
    return False


def unwritten() -> OSError | None:
    """Return the error of the disk behind standard output; None also for a pipe without a reader.

    What could not be written is dropped. Else the interpreter tries once more after all exit
    handlers, and ends with 120 and words of its own.
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

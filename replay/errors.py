"""Errors of a replay, each explained in one paragraph that an operator can act on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from raftlog.cli.exits import Exit
from raftlog.cli.exits import exit_code as of_any_command
from raftlog.errors import RaftlogError, StorageError, WrongDataError
from raftlog.segments.errors import (
    CorruptExportError,
    ExportDiskError,
    ExportGapError,
    ExportMismatchError,
)
from raftlog.segments.manifest import Segment

EXIT_INPUT = 2
"""Exit code: the job cannot run as requested; nothing was examined."""
EXIT_FINDINGS = 3
"""Exit code: the audit has findings, or files are damaged."""


class ReplayError(RaftlogError):
    """The job cannot run as requested. The message is for the operator."""


class DamageError(ReplayError, WrongDataError):
    """Spark read a file that is damaged, missing, or from another log."""


class DiskError(ReplayError, StorageError):
    """A disk failed or is full."""


_WRONG = {one.__name__ for one in (CorruptExportError, ExportGapError, ExportMismatchError)}


def exit_code(error: RaftlogError) -> int:
    """Return the exit code for an error, as for any command, except that a refused job counts as
    one that cannot run as requested.
    """
    code = of_any_command(error)
    return EXIT_INPUT if code is Exit.REFUSED else int(code)


# Python errors reach the driver inside a JVM stack trace: "raftlog.metadata.image.FoldError: what
# happened".
_PYTHON_ERROR = re.compile(r"^(?:raftlog|replay)[\w.]*\.(\w*Error): (.+)$", re.MULTILINE)
_PARQUET_FILE = re.compile(r"(\d{20}-\d{20}\.parquet)")
_PLAIN_LINE = re.compile(r"^(?!\s|at |Traceback|Driver stacktrace)(.+)$", re.MULTILINE)


_NO_MEMORY = re.compile(r"OutOfMemoryError|Java heap space|GC overhead limit")
_MISSING = re.compile(r"FileNotFoundException|PATH_NOT_FOUND|does not exist|No such file")
_FAILED = re.compile(
    r"Input/output error|Remote I/O error|Stale file handle|No space left on device|File too large"
    r"|Disk quota exceeded|Read-only file system"
)
_DENIED = re.compile("Permission denied")
"""Like _MISSING and _FAILED, an operating system message that is not about a file's contents."""


def _of_file(text: str, segment: Segment) -> ReplayError:
    """Return the error for a file that could not be read: damage, or another cause."""
    where = segment.describe()
    if _MISSING.search(text):
        return DamageError(
            f"{where} is missing: it was deleted or merged into another file; run the job again"
        )
    if failed := _FAILED.search(text):
        return DiskError(f"{where} can't be read: {failed[0]}. Check the disk")
    if denied := _DENIED.search(text):
        return ReplayError(f"{where} can't be read: {denied[0]}. Check the file's permissions")
    why = (
        "the checksum of a page does not match"
        if "CRC" in text or "checksum" in text
        else "it does not parse"
    )
    return DamageError(f"{where} is corrupt: {why}")


def error_columns(error: RaftlogError) -> tuple[str, str, str]:
    """Return an error as the columns of a row: its type, its message, and its fields as JSON."""
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int)}
    return type(error).__name__, str(error), json.dumps(fields)


def error_from_columns(name: str, message: str, fields: str) -> RaftlogError:
    """Return the error that these columns describe, with its type and fields."""
    kind = next((each for each in _kinds(RaftlogError) if each.__name__ == name), None)
    if kind is None:
        return ReplayError(message)
    error = kind.__new__(kind, message)
    error.args = (message,)
    vars(error).update(json.loads(fields))
    return error


def _kinds(of: type[RaftlogError]) -> Iterator[type[RaftlogError]]:
    yield of
    for each in of.__subclasses__():
        yield from _kinds(each)


def our_error(name: str, message: str) -> ReplayError:
    """Return the error for one of raftlog's exceptions that was found in a Spark stack trace."""
    if name == ExportDiskError.__name__:
        return DiskError(message)
    return DamageError(message) if name in _WRONG else ReplayError(message)


def explain(text: str, segments: Iterable[Segment]) -> ReplayError:
    """Return an error with a Spark error's text in one paragraph: raftlog's own error if the text
    contains one, else an error about the file being read, else the first plain line.
    """
    ours = _PYTHON_ERROR.findall(text)
    if ours:
        name, message = ours[-1]
        return our_error(name, message)
    if _NO_MEMORY.search(text):
        return ReplayError(
            "Spark ran out of memory: allow it more, for example --conf spark.driver.memory=8g"
        )
    for name in _PARQUET_FILE.findall(text):
        for segment in segments:
            if PurePosixPath(segment.file).name == name:
                return _of_file(text, segment)
    if failed := _FAILED.search(text):
        return DiskError(f"Spark failed: {failed[0]}. Check the disk that it uses")
    head = _PLAIN_LINE.search(text)
    return ReplayError(f"Spark failed: {head[1] if head else text[:300]}")

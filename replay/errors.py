"""Errors of a replay, each explained in a paragraph that an operator can act on."""

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
"""Exit code: the job can't run as asked. Nothing was found out."""
EXIT_FINDINGS = 3
"""Exit code: something was found: by the audit, or that files are damaged."""


class ReplayError(RaftlogError):
    """The replay can't run as asked. The message is for the operator."""


class DamageError(ReplayError, WrongDataError):
    """Spark has met a damaged file, one of another log, or one that is missing."""


class DiskError(ReplayError, StorageError):
    """A disk failed, or is full."""


_WRONG = {one.__name__ for one in (CorruptExportError, ExportGapError, ExportMismatchError)}


def exit_code(error: RaftlogError) -> int:
    """Return the exit code of any command; a refused job is one that can't run as asked."""
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
"""Messages of the operating system: none of them is about a file's contents."""


def _of_file(text: str, segment: Segment) -> ReplayError:
    """Why a file could not be read: it may be damaged, and it may be something else."""
    where = segment.describe()
    if _MISSING.search(text):
        return DamageError(
            f"{where} is missing: it was removed, or merged into another; run the job again"
        )
    if failed := _FAILED.search(text):
        return DiskError(f"{where} can't be read: {failed[0]}. Look at the disk")
    if denied := _DENIED.search(text):
        return ReplayError(f"{where} can't be read: {denied[0]}. Look at who may read it")
    why = (
        "the checksum of a page does not match"
        if "CRC" in text or "checksum" in text
        else "it does not parse"
    )
    return DamageError(f"{where} is corrupt: Spark can't read it, {why}")


def told(error: RaftlogError) -> tuple[str, str, str]:
    """Return an error as columns of a row: its type, its message, and its fields as JSON."""
    fields = {name: value for name, value in vars(error).items() if isinstance(value, str | int)}
    return type(error).__name__, str(error), json.dumps(fields)


def retold(name: str, said: str, fields: str) -> RaftlogError:
    """Return the error of a row: of the same type, with the same fields."""
    kind = next((each for each in _kinds(RaftlogError) if each.__name__ == name), None)
    if kind is None:
        return ReplayError(said)
    error = kind.__new__(kind, said)
    error.args = (said,)
    vars(error).update(json.loads(fields))
    return error


def _kinds(of: type[RaftlogError]) -> Iterator[type[RaftlogError]]:
    yield of
    for each in of.__subclasses__():
        yield from _kinds(each)


def as_error(name: str, said: str) -> ReplayError:
    """Return an error of ours that Spark tells in a stack trace."""
    if name == ExportDiskError.__name__:
        return DiskError(said)
    return DamageError(said) if name in _WRONG else ReplayError(said)


def explain(text: str, segments: Iterable[Segment]) -> ReplayError:
    """Return one paragraph from the text of a Spark error: our own error if there is one, else the
    file it was reading, else its head.
    """
    ours = _PYTHON_ERROR.findall(text)
    if ours:
        name, said = ours[-1]
        return as_error(name, said)
    if _NO_MEMORY.search(text):
        return ReplayError(
            "Spark has run out of memory: give it more, for example --conf spark.driver.memory=8g"
        )
    for name in _PARQUET_FILE.findall(text):
        for segment in segments:
            if PurePosixPath(segment.file).name == name:
                return _of_file(text, segment)
    if failed := _FAILED.search(text):
        return DiskError(f"Spark failed: {failed[0]}. Look at the disk that it works on")
    head = _PLAIN_LINE.search(text)
    return ReplayError(f"Spark failed: {head[1] if head else text[:300]}")

"""The small files of a data directory: checksummed, replaced atomically, closed to other users.

One line of canonical JSON: ``{"content":{...},"crc32c":N,"kind":"..."}``. A reader compares the
whole file with what a writer would have written, so that *any* changed byte is found. A replacement
is written under a temporary name, synced, renamed over the old file, and the directory is synced:
after a crash the file is the old one or the new one. The vote is overwritten: see ``VoteFile``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import google_crc32c
import msgspec

from raftlog.endpoint import Voter
from raftlog.errors import CorruptLogError, StorageError
from raftlog.files import fsync_directory
from raftlog.logger import get_logger
from raftlog.node.storage.api import VoteState

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = get_logger(__name__)

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
UMASK = 0o077
_OTHERS = 0o077


def close_to_others(directory: Path) -> None:
    """Revoke the access of group and others to a data directory. Raises StorageError."""
    try:
        mode = stat.S_IMODE(directory.stat().st_mode)
    except OSError as error:
        raise StorageError(f"can't look at {directory}: {error}") from error
    if not mode & _OTHERS:
        return
    try:
        directory.chmod(mode & ~_OTHERS)
    except PermissionError as error:
        log.warning(
            "others can read the data directory",
            directory=str(directory),
            mode=oct(mode),
            error=str(error),
        )
    except OSError as error:
        raise StorageError(f"can't change the mode of {directory}: {error}") from error
    else:
        log.warning(
            "the data directory was open to others, and is its owner's alone now",
            directory=str(directory),
            mode=oct(mode),
        )


@contextmanager
def private_files() -> Iterator[None]:
    """Create all files of this process for its user alone while inside: RocksDB has no option for a
    mode.
    """
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


def private_opener(path: str, flags: int) -> int:
    """Open a file for ``open``; a new one is for its owner alone."""
    return os.open(path, flags, FILE_MODE)


TEMPORARY_SUFFIX = ".tmp"

T = TypeVar("T", bound="DataclassInstance")


def write_checked(path: Path, kind: str, content: DataclassInstance) -> None:
    """Replace ``path`` by the dataclass ``content``, durably when this returns.

    Raises StorageError.
    """
    replace_file(path, encode_checked(kind, asdict(content)))


def replace_file(path: Path, data: bytes) -> None:
    """Replace ``path`` by a file of these bytes, durably when this returns. Raises StorageError."""
    temporary = _stage(path, data)
    try:
        temporary.replace(path)
        fsync_directory(path.parent)
    except OSError as error:
        raise StorageError(f"can't replace {path}: {error}") from error


def stage_checked(path: Path, kind: str, content: DataclassInstance) -> Path:
    """Write and sync the temporary file of ``path`` without renaming it; return its name.

    Raises StorageError.
    """
    return _stage(path, encode_checked(kind, asdict(content)))


def _stage(path: Path, data: bytes) -> Path:
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    try:
        with open(temporary, "wb", opener=private_opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"can't write {temporary}: {error}") from error
    return temporary


def read_content(path: Path, kind: str) -> dict[str, Any]:
    """Return the checked content of ``path``.

    Raises FileNotFoundError, StorageError, or CorruptLogError if any byte differs.
    """
    content = decode_checked(read_raw(path), kind)
    if content is None:
        raise not_intact(path)
    return content


def read_raw(path: Path) -> bytes:
    """Return the bytes of ``path``. Raises FileNotFoundError, StorageError, CorruptLogError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise CorruptLogError(f"{path} is corrupt: it is a directory") from None
    except OSError as error:
        raise StorageError(f"can't read {path}: {error}") from error


def not_intact(path: Path) -> CorruptLogError:
    """Return the error for a file that differs from what a writer wrote."""
    return CorruptLogError(f"{path} is corrupt: its content does not match its checksum")


def decode_checked(raw: bytes, kind: str) -> dict[str, Any] | None:
    """Return the content of exactly these bytes; None if no writer wrote them."""
    try:
        content: dict[str, Any] = msgspec.json.decode(raw)["content"]
        intact = isinstance(content, dict) and raw == encode_checked(kind, content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        intact = False
    return content if intact else None


def read_checked(path: Path, kind: str, type_: type[T]) -> T:
    """Return ``read_content`` as the dataclass ``type_``; a wrong shape is CorruptLogError too."""
    return convert(path, read_content(path, kind), type_)


def convert(path: Path, content: dict[str, Any], type_: type[T]) -> T:
    """Return ``content`` of ``path`` as the dataclass ``type_``, every field present and no other.

    Raises CorruptLogError.
    """
    try:
        value = msgspec.convert(content, type_)
    except msgspec.ValidationError as error:
        raise CorruptLogError(f"{path} is corrupt: {error}") from error
    if content.keys() != {field.name for field in fields(type_)}:
        raise CorruptLogError(f"{path} is corrupt: it has the fields {', '.join(sorted(content))}")
    return value


def remove_leftovers(directory: Path) -> None:
    """Delete the temporary files of a crash. Raises StorageError."""
    try:
        for path in sorted(directory.glob(f"*.json{TEMPORARY_SUFFIX}")):
            path.unlink()
    except OSError as error:
        raise StorageError(f"can't clean {directory}: {error}") from error


def encode_checked(kind: str, content: dict[str, Any]) -> bytes:
    """Return the line with ``content``."""
    checked = {"content": content, "kind": kind}
    crc = google_crc32c.value(msgspec.json.encode(checked, order="deterministic"))
    return msgspec.json.encode({**checked, "crc32c": crc}, order="deterministic") + b"\n"


BOOTSTRAP_FILE = "bootstrap.json"
_BOOTSTRAP_KIND = "bootstrap"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The beginning of a quorum as formatting decided it; read at every start, never changed.

    ``voters``: the set to begin with, directory ids included; empty: this node joins; None: the
    configured set. ``metadata_version``: the level of a new cluster; 0: the latest known one.
    ``super_users``: principals that may do everything, by access control entries that the new
    cluster begins with.
    """

    voters: tuple[Voter, ...] | None = None
    metadata_version: int = 0
    super_users: tuple[str, ...] = ()


NO_BOOTSTRAP = Bootstrap()
"""The beginning that a plain format decides."""


def write_bootstrap(directory: Path, bootstrap: Bootstrap) -> None:
    """Write the file, durably when this returns. Raises StorageError."""
    write_checked(directory / BOOTSTRAP_FILE, _BOOTSTRAP_KIND, bootstrap)


def read_bootstrap(directory: Path) -> Bootstrap:
    """Return how the directory was formatted; the default for an older program's.

    Raises CorruptLogError, StorageError.
    """
    try:
        return read_checked(directory / BOOTSTRAP_FILE, _BOOTSTRAP_KIND, Bootstrap)
    except FileNotFoundError:
        return Bootstrap()


VOTE_FILE = "quorum-state.json"
COPY_BYTES = 4096
"""Block size of the file system in bytes, and at least a sector: a torn copy leaves the other
intact.
"""
_VOTE_KIND = "vote"


@dataclass(frozen=True, slots=True)
class _Copy(VoteState):
    sequence: int = 0
    """Number of the write; the copy with the higher one is newer."""

    @property
    def vote(self) -> VoteState:
        return VoteState(self.epoch, self.voted_id, self.voted_directory_id, self.leader_id)


def write_vote_file(directory: Path, vote: VoteState) -> None:
    """Replace the file, durably when this returns. Raises StorageError."""
    replace_file(directory / VOTE_FILE, _two_copies(vote, 0))


def read_vote_file(directory: Path) -> VoteState:
    """Return the vote of a formatted directory.

    Raises CorruptLogError if it is missing or corrupt: this node might vote twice; StorageError.
    """
    path = directory / VOTE_FILE
    return _newest(path, _read_copies(path)).vote


def damaged_copies(directory: Path) -> tuple[str, ...]:
    """Return the faults of a vote file that is still valid, for people.

    Raises CorruptLogError, StorageError.
    """
    path = directory / VOTE_FILE
    if None not in _read_copies(path):
        return ()
    return (f"{path}: one of the two copies of the vote is not whole, the other counts",)


def _newest(path: Path, found: list[_Copy | None]) -> _Copy:
    whole = [copy for copy in found if copy is not None]
    if not whole:
        raise not_intact(path)
    if len(whole) < len(found):
        log.warning(
            "one of the two copies of the vote is not whole, the other counts",
            file=str(path),
            whole=found.index(whole[0]),
        )
    return max(whole, key=lambda copy: copy.sequence)


def _read_copies(path: Path) -> list[_Copy | None]:
    try:
        raw = read_raw(path)
    except FileNotFoundError:
        raise CorruptLogError(
            f"{path} is missing: without its vote this node might vote twice in one epoch"
        ) from None
    return [_copy_in(path, raw[:COPY_BYTES]), _copy_in(path, raw[COPY_BYTES:])]


def _copy_in(path: Path, block: bytes) -> _Copy | None:
    line, end, _ = block.partition(b"\n")
    content = decode_checked(line + end, _VOTE_KIND)
    return None if content is None else convert(path, content, _Copy)


class VoteFile:
    """The vote of an open store. Writes run in one thread and end before ``close``.

    The file has two copies, each a checked line in a block of its own, with unused spaces after
    it. A write overwrites both and syncs the file once. A vote counts as written when both copies
    are durable. So after any damage to *one* copy, such as a write cut short by power loss, the
    other is at least as new as the last vote that was reported.

    Why: docs/decisions/006-vote-outside-the-log.md
    """

    def __init__(self, directory: Path) -> None:
        """Read the vote, and replace the file by two copies of it, durably.

        A process that was killed may have left a vote that is readable and not durable yet.

        Raises CorruptLogError, StorageError.
        """
        self._path = directory / VOTE_FILE
        newest = _newest(self._path, _read_copies(self._path))
        self.vote, self._sequence = newest.vote, newest.sequence
        """Last written vote, and the number of its write."""
        replace_file(self._path, _two_copies(self.vote, self._sequence))
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"can't open {self._path}: {error}") from error

    def write(self, vote: VoteState) -> None:
        """Overwrite the vote, durably when this returns. Raises StorageError."""
        self._sequence += 1
        self._overwrite(_two_copies(vote, self._sequence))
        self.vote = vote

    def _overwrite(self, copies: bytes) -> None:
        try:
            written = os.pwrite(self._fd, copies, 0)
            os.fdatasync(self._fd)
        except OSError as error:
            raise StorageError(f"can't write {self._path}: {error}") from error
        if written < len(copies):
            raise StorageError(f"can't write {self._path}: {written} of {len(copies)} bytes fit")

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _two_copies(vote: VoteState, sequence: int) -> bytes:
    line = encode_checked(_VOTE_KIND, asdict(_Copy(**asdict(vote), sequence=sequence)))
    if len(line) > COPY_BYTES:
        raise StorageError(f"the vote takes {len(line)} bytes, {COPY_BYTES} is the most")
    return 2 * line.ljust(COPY_BYTES)

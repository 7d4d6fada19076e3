"""The small files of a data directory: checksummed, replaced atomically, inaccessible to other
users.

A file is one line of canonical JSON: ``{"content":{...},"crc32c":N,"kind":"..."}``. A reader
compares the whole file with what a writer would have written, so *any* changed byte is detected. A
replacement is written under a temporary name, synced and renamed over the old file, and the
directory is synced: after a crash the file is the old one or the new one. The vote is overwritten
in place; see ``VoteFile``.
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
        raise StorageError(f"cannot read the mode of {directory}: {error}") from error
    if not mode & _OTHERS:
        return
    try:
        directory.chmod(mode & ~_OTHERS)
    except PermissionError as error:
        log.warning(
            "other users can access the data directory",
            directory=str(directory),
            mode=oct(mode),
            error=str(error),
        )
    except OSError as error:
        raise StorageError(f"cannot change the mode of {directory}: {error}") from error
    else:
        log.warning(
            "revoked other users' access to the data directory",
            directory=str(directory),
            mode=oct(mode),
        )


@contextmanager
def private_files() -> Iterator[None]:
    """Within the context, create all files of this process for its user only, as RocksDB has no
    option for the mode.
    """
    before = os.umask(UMASK)
    try:
        yield
    finally:
        os.umask(before)


def private_opener(path: str, flags: int) -> int:
    """Open a file, as the ``opener`` of ``open``; only its owner can access a new file."""
    return os.open(path, flags, FILE_MODE)


TEMPORARY_SUFFIX = ".tmp"

T = TypeVar("T", bound="DataclassInstance")


def write_checked(path: Path, kind: str, content: DataclassInstance) -> None:
    """Durably replace the file with the dataclass ``content``. Raises StorageError."""
    replace_file(path, encode_checked(kind, asdict(content)))


def replace_file(path: Path, data: bytes) -> None:
    """Durably replace the file with these bytes. Raises StorageError."""
    temporary = _stage(path, data)
    try:
        temporary.replace(path)
        fsync_directory(path.parent)
    except OSError as error:
        raise StorageError(f"cannot replace {path}: {error}") from error


def stage_checked(path: Path, kind: str, content: DataclassInstance) -> Path:
    """Write and sync the temporary file for ``path``, and return its path.

    The caller must rename it. Raises StorageError.
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
        raise StorageError(f"cannot write {temporary}: {error}") from error
    return temporary


def read_content(path: Path, kind: str) -> dict[str, Any]:
    """Return the checked content of a file.

    Raises FileNotFoundError, StorageError, or CorruptLogError if any byte differs.
    """
    content = decode_checked(read_raw(path), kind)
    if content is None:
        raise not_intact(path)
    return content


def read_raw(path: Path) -> bytes:
    """Return the bytes of a file. Raises FileNotFoundError, StorageError, CorruptLogError."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise CorruptLogError(f"{path} is corrupt: it is a directory") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error


def not_intact(path: Path) -> CorruptLogError:
    """Return the error for a file that differs from what a writer wrote."""
    return CorruptLogError(f"{path} is corrupt: its content does not match its checksum")


def decode_checked(raw: bytes, kind: str) -> dict[str, Any] | None:
    """Return the content of a file with exactly these bytes, or None if no writer wrote them."""
    try:
        content: dict[str, Any] = msgspec.json.decode(raw)["content"]
        intact = isinstance(content, dict) and raw == encode_checked(kind, content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        intact = False
    return content if intact else None


def read_checked(path: Path, kind: str, type_: type[T]) -> T:
    """Return the checked content of a file as the dataclass ``type_``.

    Raises FileNotFoundError, StorageError, or CorruptLogError if any byte differs or the fields do.
    """
    return convert(path, read_content(path, kind), type_)


def convert(path: Path, content: dict[str, Any], type_: type[T]) -> T:
    """Return the content of the file ``path`` as the dataclass ``type_``, with exactly its fields.

    Raises CorruptLogError.
    """
    try:
        value = msgspec.convert(content, type_)
    except msgspec.ValidationError as error:
        raise CorruptLogError(f"{path} is corrupt: {error}") from error
    expected = {field.name for field in fields(type_)}
    if content.keys() != expected:
        raise CorruptLogError(
            f"{path} is corrupt: expected the fields {', '.join(sorted(expected))}, found"
            f" {', '.join(sorted(content))}"
        )
    return value


def remove_leftovers(directory: Path) -> None:
    """Delete the temporary files that a crash has left. Raises StorageError."""
    try:
        for path in sorted(directory.glob(f"*.json{TEMPORARY_SUFFIX}")):
            path.unlink()
    except OSError as error:
        raise StorageError(f"cannot delete the temporary files in {directory}: {error}") from error


def encode_checked(kind: str, content: dict[str, Any]) -> bytes:
    """Return ``content`` as a line with its checksum."""
    checked = {"content": content, "kind": kind}
    crc = google_crc32c.value(msgspec.json.encode(checked, order="deterministic"))
    return msgspec.json.encode({**checked, "crc32c": crc}, order="deterministic") + b"\n"


BOOTSTRAP_FILE = "bootstrap.json"
_BOOTSTRAP_KIND = "bootstrap"


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The beginning of a quorum, as set at formatting; read at every start, never changed.

    * ``voters``: the initial voter set with directory ids; empty if this node joins later; None for
      the configured set.
    * ``metadata_version``: the level of a new cluster; 0 for the latest supported one.
    * ``super_users``: principals that may do everything, by access control entries with which the
      new cluster begins.
    """

    voters: tuple[Voter, ...] | None = None
    metadata_version: int = 0
    super_users: tuple[str, ...] = ()


NO_BOOTSTRAP = Bootstrap()
"""The beginning without options at formatting."""


def write_bootstrap(directory: Path, bootstrap: Bootstrap) -> None:
    """Durably write the file. Raises StorageError."""
    write_checked(directory / BOOTSTRAP_FILE, _BOOTSTRAP_KIND, bootstrap)


def read_bootstrap(directory: Path) -> Bootstrap:
    """Return how the quorum begins; the default if the file does not exist.

    Raises CorruptLogError, StorageError.
    """
    try:
        return read_checked(directory / BOOTSTRAP_FILE, _BOOTSTRAP_KIND, Bootstrap)
    except FileNotFoundError:
        return Bootstrap()


VOTE_FILE = "quorum-state.json"
COPY_BYTES = 4096
"""Block size of the file system in bytes, and at least a sector, so that a torn copy leaves the
other intact.
"""
_VOTE_KIND = "vote"


@dataclass(frozen=True, slots=True)
class _Copy(VoteState):
    sequence: int = 0
    """Number of the write; the copy with the higher number is newer."""

    @property
    def vote(self) -> VoteState:
        return VoteState(self.epoch, self.voted_id, self.voted_directory_id, self.leader_id)


def write_vote_file(directory: Path, vote: VoteState) -> None:
    """Durably replace the file. Raises StorageError."""
    replace_file(directory / VOTE_FILE, _two_copies(vote, 0))


def read_vote_file(directory: Path) -> VoteState:
    """Return the vote of a formatted directory.

    Raises StorageError, and CorruptLogError if the file is missing or corrupt, as the node might
    otherwise vote twice.
    """
    path = directory / VOTE_FILE
    return _newest(path, _read_copies(path)).vote


def damaged_copies(directory: Path) -> tuple[str, ...]:
    """Return descriptions of the damage in a vote file that is still valid.

    Raises CorruptLogError, StorageError.
    """
    path = directory / VOTE_FILE
    if None not in _read_copies(path):
        return ()
    return (f"{path}: one of the two copies of the vote is damaged; the other one is used",)


def _newest(path: Path, found: list[_Copy | None]) -> _Copy:
    whole = [copy for copy in found if copy is not None]
    if not whole:
        raise not_intact(path)
    if len(whole) < len(found):
        log.warning(
            "one of the two copies of the vote is damaged; the other one is used",
            file=str(path),
            intact_copy=found.index(whole[0]),
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
    """The vote of an open store. Writes run in one thread and finish before ``close``.

    The file has two copies, each a checked line in its own block, padded with spaces. A write
    overwrites both and syncs the file once; a vote counts as written when both copies are durable.
    So after damage to *one* copy, such as a write torn by power loss, the other is at least as new
    as the last reported vote.

    Why: docs/decisions/006-vote-outside-the-log.md
    """

    def __init__(self, directory: Path) -> None:
        """Read the vote, and durably replace the file with two copies of it.

        A process that was killed may have left a vote that is readable but not yet durable. Raises
        CorruptLogError, StorageError.
        """
        self._path = directory / VOTE_FILE
        newest = _newest(self._path, _read_copies(self._path))
        self.vote, self._sequence = newest.vote, newest.sequence
        """Last written vote."""
        replace_file(self._path, _two_copies(self.vote, self._sequence))
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"cannot open {self._path}: {error}") from error

    def write(self, vote: VoteState) -> None:
        """Durably overwrite the vote. Raises StorageError."""
        self._sequence += 1
        self._overwrite(_two_copies(vote, self._sequence))
        self.vote = vote

    def _overwrite(self, copies: bytes) -> None:
        try:
            written = os.pwrite(self._fd, copies, 0)
            os.fdatasync(self._fd)
        except OSError as error:
            raise StorageError(f"cannot write {self._path}: {error}") from error
        if written < len(copies):
            raise StorageError(
                f"cannot write {self._path}: only {written} of {len(copies)} bytes were written"
            )

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _two_copies(vote: VoteState, sequence: int) -> bytes:
    line = encode_checked(_VOTE_KIND, asdict(_Copy(**asdict(vote), sequence=sequence)))
    if len(line) > COPY_BYTES:
        raise StorageError(
            f"the encoded vote has {len(line)} bytes, and at most {COPY_BYTES} are allowed"
        )
    return 2 * line.ljust(COPY_BYTES)

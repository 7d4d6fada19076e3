"""The layout of a data directory, and the lock that reserves it for one process.

::

    meta.json identity of the node; present exactly if the directory is formatted quorum-state.json
    the vote: see files.py bootstrap.json the start of the quorum, if set at formatting
    log-state.json the state in which the log was left: see LogState starts.json how often the node
    was started on it: see DirectoryStarts snapshots/ see snapshot_files.py lock locked (flock) by
    the process that uses the directory; contains its pid log/ RocksDB damaged/ damaged data that
    was moved here, by time: see format_anew log.mended/ a whole log, while it replaces the damaged
    one partitions/ RocksDB of a broker's partition replicas partitions-state.json the state in
    which they were left: see PartitionsState

The last two are created when a broker first opens them, also in a directory that was formatted
before. The state file proves that the replicas have been created, so if RocksDB is missing they are
lost. They are then not created again: the broker would return with its old directory id but without
data, and a leader might regard it as the same member of the ISR.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from raftlog.errors import (
    ConfigError,
    CorruptLogError,
    DamagedIdentityError,
    DirectoryInUseError,
    StorageError,
)
from raftlog.files import fsync_directory, make_directories
from raftlog.node.storage.api import (
    FORMAT_VERSION,
    NO_NODE_ID,
    DirectoryStarts,
    NodeIdentity,
    VoteState,
)
from raftlog.node.storage.files import (
    BOOTSTRAP_FILE,
    DIRECTORY_MODE,
    FILE_MODE,
    NO_BOOTSTRAP,
    TEMPORARY_SUFFIX,
    VOTE_FILE,
    Bootstrap,
    close_to_others,
    convert,
    private_files,
    read_checked,
    read_content,
    stage_checked,
    write_bootstrap,
    write_checked,
    write_vote_file,
)
from raftlog.node.storage.snapshot_files import SNAPSHOT_DIRECTORY
from raftlog.text import named

LOG_DIRECTORY = "log"
MENDED_DIRECTORY = "log.mended"
"""A whole log that is about to replace the damaged one; see
:mod:`raftlog.node.recovery.salvage`.
"""
JOURNAL_DIRECTORY = "journal"
DAMAGED_DIRECTORY = "damaged"
META_FILE = "meta.json"
LOCK_FILE = "lock"
LOG_STATE_FILE = "log-state.json"
_LOG_STATE_KIND = "log-state"


@dataclass(frozen=True, slots=True)
class LogState:
    """The state in which the log was left.

    ``clean`` means that it was closed in order, so nothing on disk can be torn. The log was durable
    up to ``end_offset_at_least``, and was not truncated below that since. This reveals a missing
    tail, which no checksum in the log can.
    """

    clean: bool
    end_offset_at_least: int
    start_offset: int = 0
    """First offset of the log; a snapshot that ends here or later has the state before it."""
    start_epoch: int = 0
    """Epoch of the record before ``start_offset``."""
    end_epoch: int = -1
    """Epoch of the record before ``end_offset_at_least`` if the log was closed in order and ends
    there, or -1 if it may have been written to since.
    """


def write_log_state(directory: Path, state: LogState) -> None:
    """Durably replace the state. Raises StorageError."""
    write_checked(directory / LOG_STATE_FILE, _LOG_STATE_KIND, state)


def read_log_state(directory: Path) -> LogState:
    """Return the state in which the log was left. Raises CorruptLogError, StorageError."""
    path = directory / LOG_STATE_FILE
    try:
        return read_checked(path, _LOG_STATE_KIND, LogState)
    except FileNotFoundError:
        raise CorruptLogError(
            f"{directory / LOG_STATE_FILE} is missing from a formatted directory"
        ) from None


STARTS_FILE = "starts.json"
_STARTS_KIND = "starts"


def write_starts(directory: Path, starts: DirectoryStarts) -> None:
    """See ``LogStore.keep_starts``."""
    write_checked(directory / STARTS_FILE, _STARTS_KIND, starts)


def read_starts(directory: Path) -> DirectoryStarts:
    """Return the recorded starts; empty if the file does not exist, as before the first start.

    If a node has lost the file, the other voters refuse it, as they know starts that it does not.
    Raises CorruptLogError, StorageError.
    """
    try:
        return read_checked(directory / STARTS_FILE, _STARTS_KIND, DirectoryStarts)
    except FileNotFoundError:
        return DirectoryStarts()


class DirectoryLock:
    """A lock on a data directory: exclusive for a node, shared for readers of a stopped node.

    The kernel releases it when the process exits.
    """

    def __init__(self, fd: int, *, exclusive: bool) -> None:
        self._fd = fd
        self._exclusive = exclusive

    @classmethod
    def exclusive(cls, directory: Path) -> DirectoryLock:
        """Lock the directory for this process.

        Raises DirectoryInUseError with the pid of the process that holds the lock, and
        StorageError.
        """
        try:
            fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as error:
            raise StorageError(f"cannot open {directory / LOCK_FILE}: {error}") from error
        _flock(fd, fcntl.LOCK_EX, directory)
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(fd)
            raise StorageError(f"cannot write {directory / LOCK_FILE}: {error}") from error
        return cls(fd, exclusive=True)

    @classmethod
    def shared(cls, directory: Path) -> DirectoryLock | None:
        """Lock the directory against nodes for reading, without changing anything.

        Returns None if there is no lock file, as in a copy. Raises DirectoryInUseError,
        StorageError.
        """
        try:
            fd = os.open(directory / LOCK_FILE, os.O_RDONLY)
        except OSError:
            return None
        _flock(fd, fcntl.LOCK_SH, directory)
        return cls(fd, exclusive=False)

    def release(self) -> None:
        """Release the directory. Idempotent; never raises, as closing the descriptor releases the
        lock.
        """
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        with contextlib.suppress(OSError):
            if self._exclusive:
                os.ftruncate(fd, 0)
        with contextlib.suppress(OSError):
            os.close(fd)


def _flock(fd: int, how: int, directory: Path) -> None:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(fd, 32, 0).decode(errors="replace").strip()
        os.close(fd)
        who = f"pid {pid}" if pid else "a process that reads it"
        raise DirectoryInUseError(f"data directory {directory} is in use by {who}") from None
    except OSError as error:
        os.close(fd)
        raise StorageError(f"cannot lock {directory}: {error}") from error


def disk_bytes(directory: Path) -> int:
    """Return the size of a data directory's file system, in bytes. Raises StorageError."""
    try:
        return shutil.disk_usage(directory).total
    except OSError as error:
        raise StorageError(
            f"cannot read the size of the file system of {directory}: {error}"
        ) from error


PARTITIONS_DIRECTORY = "partitions"
PARTITIONS_STATE_FILE = "partitions-state.json"
_PARTITIONS_STATE_KIND = "partitions-state"


@dataclass(frozen=True, slots=True)
class PartitionsState:
    """The state in which the partition replicas were left.

    ``clean`` means that they were closed in order, so nothing on disk can be torn and the totals
    are exact.
    """

    clean: bool
    partitions: int
    """Number of replicas with records."""
    records: int
    """Number of records in all replicas."""

    def require(self, directory: Path, partitions: int, records: int) -> None:
        """Raise CorruptLogError if the store was closed in order with other totals.

        No checksum reveals that a whole replica is missing.
        """
        if self.clean and (partitions, records) != (self.partitions, self.records):
            raise CorruptLogError(
                f"the store in {directory / PARTITIONS_DIRECTORY} has {partitions} partition"
                f" replicas with {records} records, but was closed with {self.partitions} replicas"
                f" and {self.records} records"
            )


def write_partitions_state(directory: Path, state: PartitionsState) -> None:
    """Durably replace the state. Raises StorageError."""
    write_checked(directory / PARTITIONS_STATE_FILE, _PARTITIONS_STATE_KIND, state)


def read_partitions_state(directory: Path) -> PartitionsState:
    """Return the state in which the replicas were left.

    Raises FileNotFoundError, CorruptLogError, StorageError.
    """
    return read_checked(directory / PARTITIONS_STATE_FILE, _PARTITIONS_STATE_KIND, PartitionsState)


_IDENTITY_KIND = "meta"
_STAGED = META_FILE + TEMPORARY_SUFFIX
_DIRECTORIES = (LOG_DIRECTORY, SNAPSHOT_DIRECTORY)
_FORMATTED = (*_DIRECTORIES, VOTE_FILE, LOG_STATE_FILE, BOOTSTRAP_FILE, STARTS_FILE)
_OURS = (_STAGED, LOCK_FILE, JOURNAL_DIRECTORY, DAMAGED_DIRECTORY, "lost+found")
"""Other names that are permitted in a directory to be formatted. The last one occurs in the root of
a file system.
"""
Fill = Callable[[Path], tuple[VoteState, LogState]]
"""Function that fills a directory that is being formatted, and returns the vote and log state."""


def _leave_empty(_: Path) -> tuple[VoteState, LogState]:
    return VoteState(), LogState(clean=True, end_offset_at_least=0)


def read_identity(directory: Path) -> NodeIdentity:
    """Return the identity of a data directory.

    Raises ConfigError if it is not formatted or has a newer format, DamagedIdentityError,
    StorageError.
    """
    path = directory / META_FILE
    try:
        content = read_content(path, _IDENTITY_KIND)
        version = content.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise ConfigError(
                f"{path} has format_version {version}, but this program supports at most"
                f" {FORMAT_VERSION}: use a newer raftlog"
            )
        return convert(path, content, NodeIdentity)
    except FileNotFoundError:
        if _has_lost_identity(directory):
            raise DamagedIdentityError(
                f"the identity of this node cannot be read: {path} is missing, but its data exists"
            ) from None
        raise ConfigError(
            f"data directory {directory} is not formatted. If the node has run before, do not"
            ' format it: mount its disk, or replace it (see "A node refuses to start" in'
            " docs/operations.md). If the node is new, run raftlog storage format"
        ) from None
    except CorruptLogError as error:
        raise DamagedIdentityError(f"the identity of this node cannot be read: {error}") from error
    except StorageError as error:
        if isinstance(error.__cause__, NotADirectoryError):
            raise ConfigError(f"data directory {directory} is a file, not a directory") from error
        raise


def _has_lost_identity(directory: Path) -> bool:
    """Return whether a directory without an identity contains data, other than that of an
    interrupted formatting.
    """
    data = (VOTE_FILE, LOG_STATE_FILE, STARTS_FILE, LOG_DIRECTORY, DAMAGED_DIRECTORY)
    return not (directory / _STAGED).exists() and any((directory / one).exists() for one in data)


def write_identity(directory: Path, identity: NodeIdentity) -> None:
    """Durably replace the identity. Raises StorageError."""
    write_checked(directory / META_FILE, _IDENTITY_KIND, identity)


def format_storage(
    directory: Path,
    identity: NodeIdentity,
    *,
    ignore_formatted: bool = False,
    bootstrap: Bootstrap = NO_BOOTSTRAP,
    fill: Fill = _leave_empty,
) -> NodeIdentity:
    """Create an empty data directory for a node, and return its identity.

    A formatted directory is refused with ConfigError. With ``ignore_formatted`` it is left
    unchanged, and its identity returned, if it belongs to the same cluster and node, or if one of
    the two identities has no node id. The identity is renamed into place last, so an interrupted
    formatting can be repeated. ``bootstrap``: how the quorum begins. ``fill`` is called with the
    empty, closed log in place; its writes must be durable when it returns. Raises StorageError.
    """
    if (directory / META_FILE).exists():
        return _already_formatted(directory, identity, ignore_formatted=ignore_formatted)
    _require_empty(directory)
    try:
        make_directories(directory, DIRECTORY_MODE)
    except OSError as error:
        raise ConfigError(f"cannot create the data directory {directory}: {error}") from error
    close_to_others(directory)
    with private_files():
        _format(directory, identity, bootstrap, fill)
    return identity


def _format(directory: Path, identity: NodeIdentity, bootstrap: Bootstrap, fill: Fill) -> None:
    lock = DirectoryLock.exclusive(directory)
    try:
        _require_empty(directory)
        _fill(directory, identity, bootstrap, fill)
    finally:
        lock.release()


def _fill(directory: Path, identity: NodeIdentity, bootstrap: Bootstrap, fill: Fill) -> None:
    # Clients import names of this module without RocksDB.
    from raftlog.node.storage.rocks_adapter import RocksLog

    try:
        _clear_interrupted(directory)
        staged = stage_checked(directory / META_FILE, _IDENTITY_KIND, identity)
        fsync_directory(directory)
        RocksLog(directory / LOG_DIRECTORY, create=True).close()
        vote, state = fill(directory)
        write_vote_file(directory, vote)
        if bootstrap != NO_BOOTSTRAP:
            write_bootstrap(directory, bootstrap)
        write_log_state(directory, state)
        staged.replace(directory / META_FILE)
        fsync_directory(directory)
    except OSError as error:
        raise StorageError(f"cannot format {directory}: {error}") from error


def set_aside_before(directory: Path) -> int:
    """Return how many damaged states the directory keeps. Raises StorageError."""
    try:
        return sum(1 for _ in (directory / DAMAGED_DIRECTORY).iterdir())
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"cannot list {directory / DAMAGED_DIRECTORY}: {error}") from error


def format_anew(directory: Path, identity: NodeIdentity, name: str) -> Path:
    """Move the data of a formatted directory to its subdirectory ``damaged/NAME``, and format it
    empty for ``identity``.

    Returns the path of the moved data. ``identity`` must have a new directory id, and the caller
    must hold the lock. The vote is moved first, and the new identity is in place before a new vote,
    so no program starts from an intermediate state after a crash, and the call can be repeated.
    Raises StorageError.
    """
    kept = directory / DAMAGED_DIRECTORY / name
    try:
        with private_files():
            make_directories(kept, DIRECTORY_MODE)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(directory / META_FILE, kept / META_FILE)
            for part in (VOTE_FILE, LOG_STATE_FILE, BOOTSTRAP_FILE, STARTS_FILE, *_DIRECTORIES):
                with contextlib.suppress(FileNotFoundError):
                    (directory / part).rename(kept / part)
                fsync_directory(directory)
            fsync_directory(kept)
    except OSError as error:
        raise StorageError(f"cannot move the data of {directory} to {kept}: {error}") from error
    with private_files():
        write_identity(directory, identity)
        _fill(directory, identity, NO_BOOTSTRAP, _leave_empty)
    return kept


def _already_formatted(
    directory: Path, identity: NodeIdentity, *, ignore_formatted: bool
) -> NodeIdentity:
    present = read_identity(directory)
    same_id = present.node_id == identity.node_id or NO_NODE_ID in (
        present.node_id,
        identity.node_id,
    )
    same = present.cluster_id == identity.cluster_id and same_id
    if ignore_formatted and same:
        return present
    raise ConfigError(
        f"data directory {directory} is already formatted for {_whose(present)}"
        + ("" if same else f"; requested: {_whose(identity)}")
    )


def _whose(identity: NodeIdentity) -> str:
    node = (
        "a broker without an id" if identity.node_id == NO_NODE_ID else f"node {identity.node_id}"
    )
    return f"cluster {identity.cluster_id!r}, {node}"


def _require_empty(directory: Path) -> None:
    """Raise ConfigError if the directory has foreign files, or data without an identity.

    The files of an interrupted formatting, recognized by its staged identity, may be replaced.
    Nothing is changed, not even the mode of a directory such as /var.
    """
    try:
        found = {path.name for path in directory.iterdir()}
    except OSError:
        return  # The directory will be created; if that fails, the error says why.
    # A running broker creates these, never formatting: a node has used the directory.
    replicas = (PARTITIONS_DIRECTORY, PARTITIONS_STATE_FILE)
    left = [name for name in (*_FORMATTED, *replicas) if name in found]
    if left and (_STAGED not in found or not found.isdisjoint(replicas)):
        raise ConfigError(
            f"data directory {directory} has {', '.join(left)} but no {META_FILE}: it was left"
            " unchanged"
        )
    staged = (name + TEMPORARY_SUFFIX for name in _FORMATTED)
    foreign = found - {*_FORMATTED, *staged, *_OURS, *replicas}
    if shown := sorted(name for name in foreign if not name.startswith(".")):
        raise ConfigError(
            f"data directory {directory} contains {named(shown)}: a node needs an empty directory"
        )


def _clear_interrupted(directory: Path) -> None:
    for name in _DIRECTORIES:
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in (VOTE_FILE, LOG_STATE_FILE, BOOTSTRAP_FILE, STARTS_FILE):
        (directory / name).unlink(missing_ok=True)


PROBES = 20
PROBE_BYTES = 4_096
PROBE_MAX_S = 2.0
FILE = "sync-probe.tmp"


def probe_sync_us(directory: Path) -> tuple[list[int], str]:
    """Return the durations of PROBES writes with sync in microseconds, ascending, and the reason if
    there are fewer, or "".

    Blocks for up to about PROBE_MAX_S seconds, and leaves no file.
    """
    path = directory / FILE
    took: list[int] = []
    begun = time.perf_counter()
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for number in range(PROBES):
                at = time.perf_counter()
                os.pwrite(fd, bytes(PROBE_BYTES), number * PROBE_BYTES)
                os.fdatasync(fd)
                now = time.perf_counter()
                took.append(round((now - at) * 1e6))
                if now - begun > PROBE_MAX_S:
                    return sorted(took), f"stopped after {PROBE_MAX_S:g} s"
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
    except OSError as error:
        return sorted(took), error.strerror or str(error)
    return sorted(took), ""

"""What lies where in a data directory, and the lock that gives it to one process.

::

    meta.json           who the directory belongs to; if it is there, the directory is formatted
    quorum-state.json   the vote: see files.py
    bootstrap.json      how the quorum begins, if formatting said so
    log-state.json      how the log was left: see LogState
    starts.json         how often the node was started on it: see DirectoryStarts
    snapshots/          see snapshot_files.py
    lock                flock'ed by the process that uses the directory, and holding its pid
    log/                RocksDB
    damaged/            what was set aside here, by time: see format_anew
    log.mended/         a whole log, while it replaces the damaged one
    partitions/               RocksDB of a broker's partition replicas
    partitions-state.json     how they were left: see PartitionsState

The last two are made when a broker first opens them: a directory that was formatted before is used
as it is. The state says that the replicas have been made: without RocksDB beside it they are lost.
They are not made anew then: the broker would come back with its old directory id and nothing behind
it, and its leader might take it for the member of the ISR that it was.
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
"""A whole log that is about to replace the damaged one: :mod:`raftlog.node.recovery.salvage`."""
JOURNAL_DIRECTORY = "journal"
DAMAGED_DIRECTORY = "damaged"
META_FILE = "meta.json"
LOCK_FILE = "lock"
LOG_STATE_FILE = "log-state.json"
_LOG_STATE_KIND = "log-state"


@dataclass(frozen=True, slots=True)
class LogState:
    """The state in which the log was left. ``clean``: closed in order, so nothing on disk can be
    torn.

    ``end_offset_at_least``: the log was durable up to here, and was not truncated below since. It
    reveals a missing tail, which no checksum inside the log can.
    """

    clean: bool
    end_offset_at_least: int
    start_offset: int = 0
    """First offset of the log: earlier records are in a snapshot that ends here or later."""
    start_epoch: int = 0
    """Epoch of the record before the start."""
    end_epoch: int = -1
    """Epoch of the record before ``end_offset_at_least`` if the log has ended right there since it
    was closed in order; -1 if it may have been written to.
    """


def write_log_state(directory: Path, state: LogState) -> None:
    """Replace the state, durably when this returns. Raises StorageError."""
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
    """Replace the starts, durably when this returns. Raises StorageError."""
    write_checked(directory / STARTS_FILE, _STARTS_KIND, starts)


def read_starts(directory: Path) -> DirectoryStarts:
    """Return the remembered starts; none if the file is missing, as before the first start.

    A node that has lost the file is refused by the others, which know more starts of it. Raises
    CorruptLogError, StorageError.
    """
    try:
        return read_checked(directory / STARTS_FILE, _STARTS_KIND, DirectoryStarts)
    except FileNotFoundError:
        return DirectoryStarts()


class DirectoryLock:
    """An exclusive (a node) or shared (readers of a stopped node) lock on a data directory; the
    kernel releases it with the process.
    """

    def __init__(self, fd: int, *, exclusive: bool) -> None:
        self._fd = fd
        self._exclusive = exclusive

    @classmethod
    def exclusive(cls, directory: Path) -> DirectoryLock:
        """Lock the directory for this process. Raises ConfigError naming the pid that holds the
        lock.
        """
        try:
            fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, FILE_MODE)
        except OSError as error:
            raise StorageError(f"can't open {directory / LOCK_FILE}: {error}") from error
        _flock(fd, fcntl.LOCK_EX, directory)
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(fd)
            raise StorageError(f"can't write {directory / LOCK_FILE}: {error}") from error
        return cls(fd, exclusive=True)

    @classmethod
    def shared(cls, directory: Path) -> DirectoryLock | None:
        """Keep nodes out while reading, changing nothing; None if there is no lock file (a copy).

        Raises ConfigError.
        """
        try:
            fd = os.open(directory / LOCK_FILE, os.O_RDONLY)
        except OSError:
            return None
        _flock(fd, fcntl.LOCK_SH, directory)
        return cls(fd, exclusive=False)

    def release(self) -> None:
        """Release the directory.

        Idempotent, and never an error: the lock goes with the descriptor, the pid in it is for
        people.
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
        raise StorageError(f"can't lock {directory}: {error}") from error


def disk_bytes(directory: Path) -> int:
    """Return the size of the file system of a data directory, in bytes. Raises StorageError."""
    try:
        return shutil.disk_usage(directory).total
    except OSError as error:
        raise StorageError(f"can't look at {directory}: {error}") from error


PARTITIONS_DIRECTORY = "partitions"
PARTITIONS_STATE_FILE = "partitions-state.json"
_PARTITIONS_STATE_KIND = "partitions-state"


@dataclass(frozen=True, slots=True)
class PartitionsState:
    """The state in which the partition replicas were left.

    ``clean``: closed in order, so nothing on disk can be torn, and these sums are exact.
    """

    clean: bool
    partitions: int
    """Number of replicas with records."""
    records: int
    """Number of records in all replicas."""

    def require(self, directory: Path, partitions: int, records: int) -> None:
        """Raise CorruptLogError if the store was closed in order with other totals: no checksum
        finds a missing whole.
        """
        if self.clean and (partitions, records) != (self.partitions, self.records):
            raise CorruptLogError(
                f"the store in {directory / PARTITIONS_DIRECTORY} holds {partitions} partition"
                f" replicas with {records} records, but was closed with {self.partitions} and"
                f" {self.records}"
            )


def write_partitions_state(directory: Path, state: PartitionsState) -> None:
    """Replace the state, durably when this returns. Raises StorageError."""
    write_checked(directory / PARTITIONS_STATE_FILE, _PARTITIONS_STATE_KIND, state)


def read_partitions_state(directory: Path) -> PartitionsState:
    """Return the state in which the replicas were left. Raises FileNotFoundError, CorruptLogError,
    StorageError.
    """
    return read_checked(directory / PARTITIONS_STATE_FILE, _PARTITIONS_STATE_KIND, PartitionsState)


_IDENTITY_KIND = "meta"
_STAGED = META_FILE + TEMPORARY_SUFFIX
_DIRECTORIES = (LOG_DIRECTORY, SNAPSHOT_DIRECTORY)
_FORMATTED = (*_DIRECTORIES, VOTE_FILE, LOG_STATE_FILE, BOOTSTRAP_FILE, STARTS_FILE)
_OURS = (_STAGED, LOCK_FILE, JOURNAL_DIRECTORY, DAMAGED_DIRECTORY, "lost+found")
"""Further names that may be in a directory that is formatted: the root of a file system has the
last.
"""
Fill = Callable[[Path], tuple[VoteState, LogState]]
"""Function that fills a directory that is being formatted; returns the vote and the state of its
log.
"""


def _leave_empty(_: Path) -> tuple[VoteState, LogState]:
    return VoteState(), LogState(clean=True, end_offset_at_least=0)


def read_identity(directory: Path) -> NodeIdentity:
    """Return the identity of ``directory``.

    Raises ConfigError: not formatted, or of a newer version; DamagedIdentityError; StorageError.
    """
    path = directory / META_FILE
    try:
        content = read_content(path, _IDENTITY_KIND)
        version = content.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise ConfigError(
                f"{path} has format_version {version}, this program knows up to {FORMAT_VERSION}:"
                " use a newer raftlog"
            )
        return convert(path, content, NodeIdentity)
    except FileNotFoundError:
        if _has_lost_identity(directory):
            raise DamagedIdentityError(
                f"the identity of this node cannot be read: {path} is missing beside its data"
            ) from None
        raise ConfigError(
            f"data directory {directory} is not formatted. If the node has run before, do not"
            " format it: mount its disk, or replace it (A node refuses to start in"
            " docs/operations.md). If it is new: raftlog storage format"
        ) from None
    except CorruptLogError as error:
        raise DamagedIdentityError(f"the identity of this node cannot be read: {error}") from error
    except StorageError as error:
        if isinstance(error.__cause__, NotADirectoryError):
            raise ConfigError(f"data directory {directory} is a file") from error
        raise


def _has_lost_identity(directory: Path) -> bool:
    """Return whether a directory without an identity has been formatted once: there is data, and
    not that of an interrupted formatting.
    """
    data = (VOTE_FILE, LOG_STATE_FILE, STARTS_FILE, LOG_DIRECTORY, DAMAGED_DIRECTORY)
    return not (directory / _STAGED).exists() and any((directory / one).exists() for one in data)


def write_identity(directory: Path, identity: NodeIdentity) -> None:
    """Replace the identity, durably when this returns. Raises StorageError."""
    write_checked(directory / META_FILE, _IDENTITY_KIND, identity)


def format_storage(
    directory: Path,
    identity: NodeIdentity,
    *,
    ignore_formatted: bool = False,
    bootstrap: Bootstrap = NO_BOOTSTRAP,
    fill: Fill = _leave_empty,
) -> NodeIdentity:
    """Make ``directory`` (created if need be) the empty data directory of a node; return the
    identity in force.

    A formatted directory is refused with ConfigError; with ``ignore_formatted`` it is left as it is
    if it belongs to the same cluster and node, or one of the two has no node id. The identity is
    renamed into place last: until then the directory is not formatted, and formatting can be run
    again. ``bootstrap``: how its quorum begins. ``fill`` is called while the log is there and
    empty, and closed: what it puts in must be durable when it returns. Raises StorageError.
    """
    if (directory / META_FILE).exists():
        return _already_formatted(directory, identity, ignore_formatted=ignore_formatted)
    _require_empty(directory)
    try:
        make_directories(directory, DIRECTORY_MODE)
    except OSError as error:
        raise ConfigError(f"can't make the data directory {directory}: {error}") from error
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
    # Clients import this module's names without RocksDB.
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
        raise StorageError(f"can't format {directory}: {error}") from error


def set_aside_before(directory: Path) -> int:
    """Return how many damaged states ``directory`` keeps. Raises StorageError."""
    try:
        return sum(1 for _ in (directory / DAMAGED_DIRECTORY).iterdir())
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(f"can't look at {directory / DAMAGED_DIRECTORY}: {error}") from error


def format_anew(directory: Path, identity: NodeIdentity, name: str) -> Path:
    """Move the data of a formatted directory to ``damaged/NAME`` in it, and format it empty for
    ``identity``, whose directory id is a new one; return where the data is.

    The caller holds its lock. The vote goes first, and the new identity is in place before there is
    another: no program starts from what a crash leaves behind, and this can be called again.

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
        raise StorageError(f"can't set aside what {directory} holds: {error}") from error
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
        + ("" if same else f"; asked for {_whose(identity)}")
    )


def _whose(identity: NodeIdentity) -> str:
    node = (
        "a broker without an id" if identity.node_id == NO_NODE_ID else f"node {identity.node_id}"
    )
    return f"cluster {identity.cluster_id!r}, {node}"


def _require_empty(directory: Path) -> None:
    """Refuse a directory with foreign files, or with data whose identity is lost.

    The files of an interrupted formatting, known by its staged identity, may be replaced. Nothing
    is changed: not the mode of a directory like /var, either.
    """
    try:
        found = {path.name for path in directory.iterdir()}
    except OSError:
        return  # It is to be made; if it cannot be, that says why.
    # Made by a running broker, never by formatting: they have an owner, whatever is beside them.
    replicas = (PARTITIONS_DIRECTORY, PARTITIONS_STATE_FILE)
    left = [name for name in (*_FORMATTED, *replicas) if name in found]
    if left and (_STAGED not in found or not found.isdisjoint(replicas)):
        raise ConfigError(
            f"data directory {directory} holds {', '.join(left)} but no {META_FILE}: not"
            " touching it"
        )
    staged = (name + TEMPORARY_SUFFIX for name in _FORMATTED)
    foreign = found - {*_FORMATTED, *staged, *_OURS, *replicas}
    if shown := sorted(name for name in foreign if not name.startswith(".")):
        raise ConfigError(
            f"data directory {directory} holds {named(shown)}: a node needs a directory of its"
            " own, and an empty one"
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
    """Return the microseconds of each write and sync, ascending, and why there are not more;
    blocks.

    Leaves no file behind.
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
                    return sorted(took), f"given up after {PROBE_MAX_S:g} s"
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
    except OSError as error:
        return sorted(took), error.strerror or str(error)
    return sorted(took), ""

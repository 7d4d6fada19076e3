"""The identity of a data directory, and the formatting that gives it one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from raftlog.durable import fsync_directory, make_directories
from raftlog.errors import ConfigError, CorruptLogError, StorageError
from raftlog.storage.api import FORMAT_VERSION, NO_NODE_ID, NodeIdentity, VoteState
from raftlog.storage.bootstrap_file import BOOTSTRAP_FILE, NO_BOOTSTRAP, Bootstrap, write_bootstrap
from raftlog.storage.checked_file import (
    TEMPORARY_SUFFIX,
    convert,
    read_content,
    stage_checked,
    write_checked,
)
from raftlog.storage.layout import (
    JOURNAL_DIRECTORY,
    LOCK_FILE,
    LOG_DIRECTORY,
    LOG_STATE_FILE,
    META_FILE,
    DirectoryLock,
    LogState,
    write_log_state,
)
from raftlog.storage.partition_files import PARTITIONS_DIRECTORY, PARTITIONS_STATE_FILE
from raftlog.storage.private import DIRECTORY_MODE, close_to_others, private_files
from raftlog.storage.rocks_adapter import RocksLog
from raftlog.storage.snapshot_files import SNAPSHOT_DIRECTORY
from raftlog.storage.vote_file import VOTE_FILE, write_vote_file
from raftlog.words import named

_KIND = "meta"
_STAGED = META_FILE + TEMPORARY_SUFFIX
_FORMATTED = (LOG_DIRECTORY, SNAPSHOT_DIRECTORY, VOTE_FILE, LOG_STATE_FILE, BOOTSTRAP_FILE)
_OURS = (_STAGED, LOCK_FILE, JOURNAL_DIRECTORY, "lost+found")
"""What else may lie in a directory that is formatted: the root of a file system has the last."""
Fill = Callable[[Path], tuple[VoteState, LogState]]
"""Puts content into a directory that is being formatted; gives the vote and the state of the log
that go with it.
"""


def _leave_empty(_: Path) -> tuple[VoteState, LogState]:
    return VoteState(), LogState(clean=True, end_offset_at_least=0)


def read_identity(directory: Path) -> NodeIdentity:
    """Who ``directory`` belongs to.

    Raises ConfigError: not formatted, corrupt, or of a newer version; StorageError.
    """
    path = directory / META_FILE
    try:
        content = read_content(path, _KIND)
        version = content.get("format_version")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise ConfigError(
                f"{path} has format_version {version}, this program knows up to {FORMAT_VERSION}:"
                " use a newer raftlog"
            )
        return convert(path, content, NodeIdentity)
    except FileNotFoundError:
        raise ConfigError(
            f"data directory {directory} is not formatted. If the node has run before, do not"
            " format it: mount its disk, or replace it (A node refuses to start in"
            " docs/operations.md). If it is new: raftlog storage format"
        ) from None
    except CorruptLogError as error:
        raise ConfigError(f"the identity of this node cannot be read: {error}") from error
    except StorageError as error:
        if isinstance(error.__cause__, NotADirectoryError):
            raise ConfigError(f"data directory {directory} is a file") from error
        raise


def write_identity(directory: Path, identity: NodeIdentity) -> None:
    """Replace the identity, durably when this returns. Raises StorageError."""
    write_checked(directory / META_FILE, _KIND, identity)


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
        _clear_interrupted(directory)
        staged = stage_checked(directory / META_FILE, _KIND, identity)
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
    finally:
        lock.release()


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
    """Refuse a directory with files of somebody else, or with data of which the identity is lost.

    What an interrupted formatting left, known by its staged identity, is nobody's. Nothing is
    touched: not the mode of a directory like /var, either.
    """
    try:
        found = {path.name for path in directory.iterdir()}
    except OSError:
        return  # It is to be made; if it cannot be, that says why.
    # Made by a running broker, never by formatting: they are somebody's, whatever lies beside them.
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
    for name in (LOG_DIRECTORY, SNAPSHOT_DIRECTORY):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in (VOTE_FILE, LOG_STATE_FILE, BOOTSTRAP_FILE):
        (directory / name).unlink(missing_ok=True)

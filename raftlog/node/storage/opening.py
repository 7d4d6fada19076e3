"""Open a data directory for its node."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from raftlog.errors import ConfigError, CorruptLogError, StorageError
from raftlog.files import fsync_directory
from raftlog.logger import get_logger
from raftlog.node.storage.api import NodeIdentity
from raftlog.node.storage.directory import (
    LOG_DIRECTORY,
    MENDED_DIRECTORY,
    PARTITIONS_DIRECTORY,
    PARTITIONS_STATE_FILE,
    DirectoryLock,
    PartitionsState,
    read_identity,
    read_log_state,
    read_partitions_state,
    write_log_state,
    write_partitions_state,
)
from raftlog.node.storage.files import close_to_others, remove_leftovers
from raftlog.node.storage.log_store import RocksLogStore
from raftlog.node.storage.partition_store import RocksPartitionStore
from raftlog.node.storage.rocks_adapter import RocksLog, RocksPartitions
from raftlog.node.storage.wal import check_tails, damaged_record, locate_damage, wals
from raftlog.node.storage.wal_repair import find_torn_tails, truncate_file

PROBE_TIMEOUT_S = 30.0
"""Timeout in seconds, far above the time to replay the largest WAL on a loaded machine."""

_CHILD = """
import os, sys
sys.path.append(sys.argv[2])
from rocksdict import AccessType, DBRecoveryMode, Options, Rdict
options = Options(raw_mode=True)
options.create_if_missing(False)
options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
try:
    Rdict(sys.argv[1], options, None, AccessType.read_only(False))
except Exception:
    pass
os._exit(0)
"""


def probe_open(rocks: Path, timeout_s: float = PROBE_TIMEOUT_S) -> None:
    """Return once a child process has opened the RocksDB at ``rocks``.

    Raises StorageError if the child did not within ``timeout_s`` seconds, or died.
    """
    spec = importlib.util.find_spec("rocksdict")
    if spec is None or spec.origin is None:
        raise StorageError("rocksdict is not installed")
    packages = str(Path(spec.origin).parent.parent)
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _CHILD, str(rocks), packages],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise StorageError(
            f"the log in {rocks} could not be opened within {timeout_s:g} s: it is damaged, or the"
            " disk does not answer"
        ) from None
    if child.returncode:
        raise StorageError(
            f"the log in {rocks} cannot be opened: the process that tried to exited with status"
            f" {child.returncode}"
        )


log = get_logger(__name__)


def open_store(
    directory: Path,
    *,
    expect_cluster_id: str | None,
    expect_node_id: int | None,
    loop: asyncio.AbstractEventLoop,
    probe_timeout_s: float = PROBE_TIMEOUT_S,
) -> RocksLogStore:
    """Open the storage of a node for this process only. Call ``recover`` next.

    An expectation of None accepts any value. Raises ConfigError (not formatted, belongs to another
    cluster or node, or in use by another process), CorruptLogError, and StorageError, including if
    RocksDB does not open within ``probe_timeout_s`` after an unclean exit.
    """
    identity = read_identity(directory)
    _check_identity(directory, identity, expect_cluster_id, expect_node_id)
    lock = DirectoryLock.exclusive(directory)
    try:
        close_to_others(directory)
        remove_leftovers(directory)
        _finish_mending(directory)
        state = read_log_state(directory)
        if not state.clean:
            _require_wal(directory / LOG_DIRECTORY)
        repair_tail(directory / LOG_DIRECTORY, clean=state.clean)
        check_openable(directory / LOG_DIRECTORY, probe_timeout_s, clean=state.clean)
        if state.clean:
            # Before RocksDB writes anything, as a crash may tear its writes.
            state = replace(state, clean=False)
            write_log_state(directory, state)
        rocks = open_rocks(directory / LOG_DIRECTORY)
    except BaseException:
        lock.release()
        raise
    return RocksLogStore(directory, identity, state, rocks, lock=lock, loop=loop)


def _require_wal(rocks: Path) -> None:
    """Raise CorruptLogError if a log that was not closed in order has no write-ahead log, as each
    start creates one.

    Raises StorageError.
    """
    try:
        if rocks.is_dir() and not wals(rocks):
            raise CorruptLogError(f"the write-ahead log in {rocks} is missing")
    except OSError as error:
        raise StorageError(f"cannot list {rocks}: {error}") from error


def _finish_mending(directory: Path) -> None:
    """Rename the mended log into place if a crash came between the two renames; otherwise delete
    any remains of a mended log.

    Raises StorageError.
    """
    log_, mended = directory / LOG_DIRECTORY, directory / MENDED_DIRECTORY
    try:
        if not mended.exists():
            return
        if log_.exists():
            shutil.rmtree(mended)
        else:
            mended.rename(log_)
        fsync_directory(directory)
    except OSError as error:
        raise StorageError(f"cannot replace {log_} with {mended}: {error}") from error


def open_rocks(path: Path, *, read_only: bool = False) -> RocksLog:
    """Open RocksDB.

    Raises StorageError, and CorruptLogError with the place of the damage if it is in the WAL.
    """
    try:
        return RocksLog(path, read_only=read_only)
    except CorruptLogError as error:
        raise locate_damage(path, error) from error


def repair_tail(rocks: Path, *, clean: bool) -> None:
    """Truncate the files that power loss has torn, if the log was not closed in order.

    Raises StorageError.
    """
    for tail in () if clean else find_torn_tails(rocks):
        log.warning("the log's tail was torn by power loss", detail=str(tail))
        truncate_file(tail)


def check_openable(rocks: Path, probe_timeout_s: float, *, clean: bool) -> tuple[str, ...]:
    """Detect damage that opening would miss or hang on, and return descriptions of files that end
    within a record.

    Opening drops that record, as after power loss or a manual truncation. The child process costs a
    second replay of the WAL, so it runs only after an unclean exit. Raises CorruptLogError,
    StorageError.
    """
    torn = check_tails(rocks)
    for one in torn:
        log.warning("a log file ends within a record, which is dropped", detail=one)
    if not clean:
        probe_open(rocks, probe_timeout_s)
    return torn


def _check_identity(
    directory: Path, identity: NodeIdentity, cluster_id: str | None, node_id: int | None
) -> None:
    wrong: list[str] = []
    if cluster_id is not None and cluster_id != identity.cluster_id:
        wrong.append(
            f"it belongs to cluster {identity.cluster_id!r}, but the configuration has cluster"
            f" {cluster_id!r}"
        )
    if node_id is not None and node_id != identity.node_id:
        wrong.append(
            f"it belongs to node {identity.node_id}, but the configuration has node {node_id}"
        )
    if wrong:
        raise ConfigError(f"data directory {directory}: {'; '.join(wrong)}")


_NEW_DIRECTORY = "partitions.new"


def open_partition_store(
    directory: Path, loop: asyncio.AbstractEventLoop, *, probe_timeout_s: float = PROBE_TIMEOUT_S
) -> RocksPartitionStore:
    """Open the partition replicas in a broker's data directory, which this process must have
    locked. Call ``recover`` next.

    Raises CorruptLogError, and StorageError, including if RocksDB does not open within
    ``probe_timeout_s`` after an unclean exit.
    """
    remove_leftovers(directory)
    state = _state_of(directory)
    rocks = directory / PARTITIONS_DIRECTORY
    repair_tail(rocks, clean=state.clean)
    check_openable(rocks, probe_timeout_s, clean=state.clean)
    # Before RocksDB writes anything, as a crash may tear its writes. The returned store gets the
    # old state, as recovery compares its totals.
    write_partitions_state(directory, replace(state, clean=False))
    return RocksPartitionStore(directory, state, _open(rocks), loop=loop)


def _open(path: Path) -> RocksPartitions:
    try:
        return RocksPartitions(path)
    except CorruptLogError as error:
        raise damaged_record(path, error) from error


def _state_of(directory: Path) -> PartitionsState:
    """Return the state in which the replicas were left, creating them if they never existed or a
    crash interrupted their creation.
    """
    rocks, new = directory / PARTITIONS_DIRECTORY, directory / _NEW_DIRECTORY
    try:
        state = read_partitions_state(directory)
    except FileNotFoundError:
        if rocks.exists():
            raise CorruptLogError(
                f"{directory / PARTITIONS_STATE_FILE} is missing, but {rocks} exists"
            ) from None
        state = PartitionsState(clean=True, partitions=0, records=0)
        _make(directory, new)
        write_partitions_state(directory, state)
    if not rocks.exists():
        if not new.exists():
            raise CorruptLogError(
                f"{rocks} is missing: the partition replicas of this broker are lost. Format an"
                " empty directory for the broker, so that it returns as a replica that must catch"
                " up"
            )
        _rename(directory, new, rocks)
    return state


def _make(directory: Path, new: Path) -> None:
    shutil.rmtree(new, ignore_errors=True)
    RocksPartitions(new, create=True).close()
    try:
        fsync_directory(directory)
    except OSError as error:
        raise StorageError(f"cannot sync {directory}: {error}") from error


def _rename(directory: Path, new: Path, rocks: Path) -> None:
    try:
        new.rename(rocks)
        fsync_directory(directory)
    except OSError as error:
        raise StorageError(f"cannot rename {new} to {rocks}: {error}") from error

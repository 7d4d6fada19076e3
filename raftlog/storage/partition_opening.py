"""Opening the partition replicas of a broker, which makes them the first time."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

from raftlog.durable import fsync_directory
from raftlog.errors import CorruptLogError, StorageError
from raftlog.storage.checked_file import remove_leftovers
from raftlog.storage.open_probe import PROBE_TIMEOUT_S
from raftlog.storage.opening import check_openable, repair_tail
from raftlog.storage.partition_files import (
    PARTITIONS_DIRECTORY,
    PARTITIONS_STATE_FILE,
    PartitionsState,
    read_partitions_state,
    write_partitions_state,
)
from raftlog.storage.partition_store import RocksPartitionStore
from raftlog.storage.rocks_adapter import RocksPartitions
from raftlog.storage.wal_damage import damaged_record

_NEW_DIRECTORY = "partitions.new"


def open_partition_store(
    directory: Path, loop: asyncio.AbstractEventLoop, *, probe_timeout_s: float = PROBE_TIMEOUT_S
) -> RocksPartitionStore:
    """Open the partition replicas in a broker's data directory, which this process has locked; call
    ``recover`` next.

    Raises CorruptLogError; StorageError, also if RocksDB does not open within ``probe_timeout_s``
    after an unclean end.
    """
    remove_leftovers(directory)
    state = _state_of(directory)
    rocks = directory / PARTITIONS_DIRECTORY
    repair_tail(rocks, clean=state.clean)
    check_openable(rocks, probe_timeout_s, clean=state.clean)
    # Before RocksDB writes anything: from here on a crash may tear something. What the sums were,
    # recovery still has to know.
    write_partitions_state(directory, replace(state, clean=False))
    return RocksPartitionStore(directory, state, _open(rocks), loop=loop)


def _open(path: Path) -> RocksPartitions:
    try:
        return RocksPartitions(path)
    except CorruptLogError as error:
        raise damaged_record(path, error) from error


def _state_of(directory: Path) -> PartitionsState:
    """How the replicas were left; they are made if they never were, or if a crash cut that
    short.
    """
    rocks, new = directory / PARTITIONS_DIRECTORY, directory / _NEW_DIRECTORY
    try:
        state = read_partitions_state(directory)
    except FileNotFoundError:
        if rocks.exists():
            raise CorruptLogError(
                f"{directory / PARTITIONS_STATE_FILE} is missing beside {rocks}"
            ) from None
        state = PartitionsState(clean=True, partitions=0, records=0)
        _make(directory, new)
        write_partitions_state(directory, state)
    if not rocks.exists():
        if not new.exists():
            raise CorruptLogError(
                f"{rocks} is missing: the partition replicas of this broker are lost. Format an"
                " empty directory for it, so that it comes back as a replica that has to catch up"
            )
        _rename(directory, new, rocks)
    return state


def _make(directory: Path, new: Path) -> None:
    shutil.rmtree(new, ignore_errors=True)
    RocksPartitions(new, create=True).close()
    try:
        fsync_directory(directory)
    except OSError as error:
        raise StorageError(f"can't sync {directory}: {error}") from error


def _rename(directory: Path, new: Path, rocks: Path) -> None:
    try:
        new.rename(rocks)
        fsync_directory(directory)
    except OSError as error:
        raise StorageError(f"can't make {rocks}: {error}") from error

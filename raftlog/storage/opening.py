"""Opening a data directory: for the node it belongs to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from raftlog.errors import ConfigError, CorruptLogError
from raftlog.logger import get_logger
from raftlog.storage.api import NodeIdentity
from raftlog.storage.checked_file import remove_leftovers
from raftlog.storage.layout import LOG_DIRECTORY, DirectoryLock, read_log_state, write_log_state
from raftlog.storage.log_store import RocksLogStore
from raftlog.storage.meta_file import read_identity
from raftlog.storage.open_probe import PROBE_TIMEOUT_S, probe_open
from raftlog.storage.private import close_to_others
from raftlog.storage.rocks_adapter import RocksLog
from raftlog.storage.wal_damage import locate_damage
from raftlog.storage.wal_repair import cut_off, find_torn_tails
from raftlog.storage.wal_tail import check_tails

log = get_logger(__name__)


def open_store(
    directory: Path,
    *,
    expect_cluster_id: str | None,
    expect_node_id: int | None,
    loop: asyncio.AbstractEventLoop,
    probe_timeout_s: float = PROBE_TIMEOUT_S,
) -> RocksLogStore:
    """Open the storage of a node, for this process alone; call ``recover`` next.

    None expects anything.

    Raises ConfigError (not formatted, of another cluster or node, in use by another process),
    CorruptLogError, and StorageError, also if RocksDB does not open within ``probe_timeout_s``
    after an unclean end.
    """
    identity = read_identity(directory)
    _check_identity(directory, identity, expect_cluster_id, expect_node_id)
    lock = DirectoryLock.exclusive(directory)
    try:
        close_to_others(directory)
        remove_leftovers(directory)
        state = read_log_state(directory)
        repair_tail(directory / LOG_DIRECTORY, clean=state.clean)
        check_openable(directory / LOG_DIRECTORY, probe_timeout_s, clean=state.clean)
        if state.clean:
            # Before RocksDB writes anything: from here on a crash may tear something.
            state = replace(state, clean=False)
            write_log_state(directory, state)
        rocks = open_rocks(directory / LOG_DIRECTORY)
    except BaseException:
        lock.release()
        raise
    return RocksLogStore(directory, identity, state, rocks, lock=lock, loop=loop)


def open_rocks(path: Path, *, read_only: bool = False) -> RocksLog:
    """Open RocksDB.

    Raises CorruptLogError, with the place of the damage if it is in the WAL, and StorageError.
    """
    try:
        return RocksLog(path, read_only=read_only)
    except CorruptLogError as error:
        raise locate_damage(path, error) from error


def repair_tail(rocks: Path, *, clean: bool) -> None:
    """Cut off what power loss tore, if the log was not closed in order. Raises StorageError."""
    for tail in () if clean else find_torn_tails(rocks):
        log.warning("the log's tail was torn by power loss", found=str(tail))
        cut_off(tail)


def check_openable(rocks: Path, probe_timeout_s: float, *, clean: bool) -> tuple[str, ...]:
    """Find what an open would miss or spin on.

    The child costs a second replay of the WAL: only after an unclean end.

    Returns which files end within a record, which the open drops: as after power loss, or because
    somebody cut them.
    """
    torn = check_tails(rocks)
    for one in torn:
        log.warning("a file of the log ends within a record, which is dropped", found=one)
    if not clean:
        probe_open(rocks, probe_timeout_s)
    return torn


def _check_identity(
    directory: Path, identity: NodeIdentity, cluster_id: str | None, node_id: int | None
) -> None:
    wrong: list[str] = []
    if cluster_id is not None and cluster_id != identity.cluster_id:
        wrong.append(
            f"it belongs to cluster {identity.cluster_id!r}, the configuration says {cluster_id!r}"
        )
    if node_id is not None and node_id != identity.node_id:
        wrong.append(f"it belongs to node {identity.node_id}, the configuration says {node_id}")
    if wrong:
        raise ConfigError(f"data directory {directory}: {'; '.join(wrong)}")

"""The broker's own directory: whose it is, and the lock that proves which process uses it.

It is formatted and laid out like every node's (see :mod:`raftlog.storage.layout`). A broker keeps no metadata log in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raftlog.errors import ConfigError
from raftlog.metadata.entities import Process
from raftlog.storage.api import NodeIdentity
from raftlog.storage.layout import LOCK_FILE, DirectoryLock
from raftlog.storage.meta_file import read_identity

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class BrokerDirectory:
    """A locked directory. ``process`` names this process for the registration.

    Whoever holds the same lock file (device and inode, on the same boot, with the same directory id) later proves that this
    process is gone: a cloned disk has the same directory id, but a lock file of its own.
    """

    identity: NodeIdentity
    process: Process
    _lock: DirectoryLock

    def close(self) -> None:
        """Give the directory back. Idempotent."""
        self._lock.release()


def open_directory(
    directory: Path, *, cluster_id: str, broker_id: int, boot_id_file: Path = BOOT_ID_FILE
) -> BrokerDirectory:
    """Lock the directory of this broker. Raises ConfigError: not formatted, somebody else's, or in use."""
    identity = read_identity(directory)
    if (identity.cluster_id, identity.node_id) != (cluster_id, broker_id):
        raise ConfigError(
            f"data directory {directory} belongs to cluster {identity.cluster_id!r}, node {identity.node_id}; "
            f"configured are cluster {cluster_id!r}, node {broker_id}"
        )
    lock = DirectoryLock.exclusive(directory)
    try:
        status = (directory / LOCK_FILE).stat()
        boot_id = boot_id_file.read_text(encoding="ascii").strip()
    except OSError as error:
        lock.release()
        raise ConfigError(f"can't tell what names this process: {error}") from error
    process = Process(boot_id, identity.directory_id, status.st_dev, status.st_ino)
    return BrokerDirectory(identity, process, lock)

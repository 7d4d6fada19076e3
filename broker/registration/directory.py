"""The broker's own directory: which broker it belongs to, and the lock that proves which process
uses it.

It has the format and layout of every node's directory (see :mod:`raftlog.node.storage.directory`),
but without a metadata log.

A broker that has closed its directory in order leaves a file with its broker epoch; the next
process removes the file before it does anything else, and sends the epoch when it registers.
Without the file the shutdown was unclean (KIP-966).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from broker.registration.broker_id import known_id
from raftlog.errors import ConfigError, CorruptLogError, StorageError
from raftlog.files import fsync_directory
from raftlog.metadata.entities import Process
from raftlog.node.storage.api import NodeIdentity
from raftlog.node.storage.directory import LOCK_FILE, DirectoryLock, read_identity, write_identity
from raftlog.node.storage.files import close_to_others, read_checked, write_checked

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
CLEAN_SHUTDOWN_FILE = "clean-shutdown.json"
_CLEAN_SHUTDOWN_KIND = "clean_shutdown"
NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """Content of the file that an orderly shutdown leaves."""

    broker_epoch: int


def take_clean_shutdown(directory: Path) -> int:
    """Durably remove the file of an orderly shutdown; return its broker epoch, or NO_EPOCH if there
    is no valid file.

    Raises StorageError.
    """
    path = directory / CLEAN_SHUTDOWN_FILE
    try:
        epoch = read_checked(path, _CLEAN_SHUTDOWN_KIND, CleanShutdown).broker_epoch
    except FileNotFoundError:
        return NO_EPOCH
    except CorruptLogError:
        epoch = NO_EPOCH
    try:
        path.unlink()
        fsync_directory(directory)
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error}") from error
    return epoch


@dataclass(slots=True)
class BrokerDirectory:
    """A locked directory.

    ``process``: identifies this process in the registration. A process that later holds the same
    lock file (device and inode, on the same boot, with the same directory id) proves that this
    process has exited: a cloned disk has the same directory id, but another lock file.
    """

    identity: NodeIdentity
    process: Process
    _lock: DirectoryLock
    _path: Path
    previous_broker_epoch: int = NO_EPOCH
    """Broker epoch under which the directory was closed cleanly; NO_EPOCH if it was not."""

    @property
    def broker_id(self) -> int:
        """Id of the broker that the directory belongs to; NO_NODE_ID if it has none yet."""
        return self.identity.node_id

    def claim(self, broker_id: int) -> None:
        """Durably make this the directory of a broker.

        Raises StorageError.
        """
        self._write(dataclasses.replace(self.identity, node_id=broker_id))

    def bind_generation(self, generation: int) -> None:
        """Durably record the generation of the log that the directory belongs to.

        Raises StorageError.
        """
        self._write(dataclasses.replace(self.identity, generation=generation))

    def _write(self, identity: NodeIdentity) -> None:
        if identity != self.identity:
            write_identity(self._path, identity)
            self.identity = identity

    def record_clean_shutdown(self, broker_epoch: int) -> None:
        """Durably record that everything in the directory was closed cleanly.

        Raises StorageError.
        """
        if broker_epoch != NO_EPOCH:
            path = self._path / CLEAN_SHUTDOWN_FILE
            write_checked(path, _CLEAN_SHUTDOWN_KIND, CleanShutdown(broker_epoch))

    def close(self) -> None:
        """Unlock the directory. Idempotent."""
        self._lock.release()


def open_directory(
    directory: Path, *, cluster_id: str, broker_id: int, boot_id_file: Path = BOOT_ID_FILE
) -> BrokerDirectory:
    """Lock the directory of a broker.

    ``broker_id``: NO_NODE_ID if it is not configured. Raises StorageError, and ConfigError if the
    directory is not formatted, belongs to another broker, or is in use.
    """
    identity = read_identity(directory)
    if identity.cluster_id != cluster_id:
        raise ConfigError(
            f"data directory {directory} belongs to cluster {identity.cluster_id!r}, but the"
            f" configured cluster is {cluster_id!r}"
        )
    known_id(broker_id, identity.node_id, directory)
    lock = DirectoryLock.exclusive(directory)
    try:
        close_to_others(directory)
        status = (directory / LOCK_FILE).stat()
        boot_id = boot_id_file.read_text(encoding="ascii").strip()
        previous = take_clean_shutdown(directory)
    except OSError as error:
        lock.release()
        raise ConfigError(f"cannot read what identifies this process: {error}") from error
    except StorageError:
        lock.release()
        raise
    process = Process(boot_id, identity.directory_id, status.st_dev, status.st_ino)
    return BrokerDirectory(identity, process, lock, directory, previous)

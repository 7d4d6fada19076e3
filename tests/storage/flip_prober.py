"""A process that opens damaged directories, so that a test survives a crash or hang of RocksDB. It
answers each path on its input with a line of JSON, and removes the directory. Its argument names
the content of the directories: ``log`` or ``partitions``.
"""

import asyncio
import hashlib
import json
import selectors
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import structlog
from partition_kit import open_rocks_partitions, whole
from storage_kit import open_rocks

from raftlog.errors import ConfigError, CorruptLogError, FatalError
from raftlog.metadata import snapshot_file
from raftlog.node.storage.api import RecoveredLog, SnapshotId
from raftlog.node.storage.files import read_bootstrap
from raftlog.node.storage.reader import open_read_only

WITHIN_S = 60.0
"""Longest time to open a directory, in seconds: two probes of 10 s at most."""


class Prober:
    """The process that opens damaged directories."""

    def __init__(self, kind: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def open(self, directory: Path, what: str) -> dict[str, Any]:
        """Return its findings. Fail if it does not answer, or dies."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{directory}\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(WITHIN_S), f"{what}: opening it hangs"
        line = process.stdout.readline()
        assert line, f"{what}: the process that opened it has died, with {process.wait(10)}"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def _error(error: Exception) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "text": str(error),
        "offset": getattr(error, "offset", -1),
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _snapshots(found: tuple[SnapshotId, ...], read: Any) -> dict[str, str]:
    """Return each snapshot's content as served, or that its receiver would refuse it."""
    served = {}
    for one in found:
        data = read(one, 0, 1 << 30)
        try:
            header = snapshot_file.verify([data])
        except CorruptLogError:
            served[str(one)] = "refused by who fetches it"
        else:
            served[str(one)] = f"{_digest(data)} {header}"
    return served


async def as_a_node(directory: Path) -> dict[str, Any]:
    """Read the files that a starting controller reads."""
    store = None
    try:
        bootstrap = read_bootstrap(directory)
        store = open_rocks(directory, probe_timeout_s=10.0)
        found: RecoveredLog = store.recover()
        data = store.read(found.start_offset, until=found.end_offset, max_bytes=1 << 40)
        return {
            "identity": repr(store.identity), "bootstrap": repr(bootstrap), "vote": repr(found.vote),
            "voters": repr(found.voters[-1].voters if found.voters else None), "voters_since": [one.offset for one in found.voters],
            "log": f"[{found.start_offset}, {found.end_offset}) {found.epochs} {found.start_epoch} {found.last_timestamp_ms}",
            "content": _digest(data), "snapshots": _snapshots(found.snapshots, store.read_snapshot),
        }  # fmt: skip
    except (FatalError, ConfigError) as error:
        return _error(error)
    finally:
        if store is not None:
            store.close()


def as_a_reader(directory: Path) -> dict[str, Any]:
    """Read the files that the offline commands read."""
    try:
        with open_read_only(directory, probe_timeout_s=10.0) as reader:
            data = reader.read(reader.start_offset, reader.end_offset, 1 << 40)
            return {
                "identity": repr(reader.identity), "vote": repr(reader.vote), "log": f"[{reader.start_offset}, {reader.end_offset})",
                "content": _digest(data), "snapshots": _snapshots(reader.snapshots, reader.read_snapshot),
            }  # fmt: skip
    except (FatalError, ConfigError) as error:
        return _error(error)


async def as_a_broker(directory: Path) -> dict[str, Any]:
    """Read the files of partition replicas that a starting broker reads."""
    store = None
    try:
        store = open_rocks_partitions(directory, probe_timeout_s=10.0)
        return {
            f"{one.key[0].hex()} {one.key[1]}": [
                one.start_offset, one.end_offset, list(map(list, one.epochs)),
                _digest(whole(store, one.key, one.end_offset)),
            ]
            for one in store.recover()
        }  # fmt: skip
    except FatalError as error:
        return _error(error)
    finally:
        if store is not None:
            store.close()


def found_in(directory: Path, kind: str) -> dict[str, Any]:
    """Return the findings of each reader, by name."""
    if kind == "partitions":
        return {"broker": asyncio.run(as_a_broker(directory))}
    # First the reader that changes nothing.
    return {"reader": as_a_reader(directory), "node": asyncio.run(as_a_node(directory))}


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for each in sys.stdin:
        opened = Path(each.strip())
        answer = found_in(opened, sys.argv[1])
        shutil.rmtree(opened)
        print(json.dumps(answer), flush=True)

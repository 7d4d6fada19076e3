"""Opens data directories for a test, in a process of its own: if RocksDB dies or spins over damaged
bytes, the test can say over which.

Reads the path of a directory from each line, answers with one line of JSON: what a node, its
bootstrap and an offline reader find there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import structlog
from storage_kit import open_rocks

from raftlog.errors import ConfigError, CorruptLogError, FatalError
from raftlog.metadata import snapshot_file
from raftlog.node.storage.api import RecoveredLog, SnapshotId
from raftlog.node.storage.files import read_bootstrap
from raftlog.node.storage.reader import open_read_only


def _error(error: Exception) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "text": str(error),
        "offset": getattr(error, "offset", -1),
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _snapshots(found: tuple[SnapshotId, ...], read: Any) -> dict[str, str]:
    """Of each: its content as it is served, or that who gets it would refuse it."""
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
    """What a starting controller reads."""
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
    """What the offline commands read."""
    try:
        with open_read_only(directory, probe_timeout_s=10.0) as reader:
            data = reader.read(reader.start_offset, reader.end_offset, 1 << 40)
            return {
                "identity": repr(reader.identity), "vote": repr(reader.vote), "log": f"[{reader.start_offset}, {reader.end_offset})",
                "content": _digest(data), "snapshots": _snapshots(reader.snapshots, reader.read_snapshot),
            }  # fmt: skip
    except (FatalError, ConfigError) as error:
        return _error(error)


def main() -> None:
    """Answer until there are no more lines. The directory is gone afterwards."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    for line in sys.stdin:
        directory = Path(line.strip())
        offline = as_a_reader(directory)
        node = asyncio.run(as_a_node(directory))
        shutil.rmtree(directory)
        print(json.dumps({"node": node, "reader": offline}), flush=True)


if __name__ == "__main__":
    main()

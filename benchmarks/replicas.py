"""The time to open a broker's partition replicas: 10,000 small ones and a gigabyte in few, after an
orderly stop and after a crash.

.venv/bin/python -m benchmarks.replicas [--json] benchmarks/run d2
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from raftlog import batch
from raftlog.batch import RecordData
from raftlog.node.storage.opening import open_partition_store
from raftlog.node.storage.partition_api import PartitionKey
from raftlog.node.storage.partition_store import RocksPartitionStore

SHAPES = ((10_000, 5, 200), (10_000, 50, 200), (500, 20, 100_000))
"""Number of replicas, batches in each, bytes per record."""


def reopen(directory: Path) -> list[dict[str, Any]]:
    """Return the seconds for each shape."""
    directory.mkdir(parents=True, exist_ok=True)
    return [row for shape in SHAPES for row in asyncio.run(_reopen(directory, *shape))]


async def _reopen(
    parent: Path, replicas: int, batches: int, record_bytes: int
) -> list[dict[str, Any]]:
    directory = Path(tempfile.mkdtemp(dir=parent))
    try:
        await _fill(_opened(directory / "data"), replicas, batches, record_bytes)
        rows = []
        for orderly in (True, False):
            open_s, recover_s = _measured(directory / "data", orderly=orderly)
            rows.append(
                {
                    "replicas": replicas,
                    "batches": replicas * batches,
                    "megabytes": round(replicas * batches * record_bytes / 1e6),
                    "orderly_stop": orderly,
                    "open_s": open_s,
                    "recover_s": recover_s,
                }
            )
        return rows
    finally:
        shutil.rmtree(directory)


def _opened(directory: Path) -> RocksPartitionStore:
    directory.mkdir(exist_ok=True)
    return open_partition_store(directory, asyncio.get_running_loop())


async def _fill(store: RocksPartitionStore, replicas: int, batches: int, record_bytes: int) -> None:
    store.recover()
    keys: list[PartitionKey] = [
        (b"topic%011d" % (number // 10), number % 10) for number in range(replicas)
    ]
    for base in range(batches):
        chunk = batch.encode(
            [RecordData(1, 0, b"x" * record_bytes)], base_offset=base, epoch=1, timestamp_ms=1
        )
        for key in keys:
            store.append(key, chunk, base, base + 1)
    await _flushed(store)
    store.close()


async def _flushed(store: RocksPartitionStore) -> None:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    store.flush(done.set_result, inline=False)
    await done


def _measured(directory: Path, *, orderly: bool) -> tuple[float, float]:
    if not orderly:
        # Opened, but not closed properly: the tail is checked, and RocksDB is tried in a child
        # first.
        store = _opened(directory)
        store._rocks.close()
    begun = time.perf_counter()
    store = _opened(directory)
    opened = time.perf_counter()
    store.recover()
    recovered = time.perf_counter()
    store.close()
    return round(opened - begun, 2), round(recovered - opened, 2)


def main(
    directory: Annotated[Path, typer.Option("--dir", help="On the disk to be measured.")] = Path(
        ".raftlog/bench"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs.")] = False,
) -> None:
    """Measure it alone."""
    rows = reopen(directory)
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    typer.run(main)

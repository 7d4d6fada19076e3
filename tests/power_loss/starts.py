"""The findings of the next start, in a process of its own that may crash or hang: reads ``start
directory`` lines, prints JSON.

RocksDB can spin over damage, which a node finds out by a probe in a child; here this process is the
child, and no second one is made. What only some starts need is imported there.
"""

import asyncio
import json
import logging
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog
from said import IDENTITY, batches_of, chunk_of, vote_as_said

from raftlog.errors import StorageError
from raftlog.node.storage import opening
from raftlog.node.storage.directory import META_FILE, format_storage
from raftlog.node.storage.files import read_bootstrap
from raftlog.node.storage.opening import open_partition_store
from raftlog.node.storage.snapshot_files import file_name


def value(root: Path) -> dict[str, Any]:
    """Read the file of a toy program."""
    path = root / "value"
    if not path.exists():
        return {"value": -1}
    data = path.read_bytes()
    number = int(data[:1]) if data[:1].isdigit() else None
    if number is None or data != b"%d" % number * 2000:
        return {"error": f"{len(data)} bytes that nobody wrote"}
    return {"value": number}


def node(root: Path) -> dict[str, Any]:
    """Open a node's directory and append one more record; format it again if it is not formatted."""
    directory = root / "data" if (root / "data").exists() else root / "srv" / "raftlog" / "data"
    if not (directory / META_FILE).exists():
        _make_anew(root, directory)
        return {"formatted": False}
    return asyncio.run(_node(directory))


def _make_anew(root: Path, directory: Path) -> None:
    """Format again, like an operator who did not see the first attempt succeed."""
    if (root / "backup").exists():
        from raftlog.node.recovery.restore import restore
        from raftlog.ops.backup import inspect

        read = inspect(root / "backup")
        restore(directory, read.image, read.header, cluster_id="c1", node_id=1, directory_id="d2")
    else:
        format_storage(directory, IDENTITY)


async def _node(directory: Path) -> dict[str, Any]:
    store = opening.open_store(
        directory, expect_cluster_id=None, expect_node_id=None, loop=asyncio.get_running_loop()
    )
    try:
        found = store.recover()
        read_bootstrap(directory)
        start, end = found.start_offset, found.end_offset
        batches = batches_of(store.read(start, until=end, max_bytes=1 << 30), start)
        snapshots = {
            file_name(one): store.read_snapshot(one, 0, 1 << 30).hex() for one in found.snapshots
        }
        epoch = max(found.vote.epoch, found.epochs[-1][0] if found.epochs else found.start_epoch, 1)
        chunk, behind = chunk_of(end, 1, epoch=epoch)
        store.append(chunk, end, behind)
        done: asyncio.Future[int | StorageError] = asyncio.get_running_loop().create_future()
        store.flush(done.set_result, inline=True)
        assert await done == behind
        return {
            "formatted": True, "start": start, "batches": batches, "vote": vote_as_said(found.vote),
            "identity": asdict(store.identity), "snapshots": snapshots,
        }  # fmt: skip
    finally:
        store.close()


def partitions(root: Path) -> dict[str, Any]:
    """Open a broker's partition replicas."""
    return asyncio.run(_partitions(root / "data"))


async def _partitions(directory: Path) -> dict[str, Any]:
    store = open_partition_store(directory, asyncio.get_running_loop())
    try:
        return {
            "partitions": {
                f"{one.key[0].hex()}-{one.key[1]}": batches_of(
                    store.read(one.key, 0, until=one.end_offset, max_bytes=1 << 30), 0
                )
                for one in store.recover()
            }
        }
    finally:
        store.close()


def export(root: Path) -> dict[str, Any]:
    """Open an export: everything that its manifest names is whole, and the next writer continues at
    its end.
    """
    from raftlog.segments.checkpoints import load_checkpoint
    from raftlog.segments.files import open_place
    from raftlog.segments.manifest import MANIFEST_NAME, read_manifest
    from raftlog.segments.range_checks import check_segment
    from raftlog.segments.writer import ExportWriter

    directory = root / "srv" / "exports" / "export"
    if not (directory / MANIFEST_NAME).exists():
        ExportWriter(directory, "c1", 0).close()
        return {"value": -1}
    manifest = read_manifest(directory)
    for segment in manifest.segments:
        check_segment(directory, segment, "c1", 0)
    place = open_place(directory)
    for one in manifest.checkpoints:
        load_checkpoint(place, manifest.owner, one)
    with ExportWriter(directory, "c1", 0) as writer:
        assert writer.next_offset == manifest.end_offset
    return {"value": manifest.end_offset or -1}


def backup(root: Path) -> dict[str, Any]:
    """Read a backup: it is whole, or absent."""
    from raftlog.metadata.snapshot import load

    file = root / "backup"
    if not file.exists():
        return {"value": -1}
    _, image = load([file.read_bytes()])
    return {"value": image.offset}


def ledger(root: Path) -> dict[str, Any]:
    """Read the state of a streaming job after its last micro-batch."""
    from replay.streaming.ledger import Ledger, read_done

    directory = root / "srv" / "jobs" / "audit"
    done = read_done(directory)
    if done is None or done.batch < 0:
        Ledger(directory)
        return {"value": -1}
    assert (
        directory / "state" / str(done.batch) / "open" / "part-0.parquet"
    ).read_bytes() == b"%d" % done.batch * 2000
    return {"value": done.batch}


def dies(_: Path) -> dict[str, Any]:
    """Crash, as RocksDB may over damage."""
    os._exit(3)


def spins(_: Path) -> dict[str, Any]:
    """Loop for ever, as RocksDB may over damage."""
    while True:
        pass


def waits(_: Path) -> dict[str, Any]:
    """Wait for ever."""
    threading.Event().wait()
    return {}


def takes_long(_: Path) -> dict[str, Any]:
    """Take long by the clock, as on a busy machine."""
    for _ in range(10):
        begun = time.process_time()
        while time.process_time() < begun + 0.02:
            pass
        time.sleep(0.1)
    return {"value": 1}


def _without_a_probe(*_: object, **__: object) -> None:
    return


def main() -> None:
    opening.probe_open = _without_a_probe
    logging.disable()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    print("ready", flush=True)
    for line in sys.stdin:
        start, directory = line.rstrip("\n").split(" ", 1)
        try:
            found = globals()[start](Path(directory))
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}", "kind": type(error).__name__}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

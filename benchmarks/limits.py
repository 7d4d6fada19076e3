"""The machine's limits: one durable write, one message there and back."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.pingpong import measure_pingpong
from benchmarks.stats import percentile
from raftlog.node.storage.files import replace_file

RECORD = b"x" * 300
BLOCK_BYTES = 4096


def _p50_ms(act: Callable[[], None], count: int) -> float:
    taken: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        act()
        taken.append(time.perf_counter() - begun)
    return round(percentile(taken, 0.5) * 1000, 3)


def fdatasync_ms(directory: Path, count: int = 1000) -> float:
    """p50 of appending 300 bytes to a file and fdatasync."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:

        def append() -> None:
            os.write(file.fileno(), RECORD)
            os.fdatasync(file.fileno())

        return _p50_ms(append, count)


def overwrite_ms(directory: Path, count: int = 1000) -> float:
    """p50 of overwriting 300 bytes and fdatasync: the file system's journal has no part in it."""
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        os.write(file.fileno(), bytes(BLOCK_BYTES))
        os.fsync(file.fileno())

        def overwrite() -> None:
            os.pwrite(file.fileno(), RECORD, 0)
            os.fdatasync(file.fileno())

        return _p50_ms(overwrite, count)


def replace_ms(directory: Path, count: int = 200) -> float:
    """p50 of replacing a file of 300 bytes durably: write, fsync, rename, fsync the directory."""
    with tempfile.TemporaryDirectory(dir=directory) as inside:
        path = Path(inside) / "replaced"
        return _p50_ms(lambda: replace_file(path, RECORD), count)


async def limits(directory: Path) -> dict[str, float]:
    """Medians by name, in milliseconds. Takes some seconds."""
    pingpong = await measure_pingpong(2.0)
    return {
        "fdatasync_p50_ms": fdatasync_ms(directory),
        "overwrite_p50_ms": overwrite_ms(directory),
        "replace_p50_ms": replace_ms(directory),
        "grpc_stream_pingpong_p50_ms": round(pingpong["p50_ms"], 3),
    }

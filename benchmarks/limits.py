"""What this machine can do at best: one durable append, one message there and back."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from benchmarks.pingpong import measure_pingpong
from benchmarks.stats import percentile


def fdatasync_ms(directory: Path, count: int = 1000) -> float:
    """p50 of appending 300 bytes to a file and fdatasync."""
    taken: list[float] = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        for _ in range(count):
            begun = time.perf_counter()
            os.write(file.fileno(), b"x" * 300)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - begun)
    return round(percentile(taken, 0.5) * 1000, 3)


async def limits(directory: Path) -> dict[str, float]:
    """Both limits, milliseconds."""
    pingpong = await measure_pingpong(2.0)
    return {
        "fdatasync_p50_ms": fdatasync_ms(directory),
        "grpc_stream_pingpong_p50_ms": round(pingpong["p50_ms"], 3),
    }

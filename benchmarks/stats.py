"""Percentiles, and the CPU time and memory of processes."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile by nearest rank, or nan without values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def latency_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return the usual percentiles of durations in seconds, in milliseconds."""
    return {
        name: round(percentile(seconds, share) * 1000, 3)
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0))
    }


def cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU seconds (user and system) that these processes have used so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def thread_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process's live threads, accurate to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def resident_bytes(pid: int) -> int:
    """Return the memory that a process uses now, including shared memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def busy_s() -> float:
    """Return the CPU seconds that the whole machine has used so far."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / TICKS_PER_S

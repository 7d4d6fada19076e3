"""A table from the processes' recordings: microseconds of CPU per write, by stage and role."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from benchmarks.profile.recorder import DISK_THREAD, LOOP

Recorded = Mapping[str, Any]

LOOP_REST = "event loop, links, gRPC's calls"
GRPC_THREADS = "gRPC's threads"
DISK_THREADS = "disk threads"
IDLE = "idle loop (wall, not CPU)"
KERNEL = "of it in the kernel"


OVERHEAD_FACTOR = (1.0, 4.0)
"""Valid range of the ratio between a wrapper's cost and its cost with warm caches."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of one process, in microseconds per write."""

    rows: dict[str, float]
    """Cost by stage; the sum is ``total``."""
    total: float
    """CPU of the process without the wrappers' cost."""
    unmeasured: float
    """CPU of the process in the slices in which the wrappers did nothing."""
    overhead: float
    """Time subtracted for the wrappers of the measurement."""
    factor: float
    """Ratio between the wrappers' cost and their cost with warm caches."""
    kernel: float
    kernel_error: float
    """Standard deviation of ``kernel`` that results from sampling by ticks."""
    idle: float
    """Wall time in which the loop's thread did not run, in the slices without measuring."""


def thread_group(name: str) -> str:
    """Return the group of a thread: the event loop's, the disk's, or gRPC's."""
    if name == LOOP:
        return LOOP
    if name == DISK_THREAD or name.startswith("rocksdb"):
        return DISK_THREADS
    return GRPC_THREADS


def attribute(recorded: Recorded, on_writes: int, off_writes: int) -> Profile:
    """Return the profile of a process that took part in ``on_writes`` writes in slices with
    measuring, and in ``off_writes`` in slices without.
    """
    on, off = recorded["on"]["threads"], recorded["off"]["threads"]
    on_each, off_each = 1000 * max(1, on_writes), 1000 * max(1, off_writes)
    unmeasured = _cpu(off) / off_each
    overhead = recorded["overhead_in_all"] / on_each
    low, high = OVERHEAD_FACTOR
    measured = (_cpu(on) / on_each - unmeasured) / overhead if overhead else low
    factor = min(high, max(low, measured))
    stages = {
        name: max(0.0, spent - factor * recorded["overhead"][name]) / on_each
        for name, spent in recorded["stages"].items()
    }
    groups = {LOOP: 0.0, GRPC_THREADS: 0.0, DISK_THREADS: 0.0}
    for name, thread in on.items():
        groups[thread_group(name)] += thread["cpu"] / on_each
    rows = {
        **stages,
        LOOP_REST: groups[LOOP] - sum(stages.values()) - factor * overhead,
        GRPC_THREADS: groups[GRPC_THREADS],
        DISK_THREADS: groups[DISK_THREADS],
    }
    share, error = _kernel_share(off)
    loop = off.get(LOOP, {"cpu": 0.0})["cpu"]
    return Profile(
        rows,
        total=sum(rows.values()),
        unmeasured=unmeasured,
        overhead=factor * overhead,
        factor=factor,
        kernel=share * unmeasured,
        kernel_error=error * unmeasured,
        idle=max(0.0, recorded["off"]["wall"] - loop) / off_each,
    )


def _cpu(threads: Mapping[str, Mapping[str, float]]) -> float:
    return sum(thread["cpu"] for thread in threads.values())


def _kernel_share(threads: Mapping[str, Mapping[str, float]]) -> tuple[float, float]:
    """Return the kernel's share of the CPU time, counted in ticks, with its standard deviation."""
    system = sum(thread["system_ticks"] for thread in threads.values())
    ticks = system + sum(thread["user_ticks"] for thread in threads.values())
    if not ticks:
        return 0.0, 0.0
    share = system / ticks
    return share, math.sqrt(share * (1 - share) / ticks)


def mean(profiles: Sequence[Profile]) -> Profile:
    """Return the mean profile of processes in the same role."""
    count = len(profiles)
    rows = {name: sum(one.rows[name] for one in profiles) / count for name in profiles[0].rows}
    numbers = {
        each.name: sum(getattr(one, each.name) for one in profiles) / count
        for each in fields(Profile)
        if each.name != "rows"
    }
    numbers["kernel_error"] /= math.sqrt(count)
    return Profile(rows, **numbers)


def binaries(
    samples: Mapping[str, int], cpu_us: float, kinds: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Return microseconds per write by kind of binary, from samples by binary. The fragments of a
    kind are searched for in the binary's path, in order.
    """
    total = sum(samples.values())
    found = dict.fromkeys([*kinds, "other"], 0.0)
    for path, count in samples.items():
        kind = next(
            (name for name, parts in kinds.items() if any(part in path for part in parts)), "other"
        )
        found[kind] += cpu_us * count / total
    return found

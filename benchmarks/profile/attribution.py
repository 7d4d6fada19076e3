"""From what processes have recorded to a table: microseconds of CPU a write, by stage and role."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.profile.recorder import DISK_THREAD, LOOP

Recorded = Mapping[str, Any]

LOOP_REST = "event loop, links, gRPC's calls"
GRPC_THREADS = "gRPC's threads"
DISK_THREADS = "disk threads"
IDLE = "idle loop (wall, not CPU)"
KERNEL = "of it in the kernel"


@dataclass(frozen=True, slots=True)
class Profile:
    """One process, in microseconds a write."""

    rows: dict[str, float]
    """They add up to ``total``."""
    total: float
    """CPU of the process without what the wrappers have cost."""
    wrappers: float
    kernel: float
    kernel_error: float
    """Of ``kernel``: one standard deviation of sampling by ticks."""
    idle: float
    """Wall time in which the loop's thread did not run."""


def thread_group(name: str) -> str:
    """Whose a thread is: the loop's, the disk's, or gRPC's."""
    if name == LOOP:
        return LOOP
    if name == DISK_THREAD or name.startswith("rocksdb"):
        return DISK_THREADS
    return GRPC_THREADS


def attribute(recorded: Recorded, writes: int) -> Profile:
    """The profile of one process that took part in so many writes."""
    groups = {LOOP: 0.0, GRPC_THREADS: 0.0, DISK_THREADS: 0.0}
    system_ticks = all_ticks = 0
    for thread in recorded["threads"]:
        groups[thread_group(thread["name"])] += thread["cpu"]
        system_ticks += thread["system_ticks"]
        all_ticks += thread["system_ticks"] + thread["user_ticks"]
    stages: dict[str, float] = dict(recorded["stages"])
    loop_rest = groups[LOOP] - sum(stages.values()) - recorded["wrappers"]
    rows = {
        **stages,
        LOOP_REST: loop_rest,
        GRPC_THREADS: groups[GRPC_THREADS],
        DISK_THREADS: groups[DISK_THREADS],
    }
    total = sum(rows.values())
    share = system_ticks / all_ticks if all_ticks else 0.0
    error = math.sqrt(share * (1 - share) / all_ticks) if all_ticks else 0.0
    each = 1000 * max(1, writes)
    return Profile(
        {name: spent / each for name, spent in rows.items()},
        total / each,
        recorded["wrappers"] / each,
        share * total / each,
        error * total / each,
        max(0.0, recorded["wall"] - groups[LOOP]) / each,
    )


def mean(profiles: Sequence[Profile]) -> Profile:
    """Of processes in the same role."""

    def of(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return Profile(
        {name: of([one.rows[name] for one in profiles]) for name in profiles[0].rows},
        of([one.total for one in profiles]),
        of([one.wrappers for one in profiles]),
        of([one.kernel for one in profiles]),
        of([one.kernel_error for one in profiles]) / math.sqrt(len(profiles)),
        of([one.idle for one in profiles]),
    )


def binaries(
    samples: Mapping[str, int], cpu_us: float, kinds: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Microseconds a write by kind of binary, from samples by binary; a kind's fragments are looked
    for in the binary's path, in order.
    """
    total = sum(samples.values())
    found = dict.fromkeys([*kinds, "other"], 0.0)
    for path, count in samples.items():
        kind = next(
            (name for name, parts in kinds.items() if any(part in path for part in parts)), "other"
        )
        found[kind] += cpu_us * count / total
    return found

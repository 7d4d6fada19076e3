"""The CPU time of one process between two moments: by thread, and of the loop's thread by stage."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.profile.stages import DISK, Stages, functions, missing
from benchmarks.profile.stopwatch import Stopwatch, calibrate

CALIBRATION_ROUNDS = 5_000
LOOP = "loop"
DISK_THREAD = "raftlog-disk"
COUNTED = ("cpu", "user_ticks", "system_ticks")


@dataclass(slots=True)
class Slice:
    """The sum of the slices of one kind. ``threads``: CPU and ticks by name."""

    wall: float = 0.0
    threads: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, wall_ns: float, used: list[dict[str, Any]]) -> None:
        """Add the CPU that the stages used in one slice."""
        self.wall += wall_ns
        for thread in used:
            mine = self.threads.setdefault(thread["name"], dict.fromkeys(COUNTED, 0.0))
            for name in COUNTED:
                mine[name] += thread[name]


class Recorder:
    """A recorder that wraps the functions of the stages. Must be created on the thread that will
    run the event loop.

    ``measure`` and ``rest`` start slices with the wrappers active, and with wrappers that only
    forward the call. The two kinds alternate, so that slow changes affect both alike.
    """

    def __init__(self, stages: Stages) -> None:
        self._missing = missing(stages)
        names = list(stages)
        self._watch = Stopwatch(names, [DISK] if DISK in names else [])
        for stage, owner, method in functions(stages):
            setattr(owner, method, self._watch.wrap(getattr(owner, method), stage))
        self._watch.on = False
        self._slice: Slice | None = None
        self._on, self._off = Slice(), Slice()
        self._begun_s, self._threads = 0.0, _threads()

    def measure(self) -> None:
        """Start a slice with measuring."""
        self._end()
        self._slice, self._watch.on = self._on, True

    def rest(self) -> None:
        """Start a slice without measuring."""
        self._end()
        self._slice, self._watch.on = self._off, False

    def stop(self) -> dict[str, Any]:
        """End the last slice; return the CPU used in both kinds, in nanoseconds."""
        self._end()
        self._slice, self._watch.on = None, False
        overhead, total = self._watch.overhead_ns(*calibrate(CALIBRATION_ROUNDS))
        return {
            "on": asdict(self._on),
            "off": asdict(self._off),
            "stages": self._watch.raw_ns(),
            "overhead": overhead,
            "overhead_in_all": total,
            "calls": self._watch.calls(),
            "missing": self._missing,
        }

    def _end(self) -> None:
        threads, now_s = _threads(), time.monotonic()
        if self._slice is not None:
            self._slice.add((now_s - self._begun_s) * 1e9, _used(self._threads, threads))
        self._threads, self._begun_s = threads, now_s


def _threads() -> dict[int, dict[str, Any]]:
    """Return each thread's name, CPU, and ticks of user and system time, by thread id."""
    named = {one.native_id: one.name for one in threading.enumerate()}
    found: dict[int, dict[str, Any]] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            cpu_ns = int((task / "schedstat").read_text().split()[0])
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            name = (task / "comm").read_text().strip()
        except OSError:  # The thread has ended meanwhile.
            continue
        tid = int(task.name)
        name = LOOP if tid == os.getpid() else named.get(tid, name)
        found[tid] = {
            "name": name,
            "cpu": cpu_ns,
            "user_ticks": int(fields[11]),
            "system_ticks": int(fields[12]),
        }
    return found


def _used(
    before: dict[int, dict[str, Any]], after: dict[int, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the CPU used by each thread between two samples, without threads that exited."""
    found = []
    for tid, now in after.items():
        old = before.get(tid, {})
        found.append({"name": now["name"]} | {key: now[key] - old.get(key, 0) for key in COUNTED})
    return found

"""What one process has used between two moments: CPU by thread, and the loop's thread by stage."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.profile.stages import DISK, Stages, functions, missing
from benchmarks.profile.stopwatch import Stopwatch, calibrate

CALIBRATION_ROUNDS = 5_000
LOOP = "loop"
DISK_THREAD = "raftlog-disk"


class Recorder:
    """Wraps the functions of the stages. Make it on the thread that will run the event loop."""

    def __init__(self, stages: Stages) -> None:
        self._missing = missing(stages)
        names = list(stages)
        self._watch = Stopwatch(names, [DISK] if DISK in names else [])
        for stage, owner, method in functions(stages):
            setattr(owner, method, self._watch.wrap(getattr(owner, method), stage))
        self.begin()

    def begin(self) -> None:
        """The measurement begins now."""
        self._watch.reset()
        self._begun_s, self._threads = time.monotonic(), _threads()

    def end(self) -> dict[str, Any]:
        """What was used since ``begin``. All CPU in nanoseconds."""
        watch = self._watch
        threads, wall_s = _used(self._threads, _threads()), time.monotonic() - self._begun_s
        raw, calls = watch.raw_ns(), watch.calls()
        # Now, not before: it takes the thread for a while.
        stages, wrappers = watch.corrected_ns(*calibrate(CALIBRATION_ROUNDS))
        return {
            "wall": wall_s * 1e9,
            "threads": threads,
            "stages": stages,
            "stages_with_wrappers": raw,
            "calls": calls,
            "wrappers": wrappers,
            "missing": self._missing,
        }


def _threads() -> dict[int, dict[str, Any]]:
    """Thread id -> its name, its CPU, and ticks of user and system time."""
    named = {one.native_id: one.name for one in threading.enumerate()}
    found: dict[int, dict[str, Any]] = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            cpu_ns = int((task / "schedstat").read_text().split()[0])
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            name = (task / "comm").read_text().strip()
        except OSError:  # The thread ended while we looked.
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


def _used(before: dict[int, dict[str, Any]], after: dict[int, dict[str, Any]]) -> list[Any]:
    """What each thread has used since; one that has ended meanwhile is left out."""
    used = []
    for tid, now in after.items():
        old = before.get(tid, {})
        used.append({"name": now["name"]} | {k: now[k] - old.get(k, 0) for k in now if k != "name"})
    return used

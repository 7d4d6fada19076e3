"""A side observed from outside: its processes' CPU time and memory, step by step."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

SAMPLE_S = 1.0
"""Sampling interval in seconds; examining all pages of all processes costs CPU time, which the side
would lack.
"""


@dataclass
class Measured:
    """The measurement of one step. ``peak_mb``: proportional set size of all processes together,
    counting shared pages once.
    """

    seconds: float
    cpu_s: float
    peak_mb: float
    answer: Any = None


@dataclass
class Side:
    """The result of a side. ``over``: the step that did not finish in time, if any. ``failed``: the
    step that failed, if any.
    """

    steps: dict[str, Measured] = field(default_factory=dict)
    over: str = ""
    failed: str = ""

    @property
    def complaints(self) -> list[str]:
        """Unexpected findings of the jobs."""
        return [
            step.answer
            for name, step in self.steps.items()
            if name.startswith("job: ") and step.answer
        ]


class _Sampler(threading.Thread):
    """A sampler of the highest memory since it was last read."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._peak_bytes = 0
        self._stop_now = threading.Event()

    def run(self) -> None:
        while not self._stop_now.wait(SAMPLE_S):
            self._peak_bytes = max(self._peak_bytes, self._memory_bytes())

    def _family(self) -> list[psutil.Process]:
        try:
            return [self._process, *self._process.children(recursive=True)]
        except psutil.Error:
            return []

    def _memory_bytes(self) -> int:
        total = 0
        for process in self._family():
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
        return total

    def cpu_s(self) -> float:
        """Return the CPU time of all processes so far, and of finished ones whose parents waited
        for them.
        """
        total = 0.0
        for process in self._family():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system + times.children_user + times.children_system
        return total

    def take_peak_mb(self) -> float:
        """Return the peak since the last call, in MB."""
        peak, self._peak_bytes = max(self._peak_bytes, self._memory_bytes()), 0
        return peak / (1 << 20)

    def stop(self) -> None:
        self._stop_now.set()
        self.join()


def watch(module: str, arguments: list[str], *, limit_s: float) -> Side:
    """Run a side to its end; after ``limit_s`` it is killed, and the result names its
    current step.
    """
    side, ends_at, current, cpu_s = Side(), time.monotonic() + limit_s, "start", 0.0
    # In its own process group, so that its children end with it.
    child = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    timer = threading.Timer(limit_s, os.killpg, (child.pid, signal.SIGKILL))
    timer.start()
    sampler = _Sampler(child.pid)
    sampler.start()
    assert child.stdin is not None
    assert child.stdout is not None
    for line in child.stdout:
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        if said["event"] == "begin":
            current, cpu_s = said["step"], sampler.cpu_s()
            sampler.take_peak_mb()
        else:
            side.steps[current] = Measured(
                said["seconds"], sampler.cpu_s() - cpu_s, sampler.take_peak_mb(), said["answer"]
            )
            print(
                f"{module.rpartition('.')[2]}: {current}: {said['seconds']:.1f} s",
                file=sys.stderr,
                flush=True,
            )
        # A side that was killed meanwhile reads nothing.
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write("\n")
            child.stdin.flush()
    with contextlib.suppress(BrokenPipeError):
        child.stdin.close()
    code = child.wait()
    timer.cancel()
    sampler.stop()
    if time.monotonic() >= ends_at:
        side.over = current
    elif code:
        side.failed = current
    return side

"""Self times of stages on one thread, in CPU nanoseconds.

Reading a thread's CPU clock is a system call (about 0.5 to 1 us), so it is read only where control
enters the first stage and leaves the last one, which delimits a *span*. Within a span, the CPU time
is divided among the stages in proportion to their wall time, which costs a third as much to read. A
thread that is preempted adds wall time to whichever stage it is in, so over many spans each stage
gets its fair share. A stage that waits (``DISK``) is a separate span, as its wall time does not
measure its CPU time.

The wrappers themselves cost CPU. ``calibrate`` measures what one wrapped call adds to its own stage
and to its caller's, with warm caches; ``Stopwatch.overhead_ns`` multiplies. In a busy process a
call costs more than that: ``attribution.py`` determines how much, from slices in which the wrappers
do nothing (``on`` is false).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns, thread_time_ns
from typing import Any

OUTSIDE = 0
ROUNDS = 20_000


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU nanoseconds that one wrapped call adds: ``own`` to its stage, ``caller`` to the enclosing
    one.
    """

    own: float
    caller: float


class Stopwatch:
    """A stopwatch for one thread; calls from other threads are not measured."""

    def __init__(self, stages: Sequence[str], waiting: Sequence[str] = ()) -> None:
        """``waiting``: stages that are separate spans."""
        self.stages = ("", *stages)
        self._waiting = {self.stages.index(name) for name in waiting}
        self._thread = threading.get_ident()
        self.on = True
        self._stage = OUTSIDE
        self._since_wall = self._since_cpu = 0
        self.reset()

    def reset(self) -> None:
        """Discard the measured times, spans and changes of every stage."""
        count = len(self.stages)
        self._cpu_ns = [0.0] * count
        self._wall_ns = [0] * count
        # Number of spans started, and of changes within spans, by the stage entered and by the
        # stage left.
        self._spans, self._changes = [0] * count, [0] * count
        self._left_by_span, self._left_by_change = [0] * count, [0] * count

    def wrap(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """Return the function, measured as part of a stage."""
        index = self.stages.index(stage)
        alone = index in self._waiting
        own_thread, ident = self._thread, threading.get_ident

        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            before = self._stage
            if not self.on or before == index or ident() != own_thread:
                return function(*args, **kwargs)
            if alone or before == OUTSIDE:
                self._begin(index, before)
                try:
                    return function(*args, **kwargs)
                finally:
                    self._end(before)
            wall_ns, now = self._wall_ns, perf_counter_ns()
            wall_ns[before] += now - self._since_wall
            self._since_wall, self._stage = now, index
            self._changes[index] += 1
            self._left_by_change[before] += 1
            try:
                return function(*args, **kwargs)
            finally:
                now = perf_counter_ns()
                wall_ns[index] += now - self._since_wall
                self._since_wall, self._stage = now, before

        return measured

    def _begin(self, stage: int, before: int) -> None:
        self._spans[stage] += 1
        self._left_by_span[before] += 1
        if before != OUTSIDE:
            self._settle()
        self._stage = stage
        self._since_cpu, self._since_wall = thread_time_ns(), perf_counter_ns()

    def _end(self, before: int) -> None:
        self._settle()
        self._stage = before
        if before != OUTSIDE:
            self._since_cpu, self._since_wall = thread_time_ns(), perf_counter_ns()

    def _settle(self) -> None:
        """Distribute the CPU time of the span so far."""
        wall_ns = self._wall_ns
        wall_ns[self._stage] += perf_counter_ns() - self._since_wall
        used_ns, total_ns = thread_time_ns() - self._since_cpu, sum(wall_ns)
        for stage, taken_ns in enumerate(wall_ns):
            if taken_ns:
                self._cpu_ns[stage] += used_ns * taken_ns / total_ns
                wall_ns[stage] = 0

    def raw_ns(self) -> dict[str, float]:
        """Return the CPU by stage, including the wrappers' own."""
        return dict(zip(self.stages[1:], self._cpu_ns[1:], strict=True))

    def calls(self) -> dict[str, int]:
        """Return the number of entries of each stage."""
        both = (a + b for a, b in zip(self._spans, self._changes, strict=True))
        return dict(list(zip(self.stages, both, strict=True))[1:])

    def overhead_ns(self, span: Cost, change: Cost) -> tuple[dict[str, float], float]:
        """Return the wrappers' own CPU in each stage's time, and their total, including outside the
        stages.
        """
        found: dict[str, float] = {}
        for index, name in enumerate(self.stages):
            own = span.own * self._spans[index] + change.own * self._changes[index]
            around = span.caller * self._left_by_span[index]
            found[name] = own + around + change.caller * self._left_by_change[index]
        total = sum(found.values())
        del found[""]
        return found, total


def calibrate(rounds: int = ROUNDS) -> tuple[Cost, Cost]:
    """Measure the cost of a span and of a change of stage on this machine."""

    def nothing() -> None:
        pass

    def loop(call: Callable[[], None]) -> int:
        begun = thread_time_ns()
        for _ in range(rounds):
            call()
        return thread_time_ns() - begun

    bare = loop(nothing) / rounds
    watch = Stopwatch(("outer", "inner"))
    total = loop(watch.wrap(nothing, "outer")) / rounds
    own = watch.raw_ns()["outer"] / rounds
    span = Cost(own, max(0.0, total - own - bare))
    watch.reset()
    watch.wrap(loop, "outer")(watch.wrap(nothing, "inner"))
    raw = watch.raw_ns()
    change = Cost(raw["inner"] / rounds, max(0.0, raw["outer"] / rounds - bare))
    return span, change

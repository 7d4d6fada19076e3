"""A deterministic asyncio loop on virtual time: when nothing is ready, the time jumps to the next
timer. Callbacks run in scheduling order, timers by (time, order). A callback that raises ends the
run.

A *host* is a simulated process. Callbacks belong to the host in whose context they were scheduled,
so that it can be paused or killed while others run, and its clock may run fast or slow. Network,
disks and checks use the true time.
"""

import asyncio
import math
import weakref
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from simulation.twins.bounds import MAX_STEPS, RunTooLongError

START_OF_TIME_MS = 1_700_000_000_000
"""Wall clock at virtual time 0."""
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_Call = Callable[[*Ts], object]

_HOST: ContextVar[str] = ContextVar("simulated_host", default="")

_NOBODY = copy_context()
"""Context of callbacks that belong to no host."""
_REBUILD_ABOVE = 64
"""Cancelled timers are removed once they are more than this, and more than half of all timers."""
_LAST_TURNS = 20
"""Number of turns in which cancelled tasks may end, after the run."""


class _Timer(asyncio.TimerHandle):
    """A timer, with the one attribute that its stubs do not show: whether it is in the heap."""

    __slots__ = ()
    _scheduled: bool


class DeadlockError(RuntimeError):
    """Nothing is ready or scheduled, and the main coroutine would wait forever."""


class HostDiedError(BaseException):
    """The running process has crashed. Only the loop catches this."""


def host_of(context: Context | None = None) -> str:
    """Return the host of a context, by default of the current one; empty if there is none."""
    return _HOST.get() if context is None else context.get(_HOST, "")


def host_context(host: str) -> Context:
    """Return a context for a host's tasks: ``loop.create_task(…, context=host_context("c1"))``."""
    context = copy_context()
    context.run(_HOST.set, host)
    return context


class VirtualLoop(base_events.BaseEventLoop):
    """The loop. Times are seconds of virtual time."""

    # The base class's, which its stubs do not show.
    _ready: deque[Any]
    _stopping: bool
    _asyncgens: weakref.WeakSet[Any]

    def __init__(self, start_time: float = 0.0, *, max_steps: int = MAX_STEPS) -> None:
        super().__init__()
        self._now = start_time
        self.steps = 0
        """Number of callbacks that have run, or were cancelled when they were due."""
        self._max_steps = max_steps
        # (when, order, handle): ties go by order of scheduling, and comparing never leaves C.
        self._timers: list[tuple[float, int, Any]] = []
        self._timer_order = 0
        self._cancelled_timers = 0
        self.tasks_made = 0
        self._of_hosts: list[asyncio.Task[Any]] = []
        self._prune_at = 1_000
        self.held: dict[str, list[Any]] = {}
        self._rates: dict[str, float] = {}
        self._costs: dict[str, Callable[[], float]] = {}
        self._queues: dict[str, deque[Any]] = {}
        """Callbacks by host, for hosts whose callbacks take time, that wait for an earlier one."""
        self._free_at: dict[str, float] = {}
        """Time at which each host's last callback ends."""
        self._waking: set[str] = set()
        """Hosts with a running callback, or with a timer for the end of one."""
        self._spent_s = 0.0
        self.longest_s: dict[str, float] = {}
        self.ending = False
        """True once the run is over, while all tasks are cancelled."""

    def time(self) -> float:
        return self._now * self._rates.get(_HOST.get(), 1.0) if self._rates else self._now

    def true_time(self) -> float:
        return self._now

    def set_clock_rate(self, host: str, rate: float) -> None:
        """Let a host's clock run ``rate`` times as fast, before the host does anything."""
        self._rates[host] = rate

    def set_cost(self, host: str, cost_s: Callable[[], float]) -> None:
        """Let each callback of a host take ``cost_s()``; later callbacks of the host wait."""
        self._costs[host], self._queues[host], self._free_at[host] = cost_s, deque(), 0.0

    def stopwatch(self, host: str) -> float:
        """Return a time that advances within a callback: by the cost of one callback per call."""
        if (cost_s := self._costs.get(host)) is not None:
            self._spent_s += cost_s()
        return self._now + self._spent_s

    def call_soon(
        self, callback: _Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: _Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: _Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a time of the current host's clock. Equal timers run in creation
        order.
        """
        if self._rates:
            rate, wanted = self._rates.get(_HOST.get(), 1.0), when
            when /= rate
            # Rounded up: a timer that is early by its own clock would be scheduled again, forever.
            while when * rate < wanted:
                when = math.nextafter(when, math.inf)
        return self.call_at_true(when, callback, *args, context=context)

    def call_later_true(
        self, delay: float, callback: _Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at_true(self._now + delay, callback, *args, context=context)

    def call_at_true(
        self, when: float, callback: _Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Timer(when, callback, args, self, context)
        handle._scheduled = True
        self._timer_order += 1
        heappush(self._timers, (when, self._timer_order, handle))
        return handle

    def call_soon_threadsafe(
        self, callback: _Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> NoReturn:
        """Virtual time cannot order what threads do. Raises RuntimeError."""
        raise RuntimeError("a simulated program must not use threads")

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> NoReturn:
        raise RuntimeError("a simulated program must not use threads")

    def _asyncgen_finalizer_hook(self, generator: Any) -> None:
        """Close an abandoned asynchronous generator as asyncio does, without threads."""
        self._asyncgens.discard(generator)
        if not self.is_closed():
            self.call_soon(self.create_task, generator.aclose())

    def leave_generators(self) -> None:
        """Do not close the remaining generators: those of a killed host could wait forever."""
        self._asyncgens.clear()

    def create_task(self, coro: Any, *, name: object = None, **kwargs: Any) -> asyncio.Task[Any]:
        """Create a task. Default names count from 1 in each loop, so that runs are reproducible."""
        self.tasks_made += 1
        task = super().create_task(coro, name=name or f"task-{self.tasks_made:08d}", **kwargs)
        if host_of(kwargs.get("context")):
            self._of_hosts.append(task)
            if len(self._of_hosts) > self._prune_at:
                self._prune_at = 2 * len(self.tasks_of_hosts()) + 1_000
        return task

    def tasks_of_hosts(self) -> list[asyncio.Task[Any]]:
        """Return the unfinished tasks of hosts.

        They are kept so that the garbage collector does not close those of killed processes, which
        would run their code.
        """
        self._of_hosts = [task for task in self._of_hosts if not task.done()]
        return self._of_hosts

    def pause_host(self, host: str) -> None:
        """Pause all callbacks of a host until it is resumed. The host's clock continues."""
        self.held.setdefault(host, [])

    def is_held(self, host: str) -> bool:
        return bool(self.held.get(host))

    def resume_host(self, host: str) -> None:
        """Resume a host: callbacks that became due during the pause run next, in order."""
        self._ready.extend(self.held.pop(host, ()))
        if self._queues.get(host):
            self._work_on(host)

    def drop_host(self, host: str) -> None:
        """Kill a host's process: callbacks that belong to it now never run."""
        if self.ending:
            return
        handles = [*self._ready, *(entry[2] for entry in self._timers), *self.held.pop(host, ())]
        handles += self._queues.get(host, ())
        for handle in handles:
            if handle._context.get(_HOST, "") == host:
                handle.cancel()

    def _timer_handle_cancelled(self, handle: Any) -> None:
        if not handle._scheduled:
            return
        self._cancelled_timers += 1
        if self._cancelled_timers > _REBUILD_ABOVE and self._cancelled_timers * 2 > len(
            self._timers
        ):
            # The handle that is just being cancelled is not marked yet.
            self._timers[:] = [
                entry for entry in self._timers if not (entry[2]._cancelled or entry[2] is handle)
            ]
            heapify(self._timers)
            handle._scheduled = False
            self._cancelled_timers = 0

    def _run_once(self) -> None:
        """Advance time if idle, collect due timers, and run the callbacks that are ready."""
        ready, timers = self._ready, self._timers
        if not ready:
            if not timers:
                self._deadlock()
            self._now = max(self._now, timers[0][0])
        now = self._now
        while timers and timers[0][0] <= now:
            handle = heappop(timers)[2]
            handle._scheduled = False
            if handle._cancelled:
                self._cancelled_timers -= 1
            else:
                ready.append(handle)
        if self.held:
            self._hold_back()
        count = len(ready)
        self.steps += count
        if self.steps > self._max_steps and not self.ending:
            raise RunTooLongError(
                f"the run has not ended after {self._max_steps} steps, at {now:g} s of virtual time"
            )
        for _ in range(count):
            handle = ready.popleft()
            if self._costs and (host := handle._context.get(_HOST, "")) in self._costs:
                self._queues[host].append(handle)
                self._work_on(host)
            elif not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)
                except HostDiedError:
                    continue

    def _work_on(self, host: str) -> None:
        """Run a host's next callback once the one before has ended."""
        queue = self._queues[host]
        while queue and host not in self._waking and host not in self.held:
            if self._now < self._free_at[host]:
                self._waking.add(host)
                self.call_at_true(self._free_at[host], self._worked, host, context=_NOBODY)
                return
            handle = queue.popleft()
            if handle._cancelled:
                continue
            self._spent_s = 0.0
            self._waking.add(host)
            with suppress(HostDiedError):
                handle._context.run(handle._callback, *handle._args)
            self._waking.discard(host)
            took_s, self._spent_s = self._spent_s + self._costs[host](), 0.0
            self.longest_s[host] = max(took_s, self.longest_s.get(host, 0.0))
            self._free_at[host] = self._now + took_s

    def _worked(self, host: str) -> None:
        self._waking.discard(host)
        self._work_on(host)

    def end_work(self) -> None:
        """From here on callbacks take no time, and those that wait run next."""
        self._costs.clear()
        for queue in self._queues.values():
            self._ready.extend(queue)
            queue.clear()

    def _hold_back(self) -> None:
        held = self.held
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            waiting = held.get(handle._context.get(_HOST, ""))
            (self._ready if waiting is None else waiting).append(handle)

    def _deadlock(self) -> None:
        if self._stopping:
            return
        waiting = sorted(
            f"{task.get_name()} {_coroutine_name(task)}" for task in asyncio.all_tasks(self)
        )
        raise DeadlockError(
            f"at {self._now} s nothing is ready or scheduled, and these wait: " + "; ".join(waiting)
        )


def _coroutine_name(task: asyncio.Task[Any]) -> str:
    """Return its function's name: the repr has an address."""
    return str(getattr(task.get_coro(), "__qualname__", "?"))


def run(main: Coroutine[Any, Any, T], *, start_time: float = 0.0, max_steps: int = MAX_STEPS) -> T:
    loop = VirtualLoop(start_time, max_steps=max_steps)
    try:
        return loop.run_until_complete(main)
    finally:
        try:
            _cancel_tasks(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


def _cancel_tasks(loop: VirtualLoop) -> None:
    loop.ending = True
    loop.end_work()
    for host in list(loop.held):
        loop.resume_host(host)
    # all_tasks is a set: sorted, so that the order of the end is the same in each run.
    tasks = sorted(asyncio.all_tasks(loop), key=asyncio.Task.get_name)
    for task in tasks:
        task.cancel()
    # For some turns only: the tasks of a killed process never end.
    loop.run_until_complete(_some_turns())
    for task in tasks:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]


async def _some_turns() -> None:
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)

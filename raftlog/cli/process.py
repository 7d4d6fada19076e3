"""The process of a command: the signals that end it, and its descendants.

Imported before anything else, so it imports as little as possible.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import os
import signal
import sys
import time

from raftlog.cli.streams import (
    INTERRUPTED,
    UNREAD,
    cannot_be_written,
    drop_unread,
    has_no_reader,
    lost,
    prepare_streams,
    unwritten,
)

TYPE_CHECKING = (
    False  # Replaces the constant in typing, whose import takes longer than all of these.
)
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from collections.abc import Callable, Coroutine, Set
    from sys import UnraisableHookArgs
    from types import FrameType, TracebackType
    from typing import Any, NoReturn, TypeVar

    T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopOnSignal:
    """A context in which the first Ctrl-C or SIGTERM requests a stop and the second one interrupts.
    Main thread only.
    """

    def __init__(self) -> None:
        self.asked = False
        self.interrupted = False
        """Whether the signal was Ctrl-C."""
        self._before: list[object] = []

    def __enter__(self) -> StopOnSignal:
        self._before = [signal.signal(number, self._stop) for number in _SIGNALS]
        return self

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked, self.interrupted = True, number == signal.SIGINT

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, handler)  # type: ignore[arg-type]


GARBAGE_AFTER = 100_000
"""Number of new objects after which Python collects garbage; its default is 700."""
AGAIN_S = 0.02
STUCK_S = 1.0
"""Seconds after which a blocked write is considered to prevent the command from ending."""
ENDING = (signal.SIGTERM, signal.SIGHUP)


class TerminationError(KeyboardInterrupt):
    """SIGTERM has arrived: treated like Ctrl-C, except for the exit code."""


class EndedBySignal(SystemExit):
    """A signal has ended the command, which has cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def raise_at_sigterm(number: int, frame: FrameType | None) -> NoReturn:
    """Raise TerminationError, as a handler for SIGTERM."""
    raise TerminationError


def interrupt_again(swallowed: UnraisableHookArgs) -> None:
    """A ``sys.unraisablehook`` that repeats the signal whose exception was swallowed.

    If a signal arrives while the lock of an import is released, its exception is raised in a
    callback, where Python prints it and continues: the command would never end.
    """
    if not issubclass(swallowed.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(swallowed)
        return
    ended = issubclass(swallowed.exc_type, TerminationError)
    number = signal.SIGTERM if ended else signal.SIGINT

    def send() -> None:
        time.sleep(AGAIN_S)
        os.kill(os.getpid(), number)

    # From another thread, since this one is still in the callback.
    _thread.start_new_thread(send, ())


def run_cancellable(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on an event loop, and cancel it on a signal that would end the process.

    By default SIGTERM and SIGHUP end a process at once: child processes would keep running, and
    held resources would stay held. Signals that are ignored (nohup) or have a handler are left
    alone. Raises EndedBySignal once the coroutine has cleaned up.
    """
    import asyncio
    import threading

    ending = _Ending()

    async def heeding() -> T:
        ending.begin(asyncio.get_running_loop(), asyncio.current_task())
        return await work

    here = threading.current_thread() is threading.main_thread()
    ends = [one for one in ENDING if here and signal.getsignal(one) is signal.SIG_DFL]
    for one in ends:
        signal.signal(one, ending.on_signal)
    try:
        return asyncio.run(heeding())
    except asyncio.CancelledError:
        if not ending.number:
            raise
        raise EndedBySignal(ending.number) from None
    finally:
        for one in ends:
            signal.signal(one, signal.SIG_DFL)


class _Ending:
    """The reaction to a signal, even one that arrives while a write blocks the event loop."""

    def __init__(self) -> None:
        self.number = 0
        self._loop: AbstractEventLoop | None = None
        self._task: Task[Any] | None = None
        self._cancelled = False

    def begin(self, loop: AbstractEventLoop, task: Task[Any] | None) -> None:
        """Set the loop and the task to cancel."""
        self._loop, self._task = loop, task
        if self.number:
            self._cancel()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Cancel the task; if the loop does not get to it, drop the output that blocks it."""
        if not self.number:
            self.number = number
            _thread.start_new_thread(self._once_more, ())
        elif not self._cancelled:
            drop_unread()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        # Only once: `timeout` sends its signal twice, and the second must not interrupt the
        # clean-up.
        if not self._cancelled and self._task is not None:
            self._cancelled = True
            self._task.cancel()

    def _once_more(self) -> None:
        time.sleep(STUCK_S)
        if not self._cancelled:
            os.kill(os.getpid(), self.number)


def run_interruptible(load: Callable[[], Callable[[], object]]) -> NoReturn:
    """Import a command's main function by ``load``, run it, and end the process. Main thread only.

    ``main`` returns an exit code (None: 0), or raises SystemExit or KeyboardInterrupt. Where SIGINT
    is ignored, as in the background of a shell script, it stays ignored. Each printed line is
    written at once, even to a pipe; if the pipe's reader goes away, the command exits with UNREAD.
    """
    prepare_streams()
    # Imports create no garbage, and looking for it takes a tenth of a command's time.
    gc.set_threshold(GARBAGE_AFTER, 10, 10)
    number = 0

    def end_by_signal() -> None:
        if number:
            from contextlib import suppress

            # The interpreter would flush them after its exit handlers: the signal comes first.
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    # Exit handlers run in reverse order: those that clean up run before this one.
    atexit.register(end_by_signal)
    # Python's own handler; the program has removed it before this call.
    heeds = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL)
    if heeds:
        # Importing takes a while and leaves nothing to clean up: a Ctrl-C meanwhile needs no
        # traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    code: object = 0
    try:
        main = load()
        if heeds:
            sys.unraisablehook = interrupt_again
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = main()
    except EndedBySignal as error:
        code, number = error.code, error.number
    except SystemExit as error:
        code = error.code
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        if not has_no_reader():
            raise
        code = UNREAD
    except OSError as error:
        from raftlog.errors import is_disk_error

        if not is_disk_error(error) and not cannot_be_written():
            raise
        code = _report_disk(error)
    if code == INTERRUPTED:
        number = signal.SIGINT
    if (failed := unwritten()) is not None:
        code = code or _report_disk(failed)
    elif lost() and not code:
        sys.stderr.write("raftlog: standard output is closed: its output is lost\n")
        code = UNREAD
    _end(code)


def _end(code: object) -> NoReturn:
    """End the process after its exit handlers, skipping the interpreter's own shutdown, which takes
    a quarter of a short command's CPU time.
    """
    threading = sys.modules.get("threading")
    alone = threading is None or threading.active_count() == 1
    if not alone or not (code is None or isinstance(code, int)):
        sys.exit(code)  # type: ignore[arg-type]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # No stream is left to report the error to.
            continue
    os._exit(code or 0)


def _report_disk(error: OSError) -> int:
    from raftlog.cli.exits import report_disk

    return report_disk(error)


_PR_SET_CHILD_SUBREAPER = 36
_ENDED = frozenset("ZX")


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that none escapes."""
    import ctypes
    from contextlib import suppress

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(*, but: Set[int] = frozenset()) -> set[int]:
    """Return the ids of all running descendants of this process. ``but``: children to exclude, with
    their own descendants.
    """
    from collections import defaultdict
    from contextlib import suppress
    from pathlib import Path

    children: dict[int, list[int]] = defaultdict(list)
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The command's name, in parentheses, may contain spaces.
            state, parent = (directory / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in _ENDED:
                children[int(parent)].append(int(directory.name))
    found: set[int] = set()
    following = [child for child in children[os.getpid()] if child not in but]
    while following:
        found.update(following)
        following = [child for pid in following for child in children[pid]]
    return found

"""An event loop in a thread of its own, for those who do not have one."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, ClassVar, TypeVar

from raftlog.errors import ApiError, ErrorCode, RaftlogError

T = TypeVar("T")
Close = Callable[[], Coroutine[Any, Any, None]]
STOP_TIMEOUT_S = 5.0
"""What the end of a process waits for at most."""


class _Process:
    """What happens to the process as a whole."""

    forked = False
    ending = False
    threads: ClassVar[weakref.WeakSet[LoopThread]] = weakref.WeakSet()
    watched = False

    @classmethod
    def watch(cls, thread: LoopThread) -> None:
        if not cls.watched:
            cls.watched = True
            os.register_at_fork(after_in_child=cls._after_fork)
            atexit.register(cls._at_exit)
        cls.threads.add(thread)

    @classmethod
    def _after_fork(cls) -> None:
        cls.forked = True

    @classmethod
    def _at_exit(cls) -> None:
        cls.ending = True
        for thread in list(cls.threads):
            thread.stop()


class LoopThread:
    """Begins with the first call. Any thread may call, also several at a time.

    The thread is a daemon, and ends with :meth:`stop`, which the end of the interpreter calls as
    well: only then gRPC is put away while everything that it needs is still there.
    """

    def __init__(self, close: Close) -> None:
        """``close`` ends what lives on the loop."""
        self._close = close
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._made_by = os.getpid()
        self._stopped = False
        self._finalizer: Callable[[], Any] = lambda: None

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine there, and wait for it.

        What interrupts the waiting (Ctrl-C) cancels it.
        """
        loop = self._running()
        if threading.current_thread() is self._thread:
            raise RaftlogError("a call from the client's own thread would wait for itself")
        future = asyncio.run_coroutine_threadsafe(make(), loop)
        try:
            return future.result()
        except BaseException as error:
            future.cancel()
            if _Process.ending and threading.current_thread() is not threading.main_thread():
                # A daemon thread that the process does not wait for: nobody looks at its errors.
                threading.Event().wait()
            if isinstance(error, CancelledError):
                raise ApiError(
                    ErrorCode.NETWORK_EXCEPTION, "the client was closed", outcome_unknown=True
                ) from None
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        """The loop, begun if need be. Raises RaftlogError where there cannot be one."""
        if self._made_by != os.getpid():
            raise RaftlogError(
                "this client belongs to the process that this one was forked from, and connections"
                " do not survive a fork: make a client in each process, after the fork"
            )
        with self._lock:
            if self._stopped:
                raise RaftlogError("this client was closed")
            if self._loop is None:
                self._begin()
            assert self._loop is not None
            return self._loop

    def _begin(self) -> None:
        if _Process.forked:
            raise RaftlogError(
                "this process was forked from one in which a client was open, and gRPC does not"
                " survive that: start processes with the method 'spawn' or 'forkserver', or make"
                " the first client after the fork"
            )
        _Process.watch(self)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name="raftlog client", daemon=True)
        thread.start()
        self._loop, self._thread = loop, thread
        # For one that is dropped without being closed.
        finalizer = weakref.finalize(self, _stop, loop, thread, os.getpid(), self._close)
        finalizer.atexit = False
        self._finalizer = finalizer

    def stop(self) -> None:
        """End the loop and whatever still runs on it. Idempotent."""
        if self._made_by != os.getpid():
            return
        with self._lock:
            self._stopped = True
        self._finalizer()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, made_by: int, close: Close
) -> None:
    if made_by != os.getpid() or thread is threading.current_thread() or loop.is_closed():
        return
    asyncio.run_coroutine_threadsafe(_end(loop, close), loop)
    thread.join(STOP_TIMEOUT_S + 1)


async def _end(loop: asyncio.AbstractEventLoop, close: Close) -> None:
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await close()
    finally:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        loop.call_soon(loop.stop)

"""Blocking twins of asynchronous methods: the same arguments, but a result instead of an
awaitable.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from raftlog.client.core import require_same_process, require_unpatched
from raftlog.client.streams import AsyncStream, OneReader
from raftlog.errors import ApiError, ClientClosedError, ErrorCode, RaftlogError

T = TypeVar("T")
Close = Callable[[], Coroutine[Any, Any, None]]
STOP_TIMEOUT_S = 5.0
"""Maximum time in seconds that a process waits for its clients when it exits."""
SIGNAL_CHECK_S = 0.5
"""Longest time in seconds until a waiting call notices an interrupt (Ctrl-C)."""
CALLS_TIMEOUT_S = 1.0
"""Time in seconds that calls in progress have to finish after their client was closed."""
_MAIN_ENDED = (
    "the main thread has ended, and a wait without a timeout would keep the process alive forever:"
    " join this thread in the main thread"
)


class _Process:
    """The state of the process, and the threads that end with it."""

    forked = False
    main_ended = False
    ending = False
    threads: ClassVar[weakref.WeakSet[LoopThread]] = weakref.WeakSet()
    watched = False

    @classmethod
    def watch(cls, thread: LoopThread) -> None:
        if not cls.watched:
            cls.watched = True
            os.register_at_fork(after_in_child=cls._after_fork)
            atexit.register(cls._at_exit)
            try:
                # Before the interpreter joins the other threads, which may be waiting for ours.
                threading._register_atexit(cls._at_end_of_main)  # type: ignore[attr-defined]
            except RuntimeError:
                cls.main_ended = True
        cls.threads.add(thread)

    @classmethod
    def _after_fork(cls) -> None:
        cls.forked = True

    @classmethod
    def _at_end_of_main(cls) -> None:
        cls.main_ended = True
        for thread in list(cls.threads):
            thread.end_waits()

    @classmethod
    def _at_exit(cls) -> None:
        cls.ending = True
        for thread in list(cls.threads):
            thread.stop()


class LoopThread:
    """A thread with an event loop, started by the first call.

    Any thread may call, also several concurrently. The thread is a daemon. :meth:`stop` ends it;
    the interpreter's exit calls that, too, so that gRPC shuts down while everything it needs still
    exists. Before that, the interpreter waits for all other threads; to keep that wait finite,
    waits without a timeout end when the main thread does.
    """

    def __init__(self, close: Close) -> None:
        """``close``: coroutine function that closes the objects on the loop."""
        self._close = close
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._made_by = os.getpid()
        self._stopped = False
        self._calls: set[asyncio.Task[Any]] = set()
        self._endless: set[Future[Any]] = set()
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def require_open(self) -> None:
        """Raise ClientClosedError if the thread was stopped."""
        if self._stopped:
            raise ClientClosedError()

    def call(self, make: Callable[[], Coroutine[Any, Any, T]], *, endless: bool = False) -> T:
        """Run a coroutine on the loop, and wait for it. Raises ClientClosedError once stopped.

        ``endless``: the coroutine may never end, and is cancelled when the main thread ends. An
        interrupt of the wait (Ctrl-C) cancels it.
        """
        if threading.current_thread() is self._thread:
            raise RaftlogError("a call from the client's own thread would wait for itself")
        future = self._begin_call(make, endless)
        try:
            while True:
                # A signal that arrives just before a wait does not end that wait.
                with contextlib.suppress(TimeoutError):
                    return future.result(SIGNAL_CHECK_S)
                if future.done():
                    return future.result()
        except BaseException as error:
            future.cancel()
            if endless and _Process.main_ended and isinstance(error, CancelledError):
                raise RaftlogError(_MAIN_ENDED) from None
            if _Process.ending and threading.current_thread() is not threading.main_thread():
                # The process does not wait for this daemon thread: its errors go unnoticed.
                threading.Event().wait()
            if isinstance(error, CancelledError):
                raise ApiError(
                    ErrorCode.NETWORK_EXCEPTION, "the client was closed", outcome_unknown=True
                ) from None
            raise

    def _begin_call(self, make: Callable[[], Coroutine[Any, Any, T]], endless: bool) -> Future[T]:
        """Start a call, on a new loop if none is running. Raises RaftlogError."""
        calls = self._calls

        async def counted() -> T:
            task = asyncio.current_task()
            assert task is not None
            calls.add(task)
            try:
                return await make()
            finally:
                calls.discard(task)

        require_same_process(self._made_by)
        with self._lock:
            # Under the lock, so that nothing is scheduled after the end of the loop, where it
            # would wait forever.
            self.require_open()
            if self._loop is None:
                self._begin()
            if endless and _Process.main_ended:
                raise RaftlogError(_MAIN_ENDED)
            assert self._loop is not None
            future = asyncio.run_coroutine_threadsafe(counted(), self._loop)
            if endless:
                self._endless.add(future)
                future.add_done_callback(self._endless.discard)
        return future

    def end_waits(self) -> None:
        """Cancel the calls without a time limit."""
        if self._made_by != os.getpid():
            return
        with self._lock:
            endless = list(self._endless)
        for future in endless:
            future.cancel()

    def _begin(self) -> None:
        if _Process.forked:
            raise RaftlogError(
                "this process was forked from one that had used a client, and gRPC does not "
                "survive a fork, even if the client was closed: start processes with the method "
                "'spawn' or 'forkserver', or create the first client after the fork"
            )
        require_unpatched()
        _Process.watch(self)
        made: Future[asyncio.AbstractEventLoop] = Future()
        thread = threading.Thread(target=_run, args=(made,), name="raftlog client", daemon=True)
        thread.start()
        loop = made.result()
        self._loop, self._thread = loop, thread
        # For a client that is dropped without being closed.
        self._finalizer = weakref.finalize(
            self, _stop, loop, thread, os.getpid(), self._close, self._calls
        )
        self._finalizer.atexit = False

    def stop(self) -> None:
        """Stop the loop and the tasks on it. Idempotent."""
        if self._made_by != os.getpid():
            return
        with self._lock:
            self._stopped = True
        # Called explicitly: at the end of the process a finalizer may have been disabled.
        begun = self._finalizer.detach() if self._finalizer is not None else None
        if begun is not None:
            _, stop, arguments, _ = begun
            stop(*arguments)


def _run(made: Future[asyncio.AbstractEventLoop]) -> None:
    # Made here, as an interrupt of the main thread would leave it half made.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    made.set_result(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(
    loop: asyncio.AbstractEventLoop,
    thread: threading.Thread,
    made_by: int,
    close: Close,
    calls: set[asyncio.Task[Any]],
) -> None:
    if made_by != os.getpid() or thread is threading.current_thread() or loop.is_closed():
        return
    asyncio.run_coroutine_threadsafe(_end(loop, close, calls), loop)
    thread.join(STOP_TIMEOUT_S + 1)


async def _end(
    loop: asyncio.AbstractEventLoop, close: Close, calls: set[asyncio.Task[Any]]
) -> None:
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            # A cancelled call may still have to release a resource, such as a place in a queue.
            if leaving := [call for call in calls if call.cancelling()]:
                await asyncio.wait(leaving, timeout=CALLS_TIMEOUT_S)
            await close()
            if calls:
                await asyncio.wait(set(calls), timeout=CALLS_TIMEOUT_S)
    finally:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        loop.call_soon(loop.stop)


A = TypeVar("A")
C = TypeVar("C", bound=AbstractAsyncContextManager[Any, None])
P = ParamSpec("P")
S = TypeVar("S", bound=AsyncStream[Any])


class Blocking(Generic[A]):
    """The blocking twin of an asynchronous object on a loop in another thread."""

    def __init__(self, thread: LoopThread, twin: A) -> None:
        self._thread = thread
        self._twin = twin

    def __repr__(self) -> str:
        return f"<blocking {self._twin!r}>"


class BlockingContext(Blocking[C]):
    """A blocking twin that is a context manager. Closing a client closes all objects made by it."""

    _exit_waits = False
    """Whether leaving the ``with`` block has no time limit."""

    def __enter__(self) -> Self:
        self._thread.require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ClientClosedError):
            self._thread.call(
                lambda: self._twin.__aexit__(kind, error, traceback), endless=self._exit_waits
            )


class BlockingStream(BlockingContext[S]):
    """The blocking twin of a stream, for one thread at a time; any thread may close it."""

    def __init__(self, thread: LoopThread, twin: S) -> None:
        super().__init__(thread, twin)
        self._reader = OneReader(twin.what)

    def __enter__(self) -> Self:
        self._thread.call(self._twin.__aenter__)
        return self

    def __iter__(self) -> Self:
        return self

    def _read(self, read: Callable[[], Coroutine[Any, Any, T]], idle_timeout_s: float | None) -> T:
        """Read on the loop. Raises StopIteration once the client is closed."""
        try:
            return self._thread.call(read, endless=idle_timeout_s is None)
        except ClientClosedError:
            raise StopIteration from None

    def close(self) -> None:
        """End the stream. Idempotent."""
        with contextlib.suppress(ClientClosedError):
            self._thread.call(self._twin.close)


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """Return the blocking twin of a method."""

    @functools.wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(lambda: method(self._twin, *args, **kwargs))

    return call


def making(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, C]], kind: Callable[[LoopThread, C], T]
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """Return the blocking twin of a method whose result needs a twin of the given kind."""

    @functools.wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return kind(self._thread, self._thread.call(lambda: method(self._twin, *args, **kwargs)))

    return call


def begun(method: Callable[P, S]) -> Callable[P, Coroutine[Any, Any, S]]:
    """Return a function that opens a stream and returns once it has started."""

    @functools.wraps(method)
    async def begin(*args: P.args, **kwargs: P.kwargs) -> S:
        return await method(*args, **kwargs).__aenter__()

    return begin


def waiting(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """Return the blocking twin of a method that has no time limit if ``timeout_s``, its first
    argument, is None.
    """

    @functools.wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        timeout_s = args[0] if args else kwargs.get("timeout_s")
        return self._thread.call(
            lambda: method(self._twin, *args, **kwargs), endless=timeout_s is None
        )

    return call


def on_loop(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Blocking[Any], P], T]:
    """Return the blocking twin of a method that never waits, but must run on the loop's thread."""

    @functools.wraps(method)
    async def there(self: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self, *args, **kwargs)

    return blocking(there)


class Attribute(Generic[T]):
    """A read-only property of the twin, with its type, which pyright does not infer from a
    getter.
    """

    def __init__(self, of: Callable[[Any], T] | property) -> None:
        """``of``: the property of the asynchronous twin."""
        self._of = cast("property", of)
        self.__doc__ = of.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: Blocking[Any], owner: type) -> T: ...

    def __get__(self, instance: Blocking[Any] | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value: T = self._of.__get__(instance._twin)
        return value

    def __set__(self, instance: Blocking[Any], value: Any) -> None:
        raise AttributeError("this attribute is read-only")

"""Blocking methods, made of asynchronous ones: the same arguments, the result instead of an
awaitable.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

from raftlog.client.loop_thread import LoopThread
from raftlog.client.streams import AsyncStream, OneReader
from raftlog.errors import ClientClosedError

A = TypeVar("A")
C = TypeVar("C", bound=AbstractAsyncContextManager[Any, None])
P = ParamSpec("P")
S = TypeVar("S", bound=AsyncStream[Any])
T = TypeVar("T")


class Blocking(Generic[A]):
    """The blocking twin of an asynchronous object that lives on a loop in another thread."""

    def __init__(self, thread: LoopThread, twin: A) -> None:
        self._thread = thread
        self._twin = twin

    def __repr__(self) -> str:
        return f"<blocking {self._twin!r}>"


class BlockingContext(Blocking[C]):
    """One whose end of ``with`` is the twin's end of ``async with``.

    The end of a client ends all that was made by it: then there is nothing left to do.
    """

    _exit_waits = False
    """Whether the end of ``with`` may take for ever."""

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
    """The blocking twin of a method."""

    @functools.wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(lambda: method(self._twin, *args, **kwargs))

    return call


def waiting(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """The blocking twin of a method that waits without end if ``timeout_s``, its first argument, is
    None.
    """

    @functools.wraps(method)
    def call(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        timeout_s = args[0] if args else kwargs.get("timeout_s")
        return self._thread.call(
            lambda: method(self._twin, *args, **kwargs), endless=timeout_s is None
        )

    return call


def on_loop(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Blocking[Any], P], T]:
    """The twin of a method that waits for nothing, but is for the loop's thread alone."""

    @functools.wraps(method)
    async def there(self: A, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self, *args, **kwargs)

    return blocking(there)


class Attribute(Generic[T]):
    """A property of the twin, for reading: ``token = Attribute[int](AsyncLock.token)``.

    With its type: mypy takes a property of a class for its getter and would find it, pyright not.
    """

    def __init__(self, of: Callable[[Any], T] | property) -> None:
        """``of``: the twin's property."""
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
        raise AttributeError("this is only for reading")

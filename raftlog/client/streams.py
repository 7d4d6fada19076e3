"""The streams of ``client.watch`` and ``client.consume``: items that arrive until the stream is
closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from raftlog.errors import RaftlogError

if TYPE_CHECKING:
    from raftlog.client.core import Core

T = TypeVar("T")


class Source(Protocol):
    """A source of a stream."""

    def close(self) -> None:
        """Close the source's connections. Idempotent."""


class OneReader:
    """A context manager that raises RaftlogError while another task or thread is inside."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RaftlogError(
                f"another task or thread is reading this {self._what}: create one for each reader"
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class AsyncStream(ABC, Generic[T]):
    """An iterator over items that arrive over time, for one task at a time.

    ``close``, called by any task, ends the iteration; so does closing the client. A stream that is
    dropped without being closed is closed with a ResourceWarning.
    """

    what: str
    """Name of the kind of stream, for messages."""

    def __init__(self, core: Core, source: Source) -> None:
        self._loop = asyncio.get_running_loop()
        self._source = source
        self.reader = OneReader(self.what)
        self.closed = False
        core.end_with_client(self)

    @abstractmethod
    async def _next(self) -> T:
        """Return the next item. Raises StopAsyncIteration."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        with self.reader:
            return await self._next()

    async def __aenter__(self) -> Self:
        if self.closed:
            raise RaftlogError(f"this {self.what} was closed")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the stream. Idempotent."""
        self.end("closed")

    def end(self, _why: str) -> None:
        """End the stream, on the event loop."""
        if not self.closed:
            self.closed = True
            self._source.close()

    def __del__(self) -> None:
        if not getattr(self, "closed", True):
            warnings.warn(f"unclosed {self.what}", ResourceWarning, source=self, stacklevel=1)
            with contextlib.suppress(RuntimeError):  # The loop has ended, with everything on it.
                self._loop.call_soon_threadsafe(self._source.close)

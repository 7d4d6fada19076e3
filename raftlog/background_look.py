"""Questions to a file system that an event loop must not wait for.

``statvfs`` and ``open`` take microseconds, and for ever on a network file system whose server is
gone: then the node must still vote, hand over, and say what is wrong with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
PATIENCE_S = 0.05
"""Of who speaks for a node: what the disk does not say in time must not hide the rest."""


class _Answer(NamedTuple, Generic[T]):
    found: T | None
    failure: OSError | None


class BackgroundLook(Generic[T]):
    """Asks in a thread: in one at most, however long that hangs, and the process does not wait for
    it to end. Belongs to one thread, that of the loop.
    """

    def __init__(self, ask: Callable[[], T]) -> None:
        """``ask`` may raise OSError, and nothing else."""
        self._ask = ask
        self._asking: Future[_Answer[T]] | None = None
        self._awaited: asyncio.Future[_Answer[T]] | None = None
        self._last: _Answer[T] | None = None

    @property
    def latest(self) -> T | None:
        """What was found last; None: nothing yet, or the last look failed."""
        self._collect()
        return None if self._last is None else self._last.found

    def poll(self) -> T:
        """What was found since the last call, or before if that look goes on; and look again.

        Raises OSError. Only the first call waits for its answer.
        """
        self._collect()
        if self._last is None:
            self._last = self._answer()
        else:
            self._begin()
        if self._last.failure is not None:
            raise self._last.failure
        assert self._last.found is not None
        return self._last.found

    async def now(self, patience_s: float = PATIENCE_S) -> T | None:
        """The answer to this question, or to one that is under way; None: the look failed, or has
        not ended in time.
        """
        awaited = self._awaited
        if awaited is None or awaited.done():
            # Others may ask anew as soon as this has its answer, and before it goes on here.
            awaited = self._awaited = asyncio.wrap_future(self._begin())
        await asyncio.wait([awaited], timeout=patience_s)
        return awaited.result().found if awaited.done() else None

    def _begin(self) -> Future[_Answer[T]]:
        self._collect()
        if self._asking is None:
            asking = self._asking = Future()
            asking.set_running_or_notify_cancel()
            threading.Thread(
                target=lambda: asking.set_result(self._answer()), name="raftlog-look", daemon=True
            ).start()
        return self._asking

    def _collect(self) -> None:
        if self._asking is not None and self._asking.done():
            self._last, self._asking = self._asking.result(), None

    def _answer(self) -> _Answer[T]:
        try:
            return _Answer(self._ask(), None)
        except OSError as error:
            return _Answer(None, error)

"""One look at the cluster for all who watch the console, and none when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from raftlog.logger import get_logger
from raftlog.shares import Shares

log = get_logger(__name__)

Look = Callable[[], Awaitable[bytes]]


class Feed:
    """Looks while somebody waits for news, at most once in ``pause_s``.

    Nothing is queued: who is slow gets the newest when it comes back, and who does not read at all
    does not wait, so nothing is collected for it.
    """

    def __init__(self, look: Look, *, pause_s: float, max_subscribers: int) -> None:
        self._look, self._pause_s = look, pause_s
        self._places = Shares(max_subscribers)
        self._changed = asyncio.Condition()
        self._waiting = self._number = 0
        self._newest = b""
        self._looked_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    @property
    def subscribers(self) -> int:
        """How many places are taken."""
        return self._places.total

    def subscribe(self, host: str) -> bool:
        """Take a place for a client of this address; False: there is none for it. Every place is to
        be given back.
        """
        return not self.closed and self._places.take(host)

    def unsubscribe(self, host: str) -> None:
        """Give the place back."""
        self._places.give_back(host)

    async def after(self, seen: int) -> tuple[int, bytes]:
        """The newest look and its number, once there is one that is not number ``seen``. 0: none
        was seen; number 0: the feed is closed.
        """
        loop = asyncio.get_running_loop()
        if loop.time() - self._looked_at > self._pause_s:
            seen = self._number
        self._waiting += 1
        try:
            async with self._changed:
                while not self.closed and self._number <= seen:
                    if self._task is None or self._task.done():
                        self._task = asyncio.create_task(self._run(), name="console")
                    await self._changed.wait()
        finally:
            self._waiting -= 1
        return (0, b"") if self.closed else (self._number, self._newest)

    async def close(self) -> None:
        """End the look under way; who waits gets number 0."""
        self.closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        async with self._changed:
            self._changed.notify_all()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and not self.closed:
            await asyncio.sleep(max(0.0, self._looked_at + self._pause_s - loop.time()))
            try:
                newest = await self._look()
            except Exception as error:
                # It only looks: whatever fails here is no reason to end a node.
                log.warning("the console cannot look at the cluster", error=str(error))
                self._looked_at = loop.time()
                continue
            # A look that takes long is followed by as long a pause.
            self._looked_at = loop.time()
            async with self._changed:
                self._newest, self._number = newest, self._number + 1
                self._changed.notify_all()
            await asyncio.sleep(0)

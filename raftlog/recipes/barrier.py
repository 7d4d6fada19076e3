"""A barrier: who comes waits until it is lifted."""

from __future__ import annotations

import asyncio

from raftlog.library.async_client import AsyncClient
from raftlog.recipes.keys import checked_name, until_gone

PREFIX = "barriers/"


class AsyncBarrier:
    """A barrier of this name: a key; who waits, waits until it is gone.

    It has no lease: it stands until somebody lifts it, whoever put it there.
    """

    def __init__(self, client: AsyncClient, name: str) -> None:
        """Raises ValueError for a name that cannot be part of a key."""
        self._client = client
        self.key = f"{PREFIX}{checked_name('barrier', name, f'{PREFIX}{name}/')}"

    async def hold(self, value: str = "") -> None:
        """Put it there; it may be there already. Who begins to wait from now on, waits."""
        await self._client.kv.put(self.key, value, acks="visible")

    async def lift(self) -> None:
        """Let everybody pass. No error if it is not there."""
        await self._client.kv.delete(self.key)

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is not there; False: the time was over first.

        A strict read, so whoever begins to wait after ``hold`` has returned does wait.
        """
        try:
            async with asyncio.timeout(timeout_s):
                return await until_gone(self._client, self.key, read="strict")
        except TimeoutError:
            return False

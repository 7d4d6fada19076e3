"""A barrier: clients wait until it is lifted."""

from __future__ import annotations

import asyncio

from raftlog.client.arguments import checked
from raftlog.client.async_client import AsyncClient
from raftlog.recipes.keys import key_of, until_gone


class AsyncBarrier:
    """A barrier of this name: a key; clients wait until it is deleted.

    It has no lease: it stays until a client lifts it, the holder or another.
    """

    @checked
    def __init__(self, client: AsyncClient, name: str) -> None:
        """Raises ValueError for a name that cannot be part of a key."""
        self._client = client
        self.key = key_of("barrier", name)

    @checked
    async def hold(self, value: str = "") -> None:
        """Put the barrier in place; it may be there already. Every later ``wait`` waits."""
        await self._client.kv.put(self.key, value, acks="visible")

    async def lift(self) -> None:
        """Release all waiting clients. No error if the barrier is not there."""
        await self._client.kv.delete(self.key)

    @checked
    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until there is no barrier; False: the timeout passed first.

        It is read once whatever the timeout. That is a strict read, so a call that begins after
        ``hold`` has returned does wait.
        """
        if await self._client.kv.get(self.key, read="strict") is None:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await until_gone(self._client, self.key)
        except TimeoutError:
            return False
        return True

"""A barrier: who comes waits until it is lifted."""

from __future__ import annotations

import asyncio

from raftlog.library.async_client import AsyncClient

PREFIX = "barriers/"


class AsyncBarrier:
    """A barrier of this name: a key; who waits, waits until it is gone.

    It has no lease: it stands until somebody lifts it, whoever put it there.
    """

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client, self.key = client, f"{PREFIX}{name}"

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
                async with self._client.watch(f"kv/{self.key}", tip=True) as changes:
                    if changes.token is not None:
                        await self._client.see(changes.token)
                    if await self._client.kv.get(self.key, read="strict") is None:
                        return True
                    async for change in changes:
                        if change.key == self.key and change.after is None:
                            return True
        except TimeoutError:
            return False
        return False

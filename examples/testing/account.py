"""Programs that withdraw from one account, taking turns with a lock.

``draw`` relies on the lock alone, a mistake that ordinary tests do not find. ``draw_guarded`` makes
the change conditional on the lock.
"""

import asyncio
from contextlib import suppress

import raftlog
from raftlog.errors import ApiError
from raftlog.recipes import AsyncLock, PlaceLostError

BALANCE, RECEIPTS = "account/balance", "account/receipts/"


async def draw(client: raftlog.AsyncClient, receipt: str, amount: int) -> None:
    """Withdraw once. Wrong: the lock may be lost while this program is paused."""
    async with AsyncLock(client, "account", ttl_s=3):
        found = await client.kv.get(BALANCE, read="strict")
        assert found is not None
        await asyncio.sleep(0.5)  # such as looking up a rule, or sending a mail
        await client.kv.alter(
            raftlog.Put(BALANCE, str(int(found.text) - amount)),
            raftlog.Put(RECEIPTS + receipt, str(amount)),
        )


async def draw_guarded(client: raftlog.AsyncClient, receipt: str, amount: int) -> None:
    """Withdraw once, if the lock is still held when the change is made."""
    async with AsyncLock(client, "account", ttl_s=3) as lock:
        found = await client.kv.get(BALANCE, read="strict")
        assert found is not None
        await asyncio.sleep(0.5)
        await client.kv.alter(
            lock.guard(),
            raftlog.Put(BALANCE, str(int(found.text) - amount)),
            raftlog.Put(RECEIPTS + receipt, str(amount)),
        )


async def teller(name: str, *, guarded: bool, draws: int = 20) -> None:
    """Withdraw repeatedly, like a program whose cluster is not always available."""
    async with raftlog.AsyncClient() as client:
        for number in range(draws):
            one = draw_guarded if guarded else draw
            with suppress(ApiError, PlaceLostError):  # the receipt shows whether it happened
                await one(client, f"{name}-{number}", 1)
            await asyncio.sleep(1.0)

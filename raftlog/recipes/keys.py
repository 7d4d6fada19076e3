"""What recipes make of keys and watches."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from raftlog.library.async_client import AsyncClient
from raftlog.library.changes import AsyncChanges
from raftlog.library.enums import ReadModeLike


def place_key(prefix: str, lease_id: int) -> str:
    """The key of a place in a queue. Ids grow, so lists show the queue in its order."""
    return f"{prefix}{lease_id:020d}"


def checked_name(what: str, name: str, prefix: str) -> str:
    """The name of a lock or the like. ``prefix``: what it makes of the key. Raises ValueError."""
    from raftlog.limits.fields import KEY

    if not name or (wrong := KEY.error(place_key(prefix, 0))):
        raise ValueError(f"{name!r:.80} is no name of a {what}: {wrong if name else 'it is empty'}")
    return name


@asynccontextmanager
async def watched(client: AsyncClient, selector: str) -> AsyncGenerator[AsyncChanges]:
    """Changes that begin here: what went before, any read inside shows."""
    async with client.watch(selector, tip=True) as changes:
        if changes.token is not None:
            await client.see(changes.token)
        yield changes


async def until_gone(client: AsyncClient, key: str, *, read: ReadModeLike) -> bool:
    """Wait until a key is not there; False: the watch has ended first, and it may be there still.
    ``read``: how the first look is made.
    """
    async with watched(client, f"kv/{key}") as changes:
        if await client.kv.get(key, read=read) is None:
            return True
        async for change in changes:
            if change.key == key and change.after is None:
                return True
    return False

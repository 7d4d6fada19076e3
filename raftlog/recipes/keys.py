"""Helpers of the recipes for keys and watches."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from raftlog.client.async_client import AsyncClient
from raftlog.client.watch import AsyncChanges
from raftlog.errors import ClientClosedError


def place_key(prefix: str, lease_id: int) -> str:
    """Return the key of a place in a queue. Ids grow, so lists show the queue in its order."""
    return f"{prefix}{lease_id:020d}"


def key_of(what: str, name: str) -> str:
    """Return the key of a lock or the like: ``locks/NAME``, a prefix of its keys or the only one.

    The name is one segment of the key, with commas for its slashes, so that no key of one name is
    below the key of another name. Raises ValueError for a name that cannot be part of a key.
    """
    from raftlog.limits import KEY

    directory = f"{what.replace(' ', '_')}s/"
    wrong = "it is empty" if not name else "it has a comma" if "," in name else ""
    if wrong := wrong or KEY.error(place_key(f"{directory}{name}/", 0)):
        raise ValueError(f"name: {name!r:.80} is no name of a {what}: {wrong}")
    return directory + name.replace("/", ",")


@asynccontextmanager
async def watched(client: AsyncClient, selector: str) -> AsyncGenerator[AsyncChanges]:
    """Yield changes from now on: any read inside shows the earlier ones."""
    async with client.watch(selector, tip=True) as changes:
        if changes.token is not None:
            await client.see(changes.token)
        yield changes


async def until_gone(client: AsyncClient, key: str) -> None:
    """Wait until a key does not exist."""
    async with watched(client, f"kv/{key}") as changes:
        if await client.kv.get(key, read="latest") is None:
            return
        async for change in changes:
            if change.key == key and change.after is None:
                return
    raise ClientClosedError()

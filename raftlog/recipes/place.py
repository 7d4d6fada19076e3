"""A place in a queue of keys: what locks and elections are made of.

Who comes puts a key with a lease of its own. The key's create_offset is its place: offsets only
grow, and a key that is gone never comes back to its place. So whoever sees, in an image that has
its own key, no key with a lower create_offset, is first, and stays first until its own key goes:
nobody can come in before it. It waits for the one before it alone: a queue of a thousand wakes one
when its head leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from raftlog.errors import RaftlogError
from raftlog.library.async_client import AsyncClient
from raftlog.library.key_values import ABSENT, Expect, KeyValue
from raftlog.library.leases import AsyncLease

T = TypeVar("T")


class PlaceLostError(RaftlogError):
    """The lease ended, or may have: somebody else may be first by now."""


class Place:
    """One place. ``enter``, then ``first``; in the end ``leave``."""

    def __init__(self, client: AsyncClient, prefix: str, ttl_s: float, name: str) -> None:
        self._client, self._prefix, self._ttl_s, self._name = client, prefix, ttl_s, name
        self._lease: AsyncLease | None = None
        self.key = ""
        self.token = 0
        """The create_offset of the key: who comes later has a higher one."""

    @property
    def is_held(self) -> bool:
        """Whether it is certain, by this clock, that the key is still there."""
        return self._lease is not None and self._lease.is_held

    @property
    def lease(self) -> AsyncLease:
        """Raises PlaceLostError if there is none."""
        if self._lease is None:
            raise PlaceLostError("it has no place: enter first")
        return self._lease

    def guard(self) -> Expect:
        """The condition that the place is still held: for ``client.kv.alter``."""
        return Expect(self.key, expected_create=self.token)

    async def enter(self, value: bytes | str) -> None:
        """Go to the end of the queue. Raises ApiError: then there is no place."""
        if self._lease is not None:
            raise RaftlogError("it has a place already")
        lease = await self._client.leases.grant(self._ttl_s, name=self._name)
        try:
            # Ids grow, so lists show the queue in its order.
            key = f"{self._prefix}{lease.id:020d}"
            written = await self._client.kv.put(key, value, lease_id=lease.id, expected=ABSENT)
        except BaseException:
            lease.abandon()
            raise
        assert written.offset is not None
        self._lease, self.key, self.token = lease, key, written.offset

    async def first(self) -> None:
        """Wait until nobody is before it. Raises PlaceLostError."""
        while (before := await self._before()) is not None:
            await self._unless_lost(self._gone(before.key))
        if not self.is_held:
            raise PlaceLostError(f"the lease was lost: {self.lease.why_lost}")

    async def leave(self) -> None:
        """Give the place up. Idempotent. Raises ApiError: then the lease ends by itself."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.revoke()

    def abandon(self) -> None:
        """Give it up without a word: the lease ends by itself."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.abandon()

    async def _before(self) -> KeyValue | None:
        """Who is just before it."""
        # The client has seen its own key, so the image that answers has everybody before it.
        found = await self._unless_lost(
            self._client.kv.list(self._prefix, keys_only=True, read="latest")
        )
        if all(one.create_offset != self.token for one in found):
            raise PlaceLostError(f"key {self.key} is gone: its lease has ended")
        before = [one for one in found if one.create_offset < self.token]
        return max(before, key=lambda one: one.create_offset, default=None)

    async def _gone(self, key: str) -> None:
        async with self._client.watch(f"kv/{key}", tip=True) as changes:
            # What goes from here on is told; what went before, this read shows.
            if changes.token is not None:
                await self._client.see(changes.token)
            if await self._client.kv.get(key, read="latest") is None:
                return
            async for change in changes:
                if change.key == key and change.after is None:
                    return

    async def _unless_lost(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something, as long as the lease is held. Raises PlaceLostError."""
        lease = self.lease
        doing = asyncio.ensure_future(work)
        lost = asyncio.ensure_future(lease.wait_lost())
        try:
            await asyncio.wait({doing, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not lease.is_held:
                raise PlaceLostError(f"the lease was lost: {lease.why_lost}")
            return doing.result()
        finally:
            lost.cancel()
            if not doing.done():
                doing.cancel()
                await asyncio.gather(doing, return_exceptions=True)

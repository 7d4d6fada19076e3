"""A lock: at most one holder, first come, first served."""

from __future__ import annotations

from typing import Self

from raftlog.client.arguments import checked
from raftlog.client.async_client import AsyncClient
from raftlog.recipes.place import Holder, Place

DEFAULT_TTL_S = 10.0


class AsyncLock(Holder):
    """A lock with this name, for one task at a time: ``async with AsyncLock(client, "orders"):``.

    In the log there are never two holders. But a holder that is paused, or whose last requests are
    delayed, does not know yet that it has lost the lock: the resource that the lock guards must
    check ``token``, or be changed together with ``guard``.
    """

    @checked
    def __init__(
        self, client: AsyncClient, name: str, *, ttl_s: float = DEFAULT_TTL_S, value: str = ""
    ) -> None:
        """``ttl_s``: time in seconds for which the lock outlives a dead holder. ``value``: the
        holder's name, for operators.
        """
        self._place = Place(client, "lock", name, ttl_s)
        self._value = value

    @property
    def is_held(self) -> bool:
        """Whether it is certain, by the local clock, that no other client has the lock."""
        return self._place.is_first

    @checked
    async def acquire(self, timeout_s: float | None = None) -> bool:
        """Wait for the lock. Return False if the timeout passes first; with 0, acquire it only if
        it is free. Raises PlaceLostError, ApiError.
        """
        return await self._place.take(self._value, timeout_s)

    async def release(self) -> None:
        """Release the lock to the next client. Idempotent. After an ApiError, the lease expires by
        itself, or ends with the next call.
        """
        await self._place.leave()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

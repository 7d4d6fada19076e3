"""An election: one leader at a time, known to every client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Self

from raftlog.client.arguments import checked
from raftlog.client.async_client import AsyncClient
from raftlog.client.key_values import Put
from raftlog.errors import InvalidUpdateVersionError, PlaceLostError
from raftlog.recipes.lock import DEFAULT_TTL_S
from raftlog.recipes.place import Holder, Place, watched


@dataclass(frozen=True, slots=True)
class Leader:
    """A leader as a broker shows it."""

    value: str
    """The leader's own text, such as its address."""
    token: int
    """The fencing token; each later leader has a higher one."""
    key: str


class AsyncElection(Holder):
    """An election with this name: inside ``async with AsyncElection(client, "scheduler",
    "host-1"):`` this client leads.

    A leadership has the guarantees of a lock: see :class:`AsyncLock`.
    """

    @checked
    def __init__(
        self, client: AsyncClient, name: str, value: str = "", *, ttl_s: float = DEFAULT_TTL_S
    ) -> None:
        """``value``: the text that others see for this leader, such as its address."""
        self._client, self._value = client, value
        self._place = Place(client, "election", name, ttl_s)

    @property
    def is_leader(self) -> bool:
        """Whether it is certain, by the local clock, that no other client leads."""
        return self._place.is_first

    @checked
    async def campaign(self, timeout_s: float | None = None) -> bool:
        """Wait until elected. Return False if the timeout passes first; with 0, lead only if there
        is no leader. Raises PlaceLostError, ApiError.
        """
        return await self._place.take(self._value, timeout_s)

    @checked
    async def proclaim(self, value: str) -> None:
        """Change the leader's text without another election. Raises PlaceLostError."""
        put = Put(
            self._place.key,
            value,
            lease_id=self._place.lease.id,
            expected_create=self._place.token,
            generation=self._place.generation,
        )
        try:
            await self._client.kv.alter(put)
        except InvalidUpdateVersionError as error:
            raise PlaceLostError(f"the leadership was lost: {error.message}") from error

    async def resign(self) -> None:
        """Resign, so that another client can lead. Idempotent. After an ApiError, the
        lease expires by itself, or ends with the next call.
        """
        await self._place.leave()

    async def leader(self) -> Leader | None:
        """Return the leader, or None. By the time of the answer, another client may lead."""
        found = await self._client.kv.list(self._place.prefix, read="latest")
        first = min(found, key=lambda one: one.create_offset, default=None)
        return None if first is None else Leader(first.text, first.create_offset, first.key)

    async def observe(self) -> AsyncGenerator[Leader | None]:
        """Yield the leader at each change from now on; several changes may be merged into one."""
        async with watched(self._client, f"kv/{self._place.prefix}") as changes:
            last = await self.leader()
            yield last
            async for change in changes:
                await self._client.see(change.token)
                found = await self.leader()
                if found != last:
                    last = found
                    yield found

    async def __aenter__(self) -> Self:
        await self.campaign()
        return self

"""Barriers: clients wait until a barrier is lifted, or enter and leave together.

Each member of a double barrier puts a key with its own lease, as for a lock. A member that sees
enough keys records the group, on the condition that all of the group's keys still exist: so in the
log a group is complete at the moment it is formed, and no member is in two groups. Later members
wait for the next group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from raftlog.client.arguments import checked
from raftlog.client.async_client import AsyncClient
from raftlog.client.key_values import Delete, Expect, KeyValue, Put
from raftlog.client.values import ABSENT, ReadModeLike
from raftlog.errors import (
    ClientClosedError,
    InvalidUpdateVersionError,
    PlaceLostError,
    UnknownOutcomeError,
)
from raftlog.recipes.lock import DEFAULT_TTL_S
from raftlog.recipes.place import InQueue, Place, key_of, until_gone, watched

COUNT_MAX = 900
"""Maximum size of a group, which is also the maximum number of keys in one list and of conditions
in one write.
"""


class AsyncBarrier:
    """A barrier with this name: a key; clients wait until it is deleted.

    It has no lease: it stays until a client, not necessarily the one that put it, lifts it.
    """

    @checked
    def __init__(self, client: AsyncClient, name: str) -> None:
        """Raises ValueError for a name that cannot be part of a key."""
        self._client = client
        self.key = key_of("barrier", name)

    @checked
    async def hold(self, value: str = "") -> None:
        """Put the barrier in place, even if it already exists. Every later ``wait`` blocks."""
        await self._client.kv.put(self.key, value, acks="visible")

    async def lift(self) -> None:
        """Release all waiting clients. Not an error if the barrier does not exist."""
        await self._client.kv.delete(self.key)

    @checked
    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until there is no barrier. Return False if the timeout passes first.

        The barrier is read at least once, whatever the timeout, with a strict read, so a call that
        begins after ``hold`` has returned does wait.
        """
        if await self._client.kv.get(self.key, read="strict") is None:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await until_gone(self._client, self.key)
        except TimeoutError:
            return False
        return True


class _Group(NamedTuple):
    """The members whose keys were created between two offsets, inclusive. Every key in between
    belongs to the group: groups are formed in the order of arrival.
    """

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> _Group:
        """Parse the output of ``str``."""
        first, last = map(int, text.split())
        return cls(first, last)

    def __str__(self) -> str:
        return f"{self.first} {self.last}"

    def has(self, offset: int) -> bool:
        """Return whether a key created at ``offset`` is in the group."""
        return self.first <= offset <= self.last


_NOBODY = _Group(0, -1)


class _Look(NamedTuple):
    """The state of the barrier at one moment."""

    group: _Group
    """The last group that was formed."""
    version: int
    """The offset that a conditional change to the group expects."""
    waiting: Sequence[KeyValue]
    """Keys of the members without a group, in order of arrival."""


class AsyncDoubleBarrier(InQueue):
    """A double barrier with this name, for groups of ``count``, for one task at a time.

    ``async with AsyncDoubleBarrier(client, "step 1", 3):`` begins when three members have entered,
    and ends when all three have left. A member that dies leaves when its lease ends: if the group
    had already formed, the others enter and leave without it.
    """

    @checked
    def __init__(
        self, client: AsyncClient, name: str, count: int, *, ttl_s: float = DEFAULT_TTL_S
    ) -> None:
        """``ttl_s``: time in seconds that the others wait for a member that has died."""
        if not 1 <= count <= COUNT_MAX:
            raise ValueError(f"count={count}: must be 1 to {COUNT_MAX}")
        self._client, self._count = client, count
        self._prefix = f"{key_of('double barrier', name)}/"
        self._formed_key = f"{self._prefix}formed"
        self._place = Place(client, "double barrier", name, ttl_s, below="waiting/")
        self._group: _Group | None = None

    def abandon(self) -> None:
        """Leave when the lease ends, without a request, like a member that has died."""
        self._group = None
        super().abandon()

    @checked
    async def enter(self, timeout_s: float | None = None) -> bool:
        """Wait until ``count`` members have entered. Return False if the timeout passes first; this
        member is then in no group.

        The barrier is read at least once, whatever the timeout. Raises PlaceLostError, and
        ApiError.
        """
        with self._place.waiting():
            return await self._enter(timeout_s)

    async def _enter(self, timeout_s: float | None) -> bool:
        await self._place.enter("")
        try:
            await self._place.unless_lost(self._form_if_complete())
            try:
                async with asyncio.timeout(timeout_s):
                    self._group = await self._place.unless_lost(self._in_a_group())
            except TimeoutError:
                self._group = await self._withdraw()
        except BaseException:
            await asyncio.shield(self._place.give_up())
            raise
        if self._group is None:
            await self._place.give_up()
        return self._group is not None

    @checked
    async def leave(self, timeout_s: float | None = None) -> bool:
        """Leave, and wait until all others in the group have left. Return False if the timeout
        passes first.

        The barrier is read at least once, whatever the timeout. Idempotent. Raises ApiError.
        """
        await self._place.leave()
        group, self._group = self._group, None
        if group is None or not await self._left(group):
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_all_left(group)
        except TimeoutError:
            return False
        return True

    async def _in_a_group(self) -> _Group:
        # The watch shows each group formed since this one entered: of several, the last stays
        # visible.
        changes = self._client.watch(f"kv/{self._formed_key}", tip=True, since=self._place.entered)
        async with changes:
            async for change in changes:
                group = _Group.parse(change.after["value"])
                if group.has(self._place.token):
                    return group
                await self._client.see(change.token)
                await self._form_if_complete()
        raise ClientClosedError()

    async def _form_if_complete(self) -> None:
        """Form groups while enough members are waiting and this one is among them."""
        read: ReadModeLike = "latest"
        while True:
            look = await self._look(read)
            if self._place.token <= look.group.last:
                return
            self._require_own(look)
            if len(look.waiting) < self._count:
                return
            await self._form(look)
            # Another member may have formed it first, or one may have left: read again.
            read = "strict"

    async def _look(self, read: ReadModeLike) -> _Look:
        found = await self._client.kv.list(self._prefix, read=read)
        group, version = _NOBODY, ABSENT
        for one in found:
            if one.key == self._formed_key:
                group, version = _Group.parse(one.text), one.offset
        waiting = [
            one
            for one in found
            if one.key.startswith(self._place.prefix) and one.create_offset > group.last
        ]
        return _Look(group, version, sorted(waiting, key=_create_offset))

    def _require_own(self, look: _Look) -> None:
        if all(one.create_offset != self._place.token for one in look.waiting):
            raise PlaceLostError(f"key {self._place.key} was deleted: its lease has ended")

    async def _form(self, look: _Look) -> None:
        """Record the next group, if the barrier has not changed since the look."""
        members = look.waiting[: self._count]
        group = _Group(members[0].create_offset, members[-1].create_offset)
        of = self._place.generation
        there = [
            Expect(one.key, expected_create=one.create_offset, generation=of) for one in members
        ]
        formed = Put(self._formed_key, str(group), expected=look.version, generation=of)
        try:
            await self._client.kv.alter(*there, formed)
        except (InvalidUpdateVersionError, UnknownOutcomeError):
            return

    async def _withdraw(self) -> _Group | None:
        """Withdraw from the waiting members. Return the group if it was formed meanwhile, else
        None.
        """
        while True:
            look = await self._look("strict")
            if self._place.token <= look.group.last:
                return await self._in_a_group()
            self._require_own(look)
            own = Delete(self._place.key, expected_create=self._place.token)
            try:
                await self._client.kv.alter(own, Expect(self._formed_key, expected=look.version))
            except InvalidUpdateVersionError:
                continue
            return None

    async def _left(self, group: _Group) -> set[str]:
        """Return the keys of the group's members that have not left."""
        found = await self._client.kv.list(self._place.prefix, keys_only=True, read="latest")
        return {one.key for one in found if group.has(one.create_offset)}

    async def _until_all_left(self, group: _Group) -> None:
        async with watched(self._client, f"kv/{self._place.prefix}") as changes:
            if not (left := await self._left(group)):
                return
            async for change in changes:
                if change.after is None:
                    left.discard(change.key)
                    if not left:
                        return
        raise ClientClosedError()

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            await self.leave()
        else:
            # The others must not wait for a failed member, nor it for them.
            self._group = None
            await self._place.give_up()


def _create_offset(one: KeyValue) -> int:
    return one.create_offset

"""A place in a queue of keys: the base of locks and elections.

Each client puts a key, and grants its lease in the same write. The key's create_offset is its
place, as offsets only grow, and a deleted key never returns to its place. So if a client sees an
image that contains its own key, and no key with a lower create_offset, the client is first, and
stays first until its own key is deleted: no other client can enter before it. If the queue was
empty, the response to the write says so, and nothing is read. Otherwise the client waits only for
the one before it, so when the head of a queue of a thousand leaves, one client wakes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, TypeVar

from raftlog.client.arguments import checked
from raftlog.client.async_client import UNIQUE_NAME_CHARS, AsyncClient
from raftlog.client.key_values import Expect, KeyValue, Put
from raftlog.client.leases import AsyncLease, first_of, ttl_ms_of
from raftlog.client.values import ABSENT
from raftlog.client.watch import AsyncChanges
from raftlog.errors import (
    AcksNotReachedError,
    ApiError,
    ClientClosedError,
    PlaceLostError,
    RaftlogError,
)
from raftlog.outcome import Token

T = TypeVar("T")
LEASE_NAME_MAX_CHARS = 249


class Place:
    """One place in a queue: ``take`` it, and ``leave`` it in the end."""

    def __init__(
        self, client: AsyncClient, what: str, name: str, ttl_s: float, *, below: str = ""
    ) -> None:
        """``what``: the purpose of the queue, such as "lock". ``below``: prefix of its keys, below
        the name. Raises ValueError for a name that cannot be part of a key, and for an invalid
        time.
        """
        ttl_ms_of(ttl_s)
        self._client, self._ttl_s = client, ttl_s
        self.prefix = f"{key_of(what, name)}/{below}"
        """Prefix of the queue's keys."""
        self.client, self.name = client, name
        self._name = f"{what} {name}"[:LEASE_NAME_MAX_CHARS]
        self._lease: AsyncLease | None = None
        self._granting: asyncio.Future[AsyncLease] | None = None
        self._is_first = self._is_entering = self._is_leaving = self._is_alone = False
        self.key = ""
        self.entered: Token | None = None
        """Token of the write that put the key, or None."""
        self.token = 0
        """The create_offset of the key; later places have higher ones."""

    @property
    def is_first(self) -> bool:
        """Whether the place was taken, and it is certain, by the local clock, that the key still
        exists.
        """
        return self._is_first and self._lease is not None and self._lease.is_held

    @property
    def lease(self) -> AsyncLease:
        """The lease of the key. Raises PlaceLostError if there is none."""
        if self._lease is None:
            raise PlaceLostError(self._no_place)
        return self._lease

    @property
    def _no_place(self) -> str:
        return f"{self._name} is not held: acquire the lock, or campaign, first"

    def guard(self) -> Expect:
        """Return a condition for ``client.kv.alter`` that holds while the place is held. Raises
        PlaceLostError if it was never taken.
        """
        return Expect(self.key, expected_create=self.token, generation=self.generation)

    @property
    def generation(self) -> int:
        """Generation of the token's log. Raises PlaceLostError if the place was never taken."""
        if self.entered is None:
            raise PlaceLostError(self._no_place)
        return self.entered.generation

    async def take(self, value: str, timeout_s: float | None) -> bool:
        """Join the end of the queue, and wait until this place is first. Return False if the
        timeout passes first; the place is then given up.

        A queue that is not empty is read at least once, whatever the timeout. Raises
        PlaceLostError or ApiError; this client then has no place.
        """
        with self.waiting():
            return await self._take(value, timeout_s)

    async def _take(self, value: str, timeout_s: float | None) -> bool:
        await self.enter(value)
        try:
            # Reading the queue reports a lease that may have ended meanwhile.
            before = None if self._is_alone and self.lease.is_held else await self._before()
            async with asyncio.timeout(timeout_s):
                while before is not None:
                    await self.unless_lost(until_gone(self._client, before.key))
                    before = await self._before()
        except TimeoutError:
            await self.leave()
            return False
        except BaseException:
            await asyncio.shield(self.give_up())
            raise
        self._is_first = True
        return True

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Leave the queue if the client is closed in this block, so that others do not wait until
        the lease ends.
        """
        waiting = self._client.core.waiting
        waiting[self] = None
        try:
            yield
        finally:
            waiting.pop(self, None)

    async def withdraw(self) -> None:
        """Leave the queue, even if the key is still being put."""
        if self._granting is None:
            await self.give_up()
        else:
            await _undo(asyncio.shield(self._granting))

    async def enter(self, value: str) -> None:
        """Join the end of the queue without waiting, even after a place was lost."""
        if self._is_entering or (self._lease is not None and self._lease.is_held):
            raise RaftlogError(
                f"{self._name} is already held or waited for by this object, which is not "
                "reentrant: create one per task"
            )
        self._is_entering = True
        try:
            await self._enter(value)
        finally:
            self._is_entering = False

    async def _enter(self, value: str) -> None:
        put = Put(f"{self.prefix}{self._client._unique_name()}", value, expected=ABSENT)
        self._granting = granting = asyncio.ensure_future(self._grant(put))
        try:
            lease = await asyncio.shield(granting)
        except asyncio.CancelledError:
            # The key may exist, now or soon, and others would wait for it until its lease ends.
            await asyncio.shield(_undo(granting))
            raise
        finally:
            self._granting = None
        self._lease, self.key, self.token = lease, put.key, lease.granted.offset
        self.entered = lease.granted.token
        self._is_alone = [one.siblings for one in lease.granted.items] == [0]
        self._is_first = self._is_leaving = False

    async def _grant(self, put: Put) -> AsyncLease:
        leases = self._client.leases
        try:
            return await leases.grant(self._ttl_s, name=self._name, puts=[put])
        except AcksNotReachedError as error:
            # The lease would not be kept alive, and others would wait for its end.
            with contextlib.suppress(RaftlogError):
                await leases.revoke(first_of(error.result, puts=1))
            raise

    async def leave(self) -> None:
        """Leave the queue. Idempotent. After an ApiError, the lease expires by itself, or ends with
        the next call. A place that was lost needs no request.
        """
        if (lease := self._lease) is None:
            return
        if lease.is_held or self._is_leaving:
            self._is_leaving = True
            await lease.revoke()
        if self._lease is lease:
            self.abandon()

    async def give_up(self) -> None:
        """Leave the queue; if that fails, let the lease expire. A place that was lost needs no
        request.
        """
        if self._lease is not None and not self._lease.is_held:
            self.abandon()
        with contextlib.suppress(ApiError):
            await self.leave()

    def abandon(self) -> None:
        """Give up the place without a request: its lease expires."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.abandon()

    async def _before(self) -> KeyValue | None:
        """Return the key of the place just before this one, or None."""
        # The client has seen its own key, so the image that answers contains every earlier key.
        found = await self.unless_lost(
            self._client.kv.list(self.prefix, keys_only=True, read="latest")
        )
        if all(one.create_offset != self.token for one in found):
            raise PlaceLostError(f"key {self.key} was deleted: its lease has ended")
        before = [one for one in found if one.create_offset < self.token]
        return max(before, key=lambda one: one.create_offset, default=None)

    async def unless_lost(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` while the lease is held. Raises PlaceLostError."""
        lease = self.lease
        doing = asyncio.ensure_future(work)
        lost = asyncio.ensure_future(lease.wait_lost())
        try:
            await asyncio.wait({doing, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not lease.is_held:
                if self._client.is_closed:
                    raise ClientClosedError()
                raise PlaceLostError(f"the lease was lost: {lease.why_lost}")
            return doing.result()
        finally:
            lost.cancel()
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)


class InQueue:
    """The common part of all recipes with a place in a queue."""

    _place: Place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place.name!r} of {self._place.client!r}>"

    @property
    def key(self) -> str:
        """The key of the place, or "" before it is taken."""
        return self._place.key

    def abandon(self) -> None:
        """Stop relying on the place, and let its lease expire without a request to the cluster, as
        if this client had died.
        """
        self._place.abandon()


class Holder(InQueue):
    """The common part of the recipes held by the first in a queue: a lock and a leadership."""

    @property
    def token(self) -> int:
        """The fencing token; a later holder has a higher one."""
        return self._place.token

    @property
    def generation(self) -> int:
        """The generation of the token's log. Tokens from different generations (after an unsafe
        recovery or a restore) cannot be compared.
        """
        return self._place.generation

    @property
    def remaining_s(self) -> float:
        """Seconds for which, by the local clock, no other client can have the place: the rest of
        its lease. Raises PlaceLostError if it was given up.
        """
        return self._place.lease.remaining_s

    def guard(self) -> Expect:
        """Return a condition that holds until the place is lost: ``client.kv.alter(lock.guard(),
        Put(…))`` changes nothing afterwards.
        """
        return self._place.guard()

    @checked
    async def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the place is lost or given up. Return False if the timeout passes first."""
        return await self._place.lease.wait_lost(timeout_s)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._place.give_up()


async def _undo(granting: asyncio.Future[AsyncLease]) -> None:
    """End a lease as soon as it is granted."""
    with contextlib.suppress(RaftlogError):
        await (await granting).revoke()


def key_of(what: str, name: str) -> str:
    """Return the key of a lock or other recipe: ``locks/NAME``, either a prefix of its keys or its
    only key.

    The name is one segment of the key, with commas instead of slashes, so that no key of one name
    is below the key of another name. Raises ValueError for a name that cannot be part of a key.
    """
    from raftlog.limits import KEY

    directory = f"{what.replace(' ', '_')}s/"
    wrong = "it is empty" if not name else "it has a comma" if "," in name else ""
    if wrong := wrong or KEY.error(f"{directory}{name}/{'0' * UNIQUE_NAME_CHARS}"):
        raise ValueError(f"name: {name!r:.80} is not a valid {what} name: {wrong}")
    return directory + name.replace("/", ",")


@asynccontextmanager
async def watched(client: AsyncClient, selector: str) -> AsyncGenerator[AsyncChanges]:
    """Yield a stream of the changes from now on; any read inside the block shows the
    earlier ones.
    """
    async with client.watch(selector, tip=True) as changes:
        if changes.token is not None:
            await client.see(changes.token)
        yield changes


async def until_gone(client: AsyncClient, key: str) -> None:
    """Wait until a key does not exist; later reads do not show it, whichever broker answers."""
    async with watched(client, f"kv/{key}") as changes:
        if await client.kv.get(key, read="latest") is None:
            return
        async for change in changes:
            if change.key == key and change.after is None:
                await client.see(change.token)
                return
    raise ClientClosedError()

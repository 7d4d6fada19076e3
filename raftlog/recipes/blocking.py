"""The recipes for :class:`raftlog.Client`: the same calls, which block."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Self, TypeVar, cast

from raftlog.client.arguments import checked
from raftlog.client.blocking import Attribute, Blocking, BlockingContext, blocking, on_loop, waiting
from raftlog.client.client import Client
from raftlog.client.key_values import Expect
from raftlog.errors import ClientClosedError
from raftlog.recipes.barriers import AsyncBarrier, AsyncDoubleBarrier
from raftlog.recipes.election import AsyncElection, Leader
from raftlog.recipes.lock import DEFAULT_TTL_S, AsyncLock
from raftlog.recipes.place import Holder, InQueue

Q = TypeVar("Q", AsyncLock, AsyncElection, AsyncDoubleBarrier)
H = TypeVar("H", AsyncLock, AsyncElection)


class _InQueue(BlockingContext[Q]):
    """The common part of the recipes with a place in a queue. See
    :class:`raftlog.recipes.place.InQueue`.
    """

    key = Attribute[str](InQueue.key)


class _Holding(_InQueue[H]):
    """The common part of a lock and an election. See :class:`raftlog.recipes.place.Holder`."""

    abandon = on_loop(Holder.abandon)
    generation = Attribute[int](Holder.generation)
    remaining_s = Attribute[float](Holder.remaining_s)
    token = Attribute[int](Holder.token)
    wait_lost = waiting(Holder.wait_lost)

    def guard(self) -> Expect:
        """Return a condition for ``client.kv.alter`` that holds until the place is lost."""
        return self._twin.guard()


class Lock(_Holding[AsyncLock]):
    """A lock with this name, for one thread at a time: ``with Lock(client, "orders"):``. See
    :class:`raftlog.recipes.AsyncLock`.
    """

    acquire = waiting(AsyncLock.acquire)
    release = blocking(AsyncLock.release)
    is_held = Attribute[bool](AsyncLock.is_held)

    @checked
    def __init__(
        self, client: Client, name: str, *, ttl_s: float = DEFAULT_TTL_S, value: str = ""
    ) -> None:
        """See :class:`raftlog.recipes.AsyncLock`."""
        thread, twin = client.parts
        super().__init__(thread, AsyncLock(twin, name, ttl_s=ttl_s, value=value))

    def __enter__(self) -> Self:
        self.acquire()
        return self


class Election(_Holding[AsyncElection]):
    """An election with this name: inside ``with Election(client, "scheduler", "host-1"):`` this
    client leads. See :class:`raftlog.recipes.AsyncElection`.
    """

    campaign = waiting(AsyncElection.campaign)
    leader = blocking(AsyncElection.leader)
    proclaim = blocking(AsyncElection.proclaim)
    resign = blocking(AsyncElection.resign)
    is_leader = Attribute[bool](AsyncElection.is_leader)

    @checked
    def __init__(
        self, client: Client, name: str, value: str = "", *, ttl_s: float = DEFAULT_TTL_S
    ) -> None:
        """See :class:`raftlog.recipes.AsyncElection`."""
        thread, twin = client.parts
        super().__init__(thread, AsyncElection(twin, name, value, ttl_s=ttl_s))

    def observe(self) -> Generator[Leader | None]:
        """Yield the leader at each change from now on; several changes may be merged into one.

        For one thread: ``with contextlib.closing(election.observe()) as leaders:``.
        """
        observed = self._twin.observe()
        ended = object()

        async def next_leader() -> Leader | object | None:
            return await anext(observed, ended)

        # The event loop closes ``observed`` when its last reference goes, at the end of this
        # generator.
        with contextlib.suppress(ClientClosedError):
            while (leader := self._thread.call(next_leader, endless=True)) is not ended:
                yield cast("Leader | None", leader)

    def __enter__(self) -> Self:
        self.campaign()
        return self


class Barrier(Blocking[AsyncBarrier]):
    """A barrier with this name. See :class:`raftlog.recipes.AsyncBarrier`."""

    hold = blocking(AsyncBarrier.hold)
    lift = blocking(AsyncBarrier.lift)
    wait = waiting(AsyncBarrier.wait)

    @checked
    def __init__(self, client: Client, name: str) -> None:
        thread, twin = client.parts
        super().__init__(thread, AsyncBarrier(twin, name))


class DoubleBarrier(_InQueue[AsyncDoubleBarrier]):
    """A double barrier with this name: ``with DoubleBarrier(client, "step 1", 3):`` begins when
    three clients have entered, and ends when all three have left. See
    :class:`raftlog.recipes.AsyncDoubleBarrier`.
    """

    enter = waiting(AsyncDoubleBarrier.enter)
    leave = waiting(AsyncDoubleBarrier.leave)
    abandon = on_loop(AsyncDoubleBarrier.abandon)
    _exit_waits = True

    @checked
    def __init__(
        self, client: Client, name: str, count: int, *, ttl_s: float = DEFAULT_TTL_S
    ) -> None:
        """See :class:`raftlog.recipes.AsyncDoubleBarrier`."""
        thread, twin = client.parts
        super().__init__(thread, AsyncDoubleBarrier(twin, name, count, ttl_s=ttl_s))

    def __enter__(self) -> Self:
        self.enter()
        return self

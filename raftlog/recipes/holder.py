"""The common parts of all recipes that are made of a place in a queue."""

from __future__ import annotations

from types import TracebackType

from raftlog.client.arguments import checked
from raftlog.client.key_values import Expect
from raftlog.recipes.place import Place


class InQueue:
    """The common part of all recipes with a place."""

    _place: Place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place.name!r} of {self._place.client!r}>"

    @property
    def key(self) -> str:
        """The key of the place; empty before it is taken."""
        return self._place.key

    def abandon(self) -> None:
        """Rely on the place no longer, and let its lease end without a request to the cluster: as
        if this client had died.
        """
        self._place.abandon()


class Holder(InQueue):
    """The common part of recipes held by the first in a queue: a lock, a leadership."""

    @property
    def token(self) -> int:
        """The fencing token: a later holder's is higher."""
        return self._place.token

    @property
    def generation(self) -> int:
        """The generation of the log that the token is of. Tokens of two generations, as after an
        unsafe recovery or a restore, cannot be compared.
        """
        return self._place.generation

    @property
    def remaining_s(self) -> float:
        """Time for which, by this clock, no other client can have the place, in seconds: the rest
        of its lease. Raises PlaceLostError if it was given up.
        """
        return self._place.lease.remaining_s

    def guard(self) -> Expect:
        """Return the condition that the place is not lost: ``client.kv.alter(lock.guard(),
        Put(…))`` changes nothing once it is.
        """
        return self._place.guard()

    @checked
    async def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the place is lost or given up; False: the timeout passed first."""
        return await self._place.lease.wait_lost(timeout_s)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._place.give_up()

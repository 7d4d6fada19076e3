"""What is the same of all recipes that are made of a place in a queue."""

from __future__ import annotations

from types import TracebackType

from raftlog.client.arguments import checked
from raftlog.client.key_values import Expect
from raftlog.recipes.place import Place


class InQueue:
    """Of all that have a place."""

    _place: Place

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place.name!r} of {self._place.client!r}>"

    @property
    def key(self) -> str:
        """The key that stands for it; empty before it has come."""
        return self._place.key

    def abandon(self) -> None:
        """Rely on it no longer, and let it end with its time, without a word to the cluster: as one
        that has died.
        """
        self._place.abandon()


class Holder(InQueue):
    """What is the same of all that are first in a queue: of a lock, and of a leadership."""

    @property
    def token(self) -> int:
        """The fencing token: that of who comes later is higher."""
        return self._place.token

    @property
    def generation(self) -> int:
        """The generation of the log that the token is of. Tokens of two generations, as after an
        unsafe recovery or a restore, cannot be compared.
        """
        return self._place.generation

    @property
    def remaining_s(self) -> float:
        """Time for which, by this clock, nobody else can have the place, in seconds: what is left
        of its lease. Raises PlaceLostError if it was given up.
        """
        return self._place.lease.remaining_s

    def guard(self) -> Expect:
        """The condition that the place is not lost: ``client.kv.alter(lock.guard(), Put(…))``
        changes nothing once it is.
        """
        return self._place.guard()

    @checked
    async def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until it is lost or given up; False: the time was over first."""
        return await self._place.lease.wait_lost(timeout_s)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._place.give_up()

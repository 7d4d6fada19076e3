"""Leases: keys bound to a TTL that the client keeps alive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from typing_extensions import Unpack

from raftlog.client.arguments import checked
from raftlog.client.core import Core, Namespace
from raftlog.client.key_values import Put, put_with_lease
from raftlog.client.values import ItemResult, Listing, PlaceResult, WaitOptions
from raftlog.client.wire import reader
from raftlog.errors import ApiError, ClientClosedError, ErrorCode
from raftlog.logger import get_logger
from raftlog.outcome import LogOffset, WriteResult, generation_of
from raftlog.wire.controller.v1 import controller_pb2

log = get_logger(__name__)

BELIEVED_SHARE = 0.75
"""Share of a lease's time to live for which its holder relies on it. The rest allows for clocks at
different speeds: it suffices unless one clock runs a third faster than another.
"""
_KEEP_SHARE = 0.25
"""Pause between two keep-alives, as a share of a lease's time to live."""
_PAUSE_S = 0.1
_ATTEMPT_MIN_S = 0.2
_KEPT_AT_ONCE = 1_000
"""Maximum number of leases in one request."""
_OVER = frozenset({ErrorCode.RESOURCE_NOT_FOUND, ErrorCode.INCONSISTENT_GENERATION})
"""Errors for a lease that has ended, or belongs to another log."""


_TTL_MAX_S = 2**31
"""Longest time to live in seconds; above any cluster's limit."""


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease as the active controller sees it."""

    id: LogOffset
    name: str
    ttl_s: float
    remaining_s: float
    """Seconds until the lease ends without a keep-alive."""
    principal: str
    key_count: int


class AsyncLease:
    """A lease that is kept alive in the background until it is revoked or lost.

    It is lost when no keep-alive was confirmed for three quarters of its time to live, counted from
    when the confirmed request was *sent*: before the cluster ends it, allowing for the error of
    clocks. A lost lease stays lost.
    """

    def __init__(
        self,
        core: Core,
        lease_id: LogOffset,
        ttl_s: float,
        sent_at: float,
        granted: WriteResult[PlaceResult],
    ) -> None:
        self._core, self.id, self.ttl_s = core, lease_id, ttl_s
        self.granted = granted
        """The write that granted the lease; its items are the keys that were put with it."""
        self._loop = asyncio.get_running_loop()
        self._believed_s = ttl_s * BELIEVED_SHARE
        self._until = sent_at + self._believed_s
        self._ends_at = sent_at + ttl_s
        self._lost = asyncio.Event()
        self._why = ""
        self._timer = self._loop.call_at(self._until, self._look)
        self._keeper = LeaseKeeper.of(core, ttl_s, self.id.generation)
        self._keeper.add(self)
        core.end_with_client(self)

    @property
    def is_held(self) -> bool:
        """Whether, by the local clock, the cluster cannot have ended the lease."""
        return not self._lost.is_set() and self._loop.time() < self._until

    @property
    def remaining_s(self) -> float:
        """Seconds for which, by the local clock, the cluster keeps the lease without a keep-alive;
        0 if the cluster has reported that the lease has ended.
        """
        return max(0.0, self._ends_at - self._loop.time())

    @property
    def why_lost(self) -> str:
        """Why the lease was lost, as text; "" while it is held."""
        return self._why

    @checked
    async def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the lease is lost or revoked. Return False if the timeout passes first."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._lost.wait()
        return not self.is_held

    @checked
    async def revoke(self, *, timeout_s: float | None = None) -> None:
        """End the lease, and delete its keys. Not an error if it has already ended."""
        self.end("revoked")
        body = controller_pb2.RevokeLeaseRequest(lease_id=self.id, generation=self.id.generation)
        try:
            await self._core.write(body, {"timeout_s": timeout_s})
        except ApiError as error:
            if error.code not in _OVER or error.outcome_unknown:
                raise

    async def __aenter__(self) -> Self:
        if self._core.closed.is_set():
            raise ClientClosedError()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.revoke()
        except ApiError as failed:
            # The lease will expire.
            log.info("could not revoke a lease", lease_id=self.id, reason=str(failed))

    def abandon(self) -> None:
        """Stop the keep-alives, and stop relying on the lease; in the cluster the lease remains
        until it expires.
        """
        self.end("abandoned")

    # --- in the background -----------------------------------------------------------------------

    def kept(self, sent_at: float) -> None:
        """Process the confirmation of a keep-alive sent at ``sent_at``."""
        if self.is_held:  # Otherwise too late: its loss may already have been reported.
            self._until = max(self._until, sent_at + self._believed_s)
            self._ends_at = max(self._ends_at, sent_at + self.ttl_s)

    def gone(self, why: str) -> None:
        """Process the report that the lease has ended."""
        self._ends_at = self._loop.time()
        self.end(why)

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._until:
            self.end(f"no keep-alive was confirmed for {self._believed_s:g} s")
        elif not self._lost.is_set():
            self._timer = self._loop.call_at(self._until, self._look)

    def end(self, why: str) -> None:
        """Stop the keep-alives, and stop relying on the lease."""
        if not self._lost.is_set():
            self._why = why
            self._lost.set()
        self._timer.cancel()
        self._keeper.discard(self)


class LeaseKeeper:
    """The keep-alives for one client's leases with the same time to live, one request for all of
    them.
    """

    def __init__(self, core: Core, ttl_s: float, generation: int) -> None:
        self._core, self._ttl_s, self._generation = core, ttl_s, generation
        self._loop = asyncio.get_running_loop()
        self._leases: dict[int, AsyncLease] = {}
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, core: Core, ttl_s: float, generation: int) -> LeaseKeeper:
        """Return the keeper for the client's leases with this time to live and log."""
        keepers = core.lease_keepers
        return keepers.setdefault((ttl_s, generation), cls(core, ttl_s, generation))

    def add(self, lease: AsyncLease) -> None:
        """Start to keep a lease alive."""
        self._leases[lease.id] = lease
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    def discard(self, lease: AsyncLease) -> None:
        """Stop keeping a lease alive."""
        known = self._leases.pop(lease.id, None)
        if known is not None and not self._leases and self._task is not None:
            self._core.lease_keepers.pop((self._ttl_s, self._generation), None)
            if self._task is not asyncio.current_task():
                self._task.cancel()

    async def _run(self) -> None:
        pause_s = self._ttl_s * _KEEP_SHARE
        while self._leases:
            await asyncio.sleep(pause_s)
            sent_at = self._loop.time()
            leases = list(self._leases.values())
            parts = [leases[at : at + _KEPT_AT_ONCE] for at in range(0, len(leases), _KEPT_AT_ONCE)]
            if all(await asyncio.gather(*(self._keep(part, sent_at) for part in parts))):
                pause_s = max(0.0, self._ttl_s * _KEEP_SHARE - (self._loop.time() - sent_at))
            else:
                pause_s = min(_PAUSE_S, self._ttl_s * _KEEP_SHARE / 4)

    async def _keep(self, leases: list[AsyncLease], sent_at: float) -> bool:
        """Send one request for these leases; return whether each was answered."""
        first, *more = (lease.id for lease in leases)
        body = controller_pb2.KeepLeaseAliveRequest(
            lease_id=first, generation=self._generation, more_lease_ids=more
        )
        # Leaves time for several more attempts if one is lost.
        attempt_s = max(_ATTEMPT_MIN_S, self._ttl_s * _KEEP_SHARE / 2)
        principal = self._core.options.principal
        try:
            response = await self._core.send(body, timeout_s=attempt_s, principal=principal)
        except ApiError as error:
            if error.code is not ErrorCode.RESOURCE_NOT_FOUND:
                log.debug("could not keep leases alive", count=len(leases), reason=str(error))
                return False
            for lease in leases:
                lease.gone(error.message)
            return True
        answer = response.keep_lease_alive
        kept = [answer.ttl_ms, *answer.more_ttl_ms]
        for lease, ttl_ms in zip(leases, kept, strict=False):
            if ttl_ms:
                lease.kept(sent_at)
            else:
                lease.gone(f"there is no lease {lease.id}: it has expired, or was revoked")
        return len(kept) == len(leases)


def ttl_ms_of(ttl_s: float) -> int:
    """Return a time to live in milliseconds. Raises ValueError; the cluster has its own limits."""
    if not 0 < ttl_s <= _TTL_MAX_S:
        raise ValueError(f"ttl_s={ttl_s!r:.80}: must be above 0 and at most {_TTL_MAX_S} seconds")
    return round(ttl_s * 1000)


def first_of(granted: WriteResult[PlaceResult], puts: int) -> LogOffset:
    """Return the id of the lease that a write granted together with its puts: the first record's
    offset.
    """
    return LogOffset(granted.offset - puts, granted.offset.generation)


class AsyncLeases(Namespace):
    """Calls about leases: ``client.leases``."""

    async def grant(
        self,
        ttl_s: float = 10.0,
        *,
        name: str = "",
        puts: Sequence[Put] = (),
        **how: Unpack[WaitOptions],
    ) -> AsyncLease:
        """Grant a lease, which is kept alive in the background.

        ``name``: a description for operators. ``puts``: keys to put in the same write, all or none;
        their ``lease_id`` is ignored. Raises the same errors as ``client.kv.alter`` for their
        conditions.
        """
        core = self._core
        sent_at = asyncio.get_running_loop().time()
        lease = controller_pb2.GrantLeaseRequest(name=name, ttl_ms=ttl_ms_of(ttl_s))
        result: WriteResult[PlaceResult] = await (
            put_with_lease(core, puts, lease, how) if puts else core.write(lease, how)
        )
        lease_id = first_of(result, len(puts))
        return AsyncLease(core, lease_id, lease.ttl_ms / 1000, sent_at, result)

    async def keep_alive(
        self, lease_id: int, *, generation: int | None = None, timeout_s: float | None = None
    ) -> float:
        """Restart a lease's time to live; return its remaining time from the moment of the call, in
        seconds. Raises ResourceNotFoundError.

        ``generation``: the log's generation for the id, if it is a stored number: see
        :class:`raftlog.LogOffset`.
        """
        of = generation_of(lease_id) if generation is None else generation
        body = controller_pb2.KeepLeaseAliveRequest(lease_id=lease_id, generation=of)
        response = await self._core.ask_controller(body, timeout_s)
        return response.keep_lease_alive.ttl_ms / 1000

    async def revoke(
        self, lease_id: int, *, generation: int | None = None, **how: Unpack[WaitOptions]
    ) -> WriteResult:
        """End a lease, and delete its keys. See ``keep_alive``. Raises ResourceNotFoundError."""
        of = generation_of(lease_id) if generation is None else generation
        body = controller_pb2.RevokeLeaseRequest(lease_id=lease_id, generation=of)
        return await self._core.write(body, how, lambda _: (ItemResult(f"lease {lease_id}"),))

    async def list(self, *, timeout_s: float | None = None) -> Listing[LeaseInfo]:
        """Return all leases sorted by id, from the controller."""
        response = await self._core.ask_controller(controller_pb2.ListLeasesRequest(), timeout_s)
        answer = response.list_leases
        lease = reader(
            LeaseInfo,
            id=lambda one: LogOffset(one.lease_id, answer.generation),
            ttl_s=lambda one: one.ttl_ms / 1000,
            remaining_s=lambda one: one.remaining_ms / 1000,
        )
        return Listing(map(lease, answer.leases), answer.offset)

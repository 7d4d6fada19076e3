"""Requests that wait to be decided: bounded, in order of arrival for each connection, each with the
time by which its answer is due.

Connections take turns: whoever sends ten thousand requests delays itself alone. Heartbeats go
before all others, and have a bound of their own: behind a backlog that is longer than
``broker.fencing.timeout.ms`` every broker would hear nothing for so long, and fence itself.
Requests that only read go behind all others: each costs as much as many writes, and nothing is
written meanwhile. A read is never decided before what its own connection has sent before it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from controller.service.deadlines import SLACK, Deadlines
from raftlog import resource_limits as limits
from raftlog.config_writes.messages import ConfigWrites
from raftlog.errors import ApiError, ErrorCode
from raftlog.fair_queue import FairQueue
from raftlog.limits.timeouts import bounded_timeout_ms
from raftlog.shares import Shares
from raftlog.wire.controller.v1 import controller_pb2 as pb

MAX_WAITING = limits.CONTROLLER_MAX_WAITING_REQUESTS
MAX_REQUEST_BYTES = limits.CONTROLLER_REQUEST_MAX_BYTES
READS = frozenset(
    {
        "describe_acls", "describe_brokers", "list_export_cursors", "list_hostnames",
        "list_leases", "list_partition_reassignments",
    }
)  # fmt: skip
"""Requests that write nothing, whatever is in them."""
_HEARTBEATS, _REQUESTS, _READS = range(3)
"""The lines in which requests wait, in this order."""


class Waiting(msgspec.Struct, eq=False):
    """A request, whom to answer, and by when (seconds of the loop's clock)."""

    link: Any
    request: pb.ControllerRequest | ConfigWrites
    deadline: float
    size: int
    """Bytes of the request."""
    peer: str | None = None
    """Who shares: all links of a connection are one. None: this node's own request."""
    charged: bool = False
    """Whether it takes of its connection's share, which it does while it waits."""
    line: int = _REQUESTS
    """In which it waits."""
    done: bool = False
    """Taken, or given up: it waits here no more."""
    queued: bool = True
    """It waits for its turn; else it is put off."""
    kind: str = ""
    """The name of its body."""
    count: int = 1
    """How many requests it is: more only for a group."""
    begun: float = 0.0
    """When it came, by the stopwatch."""

    @property
    def cost_bytes(self) -> int:
        """What it takes of that."""
        return self.size + self.count * limits.CONTROLLER_WAITING_REQUEST_BYTES


class Intake:
    """The queue in front of the controller."""

    def __init__(self, default_timeout_ms: int, max_timeout_ms: int = 2**31 - 1) -> None:
        """``default_timeout_ms``: of a request that names none; ``max_timeout_ms``: of one that
        names a longer one.
        """
        self._default_timeout_ms = default_timeout_ms
        self._max_timeout_ms = max_timeout_ms
        self._lines: tuple[FairQueue[Waiting], ...] = tuple(FairQueue() for _ in range(3))
        self._heartbeats, self._queue, self._reads = self._lines
        self._deferred: list[tuple[float, int, Waiting]] = []
        """A heap: (when to queue it again, a number, the request)."""
        self._deferred_count = 0
        self._deadlines: Deadlines[Waiting] = Deadlines()
        self._dead = [0, 0, 0]
        """In each line, but done."""
        self._more = 0
        """Requests that wait in groups, without the first of each."""
        self._shares = Shares(limits.CONTROLLER_MAX_WAITING_BYTES)
        self.waiting_bytes = 0
        """Of the requests that wait."""

    def __len__(self) -> int:
        # Asked several times a request: without a loop.
        dead = self._dead
        queued = self._queue.length + self._heartbeats.length + self._reads.length
        return queued + self._more - dead[0] - dead[1] - dead[2]

    @property
    def reads(self) -> int:
        """How many requests that only read wait."""
        return self._reads.length - self._dead[_READS]

    def add(
        self,
        link: Any,
        request: pb.ControllerRequest | ConfigWrites,
        now: float,
        *,
        heartbeat: bool = False,
        kind: str = "",
        begun: float = 0.0,
    ) -> None:
        """Queue a request, or a group of them.

        Raises MESSAGE_TOO_LARGE, INVALID_REQUEST for a negative timeout, and
        THROTTLING_QUOTA_EXCEEDED if too many wait: nothing was done.

        ``link`` None: this node's own, which shares with nobody. ``kind``: the name of its body, if
        it is known. ``begun``: when it came, by the stopwatch.
        """
        if type(request) is ConfigWrites:
            count, size = len(request.counts), request.size
        else:
            count, kind = 1, kind or request.WhichOneof("body") or ""  # type: ignore[union-attr]
            size = request.ByteSize()
        if size > MAX_REQUEST_BYTES:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the request has {size} bytes, more than the {MAX_REQUEST_BYTES} allowed",
                field=kind,
            )
        peer = None if link is None else link.peer
        if (
            heartbeat
            and self._heartbeats.length_of(peer) >= limits.CONTROLLER_MAX_WAITING_HEARTBEATS_A_PEER
        ):
            heartbeat = False
        dead = self._dead
        if heartbeat:
            line, waiting_now = _HEARTBEATS, self._heartbeats.length - dead[_HEARTBEATS]
        else:
            # Behind another request of its connection a read waits with that.
            line = _READS if kind in READS and not self._queue.length_of(peer) else _REQUESTS
            waiting_now = self._queue.length + self._reads.length - dead[_REQUESTS] - dead[_READS]
        if waiting_now + self._more + len(self._deferred) >= MAX_WAITING:
            raise _throttled(f"{MAX_WAITING} requests wait already")
        timeout_ms = bounded_timeout_ms(
            request.timeout_ms,
            "timeout_ms",
            default_ms=self._default_timeout_ms,
            max_ms=self._max_timeout_ms,
        )
        charged = peer is not None
        if charged and not self._shares.take(
            peer, size + count * limits.CONTROLLER_WAITING_REQUEST_BYTES
        ):
            raise _throttled("this connection's share of the requests that may wait is used up")
        waiting = Waiting(
            link,
            request,
            now + timeout_ms / 1000,
            size,
            peer,
            charged,
            line,
            kind=kind,
            count=count,
            begun=begun,
        )
        self._lines[line].push(peer, waiting)
        self._more += count - 1
        self._deadlines.add(waiting)
        self.waiting_bytes += size

    def take(self, *, reads: bool = False) -> Waiting | None:
        """The next heartbeat, or the next of the others but reads; with ``reads`` the next read.
        None if there is none.
        """
        first, then = (self._reads, self._reads) if reads else (self._heartbeats, self._queue)
        while first.length or then.length:
            waiting = (first if first.length else then).pop()
            assert waiting is not None
            if waiting.done:
                self._dead[waiting.line] -= 1
                continue
            # As ``_gone``: this is on the way of every request.
            size, count = waiting.size, waiting.count
            waiting.done = True
            self.waiting_bytes -= size
            self._more -= count - 1
            if waiting.charged:
                waiting.charged = False
                self._shares.give_back(
                    waiting.peer, size + count * limits.CONTROLLER_WAITING_REQUEST_BYTES
                )
            return waiting
        return None

    def next_kind(self) -> str:
        """Of the one that ``take`` returns, no read; empty: none."""
        for queue in (self._heartbeats, self._queue):
            for waiting in queue:
                if not waiting.done:
                    return waiting.kind
        return ""

    def defer(self, waiting: Waiting, until: float) -> None:
        """A request that was taken and cannot be decided before ``until``."""
        waiting.done = waiting.queued = False
        self._deferred_count += 1
        heapq.heappush(self._deferred, (until, self._deferred_count, waiting))
        self._deadlines.add(waiting)

    def wake(self, now: float) -> bool:
        """Queue those again whose time to be decided has come; whether there are any."""
        woken = False
        while self._deferred and self._deferred[0][0] <= now:
            waiting = heapq.heappop(self._deferred)[2]
            if not waiting.done:
                waiting.queued, waiting.line = True, _REQUESTS
                waiting.charged = waiting.peer is not None and self._shares.take(
                    waiting.peer, waiting.cost_bytes
                )
                self._queue.push(waiting.peer, waiting)
                self.waiting_bytes += waiting.size
                self._more += waiting.count - 1
                woken = True
        return woken

    def abandon(self, links: Collection[Any]) -> None:
        """These links are gone: what was put off for them is dropped.

        What waits its turn is decided all the same.
        """
        for _, _, waiting in self._deferred:
            if waiting.link in links:
                waiting.done = True

    def drain(self) -> Iterator[Waiting]:
        """All of them, one after the other; whoever stops in between leaves the rest."""
        self.wake(math.inf)
        for reads in (False, True):
            while (waiting := self.take(reads=reads)) is not None:
                yield waiting

    def expired(self, now: float) -> Iterator[Waiting]:
        """Take out those whose time is up, one after the other: they were not begun.

        Whoever stops in between goes on next time.
        """
        if sum(self._dead) > len(self) + SLACK:
            for line in self._lines:
                line.remove(lambda waiting: waiting.done)
            self._dead = [0, 0, 0]
        for waiting in self._deadlines.late(now, len(self) + len(self._deferred)):
            waiting.done = True
            if waiting.queued:
                self._dead[waiting.line] += 1
                self._gone(waiting)
            yield waiting

    def _gone(self, waiting: Waiting) -> None:
        self.waiting_bytes -= waiting.size
        self._more -= waiting.count - 1
        if waiting.charged:
            waiting.charged = False
            self._shares.give_back(waiting.peer, waiting.cost_bytes)


def _throttled(message: str) -> ApiError:
    return ApiError(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED, message, throttle_time_ms=limits.RETRY_AFTER_MS
    )

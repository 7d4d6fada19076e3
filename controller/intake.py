"""Requests that wait to be decided: bounded, in order of arrival for each connection, each with the time by which its answer is due.

Connections take turns: whoever sends ten thousand requests delays itself alone. Heartbeats go before all others, and have a bound of
their own: behind a backlog that is longer than ``broker.fencing.timeout.ms`` every broker would hear nothing for so long, and fence
itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from raftlog import resource_limits as limits
from raftlog.errors import ApiError, ErrorCode
from raftlog.fair_queue import FairQueue
from raftlog.shares import Shares
from raftlog.wire.controller.v1 import controller_pb2 as pb

MAX_WAITING = limits.CONTROLLER_MAX_WAITING_REQUESTS
MAX_REQUEST_BYTES = limits.CONTROLLER_REQUEST_MAX_BYTES


@dataclass(slots=True, eq=False)
class Waiting:
    """A request, whom to answer, and by when (seconds of the loop's clock)."""

    link: Any
    request: pb.ControllerRequest
    deadline: float
    size: int
    """Bytes of the request."""
    peer: str | None = None
    """Who shares: all links of a connection are one. None: this node's own request."""
    charged: bool = False
    """Whether it takes of its connection's share, which it does while it waits."""

    @property
    def cost_bytes(self) -> int:
        """What it takes of that."""
        return self.size + limits.CONTROLLER_WAITING_REQUEST_BYTES


class Intake:
    """The queue in front of the controller."""

    def __init__(self, default_timeout_s: float, max_timeout_s: float = math.inf) -> None:
        """``default_timeout_s``: of a request that names none; ``max_timeout_s``: the longest that one may name."""
        self._default_timeout_s = default_timeout_s
        self._max_timeout_s = max_timeout_s
        self._queue: FairQueue[Waiting] = FairQueue()
        self._heartbeats: FairQueue[Waiting] = FairQueue()
        self._deferred: list[tuple[float, Waiting]] = []
        """(when to queue it again, the request)."""
        self._shares = Shares(limits.CONTROLLER_MAX_WAITING_BYTES)
        self.waiting_bytes = 0
        """Of the requests that wait."""

    def __len__(self) -> int:
        return len(self._queue) + len(self._heartbeats)

    def add(self, link: Any, request: pb.ControllerRequest, now: float, *, heartbeat: bool = False) -> None:
        """Queue a request. Raises MESSAGE_TOO_LARGE, and THROTTLING_QUOTA_EXCEEDED if too many wait: nothing was done.

        ``link`` None: this node's own, which shares with nobody.
        """
        size = request.ByteSize()
        if size > MAX_REQUEST_BYTES:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the request has {size} bytes, more than the {MAX_REQUEST_BYTES} allowed",
                field=request.WhichOneof("body") or "",
            )
        peer = None if link is None else link.peer
        if heartbeat and self._heartbeats.length_of(peer) >= limits.CONTROLLER_MAX_WAITING_HEARTBEATS_A_PEER:
            heartbeat = False
        queue = self._heartbeats if heartbeat else self._queue
        if queue.length + len(self._deferred) >= MAX_WAITING:
            raise _throttled(f"{MAX_WAITING} requests wait already")
        timeout_s = request.timeout_ms / 1000 if request.timeout_ms > 0 else self._default_timeout_s
        charged = peer is not None
        if charged and not self._shares.take(peer, size + limits.CONTROLLER_WAITING_REQUEST_BYTES):
            raise _throttled("this connection's share of the requests that may wait is used up")
        queue.push(peer, Waiting(link, request, now + min(timeout_s, self._max_timeout_s), size, peer, charged))
        self.waiting_bytes += size

    def take(self) -> Waiting | None:
        """The next heartbeat, or the next of the others; None if there is none."""
        waiting = (self._heartbeats if self._heartbeats.length else self._queue).pop()
        if waiting is not None:
            # As ``_gone``: this is on the way of every request.
            size = waiting.size
            self.waiting_bytes -= size
            if waiting.charged:
                waiting.charged = False
                self._shares.give_back(waiting.peer, size + limits.CONTROLLER_WAITING_REQUEST_BYTES)
        return waiting

    def defer(self, waiting: Waiting, until: float) -> None:
        """A request that was taken and cannot be decided before ``until``."""
        self._deferred.append((until, waiting))

    def wake(self, now: float) -> bool:
        """Queue those again whose time to be decided has come; whether there are any."""
        due = [waiting for until, waiting in self._deferred if until <= now]
        if due:
            self._deferred = [entry for entry in self._deferred if entry[0] > now]
            for waiting in due:
                waiting.charged = waiting.peer is not None and self._shares.take(waiting.peer, waiting.cost_bytes)
                self._queue.push(waiting.peer, waiting)
                self.waiting_bytes += waiting.size
        return bool(due)

    def abandon(self, links: Collection[Any]) -> None:
        """These links are gone: what was put off for them is dropped. What waits its turn is decided all the same."""
        if self._deferred:
            self._deferred = [entry for entry in self._deferred if entry[1].link not in links]

    def drain(self) -> Iterator[Waiting]:
        """All of them."""
        self.wake(math.inf)
        while (waiting := self.take()) is not None:
            yield waiting

    def expired(self, now: float) -> list[Waiting]:
        """Take out those whose time is up: they were not begun."""
        late_deferred = [waiting for _, waiting in self._deferred if waiting.deadline <= now]
        if late_deferred:
            self._deferred = [entry for entry in self._deferred if entry[1].deadline > now]
        late = [one for queue in (self._heartbeats, self._queue) for one in queue.remove(lambda w: w.deadline <= now)]
        for waiting in late:
            self._gone(waiting)
        return late_deferred + late

    def _gone(self, waiting: Waiting) -> None:
        size = waiting.size
        self.waiting_bytes -= size
        if waiting.charged:
            waiting.charged = False
            self._shares.give_back(waiting.peer, size + limits.CONTROLLER_WAITING_REQUEST_BYTES)


def _throttled(message: str) -> ApiError:
    return ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message, throttle_time_ms=limits.RETRY_AFTER_MS)
